# SPDX-License-Identifier: Apache-2.0
"""Accept, reject, resample: the reference verifiers, tensors in and tensors out.

Every function runs on any device, changes none of its inputs, draws randomness only
from the generator it is handed (or from injected uniforms) and, on CUDA, never waits for
the device. This package imports torch and nothing else. Rules that trade exactness for
speed are in `specverify.core.lossy` and are not exported here.
"""

from specverify.core.block import verify_block
from specverify.core.chain import verify_chain
from specverify.core.coupling import race, race_noise, verify_coupled
from specverify.core.drafting import draw_drafts
from specverify.core.exercise import speculative_decode_step, speculative_verify
from specverify.core.matching import (
    verify_greedy,
    verify_match,
    verify_mixed,
    verify_one_hot,
)
from specverify.core.multidraft import (
    verify_kseq,
    verify_target_only,
    verify_with_replacement,
    verify_without_replacement,
)
from specverify.core.residual import residual_weights
from specverify.core.sampling import draw_uniforms, inverse_cdf
from specverify.core.selection import (
    verify_greedy_draft,
    verify_hub,
    verify_selected,
)
from specverify.core.steps import ChainResult, MultidraftResult
from specverify.core.topology import Topology
from specverify.core.transforms import token_probs
from specverify.core.traversal import verify_tree_paths, verify_tree_traversal
from specverify.core.tree import (
    TreeResult,
    verify_tree_recursive,
    verify_tree_target_only,
)

__all__ = [
    "ChainResult",
    "MultidraftResult",
    "Topology",
    "TreeResult",
    "draw_drafts",
    "draw_uniforms",
    "inverse_cdf",
    "race",
    "race_noise",
    "residual_weights",
    "speculative_decode_step",
    "speculative_verify",
    "token_probs",
    "verify_block",
    "verify_chain",
    "verify_coupled",
    "verify_greedy",
    "verify_greedy_draft",
    "verify_hub",
    "verify_kseq",
    "verify_match",
    "verify_mixed",
    "verify_one_hot",
    "verify_selected",
    "verify_target_only",
    "verify_tree_paths",
    "verify_tree_recursive",
    "verify_tree_target_only",
    "verify_tree_traversal",
    "verify_with_replacement",
    "verify_without_replacement",
]
