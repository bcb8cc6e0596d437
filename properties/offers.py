# SPDX-License-Identifier: Apache-2.0
"""What a verifier may be offered: drafts, the rows behind them, borders of its uniforms.

For `injected.law_of_code`, one function for each kind of draft; and batches of the same,
drawn, with uniforms that often lie at the ends of [0, 1).
"""

from fractions import Fraction

import torch
from injected import LARGEST_UNIFORM, row, rows, sums

from specverify import core
from specverify.laws import multidraft, steps, tree
from specverify.laws.chain import TOKEN
from specverify.laws.proposals import (
    NO_TOKEN,
    draft_law,
    most_likely,
    path_to,
    tree_drafts,
)


def uniforms_at_ends(shape, generator):
    """Uniforms of which many lie at the ends of [0, 1)."""
    uniforms = torch.rand(shape, dtype=torch.float64, generator=generator)
    end = torch.rand(shape, generator=generator)
    return uniforms.masked_fill(end < 0.1, 0).masked_fill(end > 0.9, LARGEST_UNIFORM)


def drawn(law, batch, generator):
    """Draw from a law given as (outcome, mass)."""
    outcomes, masses = zip(*law, strict=True)
    chosen = row(masses).multinomial(batch, replacement=True, generator=generator)
    return [outcomes[i] for i in chosen.tolist()]


def in_turn(masses):
    """Borders of tests one after the other, of which the first that passes has a mass."""
    rest = Fraction(1)
    for mass in masses:
        yield {mass / (rest or 1)}
        rest -= mass


# --- chains ---------------------------------------------------------------------------


def paths(case):
    """Paths of k drafts, and their probabilities."""
    return steps.autoregressive_law(case.draft, case.k).items()


def stated_law(case, emissions):
    """Law of (emitted tokens, accepted drafts) of a step, from the definition."""
    law = {}
    for emitted, accepted, mass in emissions(case.target, case.draft, case.k):
        law[emitted, (accepted,)] = law.get((emitted, (accepted,)), 0) + mass
    return law


def chain_offers(case, parts, handed=None):
    """`parts` gives, for a path, what its k tests pass with and laws of a last token.

    `handed` is the case whose rows are handed over, where they are still to be changed.
    """
    for path, mass in paths(case):
        tests, laws = parts(path)
        p, q = (rows(model, path) for model in models(handed or case))
        borders = [*({share} for share in tests), sums(*laws)]
        yield mass, (torch.tensor(path), q[: case.k], p), borders


def token_parts(case, rule=TOKEN):
    """Parts of a rule that tests drafts one by one."""

    def parts(path):
        pairs = [[model(path[:i]) for model in models(case)] for i in range(case.k)]
        steps = list(zip(pairs, path, strict=True))
        tests = [rule.accept(p, q, token) for (p, q), token in steps]
        laws = [rule.recovered(p, q, token) for (p, q), token in steps]
        return tests, [*laws, case.target(path)]

    return parts


def models(case):
    """Target and draft."""
    return case.target, case.draft


def chain_step(case, seed, batch=32):
    """Arguments of a step, drawn from the draft model, and uniforms."""
    generator = torch.Generator().manual_seed(seed)
    drafted = drawn(paths(case), batch, generator)
    ids = torch.tensor(drafted, dtype=torch.int64).view(batch, case.k)
    q = torch.stack([rows(case.draft, path)[: case.k] for path in drafted])
    p = torch.stack([rows(case.target, path) for path in drafted])
    return ids, q, p, uniforms_at_ends((batch, case.k + 1), generator)


# --- several drafts at one position ---------------------------------------------------


def slot_offers(name, p, q, n, drafts):
    """Slots, q and p, for the rule of that name."""
    for slots, mass in draft_law(q, n, drafts).items():
        step = torch.tensor(slots), row(q), row(p)
        yield mass, step, slot_borders(name, p, q, slots)


def slot_borders(name, p, q, slots):
    """From the stated law given the slots; what is not tested is drawn."""
    outcomes = list(multidraft.RULES[name][0](p, q, slots))
    masses = [
        sum(mass for _, slot, mass in outcomes if slot == tested)
        for tested in range(len(slots))
    ]
    order = in_order(name, q, slots)
    if name == "selection":  # one was chosen before anything is tested
        order = [slot for slot, mass in enumerate(masses) if mass]
    last = [Fraction(0)] * len(p)
    for token, slot, mass in outcomes:
        last[token] += mass * (slot not in order)
    tests = [*in_turn(masses[slot] for slot in order)]
    tests += [set() for _ in slots][len(order) :]
    return [*tests, sums([mass / (sum(last) or 1) for mass in last])]


