# SPDX-License-Identifier: Apache-2.0
"""Which torch functions do what to random tensors, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Functions that move elements and change none, applied to the source as well.
MOVES: Final = _names(
    """view reshape flatten ravel squeeze unsqueeze expand expand_as broadcast_to permute
    transpose t swapaxes movedim select narrow getitem index_select gather take
    take_along_dim contiguous clone detach repeat repeat_interleave flip roll unbind split
    chunk tensor_split view_as reshape_as masked_select diagonal cpu cuda alias unflatten
    requires_grad_ T mT H data iter"""
)
#: Those of them whose result shares no memory with what they were given.
COPIES: Final = _names(
    """clone index_select gather take take_along_dim repeat repeat_interleave flip roll
    masked_select cpu cuda"""
)
#: Functions that put elements of several tensors together.
JOINS: Final = _names("cat concat concatenate stack hstack vstack where")
#: Element-wise functions, monotone in each argument that may be random.
ELEMENTWISE: Final = _names(
    """add sub subtract rsub mul multiply div divide true_divide rdiv radd rmul rtruediv
    truediv neg negative log log2 log10 log1p exp expm1 exp2 sqrt reciprocal pow rpow clamp
    clamp_min clamp_max clip maximum minimum to type double half bfloat16 type_as sigmoid
    floor ceil trunc round long searchsorted bucketize masked_fill positive"""
)
#: Those that divide by their second argument, or by their first.
DIVIDES: Final = _names("div divide true_divide truediv")
DIVIDED: Final = _names("reciprocal rtruediv rdiv")
POWERS: Final = _names("pow")
SEARCHES: Final = _names("searchsorted bucketize")
COMPARISONS: Final = _names(
    """lt le gt ge eq ne less less_equal greater greater_equal not_equal"""
)
#: Questions about a tensor that its sample can answer.
METADATA: Final = _names(
    """size dim ndimension numel nelement stride is_contiguous element_size get_device
    is_floating_point is_complex storage_offset hash len is_tensor result_type is_same_size
    shape dtype device ndim layout is_cuda is_cpu requires_grad names is_sparse is_meta
    is_leaf grad_fn grad is_quantized is_mkldnn is_nested itemsize nbytes"""
)
#: Functions that hand elements to Python.
READS: Final = _names("item tolist numpy array __bool__ __int__ __index__ __float__")
#: Methods of tensors that change the dtype and have the name of a Python type.
CASTS: Final = _names("bool int float")
#: Operators that change their first argument.
IN_PLACE: Final = {
    "iadd": "add",
    "isub": "sub",
    "imul": "mul",
    "itruediv": "div",
    "idiv": "div",
    "ipow": "pow",
    "iand": "",
    "ior": "",
    "ixor": "",
    "imod": "",
    "ifloordiv": "",
    "ilshift": "",
    "irshift": "",
}
#: Random functions of torch that are not followed, and seeding.
OTHER_RANDOM: Final = _names(
    """randn randn_like normal normal_ randperm poisson cauchy_ geometric_ log_normal_
    binomial dropout dropout_ native_dropout alpha_dropout feature_dropout rrelu rrelu_
    fractional_max_pool2d gumbel_softmax manual_seed set_rng_state seed fork_rng"""
)


@cache
def name_of(func: Callable[..., Any]) -> str:
    """Name of a torch function without the decoration of its operator form."""
    name: str = getattr(func, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    if name in READS or not (name.startswith("__") and name.endswith("__")):
        return name
    return name[2:-2]
