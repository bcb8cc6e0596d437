# SPDX-License-Identifier: Apache-2.0
"""Numbers as a reader wants to see them.

All functions are pure and return text without markup. Thousands are separated by a
narrow no-break space, exponents are written without padding (``1e-9``), and a number
that is missing is written as a dash.
"""

from __future__ import annotations

import json
import math
from typing import Final

MISSING: Final = "–"
_GAP: Final = "\u202f"
_FIXED_FROM, _FIXED_BELOW = 1e-4, 1e6


def count(value: int) -> str:
    """Write an integer with its thousands set apart."""
    return f"{value:,}".replace(",", _GAP)


def number(value: float | None, digits: int = 3) -> str:
    """Write a float with `digits` significant digits and no trailing zeros."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "∞" if value > 0 else "−∞"
    if _FIXED_FROM <= abs(value) < _FIXED_BELOW:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
        return _minus(_trim(f"{value:,.{decimals}f}").replace(",", _GAP))
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return _minus(f"{_trim(mantissa)}e{int(exponent)}")


def expected_count(value: float) -> str:
    """Write an expected count: one decimal, or more if it would vanish."""
    if 0 < value < 0.1:
        return number(value, 2)
    return f"{value:,.1f}".replace(",", _GAP)


def signed(value: float) -> str:
    """Write a residual with its sign; an infinite one is an impossible event."""
    if math.isinf(value):
        return "impossible"
    return _minus(f"{value:+,.2f}".replace(",", _GAP))


def rate(value: float | None) -> str:
    """Write a proportion with four decimals."""
    return MISSING if value is None else f"{value:.4f}"


def p_value(p: float | None, log10_p: float | None = None) -> str:
    """Write a p-value, by its logarithm where the float has underflowed.

    Parameters
    ----------
    p
        The p-value, or None if the check has none.
    log10_p
        Its base-10 logarithm, used when `p` is zero or missing.
    """
    if p:
        return number(p, 2)
    if log10_p is None:
        return MISSING if p is None else "below 1e-308"
    exponent = math.floor(log10_p)
    mantissa = f"{10 ** (log10_p - exponent):.1f}"
    if mantissa == "10.0":
        mantissa, exponent = "1.0", exponent + 1
    return f"{_trim(mantissa)}e{exponent}" if exponent else _trim(mantissa)


def e_value(log10: float | None) -> str:
    """Write an e-value given by its base-10 logarithm: ``1e+13.4``."""
    if log10 is None:
        return MISSING
    return number(10**log10) if abs(log10) < 3 else f"1e{log10:+.1f}"


def e_needed(limit: float | None) -> str:
    """Write the e-value at which a decision of error rate `limit` rejects."""
    return MISSING if not limit else f"1e{-math.log10(limit):+.1f}"


def duration(seconds: float) -> str:
    """Write a time span in the units a person would use."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def value(data: object) -> str:
    """Write JSON data, such as the value of a capability, on one line."""
    return json.dumps(data, ensure_ascii=False, default=str)


def plural(amount: int, noun: str) -> str:
    """Write ``1 check`` or ``2 checks``."""
    return f"{count(amount)} {noun}" + ("" if amount == 1 else "s")


def _trim(text: str) -> str:
    """Drop zeros behind the decimal point."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def _minus(text: str) -> str:
    """Replace a leading hyphen by a minus sign; exponents keep the hyphen."""
    return "−" + text[1:] if text.startswith("-") else text
