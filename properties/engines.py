# SPDX-License-Identifier: Apache-2.0
"""Adapters for engines that others wrote: what it takes to put one under test.

An adapter is a plain function with the signature of a verifier::

    verify(draft_token_ids, draft_probs, target_probs, *, generator) -> output_token_ids

It turns the three tensors into what the engine wants, calls the engine's own code, and
lays out the answer: the accepted drafts, then one recovered or bonus token, then -1. It
repairs nothing, for what an adapter repairs is no longer tested. Where the engine draws
from torch's global generator, the adapter has no parameter ``generator``.

`specverify.subject` then gives the function a name and declares what the signature does
not tell, so that an engine is not asked for what it cannot do. Engines are imported
inside the call: this file loads without them, and needs only the one that is run::

    specverify run properties/engines.py:rotalabs

`INSTALLED` lists the subjects whose engine is there.
"""

from __future__ import annotations

from importlib import import_module, metadata
from importlib.util import find_spec
from types import SimpleNamespace

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

import specverify

__all__ = ["INSTALLED", "economize", "flashspec", "rotalabs", "specdec"]


# --- the adapters ---------------------------------------------------------------------


def verify_with_flashspec(
    draft_token_ids: Tensor,  # [batch, k]
    draft_probs: Tensor,  # [batch, k, vocab]
    target_probs: Tensor,  # [batch, k + 1, vocab]
    *,
    generator: Generator,
) -> Tensor:  # [batch, k + 1]
    """Give FlashSpec log-probabilities; it answers with a count and a token."""
    engine = import_module("flashspec.sampling.rejection")
    step = engine.rejection_step(
        draft_token_ids, draft_probs.log(), target_probs.log(), generator=generator
    )  # [batch, 2]
    return _output_token_ids(draft_token_ids, *step.unbind(1))


def verify_with_economize(
    draft_token_ids: Tensor,  # [batch, k]
    draft_probs: Tensor,  # [batch, k, vocab]
    target_probs: Tensor,  # [batch, k + 1, vocab]
    *,
    generator: Generator,
) -> Tensor:  # [batch, k + 1]
    """Give economize probabilities for logits, and a selector that knows they are."""
    engine = import_module("economize.decoding")
    batch, k = draft_token_ids.shape
    draft = engine.Draft(draft_token_ids, lengths=[k] * batch, probs=draft_probs)
    selector = SimpleNamespace(generator=generator, distributions=lambda probs: probs)
    verifier = engine.RejectionVerifier(engine.DecodeConfig(verifier="rejection"))
    num_accepted, next_token = verifier.verify_batch(
        target_probs, draft, selector, seq=None, ends=None
    )  # [batch], [batch]
    return _output_token_ids(draft_token_ids, num_accepted, next_token)


def verify_with_specdec(
    draft_token_ids: Tensor,  # [1, k]
    draft_probs: Tensor,  # [1, k, vocab]
    target_probs: Tensor,  # [1, k + 1, vocab]
) -> Tensor:  # [1, k + 1]
    """Give SpecDec a target model that has one answer, behind a prompt of one token."""
    engine = import_module("specdec.decoder")
    output = SimpleNamespace(logits=target_probs.log())
    decoder = object.__new__(engine.SpecDecoder)  # its __init__ would load real models
    decoder.big_model = lambda _input_ids: output
    decoder.device = target_probs.device
    prompt = draft_token_ids.new_zeros(1, 1)
    tokens = decoder.verify(
        prompt, draft_token_ids[0].tolist(), list(draft_probs[0].unsqueeze(1))
    )
    return _padded(draft_token_ids, tokens)


def verify_with_rotalabs(
    draft_token_ids: Tensor,  # [1, k]
    draft_probs: Tensor,  # [1, k, vocab]
    target_probs: Tensor,  # [1, k + 1, vocab]
) -> Tensor:  # [1, k + 1]
    """Give rotalabs-accel one position at a time and draw the bonus token for it."""
    engine = import_module("rotalabs_accel.speculative.sampling")
    tokens = []
    for position, draft_token in enumerate(draft_token_ids[0]):
        p, q = target_probs[0, position], draft_probs[0, position]  # [vocab], [vocab]
        accepted, token = engine.rejection_sample(
            p[draft_token], q[draft_token], draft_token, target_logits=p.log()
        )
        tokens.append(token)
        if not accepted:
            break
    else:
        tokens.append(torch.multinomial(target_probs[0, -1], 1)[0])
    return _padded(draft_token_ids, tokens)


# --- the two layouts in which engines answer ------------------------------------------


def _output_token_ids(
    draft_token_ids: Tensor,  # [batch, k]
    num_accepted: Tensor,  # [batch]
    next_token: Tensor,  # [batch]
) -> Tensor:  # [batch, k + 1]
    """Write each row's next token behind its accepted drafts and -1 behind both."""
    end = num_accepted[:, None]  # [batch, 1]
    ids = pad(draft_token_ids, (0, 1)).scatter(1, end, next_token[:, None])
    positions = torch.arange(ids.shape[1], device=ids.device)  # [k + 1]
    return ids.masked_fill(positions > end, -1)


def _padded(draft_token_ids: Tensor, tokens: list[int] | list[Tensor]) -> Tensor:
    """Make the tokens of one sequence a row, [1, k + 1], with -1 behind them."""
    missing = draft_token_ids.shape[1] + 1 - len(tokens)
    return pad(draft_token_ids.new_tensor([tokens]), (0, missing), value=-1)


# --- the subjects ---------------------------------------------------------------------


def _version(distribution: str) -> str:
    """Return the installed version, empty where there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


flashspec = specverify.subject(
    verify_with_flashspec,
    name="flashspec",
    version=_version("flashspec"),
    source="flashspec.sampling.rejection.rejection_step",
    efficiency="token",
    min_draft_tokens=1,
    dtypes=("float32", "float64"),
)

economize = specverify.subject(
    verify_with_economize,
    name="economize",
    version=_version("economize"),
    source="economize.decoding.RejectionVerifier.verify_batch",
    efficiency="token",
    dtypes=("float32", "float64"),
)

specdec = specverify.subject(
    verify_with_specdec,
    name="specdec",
    version=_version("specdec"),
    source="specdec.decoder.SpecDecoder.verify",
    efficiency="token",
    max_batch=1,
    min_draft_tokens=1,
    dtypes=("float32", "float64"),
)

rotalabs = specverify.subject(
    verify_with_rotalabs,
    name="rotalabs",
    version=_version("rotalabs-accel"),
    source="rotalabs_accel.speculative.sampling.rejection_sample",
    efficiency="token",
    max_batch=1,
    min_draft_tokens=1,  # without drafts there is no call to the engine
    dtypes=("float32", "float64"),
)

INSTALLED = [
    engine
    for package, engine in [
        ("flashspec", flashspec),
        ("economize", economize),
        ("specdec", specdec),
        ("rotalabs_accel", rotalabs),
    ]
    if find_spec(package)
]
