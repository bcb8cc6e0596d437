# SPDX-License-Identifier: Apache-2.0
"""The rules by which public engines test their verifiers, for `todays_tests`.

Each decides as a public test decides, on inputs made as that test makes them; what differs
is said in `Rule.here`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from specverify.subjects.protocol import Subject
from specverify.subjects.streams import RandomStream


class Broken(Exception):  # noqa: N818 - the test stops with an error: it is red
    """The verifier raised, or answered in a form that no test could read."""


class Answer(NamedTuple):
    """Tokens [batch, k + 1], -1 behind the last one, and how many there are [batch]."""

    tokens: Tensor
    emitted: Tensor


class Under:
    """A verifier as a test sees it, and the number of rows it was called on.

    Parameters
    ----------
    of
        The verifier.
    seed
        Start of its randomness.
    """

    def __init__(self, of: Subject, seed: int) -> None:
        self.of, self.draws = of, 0
        device = torch.device("cpu")
        self.stream = RandomStream(of.capabilities.rng, seed, device)
        self.takes_q = of.capabilities.draft_probs is not False
        names = of.capabilities.dtypes
        self._dtype = getattr(torch, "float32" if "float32" in names else names[0])

    def __call__(self, ids: Tensor, q: Tensor | None, p: Tensor) -> Answer:
        """Verify all rows in one call."""
        batch, k = ids.shape
        self.draws += batch
        if q is not None:
            q = q.to(self._dtype)
        given = self.stream.arguments(batch, k + 1)
        try:
            raw = self.of.fn(ids, q, p.to(self._dtype), **given)
        except Exception as error:
            raise Broken(type(error).__name__) from error
        tokens, emitted = getattr(raw, "output_token_ids", raw), None
        if isinstance(tokens, tuple) and len(tokens) == 2:
            tokens, emitted = tokens
        if isinstance(tokens, Tensor) and tokens.shape == (batch, k):
            tokens = torch.cat([tokens, torch.full_like(tokens[:, :1], -1)], dim=1)
        if not isinstance(tokens, Tensor) or tokens.shape != (batch, k + 1):
            raise Broken("shape")
        if emitted is None:
            emitted = (tokens != -1).cumprod(dim=1).sum(dim=1)
        return Answer(tokens.long(), emitted)

    def in_parts(self, rows: int, ids: Tensor, q: Tensor | None, p: Tensor) -> Answer:
        """Verify in calls of so many rows, all for one q [k, vocab] and one p."""
        answers = [
            self(
                part.clone(),
                None if q is None else repeat(q, len(part)),
                repeat(p, len(part)),
            )
            for part in torch.split(ids, rows)
        ]
        return Answer(*(torch.cat(parts) for parts in zip(*answers, strict=True)))

    def draft(self, q: Tensor) -> tuple[Tensor, Tensor] | None:
        """Let the subject draft from rows [batch, vocab], if it has a drafter."""
        if self.of.draft is None:
            return None
        try:
            ids, declared = self.of.draft(q, **self.stream.source())
        except Exception as error:
            raise Broken(type(error).__name__) from error
        return ids, declared

    def lengths(self, *wanted: int) -> list[int]:
        """Those of the wanted numbers of drafts that it takes."""
        return [k for k in wanted if self.of.capabilities.allows(k)]


# --- what the rules share -------------------------------------------------------------


def repeat(law: Tensor, *sizes: int) -> Tensor:
    """A law, or rows of laws, again and again in a tensor of its own."""
    return law.expand(*sizes, *law.shape).contiguous()


def softmax_of(noise: Tensor) -> Tensor:
    """A law from logits."""
    return torch.softmax(noise, dim=-1)


def drawn(law: Tensor, rng: torch.Generator, *shape: int) -> Tensor:
    """Independent draws from one law."""
    many = torch.multinomial(law, math.prod(shape), replacement=True, generator=rng)
    return many.view(shape)


def counted(tokens: Tensor, vocab: int) -> Tensor:
    """Count tokens; one outside the vocabulary stops the test."""
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab:
        raise Broken("token id")
    return torch.bincount(tokens, minlength=vocab).double()


def fits(counts: Tensor, law: Tensor, limit: Callable[[int], float]) -> bool:
    """Pearson's statistic below a limit for its degrees of freedom.

    Cells that expect less than 5 are one cell, which is left out if it expects less too;
    where fewer than two cells are left the answer is yes.
    """
    expected = law.double() / law.double().sum() * counts.sum()
    enough = expected >= 5
    seen, due = counts[enough], expected[enough]
    rest = expected[~enough].sum()
    if rest >= 5:
        seen = torch.cat([seen, counts[~enough].sum()[None]])
        due = torch.cat([due, rest[None]])
    freedom = len(due) - 1
    return freedom < 1 or float(((seen - due) ** 2 / due).sum()) < limit(freedom)


def ten_sigma(freedom: int) -> float:
    """The limit of vLLM."""
    return freedom + 10 * math.sqrt(2 * freedom)


def every_position(answers: Answer, law: Tensor, limit: Callable[[int], float]) -> bool:
    """Whether each position follows the law on the rows that reach it."""
    tokens, emitted = answers
    return all(
        fits(counted(tokens[emitted > i, i], len(law)), law, limit)
        for i in range(tokens.shape[1])
    )


# --- the rules ------------------------------------------------------------------------


def distance_ratio(verify: Under, rng: torch.Generator) -> bool:
    """The target comes nearer 20 times faster than other laws do."""
    vocab, k, ratios = 10, 2, []
    q = softmax_of(torch.rand(vocab, generator=rng))
    p = softmax_of(torch.rand(vocab, generator=rng))
    others = softmax_of(torch.rand(100, vocab, generator=rng))
    for rows in (10, 100, 1_000, 10_000, 100_000):
        ids = drawn(q, rng, rows, k)
        tokens = verify(ids, repeat(q, rows, k), repeat(p, rows, k + 1)).tokens[:, :-1]
        kept = tokens[(tokens >= 0) & (tokens < vocab)]
        found = torch.bincount(kept, minlength=vocab) / len(kept)
        ratios.append((float(torch.dist(p, found)), float(torch.dist(others, found))))
    (near, far), (nearer, farther) = ratios[0], ratios[-1]
    return bool(near / nearer > 20 * far / farther)


def membership(verify: Under, rng: torch.Generator) -> bool:
    """No token comes that top-k or top-p has taken out."""
    vocab, k, rows = 100, 3, 100
    for kept in (1, 5, 99, 0.5, 0.9, 0.99):
        logits = torch.randn(rows, k + 1, vocab, generator=rng)
        p, order = softmax_of(logits).sort(dim=-1, descending=True)
        if kept in (1, 5, 99):
            out = torch.arange(vocab) >= kept
        else:
            out = p.cumsum(dim=-1) - p >= kept
        p = torch.zeros_like(p).scatter(-1, order, p.masked_fill(out, 0))
        p /= p.sum(dim=-1, keepdim=True)
        q = softmax_of(torch.rand(rows, k, vocab, generator=rng))
        flat = torch.multinomial(q.view(-1, vocab), 1, generator=rng)
        allowed = p > 0
        tokens = verify(flat.view(rows, k), q, p).tokens[:, :-1]
        live = tokens != -1
        if ((tokens < -1) | (tokens >= vocab)).any():
            return False
        if not allowed[:, :-1].gather(2, tokens.clamp_min(0)[..., None])[live].all():
            return False
    return True


def greedy_lists(verify: Under, rng: torch.Generator) -> bool:
    """Exact lists come out of greedy decoding on one-hot targets."""
    del rng
    cases = [
        ([[1, 2, 3]], [[1, 2, 3, 4]], [[1, 2, 3, 4]]),
        ([[1, 2, 3]], [[1, 5, 3, 4]], [[1, 5, -1, -1]]),
        ([[1]], [[1, 2]], [[1, 2]]),
        (
            [[1, 2, 3], [1, 2, 3]],
            [[1, 2, 7, 6], [4, 8, 6, 5]],
            [[1, 2, 7, -1], [4, -1, -1, -1]],
        ),
    ]
    for drafts, targets, due in cases:
        ids = torch.tensor(drafts)
        one_hot = torch.eye(100)
        q = one_hot[ids] if verify.takes_q else None
        if verify(ids, q, one_hot[torch.tensor(targets)]).tokens.tolist() != due:
            return False
    return True


def wide(verify: Under, rng: torch.Generator) -> bool:
    """Every position follows a target of 4096 tokens."""
    vocab, k, rows = 4096, 3, 40_960
    p = softmax_of(torch.randn(vocab, generator=rng))
    q = softmax_of(torch.randn(vocab, generator=rng))
    # Small calls stay in the cache of the CPU, which makes them four times as fast.
    ids = drawn(q, rng, rows, k)
    qs = q.expand(k, vocab) if verify.takes_q else None
    answers = verify.in_parts(8, ids, qs, p.expand(k + 1, vocab))
    return every_position(answers, p, ten_sigma)


def narrow(verify: Under, rng: torch.Generator) -> bool:
    """Every position follows a target of 16 tokens, drafts from the engine's own noise."""
    vocab, rows = 16, 200_000
    for k in verify.lengths(1, 3):
        logits = torch.randn(vocab, generator=rng)
        p, q = softmax_of(logits), softmax_of(-logits)
        own = [verify.draft(repeat(q, rows)) for _ in range(k)]
        if None in own:
            ids = drawn(q, rng, rows, k)
        else:
            ids = torch.stack([found[0] for found in own if found], dim=1)
        answers = verify(ids, repeat(q, rows, k), repeat(p, rows, k + 1))
        if not (answers.emitted >= 1).all():
            return False
        if not every_position(answers, p, ten_sigma):
            return False
    return True


