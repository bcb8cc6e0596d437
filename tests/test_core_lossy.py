# SPDX-License-Identifier: Apache-2.0
"""Rules that are lossy by design do exactly what their laws say, no less and no more."""

import inspect
import math
from collections import Counter
from fractions import Fraction
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.core import lossy
from specverify.core.chain import verify_chain
from specverify.core.sampling import draw_uniforms, inverse_cdf
from specverify.inputs import WITNESSES
from specverify.inputs.strategies import distribution_pairs
from specverify.laws import chain
from specverify.laws import lossy as laws
from specverify.laws.lossy import RULES
from specverify.statistics.chisquare import goodness_of_fit

REPEATABLE = settings(max_examples=30, derandomize=True, deadline=None, database=None)
VERIFIERS = {
    "lenient": lossy.verify_lenient,
    "typical": lossy.verify_typical,
    "threshold": lossy.verify_threshold,
    "top-k": lossy.verify_top_k_accepted,
    "entropy": lossy.verify_entropy_scaled,
    "synthetic": lossy.verify_synthetic,
}
LARGEST_UNIFORM = 1 - 2**-53
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
every_rule = pytest.mark.parametrize("name", VERIFIERS)

W = WITNESSES["W"]


def seeded(seed, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


def random_step(seed, *, batch=7, k=4, vocab=6, device="cpu"):
    """Arguments of one step with different rows, and uniforms for it."""
    generator = seeded(seed)
    weights = torch.rand(batch, 2 * k + 1, vocab, generator=generator).double()
    rows = weights / weights.sum(-1, keepdim=True)
    q, p = rows[:, :k], rows[:, k:]
    u = torch.rand(batch, 2 * k + 1, dtype=torch.float64, generator=generator)
    ids = inverse_cdf(q.reshape(-1, vocab), u[:, :k].reshape(-1)).view(batch, k)
    return tuple(x.to(device) for x in (ids, q, p, u[:, k:]))


# --- the law, exactly -----------------------------------------------------------------

#: Cells of a test whose acceptance is no fraction; it is then known to 1/1024.
CELLS = 512


def midpoints(cells):
    return (torch.arange(cells, dtype=torch.float64) + 0.5) / cells


def cells_of(accept):
    return Fraction(accept).denominator if not isinstance(accept, float) else CELLS


def on_the_grid(accept):
    """Share of the midpoints that lie below an acceptance probability."""
    cells = cells_of(accept)
    return Fraction(math.floor(accept * cells + Fraction(1, 2)), cells)


def exact_law(verify, rule, p, q, dtype=torch.float64, device="cpu"):
    """Law of (first token, accepted), from injected uniforms.

    The outcome changes only where a uniform crosses the border of a cell, so the middle
    of a cell stands for all of it, and rounding is far too small to move it across.
    """
    target, draft = (
        torch.tensor([float(x) for x in row], dtype=dtype, device=device)
        for row in (p, q)
    )
    law = Counter()
    for token in range(len(q)):
        if not q[token]:
            continue
        drawn_from = (*rule.recovered(p, q, token), *p)
        draws = math.lcm(*(Fraction(mass).denominator for mass in drawn_from))
        cells = cells_of(rule.accept(p, q, token))
        uniforms = torch.cartesian_prod(midpoints(cells), midpoints(draws)).to(device)
        batch = len(uniforms)
        ids, kept = verify(
            torch.full((batch, 1), token, device=device),
            draft.expand(batch, 1, -1),
            target.expand(batch, 2, -1),
            uniforms=uniforms,
        )
        outcomes = Counter(zip(ids[:, 0].tolist(), kept.tolist(), strict=True))
        for (first, accepted), count in outcomes.items():
            law[first, bool(accepted)] += q[token] * Fraction(count, batch)
    return law


def stated_law(rule, p, q):
    """The same law from the rule; acceptances that are no fractions as on the grid."""
    law = Counter()
    for token, drafted in enumerate(q):
        if not drafted:
            continue
        accept = on_the_grid(rule.accept(p, q, token))
        law[token, True] += drafted * accept
        for other, mass in enumerate(rule.recovered(p, q, token)):
            law[other, False] += drafted * (1 - accept) * mass
    return Counter({outcome: mass for outcome, mass in law.items() if mass})


@every_rule
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_injected_uniforms_give_the_law_exactly(name, dtype, device):
    p, q, rule = W.target(()), W.draft(()), RULES[name]

    law = exact_law(VERIFIERS[name], rule, p, q, dtype, device)
    assert law == stated_law(rule, p, q)


@every_rule
@REPEATABLE
@given(pair=distribution_pairs(4))
def test_injected_uniforms_give_the_law_of_any_pair_exactly(name, pair):
    p, q = pair

    law = exact_law(VERIFIERS[name], RULES[name], p, q)
    assert law == stated_law(RULES[name], p, q)


OTHER_SETTINGS = {
    "lenient .8": (
        partial(lossy.verify_lenient, lenience=0.8),
        laws.lenient(Fraction(4, 5)),
    ),
    "typical, a high limit": (
        partial(lossy.verify_typical, threshold=0.25, entropy_factor=1.0),
        laws.typical(Fraction(1, 4), 1),
    ),
    "threshold, single only": (
        partial(lossy.verify_threshold, threshold_single=0.25, threshold_acc=1),
        laws.thresholded(Fraction(1, 4), 1),
    ),
    "threshold, acc only": (
        partial(lossy.verify_threshold, threshold_single=1, threshold_acc=0.9),
        laws.thresholded(1, Fraction(9, 10)),
    ),
    "top 1": (
        partial(lossy.verify_top_k_accepted, top=1),
        laws.top_k_accepted(1),
    ),
    "entropy, capped": (
        partial(lossy.verify_entropy_scaled, factor=0.1, cap=0.5),
        laws.entropy_scaled(Fraction(1, 10), Fraction(1, 2)),
    ),
    "synthetic 0": (partial(lossy.verify_synthetic, rates=0), laws.synthetic(0)),
    "synthetic [1]": (partial(lossy.verify_synthetic, rates=[1]), laws.synthetic(1)),
}


@pytest.mark.parametrize("name", OTHER_SETTINGS)
@REPEATABLE
@given(pair=distribution_pairs(3))
def test_other_settings_have_their_own_law_exactly(name, pair):
    verify, rule = OTHER_SETTINGS[name]

    assert exact_law(verify, rule, *pair) == stated_law(rule, *pair)


@every_rule
def test_injected_uniforms_refuse_the_lossless_rule(name):
    p, q, rule = W.target(()), W.draft(()), RULES[name]

    assert exact_law(verify_chain, rule, p, q) != stated_law(rule, p, q)


@pytest.mark.parametrize("name", ["lenient", "entropy", "threshold", "synthetic"])
@REPEATABLE
@given(pair=distribution_pairs(4), data=st.data())
def test_acceptance_ends_at_the_stated_probability(name, pair, data):
    """Sharper than a grid where the probability is no fraction."""
    p, q = pair
    token = data.draw(st.sampled_from([x for x in range(4) if q[x]]))
    accept = float(RULES[name].accept(p, q, token))
    around = [accept * (1 - 1e-13), accept * (1 + 1e-13)]
    u = [[min(x, LARGEST_UNIFORM), 0.5] for x in around]
    target, draft = (
        torch.tensor([float(x) for x in row], dtype=torch.float64) for row in (p, q)
    )
    kept = VERIFIERS[name](
        torch.full((2, 1), token),
        draft.expand(2, 1, 4),
        target.expand(2, 2, 4),
        uniforms=torch.tensor(u, dtype=torch.float64),
    ).num_accepted

    assert kept.tolist() == [int(accept > 0), int(accept == 1)]


# --- the law of several drafts, by sampling -------------------------------------------

M1 = WITNESSES["M1"]
STEPS = 20_000


def sampled_fit(verify, rule):
    """Chi-square of (emitted tokens, accepted) on M1, two drafts, against the law."""
    stated = Counter()
    for tokens, accepted, mass in chain.emissions(M1.target, M1.draft, 2, rule=rule):
        stated[(*tokens, -1, -1)[:3], accepted] += float(mass)
    weights = [torch.from_numpy(model.matrix) for model in (M1.target, M1.draft)]
    noise = torch.rand(STEPS, 2, dtype=torch.float64, generator=seeded(1))
    p, q = weights
    first = inverse_cdf(q[:1].expand(STEPS, -1), noise[:, 0])
    second = inverse_cdf(q[1 + first], noise[:, 1])
    drafts = torch.stack([first, second], dim=1)
    rows_q = torch.stack([q[:1].expand(STEPS, -1), q[1 + first]], dim=1)
    rows_p = torch.stack([p[:1].expand(STEPS, -1), p[1 + first], p[1 + second]], dim=1)
    ids, kept = verify(drafts, rows_q, rows_p, generator=seeded(2))
    seen = Counter(zip(map(tuple, ids.tolist()), kept.tolist(), strict=True))
    if seen.keys() - stated.keys():
        return 0.0  # an outcome that the rule excludes
    counts = [seen[outcome] for outcome in stated]
    return goodness_of_fit(counts, list(stated.values()), level=1e-9).p_value


@every_rule
def test_two_drafts_follow_the_joint_law(name):
    assert sampled_fit(VERIFIERS[name], RULES[name]) >= 1e-9


@pytest.mark.parametrize("name", ["lenient", "threshold", "entropy"])
def test_draws_of_the_lossless_rule_do_not(name):
    assert sampled_fit(verify_chain, RULES[name]) < 1e-9


# --- settings -------------------------------------------------------------------------


@every_rule
def test_the_defaults_are_those_of_the_laws(name):
    of_laws = {
        "lenient": laws.lenient,
        "typical": laws.typical,
        "threshold": laws.thresholded,
        "top-k": laws.top_k_accepted,
        "entropy": laws.entropy_scaled,
        "synthetic": laws.synthetic,
    }

    stated = inspect.signature(of_laws[name]).parameters.values()
    found = inspect.signature(VERIFIERS[name]).parameters.values()
    numbers = [x.default for x in found if isinstance(x.default, int | float)]
    assert numbers == [float(x.default) for x in stated]


def same(first, second):
    return all(map(torch.equal, first, second))


def test_lenience_one_is_the_lossless_rule(device):
    *step, u = random_step(1, batch=200, device=device)

    lenient = lossy.verify_lenient(*step, uniforms=u, lenience=1)
    assert same(lenient, verify_chain(*step, uniforms=u))


def test_thresholds_of_one_are_the_lossless_rule_of_one_hot_drafts(device):
    ids, q, p, u = random_step(2, batch=200, device=device)
    options = {"threshold_single": 1, "threshold_acc": 1, "uniforms": u}

    assert same(
        lossy.verify_threshold(ids, q, p, **options),
        verify_chain(ids, None, p, uniforms=u),
    )


def test_each_position_has_its_own_preset_rate(device):
    """Of a thousand rows, the first draft passes always, the second never."""
    *step, u = random_step(3, batch=1000, k=2, device=device)
    kept = lossy.verify_synthetic(*step, uniforms=u, rates=(1, 0)).num_accepted

    assert kept.tolist() == [1] * 1000


# --- corners --------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in VERIFIERS if name != "synthetic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_uniform_zero_does_not_accept_a_token_of_target_probability_zero(
    name, dtype, device
):
    ids = torch.zeros(1, 1, dtype=torch.int64, device=device)
    p = torch.tensor([[[0.0, 1.0]] * 2], dtype=dtype, device=device)
    q = torch.tensor([[[1.0, 0.0]]], dtype=dtype, device=device)
    result = VERIFIERS[name](ids, q, p, uniforms=torch.zeros(1, 2, device=device))

    assert result.output_token_ids.tolist() == [[1, -1]]


