# SPDX-License-Identifier: Apache-2.0
"""Inputs: what the strategies, toy models, cases and witnesses promise."""

import itertools
import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from specverify.inputs import WITNESSES, Case, ToyModel
from specverify.inputs.strategies import (
    _distinct,
    cases,
    distribution_pairs,
    distributions,
    model_pairs,
    normalised,
)
from specverify.laws.distributions import excess, total_variation
from specverify.statistics.chisquare import goodness_of_fit

REPEATABLE = settings(max_examples=100, derandomize=True, deadline=None, database=None)
SEARCH = settings(max_examples=2000, derandomize=True, deadline=None, database=None)
FIRST = settings(SEARCH, phases=[Phase.generate])  # Whatever comes, not shrunk.
FEW = settings(FIRST, max_examples=100)
vocabs = st.integers(2, 7)
HALF = Fraction(1, 2)


# --- strategies -----------------------------------------------------------------------


@REPEATABLE
@given(data=st.data(), vocab=st.integers(1, 7))
def test_distributions_are_non_negative_and_sum_to_one(data, vocab):
    row = data.draw(distributions(vocab))

    assert (len(row), min(row) >= 0, sum(row)) == (vocab, True, 1)


@pytest.mark.parametrize(
    "feature",
    [
        lambda row: 0 in row,
        lambda row: max(row) == 1,
        lambda row: len(set(row)) == 2,
        lambda row: len(set(row)) == 3,
    ],
    ids=["zero", "one-hot", "tie", "all different"],
)
def test_distributions_reach(feature):
    assert feature(find(distributions(3), feature, settings=FIRST))


def test_distributions_shrink_to_the_uniform_one():
    row = find(distributions(4), lambda row: True, settings=SEARCH)

    assert row == (Fraction(1, 4),) * 4


@REPEATABLE
@given(data=st.data(), vocab=vocabs)
def test_pairs_are_two_different_distributions(data, vocab):
    p, q = data.draw(distribution_pairs(vocab))

    assert sum(p) == sum(q) == 1
    assert min(*p, *q) >= 0
    assert p != q


@REPEATABLE
@given(data=st.data(), vocab=st.integers(3, 7))
def test_the_residual_of_a_pair_has_two_tokens_or_more_all_of_different_mass(
    data, vocab
):
    p, q = data.draw(distribution_pairs(vocab))
    masses = [mass for mass in excess(p, q) if mass]

    assert 2 <= len(masses) == len(set(masses))


def test_unrelated_distributions_do_not_have_such_a_residual():
    """So the structure is the strategy's work: two free draws easily lack it."""
    free = st.tuples(distributions(4), distributions(4)).filter(lambda x: x[0] != x[1])

    p, q = find(free, lambda x: sum(map(bool, excess(*x))) == 1, settings=SEARCH)
    assert total_variation(p, q) > 0


PAIR_FEATURES = {
    "a tie": lambda p, q: any(a == b for a, b in zip(p, q, strict=True)),
    "p = 0 < q": lambda p, q: any(a == 0 < b for a, b in zip(p, q, strict=True)),
    "q = 0 < p": lambda p, q: any(b == 0 < a for a, b in zip(p, q, strict=True)),
    "disjoint supports": lambda p, q: total_variation(p, q) == 1,
    "full supports": lambda p, q: min(*p, *q) > 0,
    "last token recovered": lambda p, q: p[-1] > q[-1],
}


@pytest.mark.parametrize("name", PAIR_FEATURES)
def test_pairs_reach(name):
    def feature(pair):
        return PAIR_FEATURES[name](*pair)

    assert feature(find(distribution_pairs(4), feature, settings=FIRST))


def test_pairs_shrink_to_the_smallest_whole_weights():
    """Residual weights 1 and 2, the draft on the third token, nothing in common."""
    pair = find(distribution_pairs(3), lambda pair: True, settings=SEARCH)

    assert sorted(zip(*pair, strict=True)) == [
        (0, 1),
        (Fraction(1, 3), 0),
        (Fraction(2, 3), 0),
    ]


def test_a_pair_over_one_token_is_refused_with_found_and_allowed():
    with pytest.raises(ValueError, match=r"^vocab is 1; .* needs 2 or more"):
        find(distribution_pairs(1), lambda pair: True, settings=SEARCH)


