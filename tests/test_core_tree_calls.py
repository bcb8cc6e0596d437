# SPDX-License-Identifier: Apache-2.0
"""What calls of the rules for trees promise: forms, side effects and errors."""

import numpy as np
import pytest
import torch
from calls import (
    TREE_ERRORS,
    global_state,
    random_tree,
    same,
    seeded,
    spoilt,
    tree_call,
)

from specverify.core import (
    verify_tree_recursive,
    verify_tree_target_only,
    verify_tree_traversal,
)
from specverify.laws import tree as laws

CODE = {
    "target_only": verify_tree_target_only,
    "recursive": verify_tree_recursive,
    "traversal": verify_tree_traversal,
}
BUSH = (-1, 0, 0, 1, 1, 2, 4)
every_rule = pytest.mark.parametrize("name", CODE)
by_rejection = pytest.mark.parametrize("name", ["recursive", "traversal"])


def bush(name, seed, device="cpu", batch=300):
    way = laws.RULES[name][1]
    return random_tree(seed, BUSH, drafts=way, batch=batch, device=device)


# --- forms ----------------------------------------------------------------------------


@every_rule
def test_parents_may_be_a_tensor_an_array_or_a_list(name):
    ids, q, p, u = bush(name, 10)
    stated = CODE[name](ids, BUSH, q, p, uniforms=u)

    for parents in (list(BUSH), torch.tensor(BUSH), np.array(BUSH)):
        assert same(CODE[name](ids, parents, q, p, uniforms=u), stated)


@every_rule
def test_an_empty_batch_gives_an_empty_result(name, device):
    ids, q, p, _ = (x[:0] for x in bush(name, 11, device))

    assert CODE[name](ids, BUSH, q, p).output_token_ids.shape == (0, 4)


@every_rule
def test_a_row_does_not_depend_on_the_rows_beside_it(name, device):
    ids, q, p, u = bush(name, 12, device, batch=9)
    whole = CODE[name](ids, BUSH, q, p, uniforms=u)

    for row in range(9):
        part = slice(row, row + 1)
        alone = CODE[name](ids[part], BUSH, q[part], p[part], uniforms=u[part])
        assert same(alone, (x[part] for x in whole))


# --- side effects ---------------------------------------------------------------------


@every_rule
def test_inputs_are_left_bitwise_unchanged(name, device):
    step = bush(name, 13, device)
    before = [x.clone() for x in step]
    CODE[name](step[0], BUSH, *step[1:3], uniforms=step[3])

    assert same(before, step)


@every_rule
def test_a_given_generator_is_the_only_one_that_advances(name, device):
    ids, q, p, _ = bush(name, 14, device)
    generator = seeded(0, device)
    before = generator.get_state(), global_state(device)
    CODE[name](ids, BUSH, q, p, generator=generator)

    assert not torch.equal(generator.get_state(), before[0])
    assert torch.equal(global_state(device), before[1])


@every_rule
@pytest.mark.parametrize(("second", "equal"), [(13, True), (14, False)])
def test_the_output_is_a_function_of_the_generator_state(name, second, equal, device):
    ids, q, p, _ = bush(name, 15, device)
    first, again = (
        CODE[name](ids, BUSH, q, p, generator=seeded(seed, device))
        for seed in (13, second)
    )

    assert same(first, again) == equal


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@every_rule
def test_the_host_never_waits_for_the_device(name, device):
    ids, q, p, _ = bush(name, 16, device)
    generator = seeded(0, device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        CODE[name](ids, BUSH, q, p, generator=generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- errors ---------------------------------------------------------------------------


@every_rule
def test_the_call_that_the_errors_start_from_is_valid(name):
    assert CODE[name](**tree_call()).output_token_ids.shape == (2, 3)


@every_rule
@pytest.mark.parametrize(("argument", "value", "error", "says"), TREE_ERRORS)
def test_a_bad_argument_is_refused_by_name_with_found_and_allowed(
    name, argument, value, error, says
):
    with pytest.raises(error, match=f"^{argument}.*{says}"):
        CODE[name](**tree_call(**{argument: value}))


@every_rule
def test_a_draft_that_q_cannot_make_is_refused(name):
    q = tree_call()["draft_probs"].clone()
    q[0, 1] = torch.tensor([1.0, 0, 0, 0])

    message = r"^token_ids\[0, 3\] is 3, to which draft_probs gives probability 0"
    with pytest.raises(ValueError, match=message):
        CODE[name](**tree_call(draft_probs=q))


@by_rejection
def test_siblings_with_equal_tokens_are_refused(name):
    ids = spoilt(tree_call()["token_ids"], (1, 2), 0)

    message = (
        r"^token_ids\[1\] gives the siblings 1 and 2 the same token 0; .* distinct"
    )
    with pytest.raises(ValueError, match=message):
        CODE[name](**tree_call(token_ids=ids))


@every_rule
def test_unused_siblings_are_not_equal_tokens(name):
    ids = torch.tensor([[0, -1, -1, -1]] * 2)

    assert CODE[name](**tree_call(token_ids=ids)).num_accepted.tolist() == [0, 0]


@by_rejection
def test_a_rule_that_needs_the_law_of_the_drafts_says_so(name):
    with pytest.raises(TypeError, match=r"^draft_probs is None; this rule needs"):
        CODE[name](**tree_call(draft_probs=None))


@every_rule
def test_values_are_not_looked_at_where_validation_is_off(name):
    bad = tree_call(target_probs=torch.full((2, 4, 4), float("nan")))

    assert CODE[name](**bad, validate=False).num_accepted.shape == (2,)
