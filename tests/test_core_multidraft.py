# SPDX-License-Identifier: Apache-2.0
"""What the rules for several drafts at one position promise."""

import pytest
import torch
from branches import LARGEST_UNIFORM, ROUNDING, farthest, multidraft_law
from calls import (
    DTYPES,
    SLOTS_ERRORS,
    global_state,
    random_slots,
    same,
    seeded,
    slots_call,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from specverify.core import (
    multidraft,
    verify_chain,
    verify_greedy_draft,
    verify_hub,
    verify_kseq,
    verify_selected,
    verify_target_only,
    verify_with_replacement,
    verify_without_replacement,
)
from specverify.core.multidraft import kseq_rho
from specverify.inputs import WITNESSES
from specverify.inputs.strategies import multidraft_cases
from specverify.laws import bounds
from specverify.laws import multidraft as laws

REPEATABLE = settings(max_examples=20, derandomize=True, deadline=None, database=None)
#: Code, law and the way of drawing that they are for.
RULES = {
    "with replacement": (verify_with_replacement, "with_replacement"),
    "without replacement": (verify_without_replacement, "without_replacement"),
    "kseq": (verify_kseq, "kseq"),
    "target only": (verify_target_only, "target_only"),
    "hub": (verify_hub, "hub"),
    "greedy draft": (verify_greedy_draft, "greedy_draft"),
    "selected": (verify_selected, "selection"),
}
CODE = {name: code for name, (code, _) in RULES.items()}
DRAFTS = {name: laws.RULES[law][1] for name, (_, law) in RULES.items()}
SIZES = [(name, n) for name in RULES for n in ((2,) if name == "hub" else (1, 2, 3))]
#: rho of K-SEQ is no fraction: law and code search for it, each in its own way.
NEAR = {"kseq": 1e-9}
every_rule = pytest.mark.parametrize("name", RULES)
every_size = pytest.mark.parametrize(("name", "n"), SIZES)

W, C5, D1 = WITNESSES["W"], WITNESSES["C5"], WITNESSES["D1"]
P, Q = W.target(()), W.draft(())


def miss(name, p, q, n, *, verify=None, **options):
    """How far the law of the code lies from the stated one."""
    law, drafts = laws.RULES[RULES[name][1]]
    found = multidraft_law(verify or CODE[name], p, q, n, drafts, **options)
    return farthest(found, laws.joint_law(law, p, q, n, drafts))


# --- the law --------------------------------------------------------------------------


@every_size
@pytest.mark.parametrize("case", [W, C5, D1], ids=lambda case: case.name)
def test_the_law_of_token_and_slot_is_the_stated_one(name, n, case, device):
    """With zeros, ties and no common token."""
    p, q = case.target(()), case.draft(())

    assert miss(name, p, q, n, device=device) <= NEAR.get(name, ROUNDING)


@every_rule
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_law_is_the_same_in_every_dtype(name, dtype, device):
    options = {"dtype": dtype, "device": device}

    assert miss(name, P, Q, 2, **options) <= NEAR.get(name, ROUNDING)


@every_rule
@REPEATABLE
@given(data=st.data())
def test_the_law_of_any_case_is_the_stated_one(name, data):
    """Slots for which q has no token left are empty."""
    drawn = multidraft_cases(drafts=DRAFTS[name], max_n=3, max_vocab=4)
    case = data.draw(drawn)
    p, q = case.target(()), case.draft(())

    assert miss(name, p, q, case.n) <= NEAR.get(name, ROUNDING)


@every_size
def test_the_token_follows_the_target(name, n):
    law = multidraft_law(CODE[name], P, Q, n, DRAFTS[name])
    tokens = dict.fromkeys(range(4), 0.0)
    for (token, _), mass in law.items():
        tokens[token] += mass

    assert farthest(tokens, dict(enumerate(P))) <= ROUNDING


def first_given_up(*step, uniforms):
    """Lossy: whatever the first test says, the first draft is not accepted."""
    token, slot = verify_with_replacement(*step, uniforms=uniforms)
    return token, torch.where(slot == 0, -1, slot)


MIXED_UP = [
    ("with replacement", verify_without_replacement),
    ("with replacement", first_given_up),
    ("without replacement", verify_with_replacement),
    ("kseq", verify_with_replacement),
    ("target only", verify_without_replacement),
    ("hub", verify_without_replacement),
    ("greedy draft", verify_without_replacement),
    ("selected", verify_with_replacement),
]


@pytest.mark.parametrize(("name", "other"), MIXED_UP)
def test_another_rule_has_another_law(name, other):
    assert miss(name, P, Q, 2, verify=other) > 0.01


BROKEN = {
    "q keeps a rejected token": ("without", lambda q, t: q, "without replacement"),
    "a residual is p": ("residual_weights", lambda p, q: p, "with replacement"),
    "rho is 1": ("kseq_rho", lambda q, p, n: torch.ones_like(p[:, 0]), "kseq"),
    "rho is n": ("kseq_rho", lambda q, p, n: n.double(), "kseq"),
    "every draft is accepted": (
        "accept_tokens",
        lambda p, q, u: u < 1,
        "without replacement",
    ),
}


@pytest.mark.parametrize("defect", BROKEN)
def test_a_broken_part_has_another_law(defect, monkeypatch):
    part, wrong, name = BROKEN[defect]
    monkeypatch.setattr(multidraft, part, wrong)

    assert miss(name, P, Q, 2) > 1e-3


# --- what a rule reduces to -----------------------------------------------------------


@pytest.mark.parametrize("name", sorted(RULES.keys() - {"hub", "target only"}))
def test_one_draft_is_verified_as_a_chain_of_one(name, device):
    ids, q, p, u = random_slots(1, n=1, batch=400, device=device)
    token, slot = CODE[name](ids, q, p, uniforms=u)
    rows = p.unsqueeze(1).expand(-1, 2, -1)
    tokens, kept = verify_chain(ids, q.unsqueeze(1), rows, uniforms=u)

    assert same((token, slot), (tokens[:, 0], kept - 1))


def test_two_drafts_are_not():
    ids, q, p, u = random_slots(1, n=2, batch=400)
    token, _ = verify_with_replacement(ids, q, p, uniforms=u)
    rows = p.unsqueeze(1).expand(-1, 2, -1)
    tokens, _ = verify_chain(ids[:, :1], q.unsqueeze(1), rows, uniforms=u[:, 1:])

    assert not torch.equal(token, tokens[:, 0])


@pytest.mark.parametrize("u", [0.0, 0.5, LARGEST_UNIFORM])
def test_as_many_drafts_as_tokens_are_surely_accepted(u, device):
    """Without replacement (L24); the last residual is a single token."""
    ids, q, p, _ = random_slots(
        2, drafts="without_replacement", n=6, batch=500, device=device
    )
    uniforms = torch.full((500, 7), u, dtype=torch.float64, device=device)
    covered = ((q > 0) | (p == 0)).all(dim=1)  # q can draw whatever p can
    slot = verify_without_replacement(ids, q, p, uniforms=uniforms).accepted

    assert covered.sum() > 50
    assert (slot[covered] >= 0).all()


def test_fewer_drafts_are_not():
    ids, q, p, u = random_slots(2, drafts="without_replacement", n=3, batch=500)

    assert (verify_without_replacement(ids, q, p, uniforms=u).accepted < 0).any()


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_rho_is_the_smallest_lossless_damping(n, device):
    """A residual of less than zero is where a smaller one would end."""
    _, q, p, _ = random_slots(3, batch=200, device=device)
    rho = multidraft.kseq_rho(q, p, n)
    stated = [
        float(laws.kseq_rho(*rows, n))
        for rows in zip(p.tolist(), q.tolist(), strict=True)
    ]

    assert rho.tolist() == pytest.approx(stated, abs=1e-9)
    assert ((rho >= 1) & (rho <= n)).all()


@pytest.mark.parametrize("name", ["hub", "greedy draft"])
def test_constructed_drafts_reach_the_optimum_of_their_law(name, device):
    law = multidraft_law(CODE[name], P, Q, 2, DRAFTS[name], device=device)
    accepted = sum(mass for (_, slot), mass in law.items() if slot >= 0)

    optimum = bounds.optimum(P, laws.draft_law(Q, 2, DRAFTS[name]))
    assert accepted == pytest.approx(float(optimum), abs=ROUNDING)


def test_target_only_reports_the_first_slot_that_holds_the_token(device):
    ids = torch.tensor([[2, 1, 1], [1, -1, 2], [0, 0, 0]], device=device)
    p = torch.tensor([0.0, 1.0, 0.0], device=device).expand(3, 3)
    result = verify_target_only(ids, None, p)

    assert result.token_ids.tolist() == [1, 1, 1]
    assert result.accepted.tolist() == [1, 0, -1]


# --- empty slots ----------------------------------------------------------------------


def with_gaps(ids, u, place):
    """Another slot, empty, with a uniform of its own, at a place."""
    empty = torch.full_like(ids[:, :1], -1)
    spare = torch.full_like(u[:, :1], 0.25)
    return (
        torch.cat([ids[:, :place], empty, ids[:, place:]], dim=1),
        torch.cat([u[:, :place], spare, u[:, place:]], dim=1),
    )


TESTED_IN_ORDER = ["with replacement", "without replacement", "target only"]


@pytest.mark.parametrize("name", TESTED_IN_ORDER)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_empty_slot_is_skipped_wherever_it_stands(name, place, device):
    ids, q, p, u = random_slots(4, drafts=DRAFTS[name], n=2, batch=300, device=device)
    token, slot = CODE[name](ids, q, p, uniforms=u)
    wide, uniforms = with_gaps(ids, u, place)
    again = CODE[name](wide, q, p, uniforms=uniforms)

    moved = torch.where(slot >= place, slot + 1, slot)
    assert same(again, (token, moved))


def test_an_empty_slot_does_not_count_in_a_selection(device):
    ids, q, p, u = random_slots(5, n=2, batch=300, device=device)
    token, slot = verify_selected(ids, q, p, uniforms=u)
    wide, _ = with_gaps(ids, u, 0)
    again = verify_selected(wide, q, p, uniforms=u[:, [0, 0, 1, 2]])

    assert same(again, (token, torch.where(slot >= 0, slot + 1, -1)))


@pytest.mark.parametrize("name", sorted(RULES.keys() - {"hub"}))
def test_without_any_draft_the_token_is_drawn_from_the_target(name, device):
    u = ((torch.arange(32, dtype=torch.float64) + 0.5) / 32).to(device)
    p, q = (torch.tensor(W.target.matrix[:1], device=device).expand(32, 4),) * 2
    ids = torch.full((32, 2), -1, device=device)
    uniforms = u.unsqueeze(1).expand(32, 3)
    token, slot = CODE[name](ids, q, p, uniforms=uniforms)

    assert token.bincount().tolist() == [8, 4, 9, 11]
    assert (slot == -1).all()


def test_an_empty_batch_gives_an_empty_result(device):
    for name in RULES:
        step = (x[:0] for x in random_slots(3, n=2, device=device)[:3])
        assert CODE[name](*step).token_ids.shape == (0,)


# --- forms and side effects -----------------------------------------------------------


@every_rule
def test_no_token_is_emitted_that_the_target_excludes(name, device):
    """Not even at the ends of the interval of the uniforms."""
    ids, q, p, u = random_slots(6, drafts=DRAFTS[name], n=2, batch=500, device=device)
    low, high = u.clone(), u.clone()
    low[:, :-1], high[:, :-1] = 0, LARGEST_UNIFORM
    for uniforms in (u, low, high):
        token = CODE[name](ids, q, p, uniforms=uniforms).token_ids
        assert (p.gather(1, token.unsqueeze(1)) > 0).all()


@every_rule
def test_an_accepted_slot_holds_the_token(name, device):
    step = random_slots(7, drafts=DRAFTS[name], n=2, batch=500, device=device)
    token, slot = CODE[name](*step[:3], uniforms=step[3])
    held = step[0].gather(1, slot.clamp_min(0).unsqueeze(1)).squeeze(1)

    assert (held == token)[slot >= 0].all()
    assert 0 < (slot >= 0).sum() < 500


@every_rule
def test_a_row_does_not_depend_on_the_rows_beside_it(name, device):
    *step, u = random_slots(8, drafts=DRAFTS[name], n=2, batch=9, device=device)
    whole = CODE[name](*step, uniforms=u)

    for row in range(9):
        part = slice(row, row + 1)
        alone = CODE[name](*(x[part] for x in step), uniforms=u[part])
        assert same(alone, (x[part] for x in whole))


@every_rule
def test_results_are_int64_on_the_device_of_the_inputs(name, device):
    result = CODE[name](*random_slots(9, drafts=DRAFTS[name], n=2, device=device)[:3])

    assert {(x.dtype, x.device.type) for x in result} == {(torch.int64, device)}


@every_rule
def test_inputs_are_left_bitwise_unchanged(name, device):
    step = random_slots(10, drafts=DRAFTS[name], n=2, device=device)
    before = [x.clone() for x in step]
    CODE[name](*step[:3], uniforms=step[3])

    assert same(before, step)


@every_rule
def test_a_given_generator_is_the_only_one_that_advances(name, device):
    step = random_slots(11, drafts=DRAFTS[name], n=2, device=device)[:3]
    generator = seeded(0, device)
    before = generator.get_state(), global_state(device)
    CODE[name](*step, generator=generator)

    assert not torch.equal(generator.get_state(), before[0])
    assert torch.equal(global_state(device), before[1])


@every_rule
@pytest.mark.parametrize(("second", "equal"), [(13, True), (14, False)])
def test_the_output_is_a_function_of_the_generator_state(name, second, equal, device):
    step = random_slots(13, drafts=DRAFTS[name], n=2, batch=200, device=device)[:3]
    first, again = (
        CODE[name](*step, generator=seeded(seed, device)) for seed in (13, second)
    )

    assert same(first, again) == equal


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@every_rule
def test_the_host_never_waits_for_the_device(name, device):
    step = random_slots(15, drafts=DRAFTS[name], n=2, device=device)[:3]
    generator = seeded(0, device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        CODE[name](*step, generator=generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- errors ---------------------------------------------------------------------------


@every_rule
def test_the_call_that_the_errors_start_from_is_valid(name):
    assert CODE[name](**slots_call()).token_ids.shape == (2,)


@every_rule
@pytest.mark.parametrize(("argument", "value", "error", "says"), SLOTS_ERRORS)
def test_a_bad_argument_is_refused_by_name_with_found_and_allowed(
    name, argument, value, error, says
):
    with pytest.raises(error, match=f"^{argument}.*{says}"):
        CODE[name](**slots_call(**{argument: value}))


@every_rule
def test_no_slot_at_all_is_refused(name):
    ids = torch.empty(2, 0, dtype=torch.int64)

    with pytest.raises(ValueError, match=r"draft_token_ids \[2, 0\]; .* one draft"):
        CODE[name](**slots_call(draft_token_ids=ids))


@every_rule
def test_a_draft_that_q_cannot_make_is_refused(name):
    q = torch.tensor([[0.5, 0.5, 0, 0]]).expand(2, 4)

    message = r"^draft_token_ids\[1, 0\] is 2, to which draft_probs gives probability 0"
    with pytest.raises(ValueError, match=message):
        CODE[name](**slots_call(draft_probs=q))


@pytest.mark.parametrize("name", sorted(RULES.keys() - {"target only"}))
def test_a_rule_that_needs_the_law_of_the_drafts_says_so(name):
    with pytest.raises(TypeError, match=r"^draft_probs is None; this rule needs"):
        CODE[name](**slots_call(draft_probs=None))


@every_rule
def test_values_are_not_looked_at_where_validation_is_off(name):
    bad = slots_call(target_probs=torch.full((2, 4), float("nan")))

    assert CODE[name](**bad, validate=False).accepted.shape == (2,)


def test_kseq_counts_the_slots_that_are_filled():
    """With one draft and an empty slot it is the token rule on that draft."""
    p, q = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.25, 0.25, 0.5]])
    rho = kseq_rho(q.expand(3, 3), p.expand(3, 3), torch.tensor([1, 2, 0]))

    assert rho[0] == rho[2] == 1
    assert rho[1] > 1
