# SPDX-License-Identifier: Apache-2.0
"""Rules that are lossy by design: they accept more than a lossless rule may.

Serving engines offer them for speed, or to benchmark as if the draft were better. They
stand here to be told apart from the lossless rules, with their laws in closed form in
`specverify.laws.lossy`; nothing in this project uses one unless it is called by name.

All take the arguments of `verify_chain`, raise its errors (and a ValueError for a setting
out of range) and give its `ChainResult`; a bonus token comes from the target as it should.
Settings are plain numbers. Below, x is a draft, u its uniform, A a set of accepted tokens,
``alpha = sum min(p, q)`` and ``out`` the law of the first token. The uniforms of a test
that draws nothing are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specverify.core.chain import accept_tokens
from specverify.core.residual import residual_weights
from specverify.core.steps import ChainResult, ChainStep


def verify_lenient(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    lenience: float = 0.5,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    num_draft_tokens: Tensor | None = None,
    validate: bool | None = None,
) -> ChainResult:
    """Accept where ``u l q < p``, with a lenience l; recover from ``(p - q)+``.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs
        As in `verify_chain`.
    lenience
        l in (0, 1]; 1 is `verify_chain`.
    generator, uniforms, num_draft_tokens, validate
        As in `verify_chain`.

    Notes
    -----
    Law: ``out = min(q, p/l) + (1 - alpha_l) (p - q)+ / (1 - alpha)``, at most p/l, with
    ``alpha_l = sum min(q, p/l)`` accepted. Bias: ``TV = alpha_l - alpha``. Some recover
    from ``(p - l q)+`` instead: that costs as much or more.

    References
    ----------
    Leviathan, Kalman, Matias: Fast inference from transformers via speculative decoding,
    ICML 2023, appendix.
    """
    _check("lenience", lenience, above_0=True, most=1)
    step = ChainStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        num_draft_tokens=num_draft_tokens,
        validate=validate,
    )
    p, q = step.drafted()
    accepted = accept_tokens(p, lenience * q, step.uniforms[:, : step.k])
    return _recover_from_residual(step, accepted)


def verify_entropy_scaled(  # noqa: PLR0913 - `verify_chain` and two settings
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    factor: float = 0.4,
    cap: float = 0.95,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    num_draft_tokens: Tensor | None = None,
    validate: bool | None = None,
) -> ChainResult:
    """`verify_lenient` with a lenience that falls with the entropy of the target.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs
        As in `verify_chain`.
    factor, cap
        ``l = min(exp(-factor H(p)), cap)``, H the entropy in nats; `factor` 0 or more,
        `cap` in (0, 1]. The defaults are those of the source.
    generator, uniforms, num_draft_tokens, validate
        As in `verify_chain`.

    Notes
    -----
    Law and bias: those of `verify_lenient` with this l at each position.

    References
    ----------
    Entropy verification of vllm-ascend (`posterior_alpha` and `posterior_threshold`).
    """
    _check("factor", factor)
    _check("cap", cap, above_0=True, most=1)
    step = ChainStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        num_draft_tokens=num_draft_tokens,
        validate=validate,
    )
    p, q = step.drafted()
    lenience = (-factor * _entropies(step)).exp().clamp_max(cap)
    accepted = accept_tokens(p, lenience * q, step.uniforms[:, : step.k])
    return _recover_from_residual(step, accepted)


def verify_typical(  # noqa: PLR0913 - `verify_chain` and two settings
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    threshold: float = 0.3,
    entropy_factor: float = 0.09,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    num_draft_tokens: Tensor | None = None,
    validate: bool | None = None,
) -> ChainResult:
    """Accept iff ``p(x) > min(threshold, entropy_factor exp(-H(p)))``; recover from p.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs
        As in `verify_chain`; q is not read.
    threshold, entropy_factor
        In [0, 1], and 0 or more; H in nats. The defaults are those of the source.
    generator, uniforms, num_draft_tokens, validate
        As in `verify_chain`.

    Notes
    -----
    Law: with A the tokens above the limit, ``out = q 1_A + (1 - q(A)) p``. Bias:
    ``TV = q(A) TV(q/q(A) on A, p)``. The source emits the first token greedily and adds
    1e-5 in the logarithm; here every recovered token is drawn from p, nothing masked.

    References
    ----------
    Cai et al.: Medusa: Simple LLM inference acceleration framework with multiple decoding
    heads, ICML 2024.
    """
    _check("threshold", threshold, most=1)
    _check("entropy_factor", entropy_factor)
    step = ChainStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        num_draft_tokens=num_draft_tokens,
        validate=validate,
    )
    p, _ = step.drafted()
    limit = (entropy_factor * (-_entropies(step)).exp()).clamp_max(threshold)
    return _recover_from_target(step, p > limit)


def verify_top_k_accepted(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    top: int = 2,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    num_draft_tokens: Tensor | None = None,
    validate: bool | None = None,
) -> ChainResult:
    """Accept the `top` most likely tokens of the target; recover from p.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs
        As in `verify_chain`; q is not read.
    top
        1 or more; equals count by the lowest ids, tokens of probability 0 never.
    generator, uniforms, num_draft_tokens, validate
        As in `verify_chain`.

    Notes
    -----
    Law and bias: those of `verify_typical` with A the top tokens. No one source: a plain
    form of rules that ask whether the target finds a draft good enough.
    """
    _check("top", top, above_0=True)
    step = ChainStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        num_draft_tokens=num_draft_tokens,
        validate=validate,
    )
    ids = step.draft_token_ids.unsqueeze(-1)  # [batch, k, 1]
    rows = step.target_probs[:, : step.k]
    mass = rows.gather(2, ids)
    token = torch.arange(rows.shape[-1], device=rows.device)
    ahead = (rows > mass) | ((rows == mass) & (token < ids))
    good = (ahead.sum(dim=-1) < top) & (mass.squeeze(-1) > 0)
    return _recover_from_target(step, good)


def verify_threshold(  # noqa: PLR0913 - `verify_chain` and two settings
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    threshold_single: float = 0.3,
    threshold_acc: float = 0.5,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    num_draft_tokens: Tensor | None = None,
    validate: bool | None = None,
) -> ChainResult:
    """Accept where ``u threshold_acc < p(x)``, or always from ``threshold_single`` on.

    The recovered token comes from p without x.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs
        As in `verify_chain`; q is not read.
    threshold_single, threshold_acc
        In (0, 1]; at 1 and 1, the defaults of the source, the rule is lossless.
    generator, uniforms, num_draft_tokens, validate
        As in `verify_chain`.

    Notes
    -----
    Law: with ``a(x) = min(1, p(x)/threshold_acc)``, or 1, and p_x the law p without x,
    ``out = p + sum_x q(x) (a(x) - p(x)) (1_x - p_x)``. Bias: ``TV <= sum q (a - p)``, with
    equality for a one-hot draft. The source tests ``<=`` and so accepts a token of
    probability 0 at u = 0; this rule does not.

    References
    ----------
    SGLang, `tree_speculative_sampling_target_only`, with one child a node.
    """
    _check("threshold_single", threshold_single, above_0=True, most=1)
    _check("threshold_acc", threshold_acc, above_0=True, most=1)
    step = ChainStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        num_draft_tokens=num_draft_tokens,
        validate=validate,
    )
    one_hot = replace(step, draft_probs=None)
    p, ones = one_hot.drafted()
    accepted = accept_tokens(p, threshold_acc * ones, step.uniforms[:, : step.k])
    return _recover_from_residual(one_hot, accepted | (p >= threshold_single))


def verify_synthetic(
    draft_token_ids: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    *,
    rates: float | Sequence[float] = 0.7,
    generator: torch.Generator | None = None,
    uniforms: Tensor | None = None,
    num_draft_tokens: Tensor | None = None,
    validate: bool | None = None,
) -> ChainResult:
    """Accept at preset rates, whatever p and q; recover from ``(p - q)+``.

    Parameters
    ----------
    draft_token_ids, draft_probs, target_probs
        As in `verify_chain`.
    rates
        In [0, 1]: probability of acceptance given that the drafts before were accepted,
        one for all positions or one for each of the k.
    generator, uniforms, num_draft_tokens, validate
        As in `verify_chain`.

    Notes
    -----
    Law: ``out = r q + (1 - r) (p - q)+ / (1 - alpha)`` with r the rate; tokens that the
    target excludes come out. Bias: ``TV >= r - alpha``.

    References
    ----------
    The method "synthetic" of vLLM, for benchmarks; its rates are the products of these.
    """
    step = ChainStep.open(
        draft_token_ids,
        draft_probs,
        target_probs,
        generator=generator,
        uniforms=uniforms,
        num_draft_tokens=num_draft_tokens,
        validate=validate,
    )
    each = rates if isinstance(rates, Sequence) else [rates] * step.k
    if len(each) != step.k:
        msg = f"rates holds {len(each)} numbers; allowed are one or k = {step.k}"
        raise ValueError(msg)
    accepted = torch.empty_like(step.used)
    for position, rate in enumerate(each):
        _check("rates", rate, most=1)
        accepted[:, position] = step.uniforms[:, position] < rate
    return _recover_from_residual(step, accepted)


def _recover_from_residual(step: ChainStep, accepted: Tensor) -> ChainResult:
    num_accepted = step.accepted_prefix(accepted)
    return step.emit(num_accepted, residual_weights(*step.rows(num_accepted)))


def _recover_from_target(step: ChainStep, accepted: Tensor) -> ChainResult:
    num_accepted = step.accepted_prefix(accepted)
    target_row, _ = step.rows(num_accepted)
    return step.emit(num_accepted, target_row)


def _entropies(step: ChainStep) -> Tensor:
    """Entropy of the target at each draft, in nats: float64 [batch, k]."""
    rows: Tensor = torch.special.entr(step.target_probs[:, : step.k].to(torch.float64))
    return rows.sum(dim=-1)


def _check(
    name: str, value: float, *, above_0: bool = False, most: float = 1e9
) -> None:
    """Check that a setting lies between 0, itself allowed or not, and `most`."""
    if not 0 <= value <= most or (above_0 and value == 0):
        low = "more than 0" if above_0 else "0 or more"
        msg = f"{name} is {value}; allowed are numbers of {low} and at most {most:g}"
        raise ValueError(msg)
