# SPDX-License-Identifier: Apache-2.0
"""A subject that misbehaves gives a finding that says so, and harms nobody else."""

import contextlib
import random
import signal
import sys
import threading
import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from planted import verify

from specverify.checks.plan import make_plan
from specverify.checks.run import make_rig, run_checks
from specverify.subjects.faults import SubjectHung
from specverify.subjects.protocol import subject

PLAN = make_plan("quick", max_seconds=600, examples=0)
HASTY = replace(PLAN, call_seconds=0.5)
KNOWN = "known defect of specverify"

# Subjects


def raises(ids, q, p, *, generator):
    sys.stdout.write("so far so good")
    raise ValueError("p is odd\nand so is q")


def raises_in_torch(ids, q, p, *, generator):
    return torch.multinomial(-p.flatten(0, 1), 1, generator=generator)


def exits(ids, q, p, *, generator):
    sys.exit(3)


def short(ids, q, p, *, generator):
    return verify(ids, q, p, generator=generator)[:, :-1]


def narrow(ids, q, p, *, generator):
    return verify(ids, q, p, generator=generator).int()


def listed(ids, q, p, *, generator):
    return verify(ids, q, p, generator=generator).tolist()


def silent(ids, q, p, *, generator):
    return None


def not_numbers(ids, q, p, *, generator):
    return torch.full((len(ids), ids.shape[1] + 1), torch.nan)


def huge(ids, q, p, *, generator):
    output = verify(ids, q, p, generator=generator)
    output[-1, 0] = 2**40
    return output


def one_past(ids, q, p, *, generator):
    output = verify(ids, q, p, generator=generator)
    output[0, 0] = p.shape[-1]
    return output


def other_padding(ids, q, p, *, generator):
    output = verify(ids, q, p, generator=generator)
    return torch.where(output < 0, -2, output)


def with_a_hole(ids, q, p, *, generator):
    output = verify(ids, q, p, generator=generator)
    output[0, 0], output[0, 1:] = -1, 0
    return output


def without_tokens(ids, q, p, *, generator):
    output = verify(ids, q, p, generator=generator)
    output[-1] = -1
    return output


def counts_too_many(ids, q, p, *, generator):
    output = verify(ids, q, p, generator=generator)
    return output, (output >= 0).sum(dim=1) + 1


def changes_p(ids, q, p, *, generator):
    output = verify(ids, q, p, generator=generator)
    p[:, : ids.shape[1]] -= q
    return output


def changes_q(ids, q, p, *, generator):
    output = verify(ids, q, p, generator=generator)
    q.zero_()
    return output


def draws_from_torch(ids, q, p, *, generator):
    return verify(ids, q, p, generator=torch.default_generator)


def repeats_itself(ids, q, p, *, generator):
    return verify(ids, q, p, generator=torch.Generator().manual_seed(0))


def draws_entropy(ids, q, p, *, generator):
    fresh = torch.Generator()
    fresh.seed()
    return verify(ids, q, p, generator=fresh)


def fails_on_large_batches(ids, q, p, *, generator):
    if len(ids) > 64:
        raise RuntimeError("at most 64 rows")
    return verify(ids, q, p, generator=generator)


def fails_without_drafts(ids, q, p, *, generator):
    if not ids.shape[1]:
        raise IndexError("no drafts")
    return verify(ids, q, p, generator=generator)


def fails_on_large_vocab(ids, q, p, *, generator):
    if p.shape[-1] > 1024:
        raise RuntimeError("at most 1024 tokens")
    return verify(ids, q, p, generator=generator)


def chatters(ids, q, p, *, generator):
    sys.stdout.write("x" * 1000)
    sys.stderr.write("y" * 1000)
    return verify(ids, q, p, generator=generator)


def chatters_and_raises(ids, q, p, *, generator):
    sys.stdout.write("x" * 100_000)
    raise RuntimeError("last words")


def reseeds_everything(ids, q, p, *, generator):
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - the misbehaviour under test
    random.seed(1)
    return verify(ids, q, p, generator=generator)


def is_interrupted(ids, q, p, *, generator):
    random.seed(1)
    raise KeyboardInterrupt


