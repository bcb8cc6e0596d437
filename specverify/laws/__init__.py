# SPDX-License-Identifier: Apache-2.0
"""What must come out, exactly: laws in `fractions.Fraction` or in float64.

A law is a mapping from outcomes to probabilities; a model is a function from a prefix of
token ids to the next-token distribution. All functions keep the number type that they are
given: Fractions stay Fractions. No torch here.
"""
