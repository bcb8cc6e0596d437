# SPDX-License-Identifier: Apache-2.0
"""The exact law of running code: every random call answered, every branch followed.

`exact_law` runs a function again and again. Each random number that it draws through
torch (or Python's `random`, or NumPy's global generator) is a variable, not a number: a
comparison splits the variable's range at the very floating-point number at which the answer
flips, and the function is run once for each side. The weights of all runs add up to the law
of what it returns, without sampling error.

What is followed:

=====================================  ================================================
random call                            what it becomes
=====================================  ================================================
``rand``, ``rand_like``, ``uniform_``  uniforms on torch's own grid (2^-24 in float32)
``exponential_``                       exponentials, compared or raced
``multinomial``, ``Categorical``       one branch for each possible outcome
``bernoulli``, ``randint``             the same
``random.random``, ``numpy.random``    uniforms on the grid of 2^-53
=====================================  ================================================

Uniforms may be scaled, shifted, logged, cast, indexed, reshaped, read with ``item`` and
compared with numbers that are not random, one or many at a time (``u < p/q``, ``cdf > u``,
`searchsorted`). Races, ``argmax(w / e)`` and ``argmax(log w + gumbel)``, are recognised as
draws in proportion to w. The same variable may be used in several places. Everything else
raises `Unfollowed` with the reason; nothing is guessed.
"""

from specverify.exact.enumeration import ExactLaw, exact_law
from specverify.exact.variables import Unfollowed

__all__ = ["ExactLaw", "Unfollowed", "exact_law"]
