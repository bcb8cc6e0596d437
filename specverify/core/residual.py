# SPDX-License-Identifier: Apache-2.0
"""The residual: the law of the recovered token.

After a rejection the token must come from ``(p - q)+``, normalised. That is the only law
which, with the acceptance ``min(1, p/q)``, gives back p.
"""

from __future__ import annotations

import torch
from torch import Tensor


def residual_weights(
    target_row: Tensor, draft_row: Tensor, *, otherwise: Tensor | None = None
) -> Tensor:
    """Weights of the recovered token, ``(p - q)+``, or p where that is zero.

    The residual is zero only where p = q, and then a rejection is impossible in exact
    arithmetic; after rounding it can still be asked for, and p is the answer that keeps
    the output law.

    Parameters
    ----------
    target_row, draft_row
        p and q at the rejected position, any float dtype. Shape [batch, vocab]. A draft
        row of zeros gives p: the law of the bonus token.
    otherwise
        Float64 row to give in place of a zero residual; p by default.

    Returns
    -------
    Tensor
        float64, unnormalised, shape [batch, vocab].
    """
    target = target_row.to(torch.float64)
    residual = (target - draft_row.to(torch.float64)).clamp_min(0)
    exhausted = residual.sum(dim=-1, keepdim=True) <= 0  # [batch, 1]
    return torch.where(exhausted, target if otherwise is None else otherwise, residual)
