# SPDX-License-Identifier: Apache-2.0
"""Planted defects: each one small change to the correct verifier `verify`."""

import torch


def verify(
    ids,
    q,
    p,
    *,
    generator,
    uniforms=lambda batch, width, generator: fresh(batch, width, generator),
    accept=lambda u, p_x, q_x: u * q_x < p_x,
    residual=lambda p, q, ids: (p - q).clamp_min(0),
    token_uniforms=lambda u, v: v,
    draw=lambda weights, v: from_cdf(weights, v),
    assemble=lambda ids, tokens, accepted: accepted_then_token(ids, tokens, accepted),
):
    """Verify a chain of drafts; every keyword is a step that a defect may replace.

    Behind the last draft q is zero, so that the bonus token is drawn from (p - 0)+.
    """
    batch, k = ids.shape
    q = torch.cat([q, torch.zeros_like(p[:, :1])], dim=1)  # [batch, k + 1, vocab]
    u = uniforms(batch, k + 1, generator)
    v = uniforms(batch, k + 1, generator)
    accepted = accept(u[:, :k], at(p, ids), at(q, ids))  # [batch, k]
    weights = residual(p, q, ids)  # [batch, k + 1, vocab]
    weights = torch.where(weights.sum(dim=-1, keepdim=True) > 0, weights, p)
    tokens = draw(weights, token_uniforms(u, v))  # [batch, k + 1]
    return assemble(ids, tokens, accepted)


def fresh(batch, width, generator):
    return torch.rand(batch, width, dtype=torch.float64, generator=generator)


def at(probs, ids):
    """Probability of every draft token, [batch, k]."""
    return probs[:, : ids.shape[1]].gather(2, ids[..., None]).squeeze(-1)


def from_cdf(weights, v):
    """First token whose cumulated weight exceeds v * total, [batch, k + 1]."""
    cdf = weights.double().cumsum(dim=-1)
    return (cdf <= v[..., None] * cdf[..., -1:]).sum(dim=-1)


def accepted_then_token(ids, tokens, accepted):
    """Drafts up to the first rejection, the token of that position, then -1."""
    return cut(ids, tokens, accepted.cumprod(dim=1).sum(dim=1))


def cut(ids, tokens, length):
    """`length` drafts, the token that stands behind them, then -1."""
    drafts = torch.cat([ids, tokens[:, -1:]], dim=1)
    position, last = torch.arange(tokens.shape[1]), length[:, None]
    output = torch.where(position < last, drafts, tokens)
    return output.masked_fill(position > last, -1)


def residual_from_p(ids, q, p, *, generator):
    """Recover from the target itself."""
    return verify(ids, q, p, generator=generator, residual=lambda p, q, ids: p)


def absolute_residual(ids, q, p, *, generator):
    """Take |p - q| for (p - q)+."""
    return verify(
        ids, q, p, generator=generator, residual=lambda p, q, ids: (p - q).abs()
    )


def reversed_residual(ids, q, p, *, generator):
    """Take (q - p)+ for (p - q)+."""
    return verify(
        ids, q, p, generator=generator, residual=lambda p, q, ids: (q - p).clamp_min(0)
    )


def softmax_residual(ids, q, p, *, generator):
    """Normalise (p - q)+ by a softmax; p itself behind the last draft."""

    def residual(p, q, ids):
        weights = (p - q).clamp_min(0).softmax(dim=-1)
        return torch.cat([weights[:, :-1], p[:, -1:]], dim=1)

    return verify(ids, q, p, generator=generator, residual=residual)


def zeroed_draft_residual(ids, q, p, *, generator):
    """Exclude the rejected token only, whatever q is."""

    def residual(p, q, ids):
        masked = p.clone()
        masked[:, :-1].scatter_(2, ids[..., None], 0.0)
        return masked

    return verify(ids, q, p, generator=generator, residual=residual)


def unmasked_one_hot(ids, q, p, *, generator):
    """Recover from p where the draft was deterministic."""

    def residual(p, q, ids):
        one_hot = q.amax(dim=-1, keepdim=True) == 1
        return torch.where(one_hot, p, (p - q).clamp_min(0))

    return verify(ids, q, p, generator=generator, residual=residual)


