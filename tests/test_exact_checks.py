# SPDX-License-Identifier: Apache-2.0
"""What the checks of the exact law say of subjects, right ones and wrong ones."""

from functools import cache

import correct_forms
import numpy as np
import planted
import pytest
import torch

from specverify import core
from specverify.checks import exact, following
from specverify.checks.plan import make_plan
from specverify.checks.registry import checks_for
from specverify.checks.run import make_rig, run_check
from specverify.defects.verifier import Verifier
from specverify.exact.stepping import step_law
from specverify.inputs import witnesses
from specverify.inputs.cases import Case
from specverify.subjects.protocol import subject
from specverify.subjects.resolve import resolve
from specverify.subjects.rig import Rig

PLAN = make_plan("quick", max_seconds=600)  # a busy machine changes nothing


def finding(fn, name="exact-law"):
    """What a check says; without a search for a smaller input."""
    (check,) = checks_for(fn.kind, name)
    return run_check(check, make_rig(fn, PLAN), PLAN, shrink=False, explain=False)


def short(fn, **options):
    """A subject that takes one draft, so that it has few branches."""
    return subject(fn, name="short", max_draft_tokens=1, **options)


@cache
def of_core():
    return finding(short(core.verify_chain))


@cache
def of_planted(name, check="exact-law"):
    return finding(short(getattr(planted, name), efficiency="token"), check)


def drafted(**options):
    """A subject of one draft, tested by a uniform that is asked for."""

    def verify(ids, q, p, *, generator):
        u = torch.rand(1, 1, generator=generator, dtype=options["dtype"])
        ratio = p[:, :1].gather(2, ids[..., None]) / q.gather(2, ids[..., None])
        if u <= ratio[0] if options["inclusive"] else u < ratio[0]:
            bonus = torch.multinomial(p[:, 1], 1, generator=generator)
            return torch.cat([ids, bonus], dim=1)
        weights = (p[:, 0] - q[:, 0]).clamp_min(0)
        token = torch.multinomial(weights, 1, generator=generator)
        return torch.cat([token, torch.full_like(token, -1)], dim=1)

    return short(verify, min_draft_tokens=1)


# --- right ones -----------------------------------------------------------------------


def test_the_core_passes():
    assert of_core().status == "pass"


def test_several_drafts_pass():
    assert finding(resolve("reference:target-only")).status == "pass"


def test_a_pass_says_how_many_branches_it_rests_on():
    assert "branches were followed on" in of_core().observations[0]


def test_a_pass_is_worth_its_tolerance():
    assert of_core().detectable_tv == following.TOLERANCE


def test_a_pass_bounds_the_distance_that_it_has_seen():
    assert 0 < of_core().tv_upper < following.TOLERANCE


@pytest.mark.parametrize("check", ["exact-acceptance", "exact-coupling"])
def test_a_correct_form_has_the_joint_laws_of_its_rule(check):
    assert finding(correct_forms.multinomial, check).status == "pass"


# --- wrong ones -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["residual_from_p", "reused_uniform", "lenience"])
def test_a_planted_defect_is_a_violation(name):
    assert of_planted(name).status == "violation"


def test_a_violation_names_the_exact_distance():
    found = of_planted("residual_from_p")

    assert f"{found.tv_estimate:.7f}" in found.reason


def test_a_violation_shows_a_small_input():
    case = Case.from_json(of_planted("residual_from_p").counterexample.case)

    assert (case.vocab, case.k) == (3, 1)


def test_a_violation_shows_both_laws():
    assert "exactly" in of_planted("residual_from_p").counterexample.where


def test_a_lenience_of_a_thousandth_is_a_violation():
    def accept(u, p_x, q_x):
        return u * q_x < p_x * 1.001

    assert finding(short(Verifier(accepts=accept))).status == "violation"


def test_a_rule_that_is_declared_wrongly_is_seen_in_its_acceptance():
    declared = subject(core.verify_block, name="declared", efficiency="token")

    assert finding(declared, "exact-acceptance").status == "violation"


def test_a_recovered_token_that_depends_on_the_rejected_one_is_seen():
    found = of_planted("zeroed_draft_residual", "exact-coupling")

    assert found.status == "violation"


def test_uniforms_in_bfloat16_are_a_violation():
    assert finding(drafted(dtype=torch.bfloat16, inclusive=False)).status == "violation"


