# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: NPY002 - NumPy's global generator is one of those that are watched
"""What runs under `exact_law` is repeated, watched, ended and left as it was."""

import contextlib
import random
import threading
from functools import cache

import numpy as np
import pytest
import torch
from following import chance, distance, law_of, reason_of
from numpy.random import default_rng

from specverify.exact import Unfollowed, enumeration, exact_law
from specverify.exact.stepping import step_law
from specverify.inputs import witnesses
from specverify.subjects.protocol import subject
from specverify.subjects.rig import Rig

W = witnesses.W.with_(k=1)
P = torch.tensor([0.2, 0.3, 0.5])
FAIR = {True: 0.5, False: 0.5}


def coin(**options):
    return bool(torch.rand((), **options) < 0.5)


# --- other sources of randomness ------------------------------------------------------


def swallowed():
    try:
        return float(torch.rand(())) < 0.5
    except Exception:  # noqa: BLE001 - what a careless subject does
        return False


def translated():
    try:
        return float(torch.rand(())) < 0.5
    except Unfollowed as error:
        raise ValueError from error


def forked():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return coin()


def set_back():
    state = torch.get_rng_state()
    first = coin()
    torch.set_rng_state(state)
    return first, coin()


def in_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(coin()))
    thread.start()
    thread.join()
    return found


def number_in_a_thread():
    noise, found = torch.rand(()), []

    def compare():
        try:
            found.append(bool(noise < 0.5))
        except Unfollowed:
            found.append(False)

    thread = threading.Thread(target=compare)
    thread.start()
    thread.join()
    return found


