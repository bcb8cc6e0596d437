# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the core: what each rule costs, in units of token-level verification.

    python reports/benchmarks.py [--repeats 25]

All rules of a group run in turn, again and again; a number is the median over the rounds of
time divided by the time of `verify_chain` in the same round, so that what else the machine
does cancels. One thread on the CPU; on CUDA too where there is a GPU, with
synchronisation. Argument values are not looked at (``validate=False``). Writes
``reports/benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import ctypes
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specverify.core import (
    draw_drafts,
    draw_uniforms,
    inverse_cdf,
    race_noise,
    verify_block,
    verify_chain,
    verify_coupled,
    verify_greedy,
    verify_greedy_draft,
    verify_hub,
    verify_kseq,
    verify_match,
    verify_selected,
    verify_target_only,
    verify_tree_paths,
    verify_tree_recursive,
    verify_tree_target_only,
    verify_tree_traversal,
    verify_with_replacement,
    verify_without_replacement,
)
from specverify.core.topology import Topology, parents_of_paths
from specverify.inputs.trees import even_tree

HERE = Path(__file__).parent / "benchmarks"
BATCH, N = 32, 4
CHAINS = [(k, vocab) for vocab in (32_768, 131_072) for k in (4, 8)]
POSITION_VOCAB, TREE_VOCAB = 32_768, 4096
PATH_DEPTH = 3
TREE, PATHS = even_tree((2, 2, 2)), parents_of_paths(5, PATH_DEPTH)
GROWTH_BATCH = 8
LENGTHS, LENGTHS_VOCAB = (1, 2, 4, 8, 16), 32_768
VOCABS, VOCABS_K = (8192, 16_384, 32_768, 65_536, 131_072), 4

Call = Callable[[], object]
Group = Mapping[str, Call]


class Ratio(NamedTuple):
    """Time in units of the baseline: median and quartiles over rounds."""

    low: float
    median: float
    high: float
    milliseconds: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


# --- arguments ------------------------------------------------------------------------


