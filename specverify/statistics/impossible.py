# SPDX-License-Identifier: Apache-2.0
"""Events of probability zero: one sight is a proof, and costs no error rate.

Guarantee. A correct subject never shows such an event, so the false-alarm rate is 0. An
event of true mass m is missed by n independent draws with probability ``(1 - m)^n``.
"""

from __future__ import annotations

import math


def samples_to_see(mass: float, *, power: float) -> int:
    """Draws after which an event of probability `mass` has been seen, with `power`."""
    return 1 if mass >= 1 else math.ceil(math.log(1 - power) / math.log1p(-mass))


def smallest_seen(samples: int, *, power: float) -> float:
    """Smallest mass that `samples` draws see with probability `power`."""
    return 1.0 if samples <= 0 else -math.expm1(math.log(1 - power) / samples)
