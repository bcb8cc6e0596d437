# SPDX-License-Identifier: Apache-2.0
"""Study: how much every rule accepts, beside the most that it could, by draft quality.

    python reports/acceptance.py

Nothing is sampled: all numbers are exact laws in float64 (`specverify.laws`). A draft has
quality ``1 - TV(p, q)`` at every position; two families of drafts run from poor to
perfect. The run stops with an error where a rule accepts more than its optimum. Writes
``reports/acceptance/``.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specverify.inputs.trees import even_tree, separate_paths
from specverify.laws import (
    block,
    bounds,
    chain,
    coupling,
    lossy,
    matching,
    multidraft,
    steps,
    tree,
)
from specverify.laws.distributions import Model, acceptance, total_variation
from specverify.laws.proposals import draft_law
from specverify.laws.sampling import apply_temperature

HERE = Path(__file__).parent / "acceptance"
QUALITIES = [round(0.25 + 0.05 * step, 2) for step in range(16)]
IN_TABLE = (0.4, 0.6, 0.8, 0.95)
#: Fall-off of the Zipf laws: at one position, and behind each token in blocks and trees.
ONE, BEHIND = 2, (2, 2.5, 3, 3.5)
K, VOCAB, CHAIN_VOCAB, TREE_VOCAB = 4, 12, 4, 4
#: Trees of six drafts, and their depth.
SHAPES = {
    "two paths of three": (separate_paths(2, 3), 3),
    "two by two": (even_tree((2, 2)), 2),
}
#: The laws are sums of float64; an excess below this is rounding.
ROUNDING = 1e-9

Law = list[float]


class Row(NamedTuple):
    """One number: how much a rule accepts (or how biased it is), and the most it could."""

    part: str
    setting: str
    rule: str
    family: str
    quality: float
    value: float
    limit: float | None = None


# --- targets and drafts ---------------------------------------------------------------


def zipf(vocab: int, exponent: float) -> Law:
    """Law that falls off as a power of the rank."""
    weights = [rank**-exponent for rank in range(1, vocab + 1)]
    return [weight / sum(weights) for weight in weights]


def reverse(p: Law) -> Law:
    """The same masses, the largest on the least likely token."""
    order = sorted(range(len(p)), key=lambda x: p[x])
    masses = dict(zip(order, sorted(p, reverse=True), strict=True))
    return [masses[x] for x in range(len(p))]


def noisy(p: Law, quality: float) -> Law:
    """Mix the target with its reverse."""
    far = reverse(p)
    share = (1 - quality) / total_variation(p, far)
    return [(1 - share) * a + share * b for a, b in zip(p, far, strict=True)]


def flat(p: Law, quality: float) -> Law:
    """Raise the temperature of the target until the quality is reached."""
    if quality == 1:
        return p
    low, high = 0.0, 1.0  # of 1 / temperature
    for _ in range(60):
        middle = (low + high) / 2
        enough = acceptance(p, apply_temperature(p, 1 / middle)) >= quality
        low, high = (low, middle) if enough else (middle, high)
    return list(apply_temperature(p, 1 / high))


#: Each family with the worst quality that it has for a law.
FAMILIES: dict[str, tuple[Callable[[Law, float], Law], Callable[[Law], float]]] = {
    "noisy": (noisy, lambda p: acceptance(p, reverse(p))),
    "flat": (flat, lambda p: acceptance(p, [1 / len(p)] * len(p))),
}


def grid(laws: Sequence[Law]) -> Iterator[tuple[str, float, list[Law]]]:
    """Family, quality and the draft for each of the laws, where the family reaches it."""
    for family, (draft, worst) in FAMILIES.items():
        for quality in QUALITIES:
            if quality >= max(worst(p) for p in laws):
                yield family, quality, [draft(p, quality) for p in laws]


def by_last_token(laws: Sequence[Law]) -> Model:
    """Model whose law depends on the last token."""
    return lambda prefix: laws[prefix[-1] if prefix else 0]


def contexts(vocab: int) -> list[Law]:
    """Target law behind each token: another favourite, another fall-off."""
    laws = [zipf(vocab, BEHIND[token]) for token in range(vocab)]
    return [law[-token:] + law[:-token] for token, law in enumerate(laws)]


# --- what the rules accept ------------------------------------------------------------

CHAIN_RULES = {
    "token": chain.emissions,
    "block": block.emissions,
    "match": matching.emissions,
    "coupling": coupling.emissions,
}


def chains() -> Iterator[Row]:
    """Mean accepted drafts on one path, beside the bound L11."""
    laws = contexts(CHAIN_VOCAB)
    target = by_last_token(laws)
    for family, quality, drafts in grid(laws):
        draft = by_last_token(drafts)
        limit = bounds.expected_accepted_bound(target, draft, K)
        for rule, emissions in CHAIN_RULES.items():
            mean = steps.expected_accepted(emissions, target, draft, K)
            yield Row("path", f"k = {K}", rule, family, quality, mean, limit)


def positions() -> Iterator[Row]:
    """Acceptance of n drafts at one position, beside the optimum of their drawing."""
    p = zipf(VOCAB, ONE)
    for family, quality, (q,) in grid([p]):
        for n in (2, 4):
            for name, (rule, drafts) in multidraft.RULES.items():
                if drafts == "hub" and n != 2:
                    continue
                if drafts in {"iid", "without_replacement"}:
                    limit = bounds.optimum_sorted(p, q, n, drafts)
                else:
                    limit = bounds.optimum(p, draft_law(q, n, drafts))
                value = multidraft.acceptance(rule, p, q, n, drafts)
                yield Row("position", f"n = {n}", name, family, quality, value, limit)


def trees() -> Iterator[Row]:
    """Mean accepted length on trees, beside block verification of one path."""
    laws = contexts(TREE_VOCAB)
    target = by_last_token(laws)
    for family, quality, qs in grid(laws):
        draft = by_last_token(qs)
        for shape, (parents, depth) in SHAPES.items():
            for name, (rule, drafts) in tree.RULES.items():
                if name == "multipath" and shape == "two by two":
                    continue
                mean = tree.expected_accepted(rule, target, draft, parents, drafts)
                yield Row("tree", shape, name, family, quality, mean)
            mean = steps.expected_accepted(block.emissions, target, draft, depth)
            yield Row("tree", shape, "one path", family, quality, mean)


def lossy_rules() -> Iterator[Row]:
    """Acceptance and bias of rules that are lossy by design; L5 limits the former."""
    p = zipf(VOCAB, ONE)
    for family, quality, (q,) in grid([p]):
        for name, rule in lossy.RULES.items():
            bias = lossy.bias(p, q, rule)
            rate = lossy.acceptance_rate(p, q, rule)
            limit = min(1, acceptance(p, q) + bias)
            yield Row("lossy", "acceptance", name, family, quality, rate, limit)
            yield Row("lossy", "bias", name, family, quality, bias)


def checked(rows: Iterator[Row]) -> list[Row]:
    """All rows; none may exceed its limit."""
    found = list(rows)
    above = [r for r in found if r.limit is not None and r.value > r.limit + ROUNDING]
    if above:
        raise ValueError(f"more is accepted than can be: {above}")
    return found


# --- figures --------------------------------------------------------------------------

#: Label, colour (safe for the colour-blind) and line of each rule.
STYLES = {
    "block": ("block", "#0072B2", "-"),
    "token": ("token by token", "#D55E00", "--"),
    "coupling": ("coupling", "#009E73", "-."),
    "match": ("match", "#AA4499", ":"),
    "selection": ("selection", "#0072B2", "-"),
    "with_replacement": ("recursive", "#D55E00", "--"),
    "kseq": ("K-SEQ", "#009E73", "-."),
    "sample_and_match": ("match", "#AA4499", ":"),
    "without_replacement": ("recursive", "#D55E00", "--"),
    "greedy_draft": ("greedy drafts", "#0072B2", "-"),
    "hub": ("SpecHub", "#E69F00", "--"),
    "target_only": ("target only", "#AA4499", ":"),
    "multipath": ("best path as a block", "#56B4E9", "-"),
    "traversal": ("traversal", "#0072B2", "-"),
    "recursive": ("recursive", "#D55E00", "--"),
    "one path": ("one of the paths, as a block", "#777777", "-."),
    "lenient": ("lenient", "#0072B2", "-"),
    "entropy": ("entropy", "#56B4E9", "-"),
    "typical": ("typical", "#E69F00", "--"),
    "threshold": ("threshold", "#D55E00", "--"),
    "top-k": ("top-k", "#009E73", "-."),
    "synthetic": ("synthetic", "#AA4499", ":"),
}
NAMES = {"noisy": "noisy draft", "flat": "flat draft"}
WAYS = {
    "independent drafts": ("selection", "with_replacement", "kseq", "sample_and_match"),
    "without replacement": ("without_replacement",),
    "constructed drafts": ("greedy_draft", "hub", "target_only"),
}
LIMIT = {"color": "#cccccc", "linewidth": 5, "solid_capstyle": "butt", "zorder": 1}
THIN = {"color": "black", "linewidth": 0.8, "zorder": 1.5}
#: Text stays text, and the same numbers give the same file.
SVG = {
    "svg.hashsalt": "acceptance",
    "svg.fonttype": "none",
    "font.sans-serif": ["DejaVu Sans", "Arial"],
}


def curve(
    axes: Axes, rule: str, x: Sequence[float], y: Sequence[float], **style: float
) -> None:
    """Draw a rule in its colour and line."""
    label, colour, line = STYLES[rule]
    width = 2.2 if line == ":" else 1.8
    axes.plot(x, y, color=colour, linestyle=line, linewidth=width, label=label, **style)


def curves(axes: Axes, rows: Sequence[Row], rules: Sequence[str]) -> None:
    """Draw rules, over the optimum of their way of drawing where there is one."""
    for rule in rules:
        found = [r for r in rows if r.rule == rule]
        x = [r.quality for r in found]
        limits = [r.limit for r in found if r.limit is not None]
        if found:
            curve(axes, rule, x, [r.value for r in found])
        if limits:
            axes.plot(x, limits, **LIMIT)


def finish(axes: Axes, title: str, *, top: float, bottom: float = 0) -> None:
    """Give a panel its axes."""
    axes.set_title(title, fontsize=10)
    axes.set(xlim=(0.2, 1), ylim=(bottom, top + 0.02 * (top - bottom)))
    axes.locator_params(nbins=5)
    axes.grid(color="#eeeeee")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("draft quality 1 − TV(p, q)")


def legend(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend for all panels, below them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False
    )


def draw_chains(rows: Sequence[Row]) -> Figure:
    """One panel a family."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, family in zip(panels, FAMILIES, strict=True):
        mine = [r for r in rows if r.family == family]
        axes.plot([], [], **LIMIT, label="bound (L11)")
        curves(axes, mine, ("block", "token", "coupling", "match"))
        finish(axes, NAMES[family], top=K)
    panels[0].set_ylabel(f"mean accepted of {K} drafts")
    legend(figure, panels[0], 5)
    return figure


