# SPDX-License-Identifier: Apache-2.0
"""Decide from counts, with both errors stated.

Vocabulary
----------
A *level* is the probability with which a test may reject although the law holds (false
alarm). *Power* is the probability with which it rejects when the true law lies at a given
total variation from the stated one.

Where to look
-------------
`assertions`
    The triples for any categorical sampler: how many draws, the assertion itself, what it
    would have seen.
`decisions`
    The sequential test that the checks use; `evalues` is its evidence, `planning` its cost.
`tolerance`
    The same for a law that is known up to rounding.
`two_sample`
    Two samplers whose common law nobody knows.
`certificates`
    Upper bounds on the total variation.
`ledger`
    Spends the error rate of a run over everything that is tested in it.
`chisquare`
    Pearson's test through SciPy: beside every decision, and for independence.
`impossible`, `partitions`
    Events of probability zero; how large vocabularies are cut into cells.
"""