#: Subject, check that must find it, what its reason must say.
BAD = {
    raises: ("output-contract", "it raised ValueError: p is odd ("),
    raises_in_torch: ("output-contract", "it raised RuntimeError: probability tensor"),
    exits: ("output-contract", "it raised SystemExit: 3"),
    short: ("output-contract", "shape [1, 0]; due is [batch, k + 1] = [1, 1]"),
    narrow: ("output-contract", "dtype torch.int32; due is torch.int64"),
    listed: ("output-contract", "it returned a list; a tensor int64"),
    silent: ("output-contract", "it returned a NoneType; a tensor int64"),
    not_numbers: ("output-contract", "dtype torch.float32; due is torch.int64"),
    huge: ("output-contract", "it emitted token 1099511627776 at row 0"),
    one_past: ("output-contract", "it emitted token 2 at row 0, position 0; the voca"),
    other_padding: ("output-contract", "it emitted token -2"),
    with_a_hole: ("joint-law", "it put 0 behind a -1"),
    without_tokens: ("output-contract", "row 0 has no drafts and emits nothing"),
    counts_too_many: ("output-contract", "row 0 emits 2 tokens; due are 1 to 1"),
    changes_p: ("inputs-unchanged", "it changed target_probs in place"),
    changes_q: ("inputs-unchanged", "it changed draft_probs in place"),
    draws_from_torch: ("randomness", "it draws from torch's global generator"),
    repeats_itself: (
        "randomness",
        "the same for two different states of its generator",
    ),
    draws_entropy: ("randomness", "two calls with equal generator state differ in"),
    fails_on_large_batches: ("output-contract", "at most 64 rows"),
    fails_without_drafts: ("draft-lengths", "it raised IndexError: no drafts"),
    fails_on_large_vocab: ("large-vocab", "at most 1024 tokens"),
    chatters_and_raises: ("output-contract", "it raised RuntimeError: last words"),
}


def by_name(function):
    return function.__name__


@cache
def whole_run(function):
    return run_checks(subject(function), PLAN)


def reason_of(function, check="output-contract", plan=PLAN):
    return run_checks(subject(function), plan, pattern=check)[check].reason


@pytest.mark.parametrize("function", BAD, ids=by_name)
def test_a_check_says_what_the_subject_did(function):
    check, words = BAD[function]
    record = run_checks(subject(function), PLAN, pattern=check)[check]

    assert record.status == "violation"
    assert words in record.reason


@pytest.mark.parametrize(
    "function", [f for f in BAD if f is not repeats_itself], ids=by_name
)
def test_a_misbehaving_subject_is_broken(function):
    assert whole_run(function).verdict == "broken"


def test_a_subject_that_repeats_itself_is_lossy():
    """Each call by itself is right, a loop of calls is not."""
    assert (
        run_checks(subject(repeats_itself), PLAN, pattern="rounds").verdict == "lossy"
    )


# What it says


def test_the_message_names_the_line_that_raised():
    line = raises.__code__.co_firstlineno + 2

    assert f"(test_bad_subjects.py:{line} in raises)" in reason_of(raises)


def test_what_the_subject_printed_is_quoted():
    assert "it printed: so far so good" in reason_of(raises)


def test_what_the_subject_printed_is_cut():
    assert len(reason_of(chatters_and_raises)) < 600


def test_a_counterexample_says_on_which_input_it_raised():
    run = run_checks(subject(fails_without_drafts), PLAN, pattern="draft-lengths")

    assert "k = 0" in run["draft-lengths"].counterexample.summary