def draw_positions(rows: Sequence[Row], family: str) -> Figure:
    """One row a number of drafts, one column a way of drawing."""
    figure = Figure(figsize=(9, 6.6), layout="constrained")
    table = figure.subplots(2, 3)
    for line, n in zip(table, (2, 4), strict=True):
        for axes, (way, rules) in zip(line, WAYS.items(), strict=True):
            mine = [r for r in rows if (r.family, r.setting) == (family, f"n = {n}")]
            axes.plot([], [], **LIMIT, label="optimum")
            curves(axes, mine, rules)
            axes.plot([0, 1], [0, 1], **THIN, label="one draft")
            finish(axes, f"{n} {way}", top=1)
        line[0].set_ylabel("acceptance")
    for upper, lower in zip(*table, strict=True):
        upper.set_xlabel("")
        handles, labels = upper.get_legend_handles_labels()
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.22), "ncols": 2}
        lower.legend(handles, labels, frameon=False, fontsize=9, **place)
    return figure


def draw_trees(rows: Sequence[Row]) -> Figure:
    """One row a shape, one column a family."""
    figure = Figure(figsize=(9, 6.8), layout="constrained")
    table = figure.subplots(2, 2)
    for line, (shape, (_, depth)) in zip(table, SHAPES.items(), strict=True):
        for axes, family in zip(line, FAMILIES, strict=True):
            mine = [r for r in rows if (r.family, r.setting) == (family, shape)]
            rules = ("multipath", "traversal", "recursive", "target_only", "one path")
            curves(axes, mine, rules)
            finish(axes, f"{shape}, {NAMES[family]}", top=depth)
        line[0].set_ylabel("mean accepted length")
    for axes in table[0]:
        axes.set_xlabel("")
    legend(figure, table[0][0], 5)
    return figure