def rotations(row):
    return [row[t:] + row[:t] for t in range(len(row))]


def settled(pairs, index):
    """Whether no rotation of a pair differs from earlier rows in more of the models."""
    before_p, before_q = zip(*pairs[:index], strict=True) if index else ((), ())
    fresh = [
        (p not in before_p) + (q not in before_q)
        for p, q in zip(*map(rotations, pairs[index]), strict=True)
    ]
    return fresh[0] == max(fresh)


@REPEATABLE
@given(data=st.data(), vocab=st.integers(2, 4), memory=st.integers(0, 2))
def test_rows_of_a_model_differ_wherever_rotating_one_can_make_them(
    data, vocab, memory
):
    target, draft = data.draw(model_pairs(vocab, memory=memory))
    pairs = list(zip(target.rows, draft.rows, strict=True))

    assert all(settled(pairs, index) for index in range(len(pairs)))


def test_rotation_tells_three_equal_pairs_of_rows_apart():
    """Shrinking makes all pairs of rows alike."""
    pairs = _distinct([(normalised([1, 2, 0]), normalised([0, 0, 1]))] * 3)

    assert [len(set(rows)) for rows in zip(*pairs, strict=True)] == [3, 3]


def test_rotation_helps_one_model_where_it_cannot_help_both():
    left, right = normalised([1, 0]), normalised([0, 1])
    even = normalised([1, 1])
    pairs = _distinct([(left, right), (even, left), (left, right)])

    assert [p for p, _ in pairs] == [left, even, right]


@REPEATABLE
@given(case=cases(min_vocab=3, max_vocab=4, max_k=3, max_cells=64))
def test_cases_stay_within_the_ranges_asked_for(case):
    assert 3 <= case.vocab <= 4
    assert 1 <= case.k <= 3
    assert case.vocab ** (case.k + 1) <= 64


@REPEATABLE
@given(case=cases())
def test_cases_have_at_most_81_outcomes_where_nothing_else_is_asked(case):
    assert case.vocab ** (case.k + 1) <= 81


def test_a_large_vocabulary_does_not_break_the_limit_of_outcomes():
    """Of 2 to 16 tokens, 9 leave room for one draft."""
    bounded = cases(max_vocab=16, max_k=1)

    assert find(bounded, lambda case: case.vocab == 9, settings=FIRST).k == 1
    with pytest.raises(NoSuchExample):
        find(bounded, lambda case: case.vocab > 9, settings=FEW)


def test_a_limit_that_the_smallest_case_exceeds_is_refused():
    with pytest.raises(ValueError, match=r"^max_cells is 81; vocab 12 .* needs 144"):
        find(cases(min_vocab=12, max_vocab=16), lambda case: True, settings=FIRST)


@pytest.mark.parametrize(
    "feature",
    [lambda c: c.k == 5, lambda c: c.vocab == 8, lambda c: (c.vocab, c.k) == (3, 3)],
    ids=["k = 5", "vocab 8", "vocab 3 and k = 3"],
)
def test_cases_reach(feature):
    assert feature(find(cases(), feature, settings=FIRST))


@pytest.mark.parametrize(
    ("feature", "vocab", "k"),
    [
        (lambda case: True, 2, 1),
        (lambda case: case.k >= 2, 2, 2),
        (lambda case: 0 in case.target(()), 2, 1),
    ],
    ids=["anything", "two drafts", "a token excluded"],
)
def test_cases_shrink_to_few_tokens_and_few_drafts(feature, vocab, k):
    case = find(cases(max_vocab=4, max_k=2), feature, settings=SEARCH)

    assert (case.vocab, case.k) == (vocab, k)


def test_no_drafts_need_no_memory():
    case = find(cases(min_k=0), lambda case: case.k == 0, settings=SEARCH)

    assert case.target.memory == 0


def test_weights_are_normalised_exactly():
    assert normalised([1, 0, 2]) == (Fraction(1, 3), 0, Fraction(2, 3))


# --- toy models -----------------------------------------------------------------------

M1 = WITNESSES["M1"].target
#: Six tokens in three groups: token t stands in contexts as t modulo 3.
GROUPED = ToyModel(
    tuple(normalised([1, 2, 3, 4, 5, turn]) for turn in range(13)), memory=2, groups=3
)


