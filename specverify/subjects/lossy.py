# SPDX-License-Identifier: Apache-2.0
"""Rules that are lossy by design, as subjects, to see what a setting costs.

Each name here loads one with its default settings, as ``lossy:NAME`` does on the command
line (with hyphens). None is run unless it is asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import specverify
from specverify.core import lossy
from specverify.subjects.protocol import Subject, subject


def _loader(fn: Callable[..., Any]) -> Callable[[], Subject]:
    return lambda: subject(
        fn,
        source=f"{fn.__module__}.{fn.__qualname__}, lossy by design",
        version=specverify.__version__,
        dtypes=("float32", "float64", "bfloat16", "float16"),
        draft_probs="optional",
    )


lenient = _loader(lossy.verify_lenient)
typical = _loader(lossy.verify_typical)
threshold = _loader(lossy.verify_threshold)
top_k = _loader(lossy.verify_top_k_accepted)
entropy = _loader(lossy.verify_entropy_scaled)
synthetic = _loader(lossy.verify_synthetic)
