# SPDX-License-Identifier: Apache-2.0
"""Spend the error rate of a run over everything that is tested in it.

Guarantee. Each check owns a share of the run's error rate. Its t-th distinct example is
tested at a level that depends on t alone, and the levels of all t, however many, add up
to the share. The draws of an example are a function of (salt, check, example), so
distinct examples have independent draws. Whatever search picks the examples, shrinking
and replay included, the probability that any correctly handled example is ever called a
violation is then at most the error rate of the run (union bound).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Levels for the distinct examples of one check.

    Half of the share is spread evenly over the planned examples, the other half as
    ``1/(j (j + 1))`` over whatever comes beyond.

    Attributes
    ----------
    share
        Error rate of the check.
    planned
        Number of examples that the profile asks for.
    """

    share: float
    planned: int
    _spent: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Refuse a share or a plan that cannot be spent."""
        if not 0 < self.share < 1:
            msg = f"share is {self.share}; allowed is the open interval (0, 1)"
            raise ValueError(msg)
        if self.planned < 1:
            msg = f"planned is {self.planned}; allowed is 1 or more"
            raise ValueError(msg)

    @property
    def planned_level(self) -> float:
        """Level of each planned example."""
        return self.share / 2 / self.planned

    def next_level(self) -> float:
        """Level of the next distinct example; each call spends it."""
        self._spent += 1
        beyond = self._spent - self.planned
        if beyond <= 0:
            return self.planned_level
        return self.share / 2 / (beyond * (beyond + 1))


def derive_seed(salt: int, *parts: str | bytes) -> int:
    """Seed of one stream of draws: 63 bits of SHA-256 over salt and parts.

    Parameters
    ----------
    salt
        The seed of the run.
    parts
        What the stream belongs to: check id, canonical bytes of the case, purpose.
    """
    digest = hashlib.sha256(str(salt).encode())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return int.from_bytes(digest.digest()[:8], "big") >> 1