def first_token_distance(verify: Under, rng: torch.Generator) -> bool:
    """The first token is within a total variation of 0.02 of the target."""
    vocab, rows = 8, 20_000
    p = softmax_of(torch.randn(vocab, generator=rng))
    q = softmax_of(torch.randn(vocab, generator=rng) * 2)
    ids = drawn(q, rng, rows, 1)
    tokens = verify(ids, repeat(q, rows, 1), repeat(p, rows, 2)).tokens
    found = counted(tokens[:, 0], vocab) / rows
    return float((found - p).abs().sum()) / 2 < 0.02


def bigrams(verify: Under, rng: torch.Generator, *, most: int = 16) -> bool:
    """Pairs of neighbours in long streams are independent draws, within 5 sigma."""
    streams, k, turns = 8192, 2, 16
    p, q = torch.tensor([1 / 3, 2 / 3, 0]), torch.tensor([2 / 3, 1 / 3, 0])
    qs, ps = repeat(q, streams, k), repeat(p, streams, k + 1)
    # Where streams end behind a step, their last tokens do not follow p, nor do the pairs.
    text = torch.full((streams, most), -1)
    length = torch.zeros(streams, dtype=torch.int64)
    for _ in range(turns):
        tokens, emitted = verify(drawn(q, rng, streams, k), qs, ps)
        counted(tokens[torch.arange(k + 1) < emitted[:, None]], 3)
        for i in range(k + 1):
            live = (emitted > i) & (length < most)
            text[live, length[live]] = tokens[live, i]
            length += live
    first, second = text[:, :-1], text[:, 1:]
    pairs = counted((first * 3 + second)[second >= 0], 9)
    total = pairs.sum()
    due = torch.outer(p, p).flatten().double()
    sigma = (due * (1 - due) / total).sqrt()
    return bool(((pairs / total - due).abs() <= 5 * sigma).all())


