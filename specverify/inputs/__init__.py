# SPDX-License-Identifier: Apache-2.0
"""What is put to an implementation: toy models, cases, named witnesses, strategies.

`specverify.inputs.strategies` needs Hypothesis and is imported by name.
"""

from specverify.inputs.cases import Case
from specverify.inputs.models import ToyModel
from specverify.inputs.witnesses import WITNESSES

__all__ = ["WITNESSES", "Case", "ToyModel"]
