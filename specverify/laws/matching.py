# SPDX-License-Identifier: Apache-2.0
"""The exact law of one step that samples the target and compares, by enumeration.

At every position a token is drawn from p; it is emitted in any case, and counts as
accepted when it equals the draft. Lossless for any draft, for the draft decides only how
many positions are looked at; it is accepted with ``sum p q``, less than ``sum min(p, q)``.
"""

from __future__ import annotations

from collections.abc import Iterator

from specverify.laws.distributions import Model, Number, Prefix
from specverify.laws.steps import check_length, emit


def emissions(
    target: Model, draft: Model, k: int
) -> Iterator[tuple[Prefix, int, Number]]:
    """Enumerate what one step can do.

    Parameters
    ----------
    target, draft
        Models p and q; prefixes are relative to the start of the step.
    k
        Number of drafted tokens.

    Yields
    ------
    tuple
        Emitted tokens, number of accepted drafts, probability (positive).

    Raises
    ------
    ValueError
        A negative k.
    """
    check_length(k)
    yield from _descend(target, draft, k, (), 1)


def greedy_emissions(
    target: Model, draft: Model, k: int
) -> Iterator[tuple[Prefix, int, Number]]:
    """Enumerate a step at temperature 0: drafts are kept while they are the argmax (L27).

    Parameters and result as in `emissions`; only the drafts are random.
    """
    yield from emissions(greedy(target), draft, k)


def greedy(model: Model) -> Model:
    """Take the most likely token always, on ties the one of lowest id."""

    def argmax(prefix: Prefix) -> list[Number]:
        row = model(prefix)
        top = max(row)
        best = row.index(top)
        # One and zero in the number type of the row.
        return [top / top if x == best else top - top for x in range(len(row))]

    return argmax


def _descend(
    target: Model, draft: Model, k: int, prefix: Prefix, weight: Number
) -> Iterator[tuple[Prefix, int, Number]]:
    p = target(prefix)
    if len(prefix) == k:
        yield from emit(prefix, p, weight)
        return
    q = draft(prefix)
    for token, (mass, drafted) in enumerate(zip(p, q, strict=True)):
        matched = weight * mass * drafted
        if matched:
            yield from _descend(target, draft, k, (*prefix, token), matched)
    missed = [mass * (1 - drafted) for mass, drafted in zip(p, q, strict=True)]
    yield from emit(prefix, missed, weight)