@every_rule
def test_no_drafts_give_one_token_of_the_target_row(name, device):
    p = torch.tensor(W.target.matrix[:1], device=device).expand(32, 1, 4)
    ids = torch.empty(32, 0, dtype=torch.int64, device=device)
    q = torch.empty(32, 0, 4, device=device)
    result = VERIFIERS[name](ids, q, p, uniforms=midpoints(32).unsqueeze(1).to(device))

    assert result.output_token_ids[:, 0].bincount().tolist() == [8, 4, 9, 11]


@every_rule
def test_an_empty_batch_gives_an_empty_result(name, device):
    step = (x[:0] for x in random_step(4, device=device)[:3])

    assert VERIFIERS[name](*step).output_token_ids.shape == (0, 5)


# --- forms of the input ---------------------------------------------------------------


@every_rule
def test_no_draft_probs_means_one_hot_at_the_drafts(name, device):
    ids, q, p, u = random_step(5, batch=200, device=device)
    one_hot = torch.nn.functional.one_hot(ids, q.shape[-1]).double()

    implicit = VERIFIERS[name](ids, None, p, uniforms=u)
    assert same(implicit, VERIFIERS[name](ids, one_hot, p, uniforms=u))


LENGTHS = [0, 1, 2, 3, 4, 2, 0]


