# SPDX-License-Identifier: Apache-2.0
"""Ways of drawing several drafts at one position."""

from collections import Counter
from fractions import Fraction
from typing import get_args

import pytest
import torch
from calls import DTYPES, global_state, seeded

from specverify.core import draw_drafts
from specverify.core.drafting import Drafts
from specverify.inputs import WITNESSES
from specverify.laws.proposals import draft_law
from specverify.statistics.chisquare import goodness_of_fit

LEVEL, DRAWS = 1e-9, 20_000
WAYS = get_args(Drafts)
ROWS = {
    "full support": WITNESSES["W"].draft(()),
    "even": (Fraction(1, 4),) * 4,
    "two tokens": (Fraction(0), Fraction(1, 4), Fraction(0), Fraction(3, 4)),
    "one token": (Fraction(0), Fraction(0), Fraction(1), Fraction(0)),
}
SIZES = [(way, n) for way in WAYS for n in ((2,) if way == "hub" else (1, 2, 3))]
every_way = pytest.mark.parametrize("way", WAYS)


def fit(row, way, n, *, other=None, dtype=torch.float64, device="cpu"):
    """P-value of all slots together against the law of `other`, by default of `way`."""
    q = torch.tensor([float(x) for x in row], dtype=dtype, device=device)
    slots = draw_drafts(q.expand(DRAWS, -1), n, drafts=way, generator=seeded(1, device))
    found = Counter(map(tuple, slots.tolist()))
    stated = draft_law(row, n, other or way)
    outcomes = [*stated, *(found.keys() - stated.keys())]
    counts = torch.tensor([found[x] for x in outcomes])
    probs = [float(stated.get(x, 0)) for x in outcomes]
    return goodness_of_fit(counts, probs, level=LEVEL).p_value


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(("way", "n"), SIZES)
def test_the_slots_follow_the_law_of_their_way(way, n, name, device):
    """Together, with -1 where q has no token left."""
    assert fit(ROWS[name], way, n, device=device) >= LEVEL


@every_way
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_law_is_the_same_in_every_dtype(way, dtype, device):
    row = ROWS["full support"]

    assert fit(row, way, 2, dtype=dtype, device=device) >= LEVEL


@pytest.mark.parametrize(
    ("way", "other"), [(a, b) for a in WAYS for b in WAYS if a != b]
)
def test_another_way_has_another_law(way, other):
    assert fit(ROWS["full support"], way, 2, other=other) < LEVEL


@pytest.mark.parametrize("way", ["without_replacement", "deterministic", "greedy"])
@pytest.mark.parametrize("n", [4, 6])
def test_slots_beyond_the_tokens_of_q_are_empty(way, n, device):
    """Also where there are more slots than tokens in the vocabulary."""
    q = torch.tensor([[0.25, 0.0, 0.75, 0.0]], device=device).expand(50, 4)
    slots = draw_drafts(q, n, drafts=way, generator=seeded(2, device))

    assert ((slots >= 0).sum(dim=1) == 2).all()
    assert slots.shape == (50, n)


@pytest.mark.parametrize("way", ["deterministic", "greedy", "hub"])
def test_of_ties_the_lowest_id_is_the_most_likely(way, device):
    q = torch.full((50, 4), 0.25, device=device)
    slots = draw_drafts(q, 2, drafts=way, generator=seeded(3, device))

    assert (slots == 0).any(dim=1).all()


@every_way
def test_no_token_is_drawn_that_q_excludes(way, device):
    q = torch.tensor([[0.0, 0.5, 0.0, 0.25, 0.25]], device=device).expand(500, 5)
    slots = draw_drafts(q, 2, drafts=way, generator=seeded(4, device))

    assert {1, 3, 4} >= set(slots.flatten().tolist())


@every_way
def test_each_row_is_drawn_from_its_own_q(way, device):
    q = torch.eye(4, device=device)[[2, 0, 3]]
    slots = draw_drafts(q, 2, drafts=way, generator=seeded(5, device))

    assert slots[:, 0].tolist() == [2, 0, 3]


def test_a_token_of_small_mass_is_found_in_a_large_vocabulary(device):
    """All mass but one token's 2^-20 lies on two of 50,000 tokens."""
    q = torch.zeros(4, 50_000, dtype=torch.float64, device=device)
    q[:, 7], q[:, -1] = 1 - 2.0**-20, 2.0**-20
    slots = draw_drafts(q, 2, drafts="without_replacement", generator=seeded(6, device))

    assert slots.sort(dim=1).values.tolist() == [[7, 49_999]] * 4


# --- side effects and errors ----------------------------------------------------------


@every_way
def test_q_is_left_bitwise_unchanged(way, device):
    q = torch.rand(9, 5, generator=seeded(7)).to(device)
    before = q.clone()
    draw_drafts(q, 2, drafts=way)

    assert torch.equal(q, before)


@pytest.mark.parametrize("way", sorted({*WAYS} - {"deterministic"}))
def test_a_given_generator_is_the_only_one_that_advances(way, device):
    q = torch.rand(9, 5, generator=seeded(7)).to(device)
    generator = seeded(0, device)
    before = generator.get_state(), global_state(device)
    draw_drafts(q, 2, drafts=way, generator=generator)

    assert not torch.equal(generator.get_state(), before[0])
    assert torch.equal(global_state(device), before[1])


def test_deterministic_drafts_draw_nothing(device):
    q = torch.rand(9, 5, generator=seeded(7)).to(device)
    before = global_state(device)
    draw_drafts(q, 3, drafts="deterministic")

    assert torch.equal(global_state(device), before)


@pytest.mark.parametrize("way", sorted({*WAYS} - {"deterministic"}))
@pytest.mark.parametrize(("second", "equal"), [(13, True), (14, False)])
def test_the_drafts_are_a_function_of_the_generator_state(way, second, equal, device):
    q = torch.rand(200, 5, generator=seeded(7)).to(device)
    first, again = (
        draw_drafts(q, 2, drafts=way, generator=seeded(seed, device))
        for seed in (13, second)
    )

    assert torch.equal(first, again) == equal


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@every_way
def test_the_host_never_waits_for_the_device(way, device):
    q = torch.rand(9, 5, generator=seeded(7)).to(device)
    generator = seeded(0, device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        draw_drafts(q, 2, drafts=way, generator=generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")


ERRORS = [
    ({"drafts": "best"}, "drafts is 'best'; allowed are iid, without_replacement, det"),
    ({"n": 0}, "n is 0; allowed is 1 and more with drafts='iid'"),
    ({"n": 3, "drafts": "hub"}, "n is 3; allowed is 2 with drafts='hub'"),
    ({"n": 1, "drafts": "hub"}, "n is 1; allowed is 2 with drafts='hub'"),
    (
        {"draft_probs": torch.ones(4)},
        r"draft_probs has shape \[4\]; .* \[batch, vocab\]",
    ),
]


@pytest.mark.parametrize(("changes", "says"), ERRORS)
def test_a_bad_argument_is_refused_by_name_with_found_and_allowed(changes, says):
    with pytest.raises(ValueError, match=f"^{says}"):
        draw_drafts(**{"draft_probs": torch.full((2, 4), 0.25), "n": 2, **changes})
