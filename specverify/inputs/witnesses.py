# SPDX-License-Identifier: Apache-2.0
"""Named inputs on which known defects show.

Each has what blind inputs lack: a residual over several tokens with unequal masses, rows
that differ from position to position, or tokens that must never appear. They are tried
before anything random.
"""

from __future__ import annotations

from typing import Final

from specverify.inputs.cases import Case
from specverify.inputs.models import ToyModel


def _rows(*rows: str) -> ToyModel:
    return ToyModel.from_positions([row.split() for row in rows])


def _case(
    name: str, target: ToyModel, draft: ToyModel, *, deterministic: bool = False
) -> Case:
    k = len(draft.rows) if draft.memory == 0 else draft.memory + 1
    return Case(target, draft, k, deterministic=deterministic, name=name)


#: Dyadic and of full support: each published one-token defect moves its law by 0.06 or
#: more. Exactly representable in bfloat16.
W: Final = _case(
    "W",
    _rows("8/32 4/32 9/32 11/32", "11/32 9/32 4/32 8/32"),
    _rows("4/32 21/32 6/32 1/32"),
)
#: One token too likely under the draft, residual over two tokens.
C1: Final = _case("C1", _rows(".2 .3 .5", ".5 .3 .2"), _rows(".6 .2 .2"))
#: A residual of equal masses far from p.
C3: Final = _case("C3", _rows(".1 .45 .45", ".45 .1 .45"), _rows(".8 .15 .05"))
#: A token that the draft proposes and the target excludes.
C5: Final = _case("C5", _rows(".7 .2 .1 0", "0 .1 .2 .7"), _rows(".25 .25 .25 .25"))
#: Two drafts, all rows different: mixed up rows show.
J1: Final = _case(
    "J1",
    _rows(".2 .3 .5", ".5 .2 .3", ".1 .7 .2"),
    _rows(".6 .2 .2", ".2 .5 .3"),
)
#: J1 with a second position at which the draft is far off.
J2: Final = _case(
    "J2",
    _rows(".2 .3 .5", ".5 .3 .2", ".1 .7 .2"),
    _rows(".6 .2 .2", ".1 .1 .8"),
)
#: Like J1, but p and q also depend on the drafted token: a Markov chain.
M1: Final = Case(
    ToyModel.from_table(
        {
            (): ("1/5", "3/10", "1/2"),
            (0,): ("1/2", "1/5", "3/10"),
            (1,): ("1/10", "7/10", "1/5"),
            (2,): ("3/10", "2/5", "3/10"),
        },
        memory=1,
    ),
    ToyModel.from_table(
        {
            (): ("3/5", "1/5", "1/5"),
            (0,): ("1/5", "1/2", "3/10"),
            (1,): ("2/5", "1/5", "2/5"),
            (2,): ("7/10", "1/10", "1/5"),
        },
        memory=1,
    ),
    k=2,
    name="M1",
)
#: The smallest input on which subtracting q at the drafted token only is wrong.
S1: Final = _case("S1", _rows(".2 .2 .6", ".6 .2 .2"), _rows(".6 .3 .1"))
#: A draft given as a token: q is one-hot.
O1: Final = _case(
    "O1", _rows(".5 .25 .25", ".25 .5 .25"), _rows("1 0 0"), deterministic=True
)

#: Ties at the top of every row.
T1: Final = _case(
    "T1", _rows(".5 .5 0", "0 .5 .5", ".4 .2 .4"), _rows(".2 .5 .3", ".1 .3 .6")
)
#: Two deterministic drafts.
O2: Final = _case(
    "O2",
    _rows(".5 .25 .25", ".25 .5 .25", ".1 .3 .6"),
    _rows("1 0 0", "0 0 1"),
    deterministic=True,
)
#: W continued: two drafts, all entries multiples of 1/16.
W2: Final = _case(
    "W2",
    _rows("4/16 9/16 3/16", "7/16 1/16 8/16", "2/16 5/16 9/16"),
    _rows("10/16 4/16 2/16", "3/16 8/16 5/16"),
)
#: Every position excludes another token, and the draft proposes it.
Z2: Final = _case(
    "Z2", _rows("0 .5 .5", ".5 0 .5", ".5 .5 0"), _rows(".5 .3 .2", ".2 .5 .3")
)
#: No token in common.
D1: Final = _case("D1", _rows(".3 .7 0 0", "0 .4 0 .6"), _rows("0 0 .5 .5"))
D2: Final = _case(
    "D2", _rows(".3 .7 0", "0 .4 .6", ".2 .3 .5"), _rows("0 0 1", "1 0 0")
)
#: Almost equal: p and q differ by 2^-12, which float32 still holds.
N1: Final = _case(
    "N1",
    _rows("1025/4096 1023/4096 1024/4096 1024/4096", ".1 .2 .3 .4"),
    _rows("1/4 1/4 1/4 1/4"),
)
#: Draft and target agree wherever a draft stands: only the bonus token is new.
B1: Final = _case("B1", _rows(".5 .3 .2", ".1 .2 .7"), _rows(".5 .3 .2"))
B2: Final = _case(
    "B2", _rows(".5 .3 .2", ".2 .5 .3", ".1 .2 .7"), _rows(".5 .3 .2", ".2 .5 .3")
)
#: Two tokens, rows that depend on the token before: for long drafts.
P2: Final = Case(
    ToyModel.from_table(
        {(): (".6", ".4"), (0,): (".3", ".7"), (1,): (".8", ".2")}, memory=1
    ),
    ToyModel.from_table(
        {(): (".3", ".7"), (0,): (".5", ".5"), (1,): (".4", ".6")}, memory=1
    ),
    k=2,
    name="P2",
)

#: All of them by name.
WITNESSES: Final = {
    case.name: case
    for case in (
        W,
        W2,
        C1,
        C3,
        C5,
        J1,
        J2,
        M1,
        S1,
        T1,
        O1,
        O2,
        Z2,
        D1,
        D2,
        N1,
        B1,
        B2,
        P2,
    )
}