def declared_drafts(verify: Under, rng: torch.Generator) -> bool:
    """Frequencies of drafts are within 0.015 of the law returned with them."""
    q = softmax_of(torch.randn(4, generator=rng))
    found = verify.draft(repeat(q, 20_000))
    assert found is not None
    verify.draws += 20_000
    frequency = counted(found[0], 4) / 20_000
    return bool(((frequency - found[1][0].double()).abs() <= 0.015).all())


def divergences(verify: Under, rng: torch.Generator) -> bool:
    """The first token is as far from the target as plain sampling, by KL divergence."""
    vocab, rows = 500, 50_000

    def top_100() -> Tensor:
        law = torch.rand(vocab, generator=rng)
        law[law.topk(400, largest=False).indices] = 0
        return law / law.sum()

    q, p, behind = top_100(), top_100(), torch.rand(vocab, generator=rng)
    ps = torch.stack([p, behind / behind.sum()])
    tokens = verify.in_parts(10, drawn(q, rng, rows, 1), q[None], ps).tokens
    spec, plain = counted(tokens[:, 0], vocab), counted(drawn(p, rng, rows), vocab)
    difference = stats.entropy(p, spec) - stats.entropy(p, plain)
    return bool(abs(difference) < 0.01)


def order_of_counts(verify: Under, rng: torch.Generator) -> bool:
    """Two drafts always pass, the third never, and four counts are in order."""
    del rng
    drafts, vocab, loops = [1, 4, 5], 10, 10_000
    q = softmax_of(
        torch.full((3, vocab), -10.0).scatter(1, torch.tensor(drafts)[:, None], 10)
    )
    p = torch.zeros(4, vocab)
    p[0, 1] = p[1, 4] = 1
    p[2, [1, 3, 7, 8]] = softmax_of(torch.tensor([2.0, 1.0, -0.01, 2.0]))
    p[3] = 1 / vocab
    ids = repeat(torch.tensor(drafts), loops)
    tokens, emitted = verify.in_parts(10, ids, q if verify.takes_q else None, p)
    if not ((emitted == 3) & (tokens[:, 0] == 1) & (tokens[:, 1] == 4)).all():
        return False
    counts = Counter(tokens[:, 2].tolist())
    if not counts.keys() <= {1, 3, 7, 8}:
        return False
    return counts[1] > counts[3] > counts[7] > 0 and counts[8] > counts[3]