@pytest.mark.parametrize(
    ("prefix", "row"), [((), 0), ((0,), 1), ((2,), 3), ((0, 2), 3), ((2, 1, 0), 1)]
)
def test_a_model_looks_back_as_far_as_its_memory(prefix, row):
    assert M1(prefix) == M1.rows[row]


@pytest.mark.parametrize(
    ("prefix", "context"), [((5,), (2,)), ((4, 3), (1, 0)), ((0, 5, 5), (2, 2))]
)
def test_tokens_enter_a_context_modulo_the_number_of_groups(prefix, context):
    position = list(GROUPED.contexts).index(context)

    assert GROUPED(prefix) == GROUPED.rows[position]


@pytest.mark.parametrize("model", [M1, GROUPED], ids=["M1", "grouped"])
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_context_indices_of_a_batch_agree_with_calls(model, length):
    prefixes = list(itertools.product(range(model.vocab), repeat=length))
    table = np.array(prefixes, np.int64).reshape(len(prefixes), length)
    index = model.context_index(table)

    assert [model.rows[i] for i in index] == [model(prefix) for prefix in prefixes]


def test_probs_are_the_called_rows_in_float64():
    prefixes = np.array([[0, 1], [2, 2], [1, 0]])
    expected = [[float(x) for x in M1(prefix)] for prefix in prefixes]

    assert M1.probs(prefixes).tolist() == expected


def sampled(model, prefix, count=40_000):
    rng = np.random.default_rng(0)
    prefixes = np.tile(np.array(prefix, np.int64), (count, 1))
    return np.bincount(model.sample(prefixes, rng), minlength=model.vocab)


@pytest.mark.parametrize("prefix", [(), (0,), (1,), (2,)])
def test_samples_follow_the_row_behind_their_prefix(prefix):
    law = [float(x) for x in M1(prefix)]

    assert goodness_of_fit(sampled(M1, prefix), law, level=1e-9).p_value >= 1e-9


def test_samples_do_not_follow_the_row_behind_another_prefix():
    law = [float(x) for x in M1((1,))]

    assert goodness_of_fit(sampled(M1, (0,)), law, level=1e-9).p_value < 1e-9


def test_a_sample_never_has_probability_zero():
    counts = sampled(WITNESSES["Z2"].target, ())

    assert counts[0] == 0


def test_samples_are_a_function_of_the_generator():
    first, second = (sampled(M1, (), count=100) for _ in range(2))

    assert first.tolist() == second.tolist()


def test_extending_keeps_the_prefix_and_follows_the_joint_law():
    start = np.tile(np.array([[1]]), (40_000, 1))
    paths = M1.extend(start, 3, np.random.default_rng(1))
    law = [float(M1((1,))[a] * M1((1, a))[b]) for a in range(3) for b in range(3)]

    assert (paths[:, 0] == 1).all()
    counts = np.bincount(3 * paths[:, 1] + paths[:, 2], minlength=9)
    assert goodness_of_fit(counts, law, level=1e-9).p_value >= 1e-9


def test_a_table_holds_one_row_for_each_context():
    table = {(): (".5", ".5"), (0,): ("1", "0"), (1,): (0.25, 0.75)}
    model = ToyModel.from_table(table, memory=1)

    assert {c: model(c) for c in table} == {
        (): (HALF, HALF),
        (0,): (1, 0),
        (1,): (Fraction(1, 4), Fraction(3, 4)),
    }


def test_behind_the_last_position_its_row_goes_on():
    model = ToyModel.from_positions([("1", "0"), ("0", "1")])

    assert [model((0,) * n) for n in range(4)] == [(1, 0), (0, 1), (0, 1), (0, 1)]


@REPEATABLE
@given(pair=model_pairs(3), order=st.permutations(range(3)))
def test_permuting_renames_tokens_in_contexts_and_rows(pair, order):
    model, renamed = pair[0], pair[0].permuted(order)

    for context in model.contexts:
        row = renamed([order[t] for t in context])
        assert [row[order[t]] for t in range(3)] == list(model(context))


def test_permuting_back_is_the_identity():
    assert M1.permuted((1, 2, 0)).permuted((2, 0, 1)) == M1


@pytest.mark.parametrize("extra", [0, 1, 3])
def test_padding_adds_impossible_tokens_behind_the_vocabulary(extra):
    padded = M1.padded(extra)

    for context in M1.contexts:
        assert padded(context) == (*M1(context), *(0,) * extra)


