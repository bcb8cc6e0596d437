# SPDX-License-Identifier: Apache-2.0
"""Toy models as torch modules: what a decoder is given."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specverify.inputs.models import ToyModel


class ToyNetwork(nn.Module):
    """A `ToyModel` that maps ids to logits, as a causal language model does.

    Parameters
    ----------
    model
        The law; a token of probability 0 gets the logit -inf.
    """

    table: Tensor

    def __init__(self, model: ToyModel) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("table", torch.from_numpy(model.matrix).log())

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the token behind each prefix.

        Parameters
        ----------
        ids
            int64 [batch, n].

        Returns
        -------
        Tensor
            float64 [batch, n, vocab]; row i depends on the tokens up to i.
        """
        groups, memory = self.model.groups, self.model.memory
        index = torch.zeros_like(ids)
        for back in reversed(range(memory)):  # the oldest token counts most
            shifted = ids[:, : ids.shape[1] - back] % groups
            seen = nn.functional.pad(shifted, (back, 0), value=0)
            index = index * groups + seen
        length = torch.arange(1, ids.shape[1] + 1, device=ids.device).clamp_max(memory)
        offsets = [sum(groups**i for i in range(n)) for n in range(memory + 1)]
        return self.table[index + torch.tensor(offsets, device=ids.device)[length]]