@pytest.mark.parametrize(
    ("function", "checks"),
    [
        (fails_on_large_batches, {"randomness"}),
        (fails_without_drafts, {"joint-law", "support", "large-vocab", "rounds"}),
        (fails_on_large_vocab, {"output-contract", "joint-law", "draft-lengths"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_checks_that_do_not_meet_the_fault_still_run_and_pass(function, checks):
    passed = {record.id for record in whole_run(function).with_status("pass")}

    assert checks <= passed


# Time


def waits(released):
    """Whether to go on; no test waits longer than this for an end that never comes."""
    give_up = time.monotonic() + 10
    return lambda: not released.is_set() and time.monotonic() < give_up


def loops(released):
    """A subject in an endless loop; `released` ends it when the test is over."""
    on = waits(released)

    def endless(ids, q, p, *, generator):
        while on():
            pass

    return endless


def sleeps(released):
    on = waits(released)

    def endless(ids, q, p, *, generator):
        while on():
            time.sleep(0.01)

    return endless


def swallows(released):
    """A subject that catches whatever is raised in it, and returns in the end."""

    def stubborn(ids, q, p, *, generator):
        give_up = time.monotonic() + 1
        while not released.is_set() and time.monotonic() < give_up:
            with contextlib.suppress(BaseException):
                time.sleep(0.01)
        released.set()
        return verify(ids, q, p, generator=generator)

    return stubborn


@pytest.fixture
def released():
    event = threading.Event()
    yield event
    event.set()


def here(call):
    return call()


def elsewhere(call):
    """Run in a thread that is not the main one, where no signal can interrupt."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("where", [here, elsewhere])
@pytest.mark.parametrize("hang", [loops, sleeps])
def test_an_endless_call_is_a_finding(hang, where, released):
    run = where(lambda: run_checks(subject(hang(released)), HASTY))

    assert "a call did not return within 0.5 s" in run["output-contract"].reason
    assert run.verdict == "broken"


@pytest.mark.parametrize("where", [here, elsewhere])
def test_a_subject_that_hung_is_not_called_again(where, released):
    run = where(lambda: run_checks(subject(loops(released)), HASTY))

    for check in ("exact-law", "joint-law"):
        assert "not called again" in run[check].reason
        assert run[check].status == "inconclusive"


def test_a_drafter_that_hung_is_not_called_again(released):
    calls = []

    def drafter(q, *, generator):
        calls.append(1)
        while not released.wait(0.01):
            pass

    found = subject(verify, draft=drafter)
    run = run_checks(found, HASTY)

    assert "a call did not return" in run["output-contract"].reason
    assert "not called again" in run["joint-law"].reason
    assert len(calls) == 1


def test_a_rig_of_single_rows_remembers_the_hang(released):
    rig = make_rig(subject(loops(released)), HASTY)

    with pytest.raises(SubjectHung):
        rig.single_rows().refuse_if_hung()


def test_a_call_that_swallows_its_interruption_is_still_too_late(released):
    assert "did not return" in reason_of(swallows(released), plan=HASTY)


def slow(ids, q, p, *, generator):
    time.sleep(0.002)
    return verify(ids, q, p, generator=generator)


@cache
def slow_run():
    plan = make_plan("quick", max_seconds=4, examples=0)
    return run_checks(subject(slow, max_batch=1), plan, pattern="*-law")


def test_a_slow_subject_is_inconclusive():
    assert slow_run().verdict == "inconclusive"


def test_a_slow_subject_is_told_which_bias_would_not_be_seen():
    record = slow_run()["joint-law"]

    assert f"a bias below {record.detectable_tv:.3g} would not be seen" in record.reason


@cache
def slow_support():
    plan = make_plan("quick", max_seconds=1, examples=0)
    started = time.monotonic()
    run = run_checks(subject(slow, max_batch=1), plan, pattern="support")
    return run["support"], time.monotonic() - started


def test_a_slow_subject_is_not_asked_for_all_draws_of_a_structural_check():
    """Two witnesses of 9209 rows would take forty seconds."""
    _, seconds = slow_support()

    assert seconds < 15


def test_a_structural_check_that_made_too_few_draws_is_inconclusive():
    record, _ = slow_support()

    assert record.status == "inconclusive"


# The host


def host_state():
    """Everything of the host that a subject or a check could leave changed."""
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - of the host
    return (
        torch.random.get_rng_state().tolist(),
        (name, keys.tolist(), *rest),
        random.getstate(),
        signal.getsignal(signal.SIGALRM),
        signal.getitimer(signal.ITIMER_REAL),
        sys.stdout,
        sys.stderr,
        threading.active_count(),
    )


@pytest.mark.parametrize("check", ["output-contract", "randomness", "joint-law"])
@pytest.mark.parametrize(
    "function",
    [raises, exits, draws_from_torch, reseeds_everything, chatters, verify],
    ids=lambda function: getattr(function, "__name__", "correct"),
)
def test_a_run_leaves_the_host_as_it_was(function, check):
    before = host_state()
    run_checks(subject(function), PLAN, pattern=check)

    assert host_state() == before


@pytest.mark.parametrize("hang", [loops, sleeps])
def test_an_endless_call_leaves_the_host_as_it_was(hang, released):
    before = host_state()
    run_checks(subject(hang(released)), HASTY, pattern="output-contract")

    assert host_state() == before


def test_the_timer_of_the_host_goes_on(released):
    own = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        run_checks(subject(loops(released)), HASTY, pattern="output-contract")

        assert signal.getsignal(signal.SIGALRM) == signal.SIG_IGN
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, own)


def test_an_interrupt_by_the_user_ends_the_run():
    with pytest.raises(KeyboardInterrupt):
        run_checks(subject(is_interrupted), PLAN, pattern="output-contract")


def test_an_interrupt_by_the_user_leaves_the_host_as_it_was():
    before = host_state()
    with pytest.raises(KeyboardInterrupt):
        run_checks(subject(is_interrupted), PLAN, pattern="output-contract")

    assert host_state() == before


def test_a_chattering_subject_is_not_heard(capfd):
    run_checks(subject(chatters), PLAN, pattern="output-contract")

    assert capfd.readouterr() == ("", "")


def test_a_chattering_subject_is_lossless():
    assert whole_run(chatters).verdict == "lossless"


# Faults that are not told as they should be


def takes_too_little(ids, q):
    return ids


class Speechless(Exception):  # noqa: N818 - says nothing at all
    def __str__(self):
        raise RuntimeError


def raises_speechless(ids, q, p, *, generator):
    raise Speechless


class Blow(BaseException):
    """Not an Exception, as pytest's own outcomes are not."""


def raises_past_exceptions(ids, q, p, *, generator):
    raise Blow


def sparse(ids, q, p, *, generator):
    return verify(ids, q, p, generator=generator).to_sparse()


def counts_in_floats(ids, q, p, *, generator):
    output = verify(ids, q, p, generator=generator)
    return output, (output >= 0).sum(dim=1) * torch.nan


def draws_from_numpy(ids, q, p, *, generator):
    seed = np.random.randint(2**31)  # noqa: NPY002 - the misbehaviour under test
    return verify(ids, q, p, generator=torch.Generator().manual_seed(int(seed)))


def draws_from_python(ids, q, p, *, generator):
    seed = random.getrandbits(31)
    return verify(ids, q, p, generator=torch.Generator().manual_seed(seed))


def ignores_its_seed(ids, q, p, *, seed):
    return verify(ids, q, p, generator=torch.default_generator)


def test_a_wrong_signature_is_told_without_our_own_frames():
    assert "rig.py" not in reason_of(takes_too_little)


@pytest.mark.parametrize(
    "function", [raises_speechless, raises_past_exceptions], ids=by_name
)
def test_no_exception_of_the_subject_escapes(function):
    assert "it raised" in reason_of(function)


@pytest.mark.parametrize("function", [sparse, counts_in_floats], ids=by_name)
def test_no_tensor_of_the_subject_escapes(function):
    assert "it returned" in reason_of(function)


@pytest.mark.parametrize(
    "function", [draws_from_numpy, draws_from_python, ignores_its_seed], ids=by_name
)
def test_no_source_but_the_declared_one_may_be_drawn_from(function):
    run = run_checks(subject(function), PLAN, pattern="randomness")

    assert run["randomness"].status == "violation"


@pytest.mark.parametrize("function", [changes_p, changes_q], ids=by_name)
def test_a_subject_that_changes_its_inputs_is_not_blamed_for_its_randomness(function):
    run = run_checks(subject(function), PLAN, pattern="randomness")

    assert run["randomness"].status == "pass"


def without_bonus(ids, q, p, *, generator):
    output = verify(ids, q, p, generator=generator)
    every = (output[:, :-1] == ids).all(dim=1, keepdim=True)
    last = torch.arange(output.shape[1]) == ids.shape[1]
    return output.masked_fill(every & last, -1)


def test_a_missing_bonus_token_is_named():
    found = run_checks(subject(without_bonus), HASTY, pattern="output-contract")

    assert "the bonus token is missing" in found["output-contract"].reason
    assert found["output-contract"].likely_cause.startswith("bonus-missing: ")


def test_a_bonus_law_that_is_never_seen_says_what_that_may_mean():
    verifier = subject(without_bonus, min_draft_tokens=1)
    found = run_checks(verifier, HASTY, pattern="bonus-law")

    assert found["bonus-law"].status == "skipped"
    assert "bonus=False" in found["bonus-law"].reason
