# SPDX-License-Identifier: Apache-2.0
"""Planted defects of whole decoders: they are biased as stated, and hidden as stated."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from specverify.defects import DECODER_CONTROLS, DECODERS
from specverify.defects.decoder import Decoder
from specverify.defects.requests import Request, due_law
from specverify.exact.generating import generation_law
from specverify.inputs import witnesses
from specverify.inputs.generation import G2, G2_PAIR, G3, Generation
from specverify.inputs.models import ToyModel
from specverify.laws.distributions import law_distance
from specverify.statistics.assertions import assert_follows_law
from specverify.subjects.faults import SubjectFault
from specverify.subjects.networks import ToyNetwork

LAWS = [id_ for id_, d in DECODERS.items() if d.effect == "law"]
#: No text reaches a second step, or a second token of a run.
ONE_TOKEN = G2.longer(1)
ONE_TOKEN_OF_THREE = G3.longer(1)
#: Drafts that are always accepted: the same law as the target.
SAME = replace(G2, draft=G2.target)
#: Drafts that are never accepted: the target excludes them.
APART = Generation(
    ToyModel.from_table(
        {
            (): (".3", ".7", 0),
            (0,): (".6", ".4", 0),
            (1,): (".2", ".8", 0),
            (2,): (1, 0, 0),
        },
        memory=1,
    ),
    ToyModel.from_positions([(0, 0, 1)]),
    prompts=((0,),),
    max_new_tokens=3,
)
#: Models that do not look back, and that look back one token only.
FORGETFUL = replace(
    G2,
    target=ToyModel.from_positions([(".3", ".7")]),
    draft=ToyModel.from_positions([(".6", ".4")]),
)
ONE_BACK = replace(G2, target=witnesses.P2.target, draft=witnesses.P2.draft)
DRAFT_FORGETS = replace(G2, draft=FORGETFUL.draft)
SAME_OF_THREE = replace(G3, draft=G3.target)
ONE_ROW = replace(G2_PAIR, prompts=((0, 1),))
TOGETHER = replace(G2_PAIR, prompts=((0, 1), (0, 1)), target=G2.target.greedy())
CERTAIN = replace(G2, target=G2.target.greedy())
CERTAIN_DRAFTS = replace(G2, draft=G2.draft.greedy())
LIKELY_DRAFTS = replace(G3, draft=G3.draft.greedy())
#: A prompt that holds every token.
ALL_SEEN = replace(G3, prompts=((0, 1, 2),))
#: Inputs on which a defect has no bias, one for each clause that says what hides it.
BLIND = {
    "cache-keeps-rejected": [ONE_TOKEN, SAME, ONE_BACK],
    "cache-rolled-back-too-far": [ONE_TOKEN, SAME],
    "cache-rolled-back-by-count-before": [ONE_TOKEN, G2.longer(2)],
    "cache-rolled-back-in-common": [ONE_ROW],
    "cache-filtered-by-prefix": [ONE_ROW, TOGETHER],
    "cache-ring-overwritten": [SAME],
    "cache-reads-last-draft-twice": [ONE_BACK],
    "positions-one-early": [FORGETFUL],
    "positions-count-rejected": [ONE_TOKEN, SAME],
    "drafts-of-step-before": [ONE_TOKEN],
    "draft-laws-of-step-before": [ONE_TOKEN, DRAFT_FORGETS],
    "drafts-argmax-declared-as-drawn": [CERTAIN_DRAFTS],
    "drafts-declared-without-temperature": [CERTAIN_DRAFTS],
    "drafts-dropped-by-value": [CERTAIN_DRAFTS],
    "uniforms-of-first-step": [ONE_TOKEN],
    "uniforms-of-other-row": [ONE_ROW],
    "uniforms-of-drafts": [CERTAIN_DRAFTS],
    "loop-temperature-on-bonus-only": [CERTAIN],
    "loop-temperature-not-on-bonus": [APART],
    "loop-greedy": [CERTAIN],
    "loop-penalty-not-on-drafts": [ALL_SEEN],
    "loop-penalty-forgets-drafts": [APART, ALL_SEEN],
    "loop-penalty-keeps-rejected": [ONE_TOKEN_OF_THREE, ALL_SEEN],
    "loop-penalty-a-step-late": [ONE_TOKEN_OF_THREE, ALL_SEEN],
    "grammar-state-of-first-row": [ONE_TOKEN_OF_THREE],
    "grammar-not-on-bonus": [ONE_TOKEN_OF_THREE],
    "grammar-keeps-rejected": [ONE_TOKEN_OF_THREE, SAME_OF_THREE],
    "grammar-along-likeliest": [LIKELY_DRAFTS],
    "grammar-state-of-first-text": [ONE_ROW],
    "min-tokens-on-first-row-only": [ONE_TOKEN_OF_THREE],
    "stop-at-last-of-run-only": [ONE_TOKEN],
    "stop-after-cap": [ONE_TOKEN],
    "stop-sequence-split-over-steps": [ONE_TOKEN],
    "stop-first-listed-wins": [ONE_TOKEN],
    "stop-ends-whole-batch": [ONE_ROW],
    "cap-taken-for-rejection": [APART],
    "run-loses-recovered": [SAME],
    "run-repeats-accepted": [APART],
}
BLIND_PAIRS = [(id_, case) for id_, cases in BLIND.items() for case in cases]


def bias(decoder, request, case):
    """Total variation between the law of the texts and the one that is due."""
    law = generation_law(decoder, case)
    assert law.complete
    return float(law_distance(law.outcomes, due_law(request, case)))


def drawn(decoder, case, rows, device="cpu"):
    """Texts of one call on many rows."""
    target, draft = (ToyNetwork(m).to(device) for m in (case.target, case.draft))
    prompts = torch.tensor(case.prompts, device=device).repeat(rows, 1)
    generator = torch.Generator(device).manual_seed(1)
    ids = decoder(
        target,
        draft,
        prompts,
        max_new_tokens=case.max_new_tokens,
        generator=generator,
    )
    return [tuple(t for t in row if t >= 0) for row in ids.tolist()]


# --- the decoder as it is -------------------------------------------------------------

REQUESTS = {
    "plain": Request(),
    "cold": Request(temperature=0.5),
    "penalty": Request(presence_penalty=1.0),
    "grammar": Request(grammar=((0, -1, 1), (-1, 1, 0))),
    "stop": Request(stop=((2,), (0, 1)), min_new_tokens=2),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_decoder_is_lossless_whatever_is_asked(name):
    request = REQUESTS[name]

    assert bias(Decoder(k=1, request=request), request, G3) < 1e-12


@pytest.mark.parametrize("case", [G2, G2_PAIR, SAME, APART], ids=lambda c: c.name)
def test_the_decoder_is_lossless_on_every_input(case):
    k = 2 if len(case.prompts) == 1 and case.vocab == 2 else 1

    assert bias(Decoder(k=k), Request(), case) < 1e-12


def test_what_is_drawn_follows_the_law_that_is_followed(device):
    request = REQUESTS["stop"]
    law = due_law(request, G3.longer(4))
    seen = Counter(drawn(Decoder(request=request), G3.longer(4), 50_000, device))
    texts = [texts for (texts,) in law]
    counts = [seen.pop(text, 0) for text in texts]

    assert not seen
    assert_follows_law(counts, list(law.values()))


def test_a_defect_is_drawn_as_it_is_followed(device):
    entry = DECODERS["cache-keeps-rejected"]
    seen = Counter(drawn(entry.make(), entry.shown_on, 50_000, device))
    due = due_law(entry.request, entry.shown_on)
    found = {(text,): count / 50_000 for text, count in seen.items()}

    assert float(law_distance(found, due)) == pytest.approx(entry.bias, abs=0.01)


def test_no_text_is_longer_than_asked():
    assert max(map(len, drawn(Decoder(), G2, 1000))) == G2.max_new_tokens


def test_nothing_is_written_where_nothing_is_asked_for():
    prompts, networks = torch.tensor(G2.prompts), map(ToyNetwork, (G2.target, G2.draft))
    ids = Decoder()(*networks, prompts, max_new_tokens=0, generator=torch.Generator())

    assert ids.shape == (1, 0)


def test_a_text_ends_behind_the_stop_sequence_and_keeps_it():
    texts = drawn(Decoder(request=Request(stop=((2,),))), G3.longer(6), 1000)

    assert all(2 not in text[:-1] for text in texts)
    assert any(len(text) < 6 for text in texts)


# --- what the catalogue says ----------------------------------------------------------


def test_the_catalogue_has_the_loop():
    assert len(LAWS) >= 35
    assert len(DECODER_CONTROLS) >= 8


@pytest.mark.parametrize("id_", LAWS)
def test_the_stated_bias_is_that_of_the_exact_law(id_):
    entry = DECODERS[id_]
    found = bias(entry.make(), entry.request, entry.shown_on)

    assert found == pytest.approx(entry.bias, rel=0.005, abs=0)  # three digits


@pytest.mark.parametrize("id_", DECODER_CONTROLS)
def test_a_decoder_that_only_looks_wrong_is_lossless(id_):
    entry = DECODER_CONTROLS[id_]

    assert bias(entry.make(), entry.request, entry.shown_on) < 1e-12


@pytest.mark.parametrize(("id_", "case"), BLIND_PAIRS)
def test_a_blind_input_shows_nothing(id_, case):
    entry = DECODERS[id_]

    assert bias(entry.make(), entry.request, case) < 1e-9


def test_every_defect_of_a_law_has_a_blind_input():
    assert BLIND.keys() == set(LAWS)


@pytest.mark.parametrize("id_", DECODERS)
def test_every_entry_says_what_hides_it(id_):
    assert DECODERS[id_].blind_on


def test_the_cap_is_exceeded_where_that_is_the_defect():
    texts = drawn(DECODERS["cap-exceeded"].make(), G2, 1000)

    assert max(map(len, texts)) > G2.max_new_tokens


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (torch.tensor([[0, -1, 1]]), r"returned \[0, -1, 1\]"),
        (torch.tensor([[0.0]]), "returned torch.float32"),
        (torch.tensor([0]), "returned torch.int64"),
        (torch.tensor([[0], [0]]), "returned 2 rows for 1 prompts"),
        ([[0]], r"returned \[\[0\]\]"),
    ],
)
def test_an_answer_that_is_no_text_is_a_fault(answer, words):
    with pytest.raises(SubjectFault, match=words):
        generation_law(lambda *args, **kwargs: answer, G2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Decoder(k=0), "k is 0"),
        (lambda: Request(temperature=0), "temperature is 0"),
        (
            lambda: due_law(Request(grammar=((-1, -1),)), G2),
            r"forbids every token behind \[1, 0\]",
        ),
    ],
)
def test_what_has_no_law_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# --- inputs ---------------------------------------------------------------------------


@pytest.mark.parametrize("model", [G2.target, G3.target, FORGETFUL.target])
def test_a_network_has_the_rows_of_its_model(model):
    ids = np.random.default_rng(0).integers(model.vocab, size=(20, 5))
    rows = ToyNetwork(model)(torch.from_numpy(ids)).exp().numpy()

    for length in range(1, 6):
        np.testing.assert_allclose(
            rows[:, length - 1], model.probs(ids[:, :length]), atol=1e-12
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": ()}, "prompts have lengths"),
        ({"prompts": ((),)}, "prompts have lengths"),
        ({"prompts": ((0,), (0, 1))}, r"prompts have lengths \[1, 2\]"),
        ({"prompts": ((2,),)}, "prompts hold"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"draft": G3.draft}, "draft has vocab 3, target 2"),
    ],
)
def test_a_generation_that_nobody_could_write_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(G2, **changes)