@every_rule
def test_a_ragged_row_gives_what_the_shorter_row_gives_alone(name, device):
    """And whatever stands behind its drafts does not matter."""
    ids, q, p, u = random_step(6, device=device)
    padded = [x.clone() for x in (ids, q, p)]
    for row, length in enumerate(LENGTHS):
        for tensor, fill in zip(padded, (-1, math.nan, math.nan), strict=True):
            tensor[row, length + (tensor is padded[2]) :] = fill
    lengths = torch.tensor(LENGTHS, device=device)
    ragged = VERIFIERS[name](*padded, uniforms=u, num_draft_tokens=lengths)

    for row, n in enumerate(LENGTHS):
        one = slice(row, row + 1)
        uniforms = torch.cat([u[one, :n], u[one, -1:]], dim=1)
        short = ids[one, :n], q[one, :n], p[one, : n + 1]
        alone = VERIFIERS[name](*short, uniforms=uniforms).output_token_ids
        assert torch.equal(ragged.output_token_ids[row, : n + 1], alone[0])
        assert (ragged.output_token_ids[row, n + 1 :] == -1).all()


@every_rule
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_probabilities_are_widened_before_anything_is_computed(name, dtype, device):
    ids, q, p, u = random_step(7, batch=200, device=device)
    q, p = q.to(dtype), p.to(dtype)

    narrow = VERIFIERS[name](ids, q, p, uniforms=u)
    wide = VERIFIERS[name](ids, q.double(), p.double(), uniforms=u, validate=False)
    assert same(narrow, wide)


