# SPDX-License-Identifier: Apache-2.0
"""Accept, reject, resample: the reference verifiers, tensors in and tensors out.

Every function runs on any device, changes none of its inputs, draws randomness only
from the generator it is handed (or from injected uniforms) and, on CUDA, never waits for
the device. This package imports torch and nothing else.
"""

from specverify.core.chain import ChainResult, verify_chain
from specverify.core.exercise import speculative_decode_step, speculative_verify
from specverify.core.residual import residual_weights
from specverify.core.sampling import draw_uniforms, inverse_cdf

__all__ = [
    "ChainResult",
    "draw_uniforms",
    "inverse_cdf",
    "residual_weights",
    "speculative_decode_step",
    "speculative_verify",
    "verify_chain",
]
