# SPDX-License-Identifier: Apache-2.0
"""Watch the generators that a run may draw from.

Random calls are answered without a draw. So a generator whose state changes was used in a
way that was not seen, and one that is set back to an earlier state would repeat numbers
that are taken for fresh ones. Each answered call therefore moves its generator on, and at
the next call it must stand where it was left.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from specverify.exact.variables import Unfollowed

_MOVED: Final = "it seeds a generator, or draws from it in a way not followed"


class Watch:
    """Generators of one run and the states in which they were left.

    Parameters
    ----------
    generators
        Those that the subject is given.
    seeds
        Seeds that the subject is given: it may make one generator of each.
    """

    def __init__(
        self, generators: Sequence[torch.Generator] = (), seeds: Sequence[int] = ()
    ) -> None:
        self._given, self._seeds = list(generators), set(seeds)
        self._first = [generator.get_state() for generator in self._given]
        self._left: dict[torch.Generator, Tensor] = {}
        self._free: set[int] = set()
        self._globals: list[Any] = []

    def start(self) -> None:
        """Begin a run: no generator stands where its seed puts it."""
        self.restore()
        self._left, self._free = {}, set(self._seeds)
        for generator in self._given:
            self._move(generator)
        self._globals = _global_states()

    def drawn(self, generator: torch.Generator | None) -> None:
        """Take note of a random call that was answered.

        Raises
        ------
        Unfollowed
            A generator of the subject's own, or one that it has set back.
        """
        if generator is None or generator is torch.default_generator:
            return  # it does not move: other threads may draw from it
        if generator not in self._left:
            seed = generator.initial_seed()
            if seed not in self._free:
                raise Unfollowed(f"it makes a generator of its own, with seed {seed}")
            self._free.remove(seed)
        elif not torch.equal(self._left[generator], generator.get_state()):
            raise Unfollowed(_MOVED)
        self._move(generator)

    def _move(self, generator: torch.Generator) -> None:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # noqa: SLF001 - no mode sees it
            torch.empty((), device=generator.device).uniform_(generator=generator)
        self._left[generator] = generator.get_state()

    def finish(self) -> None:
        """Check that nothing was drawn in secret.

        Raises
        ------
        Unfollowed
            A state has changed.
        """
        for generator, state in self._left.items():
            if not torch.equal(state, generator.get_state()):
                raise Unfollowed(_MOVED)
        for before, after in zip(self._globals, _global_states(), strict=True):
            same = torch.equal if isinstance(before, Tensor) else _equal
            if not same(before, after):
                raise Unfollowed(_MOVED)

    def restore(self) -> None:
        """Set the generators that were given back to their first states."""
        for generator, state in zip(self._given, self._first, strict=True):
            generator.set_state(state)


def _equal(before: Any, after: Any) -> bool:
    return bool(before == after)


def _global_states() -> list[Any]:
    numpy_state = np.random.get_state()  # noqa: NPY002 - the global one is watched
    states = [torch.random.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    return [
        *states,
        (numpy_state[1].tobytes(), numpy_state[2]),  # type: ignore[index]
        random.getstate(),
    ]