def in_order(name, q, slots):
    """The slots that the uniforms test, in turn; the last uniform draws the rest."""
    if name in {"target_only", "sample_and_match"}:
        return []
    if name == "greedy_draft":
        return [len(slots) - 1]
    if name == "hub" and slots[0] == most_likely(q, 1)[0]:
        return [1, 0]
    return list(range(len(slots)))


def slot_step(p, q, n, drafts, seed, batch=64):
    """Slots drawn by the core, q, p, and uniforms."""
    generator = torch.Generator().manual_seed(seed)
    q, p = (row(law).expand(batch, -1) for law in (q, p))
    ids = core.draw_drafts(q, n, drafts=drafts, generator=generator)
    return ids, q, p, uniforms_at_ends((batch, n + 1), generator)


# --- trees ----------------------------------------------------------------------------


def tree_offers(name, case):
    """Token of every node, q and p behind every node, for the rule of that name."""
    for tokens, mass in tree_drafts(case.draft, case.parents, case.drafts):
        yield mass, tree_rows(case, tokens), tree_borders(name, case, tokens)


def node_paths(case, tokens):
    """Path to every node; None where a node is not used."""
    paths = [path_to(case.parents, tokens, node) for node in range(len(tokens))]
    return [None if NO_TOKEN in path else path for path in paths]


def tree_rows(case, tokens):
    """Ids, q and p of one tree; rows that nobody may look at are those of the root."""
    known = [path or () for path in node_paths(case, tokens)]
    q, p = (
        torch.stack([row(model(path)) for path in known])
        for model in (case.draft, case.target)
    )
    return torch.tensor((0, *tokens[1:])), q, p


def tree_borders(name, case, tokens):
    """From the stated law given the tree: by where it stops, and what it then draws."""
    nodes = node_paths(case, tokens)
    if name == "target_only":
        return [() if path is None else sums(case.target(path)) for path in nodes]
    stop, last = {}, {}
    rule = tree.RULES[name][0]
    for emitted, mass in rule(case.target, case.draft, case.parents, tokens):
        path = emitted[:-1]
        stop[path] = stop.get(path, Fraction(0)) + mass
        last.setdefault(path, [Fraction(0)] * case.vocab)[emitted[-1]] += mass
    borders = [set() for _ in nodes]
    for order, masses in TESTS[name](case, nodes, stop):
        for node, border in zip(order, in_turn(masses), strict=True):
            borders[node] = border
    draws = ([m / stop[path] for m in law] for path, law in last.items())
    return [sums(*draws), *borders[1:]]


def tests_of_siblings(case, nodes, stop):
    """From the root down: the children of a node that was reached, in turn."""

    def reached(path):
        return sum(mass for x, mass in stop.items() if x[: len(path)] == path)

    for parent, path in enumerate(nodes):
        used = [x for x in case.children[parent] if nodes[x] is not None]
        if path is not None and reached(path):
            yield used, [reached(nodes[x]) / reached(path) for x in used]


def tests_of_leaves(case, nodes, stop):
    """From the leaves up: all nodes in turn, children before their parent."""

    def up(node):
        for child in case.children[node]:
            yield from up(child)
        yield node

    used = [node for node in up(0) if node and nodes[node] is not None]
    yield used, [stop.get(nodes[node], Fraction(0)) for node in used]


def tests_of_lengths(case, _nodes, stop):
    """The prefixes of the chosen path, the longest first."""
    order = range(case.k, 0, -1)
    yield order, [sum(m for x, m in stop.items() if len(x) == i) for i in order]


TESTS = {
    "recursive": tests_of_siblings,
    "traversal": tests_of_leaves,
    "multipath": tests_of_lengths,
}


def tree_step(case, seed, batch=32):
    """Trees drawn from the draft model, their rows, and uniforms."""
    generator = torch.Generator().manual_seed(seed)
    law = tree_drafts(case.draft, case.parents, case.drafts)
    trees = [tree_rows(case, tokens) for tokens in drawn(law, batch, generator)]
    ids, q, p = map(torch.stack, zip(*trees, strict=True))
    return ids, q, p, uniforms_at_ends(ids.shape, generator)