def distributions(
    shape: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Draft and target, float32: peaked, and alike but not equal."""
    logits = torch.randn(shape, device=device).mul_(3)
    target = torch.softmax(logits, dim=-1)
    draft = torch.softmax(logits.add_(torch.randn(shape, device=device)), dim=-1)
    return draft, target


def tokens_of(draft: Tensor) -> Tensor:
    """One draft from every row: int64 without the last axis."""
    rows = draft.flatten(0, -2)
    drawn = [
        inverse_cdf(part, draw_uniforms((len(part),), device=part.device))
        for part in rows.split(BATCH)
    ]
    return torch.cat(drawn).view(draft.shape[:-1])


def chain_group(
    k: int, vocab: int, device: torch.device, batch: int = BATCH
) -> Iterator[tuple[str, Call]]:
    """Rules for one path of drafts."""
    draft, target = distributions((batch, k + 1, vocab), device)
    draft = draft[:, :k].contiguous()
    step = partial(
        _call,
        tokens_of(draft),
        draft,
        target,
        uniforms=draw_uniforms((batch, k + 1), device=device),
    )
    yield "chain", step(verify_chain)
    yield "block", step(verify_block)
    if batch == BATCH:  # the others are not in the study of growth
        yield "match", step(verify_match)
        yield "greedy", step(verify_greedy, uniforms=None)
        noise = race_noise(tuple(target.shape), device=device)
        yield "coupled", step(verify_coupled, uniforms=None, noise=noise)


def position_group(device: torch.device) -> Iterator[tuple[str, Call]]:
    """Rules for several drafts at one position, and one draft as the baseline."""
    draft, target = distributions((BATCH, POSITION_VOCAB), device)
    pair = torch.stack([target, target], dim=1)
    one = tokens_of(draft).unsqueeze(1)
    yield "chain, k = 1", _call(one, draft.unsqueeze(1), pair, verify_chain)
    rules = {
        "with_replacement": (verify_with_replacement, "iid"),
        "without_replacement": (verify_without_replacement, "without_replacement"),
        "kseq": (verify_kseq, "iid"),
        "selected": (verify_selected, "iid"),
        "greedy_draft": (verify_greedy_draft, "greedy"),
        "target_only": (verify_target_only, "deterministic"),
        "hub, n = 2": (verify_hub, "hub"),
    }
    for name, (rule, drafts) in rules.items():
        tokens = draw_drafts(draft, 2 if drafts == "hub" else N, drafts=drafts)
        yield name, _call(tokens, draft, target, rule)


def tree_group(device: torch.device) -> Iterator[tuple[str, Call]]:
    """Rules for trees, and a chain of as many drafts as the baseline."""
    nodes = len(TREE)
    draft, target = distributions((BATCH, nodes, TREE_VOCAB), device)
    shorter = draft[:, 1:].contiguous()
    yield "chain, k = 14", _call(tokens_of(shorter), shorter, target, verify_chain)
    rules = {
        "tree_target_only": verify_tree_target_only,
        "tree_recursive": verify_tree_recursive,
        "tree_traversal": verify_tree_traversal,
    }
    tokens = tree_tokens(draft, TREE)
    for name, rule in rules.items():
        yield name, _call(tokens, TREE, draft, target, rule)
    draft, target = distributions((BATCH, len(PATHS), TREE_VOCAB), device)
    for node in range(1, len(PATHS)):  # the laws depend on the depth alone
        for law in (draft, target):
            law[:, node] = law[:, (node - 1) % PATH_DEPTH + 1]
    tokens = tree_tokens(draft, PATHS, "iid")
    yield "tree_paths", _call(tokens, PATHS, draft, target, verify_tree_paths)


def tree_tokens(
    draft: Tensor, parents: tuple[int, ...], drafts: str = "without_replacement"
) -> Tensor:
    """Draw the children of every node from its row: int64 [batch, nodes]."""
    tokens = torch.zeros(draft.shape[:2], dtype=torch.int64, device=draft.device)
    for node, children in enumerate(Topology.of(parents).children):
        if children:
            drawn = draw_drafts(draft[:, node], len(children), drafts=drafts)
            tokens[:, list(children)] = drawn
    return tokens


def _call(*arguments: object, **options: object) -> Call:
    """Bind the rule, the last argument, to those before it."""
    *tensors, rule = arguments
    given = {name: value for name, value in options.items() if value is not None}
    return partial(rule, *tensors, **given, validate=False)


# --- time -----------------------------------------------------------------------------


def rounds(group: Group, repeats: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds of every call, round by round, after one round that does not count."""
    found: dict[str, list[float]] = {name: [] for name in group}
    for _ in range(repeats + 1):
        for name, call in group.items():
            _wait(device)
            started = time.perf_counter()
            call()
            _wait(device)
            found[name].append(time.perf_counter() - started)
    return {name: times[1:] for name, times in found.items()}


def ratios(times: Mapping[str, list[float]]) -> dict[str, Ratio]:
    """Times in units of the first of them."""
    unit = next(iter(times.values()))
    found = {}
    for name, mine in times.items():
        quotients = [a / b for a, b in zip(mine, unit, strict=True)]
        low, median, high = np.percentile(quotients, [25, 50, 75])
        found[name] = Ratio(low, median, high, float(np.median(mine)) * 1000)
    return found


def keep_memory() -> None:
    """Ask the C library to hold freed memory, where it can.

    Otherwise large tensors come from the system anew each time, and one measures its page
    faults. An engine holds its memory too.
    """
    if sys.platform == "linux":
        trim_threshold, mmap_max = -1, -4
        library = ctypes.CDLL(None)
        library.mallopt(mmap_max, 0)
        library.mallopt(trim_threshold, 2**31 - 1)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def growth(
    sizes: list[tuple[int, int]], repeats: int, device: torch.device
) -> dict[str, Ratio]:
    """Chain and block at several (k, vocab) in one group, by the smallest chain."""
    group = {
        f"{name} {k} {vocab}": call
        for k, vocab in sizes
        for name, call in chain_group(k, vocab, device, GROWTH_BATCH)
    }
    return ratios(rounds(group, repeats, device))


def slope(x: tuple[int, ...], y: list[float], *, log: bool) -> float:
    """Slope of a straight line through the points, of their logarithms if asked."""
    if log:
        return float(np.polyfit(np.log(x), np.log(y), 1)[0])
    return float(np.polyfit(x, y, 1)[0])


# --- text -----------------------------------------------------------------------------


def rows(found: Mapping[str, Ratio], what: str) -> Iterator[str]:
    """Table rows of one group."""
    for name, ratio in found.items():
        yield f"| {what} | {name} | {ratio} | {ratio.milliseconds:.2f} |"


def growth_text(repeats: int, device: torch.device) -> str:
    """Tables of growth with k and with the vocabulary, and the slopes."""
    by_k = growth([(k, LENGTHS_VOCAB) for k in LENGTHS], repeats, device)
    by_vocab = growth([(VOCABS_K, vocab) for vocab in VOCABS], repeats, device)
    tables, slopes = [], {}
    for title, xs, found, key in (
        ("k", LENGTHS, by_k, "{rule} {x} " + str(LENGTHS_VOCAB)),
        ("vocab", VOCABS, by_vocab, "{rule} " + str(VOCABS_K) + " {x}"),
    ):
        lines = [f"| {title} | {' | '.join(f'{x:,}' for x in xs)} |"]
        lines.append("|--|" + "--|" * len(xs))
        for rule in ("chain", "block"):
            mine = [found[key.format(rule=rule, x=x)] for x in xs]
            lines.append(f"| {rule} | {' | '.join(map(str, mine))} |")
            medians = [ratio.median for ratio in mine]
            slopes[f"{rule}_{title}"] = slope(xs, medians, log=title == "vocab")
        tables.append("\n".join(lines))
    longest = by_k[f"chain {LENGTHS[-1]} {LENGTHS_VOCAB}"].median
    return GROWTH.format(
        batch=GROWTH_BATCH,
        longest=longest,
        more=(2 * LENGTHS[-1] + 1) / (2 * LENGTHS[0] + 1),
        k=LENGTHS[-1],
        length_vocab=LENGTHS_VOCAB,
        vocab_k=VOCABS_K,
        by_k=tables[0],
        by_vocab=tables[1],
        **slopes,
    )


def device_text(device: torch.device, repeats: int) -> str:
    """Everything about one device."""
    torch.manual_seed(1)
    lines = ["| size | rule | time / chain | ms |", "|--|--|--|--|"]
    for k, vocab in CHAINS:
        group = dict(chain_group(k, vocab, device))
        found = ratios(rounds(group, repeats, device))
        lines += rows(found, f"k = {k}, vocab {vocab:,}")
        print(f"{device}, k = {k}, vocab {vocab}: {peak():.1f} GB at most", flush=True)
        del group
    found = ratios(rounds(dict(position_group(device)), repeats, device))
    lines += rows(found, f"n = {N} at one position, vocab {POSITION_VOCAB:,}")
    found = ratios(rounds(dict(tree_group(device)), repeats, device))
    lines += rows(found, f"trees of {len(TREE)} nodes, vocab {TREE_VOCAB:,}")
    name = "CPU, one thread"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    table, grown = "\n".join(lines), growth_text(repeats, device)
    return SECTION.format(name=name, table=table, growth=grown)


def peak() -> float:
    """Largest memory of this process so far, in GB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def main() -> None:
    """Measure and write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repeats", type=int, default=25)
    repeats = options.parse_args().repeats
    HERE.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    keep_memory()
    started = time.monotonic()
    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        devices.append(torch.device("cuda"))
    sections = "\n".join(device_text(device, repeats) for device in devices)
    text = TEMPLATE.format(
        repeats=repeats,
        batch=BATCH,
        seconds=f"{time.monotonic() - started:.0f}",
        memory=f"{peak():.1f}",
        torch=torch.__version__,
        python=platform.python_version(),
        machine=platform.machine(),
        gpu="" if len(devices) > 1 else " No GPU was there.",
        sections=sections,
    )
    (HERE / "README.md").write_text(text, encoding="utf-8")
    print(text)


SECTION = """## {name}

{table}

{growth}"""

GROWTH = """### Growth, batch {batch}

In units of chain at the smallest size of each table. Vocabulary {length_vocab:,}:

{by_k}

From k = 1 to {k} chain takes {longest:.2f} times as long and is handed {more:.0f} times as
many rows: of every row it reads one number, and it forms one residual row a sequence. A
further draft costs {chain_k:.2f} of chain at k = 1; for block, which forms a residual at
every position, it costs {block_k:.2f} (slopes of straight lines).

k = {vocab_k}:

{by_vocab}

Time goes as the power {chain_vocab:.2f} of the vocabulary for chain and {block_vocab:.2f}
for block (straight lines through the logarithms).
"""

TEMPLATE = """# What the rules cost

`python reports/benchmarks.py --repeats {repeats}`, {seconds} s, {memory} GB at most; torch
{torch}, Python {python}, {machine}.{gpu}

Time in units of token-level verification (chain) at the same size: median and quartiles
over {repeats} rounds, in each of which all rules of a group ran in turn. Batch {batch},
float32, `validate=False`. The milliseconds are of this machine on this day; compare the
ratios only. The noise of `coupled` is drawn beforehand, as its drafter has done. Trees have
15 nodes, two children each; `tree_paths` has five paths of three, 16 nodes.

Greedy verification and target only form no residual. K-SEQ pays for the 60 halvings that
find its damping; `selected` and `tree_paths` pay for sorting the vocabulary. What the rules
accept for their price is in [another study](../acceptance/README.md).

{sections}"""


if __name__ == "__main__":
    main()
