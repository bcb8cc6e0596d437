# SPDX-License-Identifier: Apache-2.0
"""Planted defects: each one small change to the correct verifier `verify`."""

import torch

from specverify.defects.verifier import Verifier, cut, fresh, from_cdf, positive_part

verify = Verifier()


def counting(ids, q, p, *, generator):
    """Correct too: return num_emitted, and leave zeros behind the emitted tokens."""
    output = verify(ids, q, p, generator=generator)
    return output.clamp_min(0), (output >= 0).sum(dim=1)


# The residual

#: Recovers from the target itself.
residual_from_p = Verifier(weights=lambda p, q, ids: p)
#: Takes |p - q| for (p - q)+.
absolute_residual = Verifier(weights=lambda p, q, ids: (p - q).abs())
#: Takes (q - p)+ for (p - q)+.
reversed_residual = Verifier(weights=lambda p, q, ids: (q - p).clamp_min(0))


def softmax(p, q, ids):
    weights = positive_part(p, q, ids).softmax(dim=-1)
    return torch.cat([weights[:, :-1], p[:, -1:]], dim=1)


def zeroed_draft(p, q, ids):
    masked = p.clone()
    masked[:, :-1].scatter_(2, ids[..., None], 0.0)
    return masked


def unmasked(p, q, ids):
    one_hot = q.amax(dim=-1, keepdim=True) == 1
    return torch.where(one_hot, p, positive_part(p, q, ids))


def floored(p, q, ids):
    drafted = q.sum(dim=-1, keepdim=True) > 0
    return positive_part(p, q, ids) + 1e-3 * ((p == 0) & drafted)


#: Normalises (p - q)+ by a softmax.
softmax_residual = Verifier(weights=softmax)
#: Excludes the rejected token only, whatever q is.
zeroed_draft_residual = Verifier(weights=zeroed_draft)
#: Recovers from p itself where the draft was deterministic.
unmasked_one_hot = Verifier(weights=unmasked)
#: Gives a weight of 1e-3 to tokens that the target excludes.
floored_residual = Verifier(weights=floored)

# The row that it is taken from


def row_before(p, q, ids):
    k = ids.shape[1]
    rows = [max(position - 1, 0) for position in range(k)]
    return positive_part(p, q, ids)[:, [*rows, k]]


def first_row(p, q, ids):
    k = ids.shape[1]
    return positive_part(p, q, ids)[:, [*[0] * k, k]]


def bonus_before(p, q, ids):
    weights, last = positive_part(p, q, ids), max(ids.shape[1] - 1, 0)
    return torch.cat([weights[:, :-1], p[:, last, None]], dim=1)


#: Reads p and q of row n - 1 after a rejection at n.
residual_of_row_before = Verifier(weights=row_before)
#: Reads p and q of row 0, wherever the rejection was.
residual_of_first_row = Verifier(weights=first_row)
#: Draws the bonus token from target row k - 1.
bonus_of_row_before = Verifier(weights=bonus_before)

# The test

#: Accepts with probability min(1, q/p).
ratio_swapped = Verifier(accepts=lambda u, p_x, q_x: u * p_x < q_x)
#: Accepts every draft, even one that the target excludes.
always_accept = Verifier(accepts=lambda u, p_x, q_x: u < 1)
#: Accepts with probability min(1, 2 p/q).
lenience = Verifier(accepts=lambda u, p_x, q_x: u * q_x / 2 < p_x)
#: Tests all positions of a row with one uniform.
same_uniform = Verifier(accepts=lambda u, p_x, q_x: u[:, :1] * q_x < p_x)

# The rejection


def counted_anywhere(ids, tokens, accepted):
    return cut(ids, tokens, accepted.sum(dim=1))


def replaced(ids, tokens, accepted):
    kept = torch.where(accepted, ids, tokens[:, :-1])
    return torch.cat([kept, tokens[:, -1:]], dim=1)


#: Keeps as many drafts as were accepted anywhere.
counts_past_rejection = Verifier(writes=counted_anywhere)
#: Replaces rejected drafts where they stand and goes on behind them.
goes_on = Verifier(writes=replaced)

# The randomness


def argmax(weights, v):
    best = weights[:, :-1].argmax(dim=-1)
    return torch.cat([best, from_cdf(weights[:, -1:], v[:, -1:])], dim=1)


def one_row(batch, width, generator):
    return fresh(1, width, generator).expand(batch, width)


#: Recovers the likeliest token of the residual.
argmax_recovered = Verifier(draws=argmax)
#: Draws from the residual with the uniform of the test, as it is.
reused_uniform = Verifier(token_uniforms=lambda u, v: u)
#: Draws one row of uniforms for the whole batch.
rows_share_uniforms = Verifier(uniforms=one_row)


def overwritten(ids, q, p, *, generator):
    """Replace the last emitted token by a fresh draw from its target row."""
    output = verify(ids, q, p, generator=generator)
    rows, last = torch.arange(len(ids)), (output >= 0).sum(dim=1) - 1
    output[rows, last] = from_cdf(p[rows, last], fresh(len(ids), 1, generator)[:, 0])
    return output


def reseeded(ids, q, p, *, generator):
    """Reseed the generator in each call."""
    generator.manual_seed(0)
    return verify(ids, q, p, generator=generator)


# What is handed on


def first_target_for_all(ids, q, p, *, generator):
    """Read the target rows of the first sequence for all sequences."""
    return verify(ids, q, p[:1].expand_as(p), generator=generator)


def tempered_draft(ids, q, p, *, generator):
    """Verify against q at temperature 1/2 instead of the q that was drawn from."""
    squared = q.double() ** 2
    tempered = squared / squared.sum(dim=-1, keepdim=True)
    return verify(ids, tempered, p, generator=generator)
