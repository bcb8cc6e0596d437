# SPDX-License-Identifier: Apache-2.0
"""Every check, on the reference and on every engine that is installed.

This is all that an engine needs in its own CI: a list of subjects, and a test whose body
is one call.
"""

from importlib.util import find_spec

import engines

import specverify

REFERENCE = ["reference:chain", "reference:exercise"]
TRANSFORMERS = ["transformers"] if find_spec("transformers") else []
BIASED = [subject for subject in engines.INSTALLED if subject is engines.rotalabs]
OTHERS = [subject for subject in engines.INSTALLED if subject is not engines.rotalabs]


@specverify.parametrize(REFERENCE, profile="ci", max_seconds=240)
def test_the_reference_is_lossless(subject, check):
    check(subject)


@specverify.parametrize(TRANSFORMERS + OTHERS, profile="quick", max_seconds=240)
def test_engines_are_lossless(subject, check):
    check(subject)


@specverify.parametrize(
    BIASED,
    profile="quick",
    checks="joint-law",
    max_seconds=240,
    expected_failures={
        "joint-law": "the residual subtracts q at the drafted token only, so from three "
        "tokens on the recovered token follows another law"
    },
)
def test_rotalabs_is_known_to_be_biased(subject, check):
    check(subject)
