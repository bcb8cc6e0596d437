# SPDX-License-Identifier: Apache-2.0
"""The exact law of whole verifiers: core, correct forms, planted defects, transformers."""

from fractions import Fraction
from functools import cache

import correct_forms
import planted
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_teeth import CLOSED, LOSSY, law_of

from specverify.defects.verifier import Verifier
from specverify.exact import Unfollowed
from specverify.exact.stepping import step_law
from specverify.inputs import strategies, witnesses
from specverify.inputs.cases import Case
from specverify.inputs.models import ToyModel
from specverify.inputs.trees import multidraft_case, tree_case
from specverify.laws import steps
from specverify.laws.distributions import law_distance
from specverify.subjects.protocol import subject
from specverify.subjects.resolve import resolve
from specverify.subjects.rig import Rig

#: Largest total variation that rounding and the grid of uniforms explain, by dtype.
ROUNDING = {"float32": 1e-6, "float64": 1e-12}
REPEATABLE = settings(max_examples=3, derandomize=True, deadline=None, database=None)
W, P2, M1 = witnesses.W.with_(k=1), witnesses.P2, witnesses.M1
O1 = witnesses.O1.with_(deterministic=False)
dtypes = pytest.mark.parametrize("dtype", ROUNDING)


def emitted(fn, case):
    """Exact law of all the tokens of a step, completed by the target."""
    law = step_law(Rig(fn), case)
    assert law.unfollowed == 0
    return steps.completed_law(law.emitted(), case.due, case.emits)


def from_target(law, case):
    """Distance of a law from the target's."""
    return float(law_distance(law, steps.autoregressive_law(case.due, case.emits)))


def bias(fn, case):
    """Exact distance of a subject's law from the target's."""
    return from_target(emitted(fn, case), case)


# --- the core -------------------------------------------------------------------------

CHAINS = ["chain", "block", "match", "one-hot"]
SLOTS = [
    "target-only",
    "with-replacement",
    "without-replacement",
    "kseq",
    "hub",
    "greedy-draft",
    "selection",
]
TREES = ["tree-target-only", "tree-recursive", "tree-traversal", "tree-paths"]


def reference(name):
    return resolve(f"reference:{name}")


@dtypes
@pytest.mark.parametrize("case", [W, P2, witnesses.D1], ids=lambda case: case.name)
@pytest.mark.parametrize("name", CHAINS)
def test_the_core_has_the_target_law_on_chains(name, case, dtype):
    assert bias(reference(name), case.with_(dtype=dtype)) < ROUNDING[dtype]


@dtypes
@pytest.mark.parametrize("case", [witnesses.S1, O1], ids=lambda case: case.name)
@pytest.mark.parametrize("name", SLOTS)
def test_the_core_has_the_target_law_with_two_drafts(name, case, dtype):
    verifier = reference(name)
    drafts = verifier.capabilities.drafts
    several = multidraft_case(case.with_(k=1, dtype=dtype), 2, drafts)

    assert bias(verifier, several) < ROUNDING[dtype]


@dtypes
@pytest.mark.parametrize("name", TREES)
def test_the_core_has_the_target_law_on_trees(name, dtype):
    verifier = reference(name)
    drafts = verifier.capabilities.drafts.replace("paths", "iid")
    tree = tree_case(M1.with_(dtype=dtype), (-1, 0, 0), drafts)

    assert bias(verifier, tree) < ROUNDING[dtype]


@pytest.mark.parametrize("name", CHAINS)
@REPEATABLE
@given(case=strategies.cases(min_k=0, max_k=2, max_vocab=3, max_cells=9))
def test_the_core_has_the_target_law_on_generated_chains(name, case):
    assert bias(reference(name), case) < ROUNDING["float32"]


@pytest.mark.parametrize("name", SLOTS)
@REPEATABLE
@given(data=st.data())
def test_the_core_has_the_target_law_on_generated_slots(name, data):
    verifier = reference(name)
    drafts = verifier.capabilities.drafts
    case = data.draw(strategies.multidraft_cases(drafts=drafts, max_n=2, max_vocab=3))

    assert bias(verifier, case) < ROUNDING["float32"]