def draw_lossy(rows: Sequence[Row]) -> Figure:
    """Acceptance, bias, and the one against the other."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    rates, biases, trade = figure.subplots(1, 3)
    rates.plot([0, 1], [0, 1], **THIN, label="lossless; L5")
    trade.plot([0, 1], [0, 1], **THIN)
    for rule in lossy.RULES:
        mine = [r for r in rows if (r.family, r.rule) == ("noisy", rule)]
        rate = {r.quality: r.value for r in mine if r.setting == "acceptance"}
        bias = {r.quality: r.value for r in mine if r.setting == "bias"}
        curve(rates, rule, list(rate), list(rate.values()))
        curve(biases, rule, list(bias), list(bias.values()))
        gain = [value - quality for quality, value in rate.items()]
        curve(trade, rule, list(bias.values()), gain, clip_on=False)
    finish(rates, "acceptance", top=1)
    finish(biases, "bias: TV(output, p)", top=0.6)
    finish(trade, "acceptance above lossless", top=0.6, bottom=-0.4)
    trade.set(xlabel="bias", xlim=(0, 0.6))
    legend(figure, rates, 7)
    return figure


# --- text -----------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """Markdown table at a few qualities; the limit stands in brackets."""
    columns = [(f, x) for f in FAMILIES for x in IN_TABLE if (f, x) != ("flat", 0.4)]
    lines = [
        "| what | rule | " + " | ".join(f"{f} {x}" for f, x in columns) + " |",
        "|--|--|" + "--|" * len(columns),
    ]
    numbers = {r[:5]: r for r in rows}
    for part, setting, rule in dict.fromkeys(r[:3] for r in rows):
        cells = []
        for column in columns:
            r = numbers.get((part, setting, rule, *column))
            if r is None:
                cells.append("")
            else:
                limit = "" if r.limit is None else f" ({r.limit:.3f})"
                cells.append(f"{r.value:.3f}{limit}")
        lines.append(f"| {part}, {setting} | {rule} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Compute, draw and write."""
    HERE.mkdir(exist_ok=True)
    started = time.monotonic()
    parts = {}
    for part in (chains, positions, trees, lossy_rules):
        parts[part] = checked(part())
        print(f"{part.__name__}: {time.monotonic() - started:.0f} s", flush=True)
    figures = {
        "paths": draw_chains(parts[chains]),
        "positions-noisy": draw_positions(parts[positions], "noisy"),
        "positions-flat": draw_positions(parts[positions], "flat"),
        "trees": draw_trees(parts[trees]),
        "lossy": draw_lossy(parts[lossy_rules]),
    }
    with mpl.rc_context(SVG):
        for name, figure in figures.items():
            figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    rows = [row for found in parts.values() for row in found]
    with (HERE / "numbers.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        for row in rows:
            limit = "" if row.limit is None else f"{row.limit:.6f}"
            writer.writerow([*row[:5], f"{row.value:.6f}", limit])
    seconds = f"{time.monotonic() - started:.0f}"
    text = TEMPLATE.format(
        seconds=seconds,
        table=table(rows),
        vocab=VOCAB,
        chain_vocab=CHAIN_VOCAB,
        tree_vocab=TREE_VOCAB,
    )
    (HERE / "README.md").write_text(text, encoding="utf-8")


TEMPLATE = """# Acceptance against the optimum

`python reports/acceptance.py`, {seconds} s on one core. Exact laws in float64, nothing is
sampled; all numbers are in `numbers.csv`. No rule exceeds its optimum, or the script would
have stopped.

Targets are Zipf laws of exponent 2 to 3.5. A draft has the same quality ``1 - TV(p, q)`` at
every position. A *noisy* draft is the target mixed with its reverse, which likes best what
the target likes least; a *flat* draft is the target at a higher temperature, which keeps
the order of the tokens. Flat drafts have no quality below what the uniform law has. Points
are 0.05 apart, so a jump is drawn as a slope.

## One path of drafts

![Mean accepted of 4 drafts by draft quality](paths.svg)

Vocabulary of {chain_vocab}, another law behind each token. From the top at every quality:
the bound L11, block, token by token, coupling, match. All but match accept everything from
a perfect draft; match then accepts 1.07 of 4. What token by token accepts depends on the
quality alone; block and the bound accept more from a flat draft than from a noisy one of
the same quality. Block gains most in the middle: 0.36 drafts (flat, 0.7) and 0.19 (noisy,
0.55) over token by token.

## Several drafts at one position

Vocabulary of {vocab}. The optimum is that of the way of drawing, so it differs between
columns and, for constructed drafts, between rules.

![Acceptance of 2 and 4 noisy drafts](positions-noisy.svg)

![Acceptance of 2 and 4 flat drafts](positions-flat.svg)

K-SEQ is never below recursive rejection; both miss the optimum by most in the middle and
meet it at the perfect draft. Selection is on the optimum for poor noisy drafts and near
it for poor flat ones; for good drafts it falls below a single draft: where all drafts are
about equally good, choosing among them only bends the law that is then tested. SpecHub and
greedy drafts are one curve at n = 2. They and target only lie on their optimum everywhere,
and depend on which tokens the draft puts first. Where a flat draft has them right, SpecHub
and greedy drafts accept more than all other rules; where a noisy one has them wrong, less
at n = 2 than recursive rejection without replacement.

## Trees of six drafts

Vocabulary of {tree_vocab}. "Best path as a block" is multi-path block verification and
exists for separate paths only. The grey line is block verification of one path as deep as
the tree.

![Mean accepted length on trees](trees.svg)

Traversal is never below recursive rejection; the gap is largest on paths and for flat
drafts (0.22 at 0.65) and small on two by two. The best path as a block leads from 0.65 to
0.8 and falls below one single path at 0.95, as selection does and for the same reason.
Target only leads for poor flat drafts, whose order is right.

## Rules that are lossy by design

![Acceptance and bias of lossy rules, noisy drafts](lossy.svg)

Default settings, vocabulary of {vocab}, noisy drafts. The right panel shows acceptance
minus quality against bias; no rule can be above the line (L5). Lenient and entropy lie on
it: what they accept more is paid in bias one for one. All others lie below it. Typical,
threshold and top-k accept less than the lossless rule from these drafts and are biased all
the same, also where the draft is perfect.

## Numbers

Mean accepted drafts (path, tree), acceptance (position, lossy) or TV (bias), and in
brackets the most that is possible.

{table}
"""


if __name__ == "__main__":
    main()
