# SPDX-License-Identifier: Apache-2.0
"""The core's own algorithms as subjects: the first thing that specverify proves.

Each name here loads one, as ``reference:NAME`` does on the command line (with hyphens).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

import specverify
from specverify import core
from specverify.subjects.protocol import Kind, Subject, subject

_DTYPES: Final = ("float32", "float64", "bfloat16", "float16")
_Loader = Callable[[], Subject]


def _loader(
    fn: Callable[..., Any], kind: Kind = "chain", **capabilities: Any
) -> _Loader:
    return lambda: subject(
        fn,
        kind=kind,
        source=f"{fn.__module__}.{fn.__qualname__}",
        version=specverify.__version__,
        **{"dtypes": _DTYPES, **capabilities},
    )


chain = _loader(
    core.verify_chain, draft_probs="optional", ragged=True, efficiency="token"
)
block = _loader(
    core.verify_block, draft_probs="optional", ragged=True, efficiency="block"
)
match = _loader(
    core.verify_match, draft_probs="optional", ragged=True, efficiency="match"
)
one_hot = _loader(
    core.verify_one_hot, draft_probs="optional", ragged=True, efficiency="match"
)
greedy = _loader(
    core.verify_greedy,
    draft_probs="optional",
    ragged=True,
    greedy=True,
    efficiency="match",
)
exercise = _loader(
    core.speculative_verify, "exercise", efficiency="token", dtypes=("float32",)
)


def _several(fn: Callable[..., Any], rule: str, drafts: str) -> _Loader:
    return _loader(fn, "multidraft", ragged=True, efficiency=rule, drafts=drafts)


with_replacement = _several(core.verify_with_replacement, "with_replacement", "iid")
without_replacement = _several(
    core.verify_without_replacement, "without_replacement", "without_replacement"
)
kseq = _several(core.verify_kseq, "kseq", "iid")
hub = _several(core.verify_hub, "hub", "hub")
greedy_draft = _several(core.verify_greedy_draft, "greedy_draft", "greedy")
selection = _several(core.verify_selected, "selection", "iid")
target_only = _several(core.verify_target_only, "target_only", "deterministic")


def _tree(fn: Callable[..., Any], rule: str, drafts: str) -> _Loader:
    return _loader(fn, "tree", ragged=True, efficiency=rule, drafts=drafts)


tree_target_only = _tree(core.verify_tree_target_only, "target_only", "deterministic")
tree_recursive = _tree(core.verify_tree_recursive, "recursive", "without_replacement")
tree_traversal = _tree(core.verify_tree_traversal, "traversal", "without_replacement")
tree_paths = _tree(core.verify_tree_paths, "multipath", "paths")


class _Coupled:
    """Drafter and verifier that race on one noise, kept from the former to the latter."""

    def __init__(self) -> None:
        self._noise: list[Tensor] = []

    def draft(
        self, draft_probs: Tensor, *, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draft one token a row [batch, vocab], and keep the noise."""
        noise = core.race_noise(
            tuple(draft_probs.shape), device=draft_probs.device, generator=generator
        )
        self._noise.append(noise)
        return core.race(draft_probs, noise), draft_probs

    def verify(
        self,
        draft_token_ids: Tensor,
        draft_probs: Tensor | None,
        target_probs: Tensor,
        *,
        generator: torch.Generator,
    ) -> core.ChainResult:
        """Verify on the noise of the drafts, and on new noise for the bonus token."""
        seen, self._noise = self._noise, []
        shape = (len(target_probs), target_probs.shape[2])
        if [tuple(noise.shape) for noise in seen] != [shape] * draft_token_ids.shape[1]:
            seen = []  # drafts from elsewhere: all noise is new
        while len(seen) < target_probs.shape[1]:
            seen.append(
                core.race_noise(shape, device=target_probs.device, generator=generator)
            )
        return core.verify_coupled(
            draft_token_ids, draft_probs, target_probs, noise=torch.stack(seen, dim=1)
        )


def coupling() -> Subject:
    """Gumbel coupling, `specverify.core.verify_coupled`, with its drafter."""
    coupled = _Coupled()
    return subject(
        coupled.verify,
        draft=coupled.draft,
        source="specverify.core.coupling.verify_coupled",
        version=specverify.__version__,
        dtypes=_DTYPES,
        efficiency="coupling",
    )
