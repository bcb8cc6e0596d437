# SPDX-License-Identifier: Apache-2.0
"""The law of running code, from its answers to injected uniforms: nothing is sampled.

For given drafts a verifier is a function of its uniforms that is constant on boxes. The
ends of the boxes are searched along each axis, so every branch of the code is weighed
with the probability that the code itself gives it, to within 2^-50 an end.
"""

import itertools
from collections import Counter

import torch

from specverify.laws import steps
from specverify.laws.proposals import draft_law, tree_drafts

#: Largest difference of one probability from the stated law, of the order of rounding.
ROUNDING = 1e-12
LARGEST_UNIFORM = 1 - 2**-53
_PIECES = 32
_WIDTH, _SAME = 2.0**-50, 2.0**-42


# --- boxes ----------------------------------------------------------------------------


def exact_law(masses, answer, axes, *, rounds=1):
    """Law of what the code answers, as a mapping from tuples.

    `masses` are the probabilities of the drafts, and ``answer(rows, uniforms)`` gives, as
    int64 [lines, any], what comes out for the drafts number `rows` and uniforms [lines,
    axes]. In the first round the other axes are at 0 and below 1, where tests pass and
    fail; further rounds are for rules that draw more than one token.
    """
    cuts = {(row, axis): set() for row in range(len(masses)) for axis in range(axes)}
    points = {place: [0.0, LARGEST_UNIFORM] for place in cuts}
    for _ in range(rounds):
        for axis in range(axes):
            rows, base = _grid(len(masses), axes, {**points, **_at_zero(masses, axis)})
            for row, end in _ends(answer, rows, base, axis):
                cuts[row, axis].add(end)
        edges = {place: _edges(ends) for place, ends in cuts.items()}
        points = {
            place: [(a + b) / 2 for a, b in itertools.pairwise(ends)]
            for place, ends in edges.items()
        }
    rows, middles = _grid(len(masses), axes, points)
    widths = {
        place: [b - a for a, b in itertools.pairwise(ends)]
        for place, ends in edges.items()
    }
    sizes = _grid(len(masses), axes, widths)[1].prod(dim=1)
    law = Counter()
    answers = answer(rows, middles).tolist()
    for row, size, outcome in zip(rows.tolist(), sizes.tolist(), answers, strict=True):
        law[tuple(outcome)] += float(masses[row]) * size
    return law


def _at_zero(masses, axis):
    return {(row, axis): [0.0] for row in range(len(masses))}


def _grid(count, axes, points):
    """All combinations of the points of each row: rows [lines], places [lines, axes]."""
    rows, places = [], []
    for row in range(count):
        axis_points = [
            torch.tensor(points[row, axis], dtype=torch.float64) for axis in range(axes)
        ]
        block = torch.cartesian_prod(*axis_points).view(-1, axes)
        rows.append(torch.full((len(block),), row))
        places.append(block)
    return torch.cat(rows), torch.cat(places)


def _ends(answer, rows, base, axis):
    """Where the answer changes along an axis: pairs of row and place."""

    def at(lines, places):
        moved = base[lines].clone()
        moved[:, axis] = places
        return answer(rows[lines], moved)

    lines = torch.arange(len(rows))
    low = torch.zeros(len(rows), dtype=torch.float64)
    high = torch.full_like(low, LARGEST_UNIFORM)
    first, last = at(lines, low), at(lines, high)
    while True:
        changes = (first != last).any(dim=1)
        lines, low, high, first, last = (
            x[changes] for x in (lines, low, high, first, last)
        )
        if not len(lines) or (high - low).max() <= _WIDTH:
            return set(
                zip(rows[lines].tolist(), ((low + high) / 2).tolist(), strict=True)
            )
        share = torch.arange(1, _PIECES, dtype=torch.float64) / _PIECES
        inner = low[:, None] + (high - low)[:, None] * share  # [lines, pieces - 1]
        inside = at(lines.repeat_interleave(_PIECES - 1), inner.flatten())
        inside = inside.view(len(lines), _PIECES - 1, -1)
        edges = torch.cat([low[:, None], inner, high[:, None]], dim=1)
        values = torch.cat([first[:, None], inside, last[:, None]], dim=1)
        lines = lines.repeat_interleave(_PIECES)
        low, high = edges[:, :-1].flatten(), edges[:, 1:].flatten()
        first, last = values[:, :-1].flatten(0, 1), values[:, 1:].flatten(0, 1)


