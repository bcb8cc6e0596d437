# SPDX-License-Identifier: Apache-2.0
"""Known defects of speculative decoding as runnable verifiers, and what names them.

Every entry of `CATALOGUE` is one small change to a correct verifier, with the public
reports of it, the input that shows it and the size of the bias there. `CONTROLS` are forms
that look like defects and are lossless: no check may flag one.
"""

from specverify.defects.catalogue import CATALOGUE, CONTROLS
from specverify.defects.entry import Defect

__all__ = ["CATALOGUE", "CONTROLS", "Defect"]
