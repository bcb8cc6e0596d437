# SPDX-License-Identifier: Apache-2.0
"""Correct verifiers as people write them: one law, six ways to draw a token.

The forms are those of table 7.1 of the design's reference: all must be found lossless.
"""

from functools import partial

import torch

from specverify.subjects.protocol import subject

token_rule = partial(subject, efficiency="token")


@token_rule
def multinomial(draft_token_ids, draft_probs, target_probs, *, generator):
    """Accept in one go, draw the recovered or bonus token with torch.multinomial."""
    batch, k = draft_token_ids.shape
    p, q = chosen(target_probs, draft_token_ids), chosen(draft_probs, draft_token_ids)
    accepted = torch.rand(batch, k, generator=generator) < p / q
    length = accepted.cumprod(dim=1).sum(dim=1)  # [batch]
    weights = last_weights(draft_probs, target_probs, length)
    token = torch.multinomial(weights, 1, generator=generator).squeeze(1)
    return emit(draft_token_ids, length, token)


@token_rule
def exponential_race(draft_token_ids, draft_probs, target_probs, *, generator):
    """Recover at every position in advance, each by argmax of weight / Exp(1)."""
    batch, k, vocab = *draft_token_ids.shape, target_probs.shape[-1]
    # One race a row serves all of its positions: only one of them is ever emitted.
    race = torch.empty(batch, 1, vocab).exponential_(generator=generator)
    residual = (target_probs[:, :k] - draft_probs).clamp_min(0)  # [batch, k, vocab]
    recovered = (residual / race).argmax(dim=-1)
    noise = torch.empty(batch, vocab).exponential_(generator=generator)
    bonus = (target_probs[:, k] / noise).argmax(dim=-1, keepdim=True)
    uniforms = torch.rand(batch, k, dtype=torch.float64, generator=generator)
    output = torch.full((batch, k + 1), -1)
    running = torch.ones(batch, dtype=torch.bool)
    for position in range(k):
        token = draft_token_ids[:, position]
        p = target_probs[:, position].gather(1, token[:, None]).squeeze(1)
        q = draft_probs[:, position].gather(1, token[:, None]).squeeze(1)
        kept = uniforms[:, position] <= p / q
        written = torch.where(kept, token, recovered[:, position])
        output[:, position] = torch.where(running, written, -1)
        running &= kept
    output[:, k] = torch.where(running, bonus.squeeze(1), -1)
    return output


@token_rule
def gumbel_max(draft_token_ids, draft_probs, target_probs, *, generator):
    """Everything in log space: log u < log p - log q, argmax of log weight + Gumbel."""
    batch, k = draft_token_ids.shape
    p, q = chosen(target_probs, draft_token_ids), chosen(draft_probs, draft_token_ids)
    log_u = torch.rand(batch, k, generator=generator).log()
    length = (log_u < p.log() - q.log()).cumprod(dim=1).sum(dim=1)  # [batch]
    weights = last_weights(draft_probs, target_probs, length)
    noise = torch.empty_like(weights).exponential_(generator=generator)
    token = (weights.log() - noise.log()).argmax(dim=-1)
    return emit(draft_token_ids, length, token)


@token_rule
def inverse_cdf(draft_token_ids, draft_probs, target_probs, *, generator):
    """Loop over positions, recover by the first token past u * total; return a pair."""
    batch, k = draft_token_ids.shape
    length = torch.full((batch,), k)
    for position in reversed(range(k)):  # the earliest rejection has the last word
        token = draft_token_ids[:, position, None]
        p = target_probs[:, position].gather(1, token).squeeze(1)
        q = draft_probs[:, position].gather(1, token).squeeze(1)
        rejected = torch.rand(batch, generator=generator) * q >= p
        length = torch.where(rejected, position, length)
    weights = last_weights(draft_probs, target_probs, length)
    token = from_cdf(weights, torch.rand(batch, generator=generator))
    output = torch.cat([draft_token_ids, token[:, None]], dim=1)
    output.scatter_(1, length[:, None], token[:, None])
    return output, length + 1  # what stands behind num_emitted is garbage


@token_rule
def rescaled_uniform(draft_token_ids, draft_probs, target_probs, *, generator):
    """One uniform a position: after a rejection, (u - a)/(1 - a) draws the residual."""
    batch, k = draft_token_ids.shape
    uniforms = torch.rand(batch, k + 1, dtype=torch.float64, generator=generator)
    p, q = chosen(target_probs, draft_token_ids), chosen(draft_probs, draft_token_ids)
    accept = torch.cat([(p / q).clamp_max(1), torch.zeros(batch, 1)], dim=1).double()
    length = (uniforms < accept).cumprod(dim=1).sum(dim=1)  # [batch]
    rows = torch.arange(batch)
    u, a = uniforms[rows, length], accept[rows, length]
    weights = last_weights(draft_probs, target_probs, length)
    return emit(draft_token_ids, length, from_cdf(weights, (u - a) / (1 - a)))


def sample_and_match(draft_token_ids, draft_probs, target_probs, *, generator):
    """Draw y ~ p at every position and emit it, as long as y equals the draft."""
    batch, k = draft_token_ids.shape
    flat = target_probs.flatten(0, 1)  # [batch * (k + 1), vocab]
    drawn = torch.multinomial(flat, 1, generator=generator).view(batch, k + 1)
    matches = (drawn[:, :k] == draft_token_ids).cumprod(dim=1).sum(dim=1)
    return drawn.masked_fill(torch.arange(k + 1) > matches[:, None], -1)


def chosen(probs, draft_token_ids):
    """Probability of every draft token, [batch, k]."""
    k = draft_token_ids.shape[1]
    return probs[:, :k].gather(2, draft_token_ids[..., None]).squeeze(-1)


def last_weights(draft_probs, target_probs, length):
    """(p - q)+ of the rejected position, or p behind the last draft: [batch, vocab]."""
    rows = torch.arange(len(target_probs))
    nothing = torch.zeros_like(target_probs[:, :1])
    q = torch.cat([draft_probs, nothing], dim=1)
    return (target_probs - q)[rows, length].clamp_min(0)


def from_cdf(weights, uniforms):
    """First token whose cumulated weight exceeds u * total, [batch]."""
    cdf = weights.double().cumsum(dim=1)
    return (cdf <= uniforms[:, None] * cdf[:, -1:]).sum(dim=1)


def emit(draft_token_ids, length, token):
    """Accepted drafts, then `token`, then -1."""
    padded = torch.cat([draft_token_ids, token[:, None]], dim=1)
    position, last = torch.arange(padded.shape[1]), length[:, None]
    padded = torch.where(position == last, token[:, None], padded)
    return padded.masked_fill(position > last, -1)