def _edges(ends):
    """Ends in order, between 0 and 1; the same end found twice is one."""
    edges = [0.0]
    for end in sorted(ends):
        if end - edges[-1] > _SAME:
            edges.append(end)
    return [*edges, 1.0]


def farthest(law, stated):
    """Largest difference of the probabilities of one outcome."""
    outcomes = law.keys() | stated.keys()
    return max(abs(law.get(x, 0) - float(stated.get(x, 0))) for x in outcomes)


# --- chains ---------------------------------------------------------------------------


def rows_along(model, paths, length, dtype=torch.float64):
    """Laws behind the prefixes of each path: [paths, length, vocab]."""
    table = [
        [[float(x) for x in model(path[:i])] for i in range(length)] for path in paths
    ]
    rows = torch.tensor(table, dtype=torch.float64)
    return rows.view(len(paths), length, -1 if length else model.vocab).to(dtype)


def chain_law(verify, case, *, dtype=torch.float64, device="cpu", rounds=1):
    """Law of (emitted tokens, accepted) of a rule for chains."""
    drafts = steps.autoregressive_law(case.draft, case.k)
    paths = list(drafts)
    ids = torch.tensor(paths, dtype=torch.int64).view(len(paths), case.k).to(device)
    q = rows_along(case.draft, paths, case.k, dtype).to(device)
    p = rows_along(case.target, paths, case.k + 1, dtype).to(device)

    def answer(rows, uniforms):
        rows = rows.to(device)
        result = verify(ids[rows], q[rows], p[rows], uniforms=uniforms.to(device))
        return torch.cat([result[0], result[1].unsqueeze(1)], dim=1).cpu()

    law = Counter()
    found = exact_law(list(drafts.values()), answer, case.k + 1, rounds=rounds)
    for (*tokens, accepted), mass in found.items():
        law[tuple(x for x in tokens if x >= 0), accepted] += mass
    return law


def stated_chain_law(emissions, case):
    """The same law, from the definition of the rule."""
    law = Counter()
    for emitted, accepted, mass in emissions(case.target, case.draft, case.k):
        law[emitted, accepted] += mass
    return law


# --- several drafts, and trees --------------------------------------------------------


def multidraft_law(
    verify, p, q, n, drafts, *, dtype=torch.float64, device="cpu", **extra
):
    """Law of (token, accepted slot) of a rule for several drafts at one position."""
    slots = draft_law(q, n, drafts)
    ids = torch.tensor(list(slots), device=device)
    target, draft = (
        torch.tensor([float(x) for x in row], dtype=dtype, device=device)
        for row in (p, q)
    )

    def answer(rows, uniforms):
        batch = len(rows)
        more = {name: x.to(device).expand(batch, *x.shape) for name, x in extra.items()}
        result = verify(
            ids[rows.to(device)],
            draft.expand(batch, -1),
            target.expand(batch, -1),
            uniforms=uniforms.to(device),
            **more,
        )
        return torch.stack(result, dim=1).cpu()

    return exact_law(list(slots.values()), answer, n + 1)


def tree_rows(model, parents, tokens, dtype=torch.float64):
    """Law behind every node of every tree; NaN behind a node that is not used."""
    nothing = [float("nan")] * model.vocab
    table = []
    for ids in tokens:
        paths = [()]
        for node, parent in enumerate(parents[1:], start=1):
            paths.append((*paths[parent], ids[node]))
        table.append(
            [nothing if -1 in path else list(map(float, model(path))) for path in paths]
        )
    return torch.tensor(table, dtype=torch.float64).to(dtype)


def tree_law(
    verify, case, parents, drafts, *, dtype=torch.float64, device="cpu", rounds=1
):
    """Law of the tokens that a rule for trees emits."""
    trees = list(tree_drafts(case.draft, parents, drafts))
    tokens = [ids for ids, _ in trees]
    ids = torch.tensor(tokens, device=device)
    q, p = (
        tree_rows(model, parents, tokens, dtype).to(device)
        for model in (case.draft, case.target)
    )

    def answer(rows, uniforms):
        rows = rows.to(device)
        result = verify(
            ids[rows], parents, q[rows], p[rows], uniforms=uniforms.to(device)
        )
        return result.output_token_ids.cpu()

    law = Counter()
    found = exact_law([mass for _, mass in trees], answer, len(parents), rounds=rounds)
    for row, mass in found.items():
        law[tuple(x for x in row if x >= 0)] += mass
    return law