@pytest.mark.parametrize("name", TREES)
@REPEATABLE
@given(data=st.data())
def test_the_core_has_the_target_law_on_generated_trees(name, data):
    verifier = reference(name)
    drafts = verifier.capabilities.drafts
    case = data.draw(strategies.tree_cases(drafts=drafts, max_nodes=3, max_cells=16))

    assert bias(verifier, case) < ROUNDING["float32"]


def test_the_coupling_of_two_races_on_one_noise_is_refused():
    with pytest.raises(Unfollowed, match="two different races"):
        bias(reference("coupling"), W)


def test_the_weights_of_all_branches_add_up_to_one():
    assert sum(step_law(Rig(reference("chain")), M1).outcomes.values()) == 1


def test_a_limit_on_branches_leaves_the_rest_unfollowed():
    law = step_law(Rig(reference("chain")), M1, max_branches=7)

    assert law.unfollowed == 1 - sum(law.outcomes.values()) > 0


# --- forms of correct code ------------------------------------------------------------

FORMS = {
    "multinomial": correct_forms.multinomial,
    "exponential_race": correct_forms.exponential_race,
    "gumbel_max": correct_forms.gumbel_max,
    "inverse_cdf": correct_forms.inverse_cdf,
    "rescaled_uniform": correct_forms.rescaled_uniform,
    "sample_and_match": subject(correct_forms.sample_and_match),
}


@pytest.mark.parametrize("case", [W, P2, witnesses.D1], ids=lambda case: case.name)
@pytest.mark.parametrize("form", FORMS)
def test_a_correct_form_is_exactly_lossless(form, case):
    assert bias(FORMS[form], case) < ROUNDING["float32"]


# --- planted defects ------------------------------------------------------------------


def due_bias(name, case):
    """Distance of a defect's law from the target's, by its closed form."""
    return from_target(law_of(name, case), case)


def shows(name):
    """The first witness on which the closed form of a defect is lossy."""
    return next(case for case in (W, P2, witnesses.D1, O1) if due_bias(name, case))


@cache
def planted_law(name, case):
    return emitted(subject(getattr(planted, name)), case)


def planted_bias(name, case):
    return from_target(planted_law(name, case), case)


@pytest.mark.parametrize("name", CLOSED)
def test_a_planted_defect_has_the_bias_of_its_closed_form(name):
    case = shows(name)

    assert planted_bias(name, case) == pytest.approx(due_bias(name, case), abs=1e-6)


@pytest.mark.parametrize("name", CLOSED)
def test_a_planted_defect_has_the_law_of_its_closed_form(name):
    case = shows(name)

    assert float(law_distance(planted_law(name, case), law_of(name, case))) < 1e-6


@pytest.mark.parametrize("name", [n for n in LOSSY if n != "reseeded"])
def test_a_planted_defect_is_exactly_lossy(name):
    case = shows(name) if name in CLOSED else P2

    assert planted_bias(name, case) > 1e-3


def test_a_defect_that_reseeds_its_generator_is_refused():
    with pytest.raises(Unfollowed, match="seeds a generator"):
        planted_bias("reseeded", W)


def lenient(share):
    def accept(u, p_x, q_x):
        return u * q_x < p_x * share

    return subject(Verifier(accepts=accept), name="lenient")


def test_a_lenience_of_a_thousandth_has_its_exact_bias():
    """Tokens with p < q come out too often by 0.001 p, as far as q allows it."""
    p, q = W.target(()), W.draft(())
    share = Fraction(1001, 1000)
    extra = [min(a * share, b) - a for a, b in zip(p, q, strict=True) if a < b]

    assert bias(lenient(1.001), W) == pytest.approx(float(sum(extra)), abs=1e-6)


def test_a_lenience_of_a_thousandth_is_far_above_rounding():
    assert ROUNDING["float32"] < bias(lenient(1.001), W) < 5e-4


# --- transformers ---------------------------------------------------------------------


def fractions(*weights):
    return tuple(Fraction(weight, sum(weights)) for weight in weights)


