# SPDX-License-Identifier: Apache-2.0
"""Decide from counts, with both errors stated.

Vocabulary
----------
A *level* is the probability with which a test may reject although the law holds (false
alarm). *Power* is the probability with which it rejects when the true law lies at a given
total variation from the stated one. Each test comes as three functions: the test itself,
``min_detectable_tv`` for a given number of draws, ``min_samples`` for a given bias.

`ledger` spends the error rate of a run over its tests, `chisquare` is the test, and
`partitions` says how large vocabularies are cut into few cells.
"""