def test_equality_in_float32_is_a_boundary_and_no_violation():
    found = finding(drafted(dtype=torch.float32, inclusive=True))

    assert found.status == "pass"
    assert any("probability zero" in line for line in found.observations)


def test_a_strict_test_has_no_boundary_to_report():
    found = finding(drafted(dtype=torch.float32, inclusive=False))

    assert not any("probability zero" in line for line in found.observations)


# --- those that cannot be followed ----------------------------------------------------


def with_noise(noise):
    """A correct subject that asks for another random number first."""

    def verify(ids, q, p, *, generator):
        noise(generator)
        return core.verify_chain(ids, q, p, generator=generator)

    return subject(verify, name="with_noise")


def endless(ids, q, p, *, generator):
    while torch.rand((), generator=generator) < 2:
        pass


def numbers(ids, q, p, *, generator):
    return torch.rand(1, ids.shape[1] + 1, generator=generator)


def outside(ids, q, p, *, generator):
    """Draw from NumPy what no generator of ours reaches."""
    rng = np.random.Generator(np.random.PCG64())
    uniforms = torch.tensor(rng.random((len(ids), ids.shape[1] + 1)))
    return core.verify_chain(ids, q, p, uniforms=uniforms)


SKIPPED = {
    "an unknown random call": (
        with_noise(lambda g: torch.randn(1, generator=g) < 0),
        "randn is not followed",
    ),
    "a global generator": (
        with_noise(lambda g: np.random.normal()),  # noqa: NPY002 - that is the defect
        "in a way not followed",
    ),
    "its own generator": (with_noise(lambda g: g.manual_seed(0)), "seeds a generator"),
    "default_rng": (
        with_noise(lambda g: np.random.default_rng()),
        "default_rng is not followed",
    ),
    "a generator out of sight": (
        subject(outside, name="outside"),
        "repeats differently",
    ),
    "random numbers returned": (
        subject(numbers, name="numbers"),
        "while its random calls were answered",
    ),
    "the coupling": (resolve("reference:coupling"), "two different races"),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_what_cannot_be_followed_is_skipped(name):
    assert finding(SKIPPED[name][0]).status == "skipped"


@pytest.mark.parametrize("name", SKIPPED)
def test_what_cannot_be_followed_is_skipped_with_the_reason(name):
    fn, reason = SKIPPED[name]

    assert reason in finding(fn).reason


def test_branches_without_end_are_left_unfollowed():
    law = step_law(Rig(short(endless)), witnesses.W, seconds=0.5)

    assert law.unfollowed == 1


def test_a_subject_that_fails_once_on_a_generated_input_fails_once():
    """The search asks again, and must hear the same answer."""
    calls = []

    def once(ids, q, p, *, generator):
        if p.shape[2] == 5 and not calls:  # no witness has five tokens
            calls.append(1)
            raise RuntimeError("only once")
        return core.verify_chain(ids, q, p, generator=generator).output_token_ids

    found = finding(short(once))

    assert found.status == "skipped"
    assert "only once" in found.reason


def cut_off(monkeypatch, most):
    """What is said where `most` gives the branches that are followed on a case."""

    def few(rig, case, seconds):
        return step_law(rig, case, max_branches=most(case), seconds=seconds)

    monkeypatch.setattr(following, "step_law", few)
    return finding(short(core.verify_chain))


def test_generated_inputs_that_are_cut_off_are_not_counted(monkeypatch):
    every = of_core().examples
    found = cut_off(monkeypatch, lambda case: 1000 if case.name else 8)

    assert found.status == "pass"
    assert 0 < found.examples < every
    assert found.tv_upper < 1e-6
    assert any("cut off by the time" in words for words in found.observations)


def test_nothing_is_concluded_where_named_inputs_are_cut_off(monkeypatch):
    found = cut_off(monkeypatch, lambda case: 8)

    assert found.status == "inconclusive"
    assert "named inputs were not followed to the end" in found.reason


def test_a_subject_with_too_many_branches_is_left_to_the_sampled_checks(monkeypatch):
    monkeypatch.setattr(exact, "_MANY_BRANCHES", 8)
    found = cut_off(monkeypatch, lambda case: 8)

    assert found.status == "skipped"
    assert "more branches than can be followed" in found.reason
