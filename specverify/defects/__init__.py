# SPDX-License-Identifier: Apache-2.0
"""Known defects of speculative decoding as code that runs, and what names them.

Every entry of `CATALOGUE` is one small change to a correct verifier, and every entry of
`DECODERS` one to a correct decoder, with the public reports of it, the input that shows it
and the size of the bias there. `CONTROLS` and `DECODER_CONTROLS` look like defects and are
lossless: no check may flag one.
"""

from specverify.defects.catalogue import (
    CATALOGUE,
    CONTROLS,
    DECODER_CONTROLS,
    DECODERS,
)
from specverify.defects.entry import DecoderDefect, Defect, Entry

__all__ = [
    "CATALOGUE",
    "CONTROLS",
    "DECODERS",
    "DECODER_CONTROLS",
    "DecoderDefect",
    "Defect",
    "Entry",
]