# --- side effects ---------------------------------------------------------------------


@every_rule
def test_inputs_are_left_bitwise_unchanged(name, device):
    step = (*random_step(8, device=device), torch.tensor(LENGTHS, device=device))
    before = [x.clone() for x in step]
    ids, q, p, u, lengths = step
    VERIFIERS[name](ids, q, p, uniforms=u, num_draft_tokens=lengths)

    assert same(step, before)


@every_rule
def test_a_generator_gives_what_its_uniforms_give(name, device):
    """Drawn at once, as `verify_chain` draws them, and from nowhere else."""
    *step, u = random_step(9, batch=50, device=device)
    drawn = draw_uniforms(u.shape, device=u.device, generator=seeded(3, device))

    sampled = VERIFIERS[name](*step, generator=seeded(3, device))
    assert same(sampled, VERIFIERS[name](*step, uniforms=drawn))


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@every_rule
def test_the_host_never_waits_for_the_device(name, device):
    ids, q, p, _ = random_step(10, device=device)
    generator = seeded(0, device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        VERIFIERS[name](ids, q, p, generator=generator)
        VERIFIERS[name](ids, None, p, generator=generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- errors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "setting", "value", "allowed"),
    [
        ("lenient", "lenience", 0, "more than 0 and at most 1"),
        ("lenient", "lenience", 1.5, "more than 0 and at most 1"),
        ("entropy", "factor", -1, "0 or more"),
        ("entropy", "cap", 0, "more than 0 and at most 1"),
        ("typical", "threshold", 1.5, "0 or more and at most 1"),
        ("typical", "entropy_factor", math.nan, "0 or more"),
        ("top-k", "top", 0, "more than 0"),
        ("threshold", "threshold_single", -0.5, "more than 0 and at most 1"),
        ("threshold", "threshold_acc", 0, "more than 0 and at most 1"),
        ("synthetic", "rates", 1.5, "0 or more and at most 1"),
        ("synthetic", "rates", -0.5, "0 or more and at most 1"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name, setting, value, allowed):
    step = random_step(11)[:3]

    with pytest.raises(ValueError, match=f"^{setting} is {value}; .* {allowed}"):
        VERIFIERS[name](*step, **{setting: value}, validate=False)


def test_preset_rates_of_the_wrong_number_are_refused():
    step = random_step(11)[:3]

    with pytest.raises(ValueError, match=r"^rates holds 2 numbers; .* one or k = 4"):
        lossy.verify_synthetic(*step, rates=[0.5, 0.5])


@every_rule
def test_the_tensors_are_checked_as_by_the_lossless_rule(name):
    ids, q, p, _ = random_step(12)

    with pytest.raises(
        ValueError, match=r"^target_probs\[0, 0\] sums to 2; .* 1 within"
    ):
        VERIFIERS[name](ids, q, 2 * p)
