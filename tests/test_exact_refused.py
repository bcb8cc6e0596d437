# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: NPY002 - NumPy's global generator is one of those that are watched
"""What cannot be followed is refused with the reason; nothing is guessed.

Most of these forms were silently wrong in some version of the code.
"""

import math

import numpy as np
import pytest
import torch
from following import chance, law_of, reason_of

from specverify.exact import monotone, operations

u = torch.rand


def distance_from(middle):
    noise = u(1)
    return torch.maximum(noise - middle, middle - noise) < 0.01


def both_sides(middle):
    noise = u(1)
    return (noise - middle).clamp_min(0) + (middle - noise).clamp_min(0) < 0.01


def sawtooth():
    noise = u(1) * 8
    return noise - noise.floor() < 0.5


def meets_itself():
    noise = u(1)
    return noise.log() < 3 * noise - 2


def times_itself():
    noise = u(1)
    return noise * noise < 0.3


def stale_view(change):
    """A view that torch would see changed."""

    def fn():
        base = torch.zeros(2)
        view = base[0]
        change(base)
        return view < 0.5

    return fn


def refilled():
    base = torch.empty(2).uniform_()
    view = base[0]
    first = view < 0.5
    base.uniform_()
    return first, view < 0.5


def through_numpy():
    base = torch.zeros(2)
    array = base.numpy()
    base.uniform_()
    return array[0] < 0.5


def from_numpy():
    array = np.zeros(2)
    torch.from_numpy(array).uniform_()
    return array[0] < 0.5


def into_a_row():
    base = torch.zeros(2, 2)
    torch.rand(2, out=base[0])
    return base < 0.5


def replaced_data():
    base = torch.zeros(1)
    base.data = u(1)
    return base < 0.5


MEMORY = "in memory that tensors share"
ITSELF = "combined or compared with itself"
REFUSED = {
    "distance by maximum": (lambda: distance_from(0.3), ITSELF),
    "distance by a sum": (lambda: both_sides(0.3), ITSELF),
    "fraction": (sawtooth, ITSELF),
    "two functions of one": (meets_itself, ITSELF),
    "product with itself": (times_itself, ITSELF),
    "abs": (lambda: (u(1) - 0.5).abs() < 0.1, "abs of random numbers"),
    "cos": (lambda: (6 * u(1)).cos() < 0, "cos of random numbers"),
    "remainder": (lambda: u(1) % 0.5 < 0.1, "remainder of random numbers"),
    "bytes": (lambda: (u(1) * 999).to(torch.uint8) < 9, "overflows"),
    "infinite to whole": (lambda: (1 / u(1)).long() < 9, "overflows"),
    "bits": (lambda: u(1).view(torch.int32) > 0, "bits of random numbers"),
    "two uniforms": (lambda: u(1) < u(1), "two random numbers at once"),
    "least of two": (lambda: torch.minimum(u(1), u(1)) < 0.5, "two random numbers"),
    "sort": (lambda: u(2).sort().indices, "sort of random numbers"),
    "cumsum": (lambda: u(2).cumsum(0) < 0.3, "cumsum of random numbers"),
    "sorted by chance": (
        lambda: torch.searchsorted(u(2), torch.tensor([0.5])),
        "search among random numbers",
    ),
    "search in what is not sorted": (
        lambda: torch.searchsorted(torch.tensor([0.5, 0.1, 0.9]), u(1)),
        "not sorted",
    ),
    "view, then uniform_": (stale_view(lambda base: base.uniform_()), MEMORY),
    "view, then index": (
        stale_view(lambda base: base.__setitem__(0, u(1)[0])),
        MEMORY,
    ),
    "view of noise, filled again": (refilled, MEMORY),
    "changed through a view": (lambda: u(2)[:1].mul_(2) < 1, MEMORY),
    "array of a tensor": (through_numpy, MEMORY),
    "tensor of an array": (from_numpy, MEMORY),
    "out into a row": (into_a_row, MEMORY),
    "data replaced": (replaced_data, "set of random numbers"),
    "whole numbers plus noise": (
        lambda: torch.ones(1, dtype=torch.int64).add_(u(1)) < 2,
        "another dtype",
    ),
    "read as a float": (lambda: float(u(1)) < 0.5, "read with __float__"),
    "math.log": (lambda: math.log(u(1).item()) < -1, "read as a Python float"),
    "printed": (lambda: f"{u(1).item()}", "read as a Python float"),
    "a key": (lambda: {u(1).item(): 1}, "read as a Python float"),
    "tolist": (lambda: u(2).tolist(), "read with tolist"),
    "NumPy": (lambda: u(2).numpy() < 0.5, "read with numpy"),
    "array of Python's": (lambda: np.random.rand(2) < 0.5, "arrays of NumPy"),
    "vmap": (lambda: torch.vmap(lambda x: x * 2)(u(2)) < 1, "in compiled code"),
    "returned": (lambda: u(2), "returns random numbers"),
    "item returned": (lambda: [u(1).item() * 2], "returns random numbers"),
    "steps returned": (lambda: torch.floor(u(1) * 3), "returns random numbers"),
    "random weights": (lambda: torch.multinomial(u(3), 1), "random weights"),
    "negative base": (lambda: (-2.0) ** u(1) < 0, "negative number is raised"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_with_the_reason(name):
    fn, reason = REFUSED[name]

    assert reason in reason_of(fn)


def below(noise: torch.Tensor):
    return noise < 0.3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_random_number_in_compiled_code_is_refused():
    scripted = torch.jit.script(below)

    assert "in compiled code" in reason_of(lambda: scripted(u(1)))


@pytest.mark.parametrize("probs", [[1.5], [-0.5]])
def test_what_torch_refuses_to_draw_is_not_drawn(probs):
    with pytest.raises(RuntimeError, match="p_in"):
        law_of(lambda: torch.bernoulli(torch.tensor(probs)))


# --- each guard is needed -------------------------------------------------------------


def test_without_the_look_at_shared_variables_a_distance_is_missed(monkeypatch):
    monkeypatch.setattr(operations, "_shared", lambda symbols, shape: False)

    assert chance(lambda: distance_from(0.3)) == 0


def test_without_the_look_at_memory_a_stale_view_is_read(monkeypatch):
    monkeypatch.setattr(operations, "is_shared", lambda tensor: False)

    assert chance(REFUSED["view, then uniform_"][0]) == 1


def test_without_the_order_of_a_search_it_is_followed_wrongly(monkeypatch):
    monkeypatch.setattr(monotone, "_check_sorted", lambda sequence: None)

    assert law_of(REFUSED["search in what is not sorted"][0])