def floored_residual(ids, q, p, *, generator):
    """Give 1e-3 to tokens that the target excludes, where a draft was rejected."""

    def residual(p, q, ids):
        drafted = q.sum(dim=-1, keepdim=True) > 0
        return (p - q).clamp_min(0) + 1e-3 * ((p == 0) & drafted)

    return verify(ids, q, p, generator=generator, residual=residual)


def residual_of_row_before(ids, q, p, *, generator):
    """Read p and q of row n - 1 after a rejection at n."""

    def residual(p, q, ids):
        weights = (p - q).clamp_min(0)
        k = ids.shape[1]
        rows = [max(position - 1, 0) for position in range(k)]
        return weights[:, [*rows, k]]

    return verify(ids, q, p, generator=generator, residual=residual)


def residual_of_first_row(ids, q, p, *, generator):
    """Read p and q of row 0, wherever the rejection was."""

    def residual(p, q, ids):
        k = ids.shape[1]
        return (p - q).clamp_min(0)[:, [*[0] * k, k]]

    return verify(ids, q, p, generator=generator, residual=residual)


def bonus_of_row_before(ids, q, p, *, generator):
    """Draw the bonus token from target row k - 1."""

    def residual(p, q, ids):
        weights = (p - q).clamp_min(0)
        before = max(ids.shape[1] - 1, 0)
        return torch.cat([weights[:, :-1], p[:, before, None]], dim=1)

    return verify(ids, q, p, generator=generator, residual=residual)


def ratio_swapped(ids, q, p, *, generator):
    """Accept with probability min(1, q/p)."""
    return verify(
        ids, q, p, generator=generator, accept=lambda u, p_x, q_x: u * p_x < q_x
    )


def always_accept(ids, q, p, *, generator):
    """Accept every draft, even one that the target excludes."""
    return verify(ids, q, p, generator=generator, accept=lambda u, p_x, q_x: u < 1)


def lenience(ids, q, p, *, generator):
    """Accept with probability min(1, 2 p/q)."""
    return verify(
        ids, q, p, generator=generator, accept=lambda u, p_x, q_x: u * q_x / 2 < p_x
    )


def same_uniform(ids, q, p, *, generator):
    """Test all positions of a row with one uniform."""
    return verify(
        ids, q, p, generator=generator, accept=lambda u, p_x, q_x: u[:, :1] * q_x < p_x
    )


def counts_past_rejection(ids, q, p, *, generator):
    """Keep as many drafts as were accepted anywhere."""
    return verify(
        ids,
        q,
        p,
        generator=generator,
        assemble=lambda ids, tokens, accepted: cut(ids, tokens, accepted.sum(dim=1)),
    )


def goes_on(ids, q, p, *, generator):
    """Replace rejected drafts where they stand and go on behind them."""

    def assemble(ids, tokens, accepted):
        kept = torch.where(accepted, ids, tokens[:, :-1])
        return torch.cat([kept, tokens[:, -1:]], dim=1)

    return verify(ids, q, p, generator=generator, assemble=assemble)


def argmax_recovered(ids, q, p, *, generator):
    """Recover the likeliest token of the residual."""

    def draw(weights, v):
        best = weights[:, :-1].argmax(dim=-1)
        return torch.cat([best, from_cdf(weights[:, -1:], v[:, -1:])], dim=1)

    return verify(ids, q, p, generator=generator, draw=draw)


def reused_uniform(ids, q, p, *, generator):
    """Draw from the residual with the uniform of the test, as it is."""
    return verify(ids, q, p, generator=generator, token_uniforms=lambda u, v: u)


def rows_share_uniforms(ids, q, p, *, generator):
    """Draw one row of uniforms for the whole batch."""

    def uniforms(batch, width, generator):
        return fresh(1, width, generator).expand(batch, width)

    return verify(ids, q, p, generator=generator, uniforms=uniforms)


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


def first_target_for_all(ids, q, p, *, generator):
    """Read the target rows of the first sequence for all sequences."""
    return verify(ids, q, p[:1].expand_as(p), generator=generator)


def tempered_draft(ids, q, p, *, generator):
    """Verify against q at temperature 1/2 instead of the q that was drawn from."""
    squared = q.double() ** 2
    return verify(
        ids, squared / squared.sum(dim=-1, keepdim=True), p, generator=generator
    )