def cosine(verify: Under, rng: torch.Generator) -> bool:
    """Frequencies and law have a cosine above 0.99, and no excluded token comes."""
    vocab, rows = 111, 30_000
    for zeros in (0.0, 0.5, 0.9):
        logits = torch.randn(vocab, generator=rng)
        out = torch.randperm(vocab, generator=rng)[: int(vocab * zeros)]
        p = softmax_of(logits.index_fill(0, out, -torch.inf))
        q = softmax_of(torch.randn(vocab, generator=rng))
        ids = drawn(q, rng, rows, 1)
        tokens = verify(ids, repeat(q, rows, 1), repeat(p, rows, 2)).tokens
        counts = counted(tokens[:, 0], vocab)
        if counts[out].any() or torch.cosine_similarity(counts, p.double(), 0) <= 0.99:
            return False
    return True


def valid_rows(verify: Under, rng: torch.Generator) -> bool:
    """Ids are in range, the tail is -1, and one-hot targets come out."""
    settings = [(111, 1), (111, 99), (111, 989), (32_000, 1), (128_256, 1)]
    for vocab, rows in settings:
        for k in verify.lengths(1, 3, 5, 7):
            q = torch.rand(rows, k, vocab, generator=rng)
            ids = torch.randint(vocab, (rows, k), generator=rng)
            p = torch.rand(rows, k + 1, vocab, generator=rng)
            bonus = torch.randint(vocab, (rows, 1), generator=rng)
            due = torch.cat([ids, bonus], dim=1)
            one_hot = torch.zeros_like(p).scatter_(2, due[..., None], 1)
            q, p = q / q.sum(-1, keepdim=True), p / p.sum(-1, keepdim=True)
            for _ in range(10):
                if not torch.equal(verify(ids, q, one_hot).tokens, due):
                    return False
                tokens = verify(ids, q, p).tokens
                other = (tokens[:, :-1] != ids).cumsum(dim=1)
                behind = torch.nn.functional.pad(other, (1, 0)) > 0
                if (tokens >= vocab).any() or (tokens[behind] != -1).any():
                    return False
    return True