REFUSED = {
    "randn": (lambda: torch.randn(1) < 0, "randn is not followed"),
    "randperm": (lambda: torch.randperm(3), "randperm is not followed"),
    "normal_": (lambda: torch.empty(1).normal_() < 0, "normal_ is not followed"),
    "dropout": (
        lambda: torch.nn.functional.dropout(torch.ones(2)),
        "dropout is not followed",
    ),
    "nn.init": (
        lambda: torch.nn.init.uniform_(torch.empty(1)) < 0.5,
        "uniform_ is not followed",
    ),
    "random_ of all": (
        lambda: torch.empty(1, dtype=torch.int64).random_(),
        "whole range",
    ),
    "torch.manual_seed": (lambda: torch.manual_seed(0), "manual_seed is not followed"),
    "random.seed": (lambda: random.seed(0), "seed is not followed"),
    "fork_rng": (forked, "is not followed"),
    "state set back": (set_back, "set_rng_state is not followed"),
    "random.gauss": (lambda: random.gauss(0, 1) < 0, "in a way not followed"),
    "random.getrandbits": (lambda: random.getrandbits(1), "in a way not followed"),
    "random.choices": (lambda: random.choices([1, 2]), "choices is not followed"),
    "numpy.random.normal": (lambda: np.random.normal() < 0, "in a way not followed"),
    "numpy.random.default_rng": (
        lambda: np.random.default_rng().random() < 0.5,
        "default_rng is not followed",
    ),
    "default_rng under another name": (
        lambda: default_rng().random(),
        "repeats differently",
    ),
    "SystemRandom": (
        lambda: random.SystemRandom().random(),
        "repeats differently",
    ),
    "a thread that draws": (in_a_thread, "in a way not followed"),
    "a thread that compares": (number_in_a_thread, "where it cannot be followed"),
    "a refusal that is swallowed": (swallowed, "read with __float__"),
    "a refusal that is renamed": (translated, "read with __float__"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_randomness_that_is_not_followed_is_refused_with_the_reason(name):
    fn, reason = REFUSED[name]

    assert reason in reason_of(fn)


def test_a_generator_outside_that_moves_is_noticed():
    generator = np.random.default_rng(3)

    assert "not seen" in reason_of(lambda: (bool(generator.random() < 0.5), coin()))


def test_without_repetition_a_generator_outside_is_taken_for_constant(monkeypatch):
    monkeypatch.setattr(enumeration, "_REPEATS", {True: 0, False: 0})
    generator = np.random.default_rng(3)

    assert max(law_of(lambda: bool(generator.random() < 0.5)).values()) == 1


def test_a_state_between_calls_is_noticed():
    calls = []

    def alternating():
        calls.append(1)
        return len(calls) % 2, coin()

    assert "keeps a state" in reason_of(alternating)


def test_a_random_number_that_was_kept_is_refused():
    kept = []

    def cached():
        if not kept:
            kept.append(torch.rand(()))
        return coin(), bool(kept[0] < 0.3)

    assert "repeats differently" in reason_of(cached)


def test_a_random_number_that_was_kept_without_another_call_is_refused():
    kept = []

    def cached():
        if not kept:
            kept.append(torch.rand(()))
        return bool(kept[0] < 0.3)

    assert "of an earlier call" in reason_of(cached)


def test_a_number_drawn_before_is_a_constant():
    kept = torch.rand((), generator=torch.Generator().manual_seed(0))

    assert law_of(lambda: bool(kept < 0.5)) == {bool(kept < 0.5): 1}


# --- generators and seeds -------------------------------------------------------------


def test_a_generator_that_is_given_may_be_drawn_from():
    given = torch.Generator()

    assert law_of(lambda: coin(generator=given), generators=[given]) == FAIR


def test_two_generators_that_are_given_are_independent():
    pair = [torch.Generator(), torch.Generator()]
    law = law_of(lambda: [coin(generator=one) for one in pair], generators=pair)

    assert set(law.values()) == {0.25}


def test_a_generator_of_its_own_is_refused():
    def own():
        return coin(generator=torch.Generator().manual_seed(7))

    assert "of its own, with seed 7" in reason_of(own)


def test_a_generator_of_a_seed_that_is_given_may_be_drawn_from():
    def seeded():
        return coin(generator=torch.Generator().manual_seed(7))

    assert law_of(seeded, seeds=[7]) == FAIR


def test_two_generators_of_one_seed_are_refused():
    """They draw the same numbers, which would be taken for independent."""

    def twice():
        return [coin(generator=torch.Generator().manual_seed(7)) for _ in range(2)]

    assert "of its own" in reason_of(twice, seeds=[7])


@pytest.mark.parametrize("draws", [0, 1])
def test_a_generator_that_is_set_back_is_refused(draws):
    given = torch.Generator().manual_seed(7)

    def reseeded():
        first = [coin(generator=given) for _ in range(draws)]
        given.manual_seed(7)
        return first, coin(generator=given)

    assert "seeds a generator" in reason_of(reseeded, generators=[given])


def test_a_subject_that_makes_a_generator_of_its_seed_is_followed():
    def verify(ids, q, p, *, seed):
        generator = torch.Generator().manual_seed(seed)
        token = torch.multinomial(p[:, 0], 1, generator=generator)
        return torch.cat([token, torch.full_like(token, -1)], dim=1)

    law = step_law(Rig(subject(verify, name="seeded", rng="seed")), W).emitted()

    assert distance(law, {(x,): float(W.target(())[x]) for x in range(4)}) < 1e-6


def test_a_subject_that_seeds_with_a_constant_is_refused():
    def verify(ids, q, p, *, seed):
        del seed
        generator = torch.Generator().manual_seed(0)
        return torch.multinomial(p[:, 0], 2, generator=generator)

    with pytest.raises(Unfollowed, match="of its own, with seed 0"):
        step_law(Rig(subject(verify, name="constant", rng="seed")), W)


def test_internal_randomness_is_refused():
    def verify(ids, q, p):
        return torch.multinomial(p[:, 0], 2)

    with pytest.raises(Unfollowed, match="cannot be seen"):
        step_law(Rig(subject(verify, name="internal", rng="internal")), W)


# --- branches without end -------------------------------------------------------------


def geometric():
    tails = 0
    while coin():
        tails += 1
    return tails


@cache
def tails():
    return exact_law(geometric)


def test_a_loop_that_ends_by_chance_is_followed_to_a_negligible_rest():
    assert 0 < tails().unfollowed <= 2**-100


def test_a_loop_that_ends_by_chance_has_its_law():
    assert float(tails().outcomes[3]) == 2**-4


def test_a_loop_that_never_ends_is_given_up_in_time():
    def endless():
        while torch.rand(()) < 2:
            pass

    assert exact_law(endless, seconds=0.2).unfollowed == 1


def test_a_limit_on_branches_is_reported():
    law = exact_law(lambda: [coin() for _ in range(3)], max_branches=2)

    assert (law.branches, law.unfollowed, law.complete) == (2, 0.75, False)


# --- nothing remains ------------------------------------------------------------------

REPLACED = [
    (random, "random"),
    (random, "uniform"),
    (np.random, "rand"),
    (np.random, "default_rng"),
    (torch, "manual_seed"),
    (torch, "rand"),
]


def functions():
    return [getattr(module, name) for module, name in REPLACED]


def states(generator):
    return [
        torch.get_rng_state().tolist(),
        generator.get_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
    ]


def raises():
    random.random()
    torch.rand(())
    raise OSError("of the subject")


def mixed(generator):
    def fn():
        return coin(generator=generator), random.random() < 0.5, np.random.rand() < 0.5

    return fn


def refuses():
    coin()
    return torch.randn(1)


@pytest.mark.parametrize("what", [mixed, lambda g: raises, lambda g: refuses])
def test_functions_are_what_they_were(what):
    before = functions()
    with contextlib.suppress(OSError, Unfollowed):
        exact_law(what(None))

    assert functions() == before


@pytest.mark.parametrize("what", [mixed, lambda g: raises, lambda g: refuses])
def test_states_of_generators_are_what_they_were(what):
    generator = torch.Generator().manual_seed(3)
    before = states(generator)
    with contextlib.suppress(OSError, Unfollowed):
        exact_law(what(generator), generators=[generator])

    assert states(generator) == before


def test_an_exception_of_the_function_comes_through():
    with pytest.raises(OSError, match="of the subject"):
        exact_law(raises)


def test_torch_draws_real_numbers_behind_it():
    law_of(coin)

    assert type(torch.rand(2)) is torch.Tensor


def test_other_threads_draw_real_numbers_meanwhile():
    """That the global states move is then taken for the function's doing."""
    drawn = []

    def draw():
        drawn.extend(map(type, (random.random(), np.random.rand(), torch.rand(()))))

    def waits():
        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
        return random.random() < 0.25

    with contextlib.suppress(Unfollowed):
        exact_law(waits)

    assert drawn == [float, float, torch.Tensor]


def test_two_threads_follow_at_the_same_time():
    laws = {}

    def follow(name, share):
        laws[name] = chance(lambda: sum(random.random() < share for _ in range(4)) == 4)

    before = functions()
    shares = {"a": 0.5, "b": 0.25}
    threads = [threading.Thread(target=follow, args=pair) for pair in shares.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (laws, functions() == before) == ({"a": 0.5**4, "b": 0.25**4}, True)