P_ROWS = [fractions(1, 2, 3, 4, 5), fractions(5, 4, 1, 2, 3), fractions(2, 2, 1, 4, 6)]
Q_ROWS = [fractions(5, 1, 3, 2, 4), fractions(1, 5, 2, 4, 3)]


def test_transformers_has_the_target_law_with_two_drafts_of_five_tokens():
    case = Case(ToyModel.from_positions(P_ROWS), ToyModel.from_positions(Q_ROWS), 2)

    assert bias(resolve("transformers"), case) < ROUNDING["float32"]


def test_transformers_has_the_target_law_with_three_drafts_of_five_tokens():
    p = [*P_ROWS, fractions(1, 1, 1, 2, 10)]
    q = [*Q_ROWS, fractions(3, 3, 3, 3, 3)]
    case = Case(ToyModel.from_positions(p), ToyModel.from_positions(q), 3)

    assert bias(resolve("transformers"), case) < ROUNDING["float32"]


# --- the edge of a uniform ------------------------------------------------------------


def single(dtype=torch.float64, *, inclusive=False, again=False):
    """Verify the first draft alone; with what uniforms, and how, is asked for."""

    def verify(ids, q, p, *, generator):
        u = torch.rand((), generator=generator, dtype=dtype)
        x = ids[0, 0]
        ratio = p[0, 0, x] / q[0, 0, x]
        if u <= ratio if inclusive else u < ratio:
            bonus = torch.multinomial(p[0, 1], 1, generator=generator)
            return torch.cat([ids, bonus[None]], dim=1)
        weights = (p[0, 0] - q[0, 0]).clamp_min(0).double().cumsum(0)
        v = u if again else torch.rand((), generator=generator, dtype=torch.float64)
        token = torch.searchsorted(weights, v * weights[-1:], right=True)
        return torch.cat([token.clamp_max(len(weights) - 1), torch.tensor([-1])])[None]

    return subject(verify, name="single", min_draft_tokens=1, max_draft_tokens=1)


#: Drafts a token that the target excludes, with probability 1/4.
EDGE = Case(
    ToyModel.from_positions([fractions(0, 1, 3), fractions(1, 1, 2)]),
    ToyModel.from_positions([fractions(1, 2, 1)]),
    1,
)


def impossible(fn):
    """Probability of the excluded token."""
    return sum(mass for tokens, mass in emitted(fn, EDGE).items() if tokens[0] == 0)


def test_a_strict_test_never_accepts_what_the_target_excludes():
    assert impossible(single(torch.float32)) == 0


@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.bfloat16, 8), (torch.float32, 24), (torch.float64, 53)]
)
def test_a_test_with_equality_accepts_the_excluded_at_the_least_uniform(dtype, bits):
    assert impossible(single(dtype, inclusive=True)) == Fraction(1, 4 * 2**bits)


def test_a_test_with_equality_in_float32_is_lossless_to_rounding():
    assert bias(single(torch.float32, inclusive=True), EDGE) < ROUNDING["float32"]


def test_a_test_with_equality_in_bfloat16_is_lossy():
    assert bias(single(torch.bfloat16, inclusive=True), EDGE) > 1e-4


def test_one_uniform_in_bfloat16_has_the_bias_of_its_grid():
    """A test on a grid of 256 accepts with probability ceil(256 p/q) / 256."""
    p, q = W.target(()), W.draft(())
    pairs = list(zip(p, q, strict=True))
    kept = [min(b, b * Fraction(-(-256 * a // b), 256)) for a, b in pairs]
    rest = [max(a - b, 0) / sum(max(a - b, 0) for a, b in pairs) for a, b in pairs]
    law = [x + (1 - sum(kept)) * r for x, r in zip(kept, rest, strict=True)]
    due = float(sum(abs(x - a) for x, a in zip(law, p, strict=True)) / 2)

    assert bias(single(torch.bfloat16), W) == pytest.approx(due, abs=1e-6)


def test_a_uniform_that_is_used_again_has_the_published_bias():
    assert bias(single(again=True), W) == pytest.approx(0.096, abs=5e-4)
