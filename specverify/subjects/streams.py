# SPDX-License-Identifier: Apache-2.0
"""Randomness handed to a subject, and the host's randomness kept from it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from specverify.subjects.protocol import Rng


class RandomStream:
    """One reproducible stream of randomness for successive calls of a subject.

    While a call runs, the global generators of torch, NumPy and Python belong to the
    stream: seeded at its start, carried on from call to call. Afterwards the host has
    its own state back, so no check reseeds anything outside itself.

    Parameters
    ----------
    rng
        How the subject takes its randomness.
    seed
        0 to 2**63 - 1; equal seeds give equal streams.
    device
        Device of the generator and of injected uniforms.
    host_seed
        Start of all global generators but the declared source; derived from `seed` by
        default. Two streams that differ in it alone must give equal outputs.
    """

    def __init__(
        self, rng: Rng, seed: int, device: torch.device, *, host_seed: int | None = None
    ) -> None:
        self._rng = rng
        self._device = device
        self._seeds = np.random.SeedSequence(seed)
        self._global: list[Any] | None = None
        self._host_seed = host_seed
        #: Whether the last call advanced torch's global CPU generator.
        self.moved_globals = False
        self.generator = torch.Generator(device)
        self.generator.manual_seed(seed)

    def source(self) -> dict[str, Any]:
        """Keyword arguments that carry this stream into a drafter."""
        return {"generator": self.generator} if self._rng == "generator" else {}

    def arguments(self, batch: int, columns: int) -> dict[str, Any]:
        """Keyword arguments that carry this stream into one call.

        Injected uniforms are [batch, columns].
        """
        if self._rng == "generator":
            return {"generator": self.generator}
        if self._rng == "seed":
            return {"seed": self._next_seed()}
        if self._rng == "uniforms":
            uniforms = torch.rand(
                (batch, columns), device=self._device, generator=self.generator
            )
            return {"uniforms": uniforms}
        return {}

    @contextlib.contextmanager
    def owning_globals(self) -> Iterator[None]:
        """Give the global generators to the stream for the length of the block."""
        host, dtype = _get_states(self._device), torch.get_default_dtype()
        if self._global is None:
            self._seed_globals(self._next_seed())
        else:
            _set_states(self._global, self._device)
        before = torch.random.get_rng_state()
        try:
            yield
        finally:
            self._global = _get_states(self._device)
            self.moved_globals = not torch.equal(before, self._global[0])
            _set_states(host, self._device)
            torch.set_default_dtype(dtype)

    def _seed_globals(self, seed: int) -> None:
        other = seed if self._host_seed is None else self._host_seed
        first = seed if self._rng == "torch" else other
        # Not torch.manual_seed: without a device it queues a traceback at every call.
        torch.default_generator.manual_seed(first)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(first)
        np.random.seed(other % 2**32)  # noqa: NPY002 - subjects may draw from it
        random.seed(other)

    def _next_seed(self) -> int:
        (child,) = self._seeds.spawn(1)
        return int(child.generate_state(1, np.uint64)[0] >> np.uint64(1))


def _get_states(device: torch.device) -> list[Any]:
    states = [torch.random.get_rng_state(), np.random.get_state(), random.getstate()]  # noqa: NPY002
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _set_states(states: list[Any], device: torch.device) -> None:
    torch.random.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[3], device)
