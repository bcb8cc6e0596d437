# SPDX-License-Identifier: Apache-2.0
"""A generation: one input that can be put to a whole decoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from specverify.inputs import witnesses
from specverify.inputs.models import Context, ToyModel, check_one_vocab


@dataclass(frozen=True)
class Generation:
    """Two models, prompts, and how much is to be written behind them.

    Attributes
    ----------
    target, draft
        Models p and q over one vocabulary.
    prompts
        One for each row of the batch, all of one length, at least one token.
    max_new_tokens
        Most tokens that are written behind each prompt.
    name
        Name of a witness.
    """

    target: ToyModel
    draft: ToyModel
    prompts: tuple[Context, ...]
    max_new_tokens: int
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse what no decoder could be blamed for."""
        check_one_vocab(self.target, self.draft)
        lengths = {len(prompt) for prompt in self.prompts}
        if len(lengths) != 1 or 0 in lengths:
            msg = (
                f"prompts have lengths {sorted(lengths)}; allowed is one length of 1 or "
                "more for all"
            )
            raise ValueError(msg)
        tokens = {token for prompt in self.prompts for token in prompt}
        if not tokens <= set(range(self.vocab)):
            msg = f"prompts hold {sorted(tokens)}; allowed is 0 to {self.vocab - 1}"
            raise ValueError(msg)
        if self.max_new_tokens < 1:
            msg = f"max_new_tokens is {self.max_new_tokens}; allowed is 1 or more"
            raise ValueError(msg)

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return self.target.vocab

    def longer(self, max_new_tokens: int) -> Generation:
        """The same with another length."""
        return replace(self, max_new_tokens=max_new_tokens)


#: Two tokens and models that look back two: what a cache holds shows.
G2: Final = Generation(
    ToyModel.from_table(
        {
            (): (".6", ".4"),
            (0,): (".3", ".7"),
            (1,): (".8", ".2"),
            (0, 0): (".5", ".5"),
            (0, 1): (".15", ".85"),
            (1, 0): (".9", ".1"),
            (1, 1): (".4", ".6"),
        },
        memory=2,
    ),
    ToyModel.from_table(
        {
            (): (".5", ".5"),
            (0,): (".6", ".4"),
            (1,): (".4", ".6"),
            (0, 0): (".7", ".3"),
            (0, 1): (".45", ".55"),
            (1, 0): (".6", ".4"),
            (1, 1): (".2", ".8"),
        },
        memory=2,
    ),
    prompts=((1, 0),),
    max_new_tokens=3,
    name="G2",
)
#: Two prompts of it side by side, with drafts that are certain: few branches.
G2_PAIR: Final = Generation(
    G2.target,
    ToyModel.from_table({(): (0, 1), (0,): (0, 1), (1,): (1, 0)}, memory=1),
    prompts=((0, 1), (1, 0)),
    max_new_tokens=3,
    name="G2, two rows",
)
#: Three tokens: the most likely one of p and q differ, and no residual is narrow.
G3: Final = Generation(
    witnesses.M1.target,
    witnesses.M1.draft,
    prompts=((0,),),
    max_new_tokens=3,
    name="G3",
)