@pytest.mark.parametrize("model", [M1, GROUPED], ids=["M1", "grouped"])
def test_a_model_survives_json(model):
    data = json.loads(json.dumps(model.to_json()))

    assert ToyModel.from_json(data) == model


ROW = (HALF, HALF)


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (((),), "^rows is empty; .* at least the row of the empty prefix"),
        (((ROW,), 1), "^rows has 1 entries; memory 1 over 2 token groups asks for 3"),
        (((ROW,) * 3, 1, 3), "^rows has 3 .* memory 1 over 3 token groups asks for 4"),
        (
            ((ROW, ROW, (HALF,)), 1),
            r"^row of context \(1,\) is \['1/2'\]; .* 2 non-neg",
        ),
        (
            (((Fraction(3, 2), -HALF),),),
            r"^row .*\(\) is \['3/2', '-1/2'\]; .* non-neg",
        ),
        ((((HALF, HALF / 2),),), r"^row of .*\(\) is \['1/2', '1/4'\]; .* sum to 1"),
    ],
)
def test_a_bad_table_is_refused_with_found_and_allowed(arguments, pattern):
    with pytest.raises(ValueError, match=pattern):
        ToyModel(*arguments)


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (lambda: ToyModel.from_positions([]), "^rows is empty; a model needs"),
        (
            lambda: ToyModel.from_table({(): ROW, (0,): ROW}, memory=1),
            r"^table has no row for context \(1,\); memory 1 over 2 tokens asks for",
        ),
        (
            lambda: M1.permuted((0, 0, 1)),
            r"^order is \[0, 0, 1\]; allowed is a permutation of 0 to 2",
        ),
        (lambda: M1.padded(-1), "^extra is -1; allowed is 0 or more"),
    ],
    ids=["no position", "no context", "no permutation", "negative padding"],
)
def test_a_model_that_cannot_be_made_is_refused_with_found_and_allowed(make, pattern):
    with pytest.raises(ValueError, match=pattern):
        make()


@pytest.mark.parametrize(
    ("change", "verb"),
    [(lambda m: m.permuted(range(6)), "permuted"), (lambda m: m.padded(1), "padded")],
    ids=["permuted", "padded"],
)
def test_a_grouped_model_cannot_be_renamed_or_padded(change, verb):
    with pytest.raises(ValueError, match=f"3 token groups cannot be {verb}"):
        change(GROUPED)


# --- cases ----------------------------------------------------------------------------

W = WITNESSES["W"]


@REPEATABLE
@given(case=cases(), dtype=st.sampled_from(["float64", "bfloat16"]))
def test_a_case_survives_json(case, dtype):
    case = case.with_(dtype=dtype, name="x")

    assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


def test_a_deterministic_case_survives_json():
    case = WITNESSES["O2"]

    assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


def test_the_key_ignores_the_name():
    assert W.with_(name="other").key == W.key


@pytest.mark.parametrize(
    "change",
    [
        {"k": 2},
        {"dtype": "float64"},
        {"draft": W.target},
        {"target": W.draft},
        {"draft": WITNESSES["C5"].draft},
    ],
    ids=str,
)
def test_the_key_tells_everything_else_apart(change):
    assert W.with_(**change).key != W.key


def test_the_key_tells_the_form_of_the_drafts_apart():
    case = WITNESSES["O1"]

    assert case.with_(deterministic=False).key != case.key


def test_a_permuted_case_permutes_both_models():
    order = (3, 0, 1, 2)
    case = W.permuted(order)

    assert case.target == W.target.permuted(order)
    assert case.draft == W.draft.permuted(order)


def test_a_padded_case_pads_both_models():
    case = W.padded(2)

    assert (case.target, case.draft) == (W.target.padded(2), W.draft.padded(2))


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        ({"draft": M1}, "^draft has vocab 3, target 4; they must agree"),
        ({"k": -1}, "^k is -1; allowed is 0 or more"),
        ({"dtype": "int8"}, "^dtype is 'int8'; allowed are float32, float64, bfloat16"),
        (
            {"deterministic": True},
            r"^determ.* the row \(0.125, .*; allowed are one-hot",
        ),
    ],
    ids=str,
)
def test_a_bad_case_is_refused_with_found_and_allowed(change, pattern):
    with pytest.raises(ValueError, match=pattern):
        W.with_(**change)