def discrete_sampler(verify: Under, rng: torch.Generator) -> bool:
    """Chi-square with p > 0.001 on the values that came, renormalised to these."""
    vocab, rows = 8, 10_000
    p = softmax_of(torch.randn(vocab, generator=rng))
    q = softmax_of(torch.randn(vocab, generator=rng))
    ids = drawn(q, rng, rows, 1)
    tokens = verify(ids, repeat(q, rows, 1), repeat(p, rows, 2)).tokens[:, 0]
    values, counts = np.unique(tokens.numpy(), return_counts=True)
    known = {i: float(mass) for i, mass in enumerate(p.double() / p.double().sum())}
    law = np.array([known.get(int(value), 0.0) for value in values])
    if not law.sum() > 0:
        return False
    law /= law.sum()
    enough = (counts > 5) & (law * rows > 5)
    if not law[enough].sum() > 0.9:
        return False
    if not enough.all():
        counts = np.append(counts[enough], counts[~enough].sum())
        law = np.append(law[enough], law[~enough].sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        return bool(stats.chisquare(counts, law * rows).pvalue > 1e-3)


def committed_tokens(verify: Under, rng: torch.Generator) -> bool:
    """Chi-square at every position, one false alarm in 1e9 each."""
    vocab, k, rows = 8, 3, 20_000
    p = softmax_of(torch.randn(vocab, generator=rng))
    q = softmax_of(torch.randn(vocab, generator=rng))
    ids = drawn(q, rng, rows, k)
    answers = verify.in_parts(100, ids, q.expand(k, vocab), p.expand(k + 1, vocab))
    return every_position(answers, p, lambda freedom: stats.chi2.isf(1e-9, freedom))


@dataclass(frozen=True)
class Rule:
    """A test of today.

    Attributes
    ----------
    name, source
        Engine and test, repository and file.
    text
        What it draws and when it passes.
    here
        What is different here.
    decide
        Whether it passes on a verifier, with random numbers for laws and drafts.
    lengths
        Numbers of drafts in a step that it uses.
    seeds
        Runs on the correct verifier.
    greedy, without_q, drafter
        Whether it is for greedy decoding; fits a verifier that takes no q; is about the
        drafter.
    """

    name: str
    source: str
    text: str
    decide: Callable[[Under, torch.Generator], bool]
    lengths: tuple[int, ...]
    here: str = ""
    seeds: int = 200
    greedy: bool = False
    without_q: bool = False
    drafter: bool = False

    def misfit(self, of: Subject) -> str:
        """Reason for which it cannot be applied to a subject; empty if it can."""
        able = of.capabilities
        if self.drafter:
            return "" if of.draft else "no drafter"
        if able.greedy != self.greedy:
            return "greedy decoding" if able.greedy else "sampling"
        if able.draft_probs is False and not self.without_q:
            return "takes no q"
        if not any(able.allows(k) for k in self.lengths):
            return "number of drafts"
        return ""


VLLM, SGLANG = (
    "vllm-project/vllm tests/v1",
    "sgl-project/sglang test/registered/unit/spec",
)
FLASHINFER = "flashinfer-ai/flashinfer tests/utils/test_sampling.py"
RULES = (
    Rule(
        "vLLM V1, distance ratio",
        f"{VLLM}/sample/test_rejection_sampler.py",
        "vocab 10, k = 2, one p and one q; 10 to 100,000 rows, all positions but the bonus "
        "in one histogram. From the first size to the last, the distance to the target "
        "must shrink more than 20 times as much as that to 100 random laws",
        distance_ratio,
        (2,),
    ),
    Rule(
        "vLLM V1, top-k and top-p",
        f"{VLLM}/sample/test_rejection_sampler.py",
        "vocab 100, k = 3, 100 rows, top-k 1, 5, 99 and top-p 0.5, 0.9, 0.99: tokens "
        "before the bonus are in the allowed set",
        membership,
        (3,),
        "p comes already cut",
    ),
    Rule(
        "vLLM V1, greedy lists",
        f"{VLLM}/sample/test_rejection_sampler.py",
        "fixed drafts and near one-hot targets, greedy: the exact lists",
        greedy_lists,
        (1, 3),
        "without ragged rows",
        seeds=0,
        greedy=True,
        without_q=True,
    ),
    Rule(
        "vLLM V2, wide chi-square",
        f"{VLLM}/spec_decode/test_rejection_sampler_utils.py",
        "vocab 4096, k = 1 and 3, temperature 0.6 and 1, 40,960 rows: at every position, "
        "bonus included, chi-square below df + 10 sqrt(2 df); also with q absent",
        wide,
        (3,),
        "k = 3 at temperature 1 only, no draft logits in bfloat16; calls of 8 rows",
        seeds=8,
        without_q=True,
    ),
    Rule(
        "vLLM V2, narrow chi-square",
        f"{VLLM}/spec_decode/test_rejection_sampler_utils.py",
        "vocab 16, k = 1 and 3, draft logits the negative of the target's, 200,000 rows, "
        "drafts drawn by the engine: the same chi-square",
        narrow,
        (1, 3),
        seeds=50,
    ),
    Rule(
        "SGLang, TV of the first token",
        f"{SGLANG}/test_chain_speculative_sampling.py",
        "vocab 8, k = 1, 20,000 rows: total variation of the first token below 0.02",
        first_token_distance,
        (1,),
    ),
    Rule(
        "SGLang, bigrams",
        f"{SGLANG} (block verification)",
        "p = (1/3, 2/3, 0), q = (2/3, 1/3, 0), k = 2, 8192 streams of 16 steps: counts of "
        "neighbours within 5 sigma, the third token never",
        bigrams,
        (2,),
        "the first 16 tokens of each stream, see below",
    ),
    Rule(
        "SGLang, declared q",
        f"{SGLANG}/test_draft_sampling.py",
        "20,000 drafts, vocab 4: frequencies within 0.015 of the q returned with them",
        declared_drafts,
        (1,),
        drafter=True,
    ),
    Rule(
        "TensorRT-LLM, KL difference",
        "NVIDIA/TensorRT-LLM tests/unittest/_torch/speculative/"
        "test_torch_rejection_sampling.py",
        "vocab 500, the 100 largest of uniform weights, k = 1, 50,000 calls of one row: KL "
        "divergences of first token and of plain sampling differ by less than 0.01",
        divergences,
        (1,),
        "calls of 10 rows",
        seeds=100,
    ),
    Rule(
        "transformers, order of four counts",
        "huggingface/transformers tests/generation/test_utils.py",
        "vocab 10, k = 3, one-hot drafts, 10,000 calls of one row: two drafts pass, the "
        "third is outside the target; of the four tokens there, 1 comes more often than 3, "
        "3 than 7, 7 at all, and 8 more often than 3",
        order_of_counts,
        (3,),
        "calls of 10 rows",
        without_q=True,
    ),
    Rule(
        "FlashInfer, cosine",
        FLASHINFER,
        "a sampler of single tokens, vocab 111 and more, 0, 50 and 90 % of the tokens "
        "excluded, 5,000,000 draws: cosine of frequencies and law above 0.99, excluded "
        "tokens never",
        cosine,
        (1,),
        "on the first token of a verifier with k = 1; vocab 111, normal logits, 30,000 "
        "draws",
        seeds=40,
    ),
    Rule(
        "FlashInfer, valid rows",
        FLASHINFER,
        "vocab 111, 32,000, 128,256, 1, 99, 989 rows, k = 1, 3, 5, 7, drafts uniform "
        "whatever q is, 10 calls: ids in range, -1 behind the first token that is not the "
        "draft; one-hot targets come out",
        valid_rows,
        (1, 3, 5, 7),
        "the two large vocabularies with one row only; counters are not read",
        seeds=20,
    ),
    Rule(
        "PyTorch, discrete sampler",
        "pytorch/pytorch test/distributions/test_distributions.py",
        "10,000 draws: chi-square over the values that came, law renormalised to them, p "
        "above 0.001",
        discrete_sampler,
        (1,),
        "on the first token of a verifier with k = 1, vocab 8",
    ),
    Rule(
        "DeepSpec, chi-square",
        "deepseek-ai/DeepSpec pull request 48 (open)",
        "20,000 rounds: chi-square of the committed token at every position, at about 1e-9 "
        "each",
        committed_tokens,
        (3,),
        "vocab 8, k = 3 and calls of 100 rows are ours: the description names none",
    ),
)
