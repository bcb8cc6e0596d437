# SPDX-License-Identifier: Apache-2.0
"""The claims: each check is a small function with an id, a sentence and a law.

`registry` holds them, `plan` says at which error rates and how far a run looks, `search`
finds the smallest input that breaks a law, `run` conducts.
"""