def test_a_description_names_witness_size_and_rows():
    text = W.describe()

    assert "witness W: vocab 4, k = 1, float32" in text
    assert "q(.) = (0.125, 21/32, 0.1875, 0.03125)" in text


def test_a_description_of_many_rows_is_cut():
    text = W.with_(draft=W.target, target=ToyModel((W.draft(()),) * 21, 2)).describe()

    assert "... and 13 more rows of p" in text


# --- witnesses ------------------------------------------------------------------------


def positions(case):
    """Target and draft row of each drafted position, along drafts of token 0."""
    prefixes = [(0,) * i for i in range(case.k)]
    return [(case.target(prefix), case.draft(prefix)) for prefix in prefixes]


@pytest.mark.parametrize("name", WITNESSES)
def test_a_witness_carries_the_name_it_is_listed_under(name):
    assert WITNESSES[name].name == name


def exact_in(dtype, model):
    table = torch.tensor(model.matrix, dtype=torch.float64)
    return torch.equal(table.to(dtype).double(), table)


@pytest.mark.parametrize("name", ["W", "W2"])
def test_the_dyadic_witnesses_are_exact_in_bfloat16(name):
    case = WITNESSES[name]

    assert exact_in(torch.bfloat16, case.target)
    assert exact_in(torch.bfloat16, case.draft)


def test_w_has_full_support_and_three_recovered_tokens_of_different_mass():
    ((p, q),) = positions(W)
    masses = [mass for mass in excess(p, q) if mass]

    assert min(*p, *q) > 0
    assert len(masses) == len(set(masses)) == 3


def test_w2_has_entries_in_sixteenths():
    case = WITNESSES["W2"]
    rows = [*case.target.rows, *case.draft.rows]

    assert {16 * x % 1 for row in rows for x in row} == {0}


def test_c1_recovers_two_tokens():
    ((p, q),) = positions(WITNESSES["C1"])

    assert sum(map(bool, excess(p, q))) == 2


def test_c3_recovers_equal_masses_though_the_target_is_not_even():
    ((p, q),) = positions(WITNESSES["C3"])
    gain = excess(p, q)

    assert gain[1:] != [0, 0]
    assert len(set(p)) > 1


def test_c5_drafts_a_token_that_the_target_excludes():
    ((p, q),) = positions(WITNESSES["C5"])

    assert any(a == 0 < b for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("name", ["J1", "J2", "W2", "O2", "Z2", "D2", "B2"])
def test_witnesses_of_two_drafts_differ_from_row_to_row(name):
    case = WITNESSES[name]
    bonus = case.target((0,) * case.k)
    (p1, q1), (p2, q2) = positions(case)

    assert case.k == 2
    assert len({p1, p2}) == len({q1, q2}) == len({p2, bonus}) == 2


def test_m1_depends_on_the_drafted_token_in_both_models():
    case = WITNESSES["M1"]

    assert len(set(case.target.rows)) == len(set(case.draft.rows)) == 4


@pytest.mark.parametrize("name", ["O1", "O2"])
def test_deterministic_witnesses_have_one_hot_drafts(name):
    case = WITNESSES[name]

    assert case.deterministic
    assert {max(row) for row in case.draft.rows} == {1}


def test_z2_drafts_at_every_position_another_token_that_the_target_excludes():
    excluded = [p.index(0) for p, q in positions(WITNESSES["Z2"]) if q[p.index(0)] > 0]

    assert excluded == [0, 1]


@pytest.mark.parametrize("name", ["D1", "D2"])
def test_disjoint_witnesses_share_no_token(name):
    overlaps = [total_variation(p, q) for p, q in positions(WITNESSES[name])]

    assert set(overlaps) == {1}


@pytest.mark.parametrize("name", ["B1", "B2"])
def test_bonus_witnesses_agree_wherever_a_draft_stands(name):
    case = WITNESSES[name]

    assert all(p == q for p, q in positions(case))
    assert case.target((0,) * case.k) != case.draft((0,) * case.k)


def test_p2_has_two_tokens_and_rows_that_depend_on_the_one_before():
    case = WITNESSES["P2"]

    assert case.vocab == 2
    assert case.target((0,)) != case.target((1,))
    assert case.draft((0,)) != case.draft((1,))
