# SPDX-License-Identifier: Apache-2.0
"""What a run promises: error rates, resolution, effort."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

from specverify.errors import UsageError, nearest
from specverify.evidence.records import Claim


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a run. The sample counts follow from the error rates.

    Attributes
    ----------
    profile
        Name of the profile that the rest started from.
    error_rate
        Probability of calling a correct subject lossy or broken, for the whole run.
    detect_tv
        Total variation that must be seen on every tested input ...
    power
        ... with this probability.
    examples
        Generated inputs a check tries beyond its named witnesses.
    max_seconds
        Time for the whole run. A slow subject gets fewer inputs and, if that is not
        enough, fewer draws: then the run is inconclusive.
    call_seconds
        Time limit of a single call of the subject.
    seed
        Salt of every draw.
    device
        Where the tensors live.
    strict_efficiency
        Whether accepting less than declared fails the run.
    """

    profile: str = "ci"
    error_rate: float = 1e-9
    detect_tv: float = 0.05
    power: float = 0.99
    examples: int = 100
    max_seconds: float = 60.0
    call_seconds: float = 60.0
    seed: int = 0
    device: str = "cpu"
    strict_efficiency: bool = False

    def __post_init__(self) -> None:
        """Refuse rates that are none and budgets that buy nothing."""
        for name in ("error_rate", "detect_tv", "power"):
            value = getattr(self, name)
            if not 0 < value < 1:
                msg = f"{name} is {value}; allowed is the open interval (0, 1)"
                raise UsageError(msg)
        for name in ("max_seconds", "call_seconds"):
            value = getattr(self, name)
            if not value > 0:
                msg = f"{name} is {value}; allowed is more than 0"
                raise UsageError(msg)
        if self.examples < 0:
            msg = f"examples is {self.examples}; allowed is 0 or more"
            raise UsageError(msg)

    @property
    def claim(self) -> Claim:
        """Both errors, as they are written into the evidence."""
        return Claim(self.error_rate, self.detect_tv, self.power)


PROFILES: Final = {
    "quick": Plan(profile="quick", examples=5),
    "ci": Plan(profile="ci"),
    "nightly": Plan(
        profile="nightly", detect_tv=0.02, examples=300, max_seconds=3600.0
    ),
}


def make_plan(profile: str = "ci", **changes: Any) -> Plan:
    """Start from a profile and change what is given; None changes nothing.

    Raises
    ------
    UsageError
        Unknown profile, or a value out of range.
    """
    if profile not in PROFILES:
        hint = nearest(str(profile), PROFILES)
        msg = f"profile is {profile!r}{hint} Allowed are {', '.join(PROFILES)}"
        raise UsageError(msg)
    given = {name: value for name, value in changes.items() if value is not None}
    for name, value in given.items():
        _check_setting(name, value)
    return replace(PROFILES[profile], **given)


def _check_setting(name: str, value: object) -> None:
    """Refuse a setting that a plan does not have, or a value of another type."""
    defaults = {f.name: f.default for f in fields(Plan) if f.name != "profile"}
    if name not in defaults:
        known = ", ".join(defaults)
        raise UsageError(
            f"setting {name!r} is unknown{nearest(name, defaults)} Known are {known}"
        )
    wanted = type(defaults[name])
    fitting = (int, float) if wanted is float else (wanted,)
    if not isinstance(value, fitting) or (
        isinstance(value, bool) and wanted is not bool
    ):
        raise UsageError(f"{name} is {value!r}; it must be a {wanted.__name__}")
