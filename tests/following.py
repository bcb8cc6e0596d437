# SPDX-License-Identifier: Apache-2.0
"""Short ways to ask for the exact law of a function."""

import pytest

from specverify.exact import Unfollowed, exact_law

#: Largest difference of one probability: a few steps of the grid of 2^-24.
GRID = 5e-7


def law_of(fn, **options):
    """Law of what `fn` returns, as floats; fails where a part was cut off."""
    found = exact_law(fn, **options)
    assert found.complete
    return {outcome: float(mass) for outcome, mass in found.outcomes.items()}


def chance(fn, **options):
    """Probability that a function returns something true."""
    return law_of(lambda: bool(fn()), **options).get(True, 0.0)


def distance(found, due):
    """Largest difference of one probability."""
    return max(abs(found.get(x, 0) - due.get(x, 0)) for x in {*found, *due})


def reason_of(fn, **options):
    """Why the law of `fn` cannot be followed."""
    with pytest.raises(Unfollowed) as refusal:
        exact_law(fn, **options)
    return str(refusal.value)
