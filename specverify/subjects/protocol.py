# SPDX-License-Identifier: Apache-2.0
"""Subjects: an implementation, with what its signature cannot tell.

A plain function is a subject. `subject` adds a name and capabilities; each capability has
one meaning, and a check that needs one the subject lacks is skipped with that reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, get_args

from specverify.errors import UsageError, nearest
from specverify.laws import multidraft, tree

Kind = Literal["chain", "multidraft", "tree", "exercise"]
Rng = Literal["generator", "torch", "seed", "uniforms", "internal"]
Drafts = Literal[
    "iid", "without_replacement", "deterministic", "hub", "greedy", "paths"
]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a subject can do, in its own words.

    Attributes
    ----------
    rng
        Where its randomness comes from: a ``generator=`` argument, torch's global state
        ("torch"), an integer ``seed=``, a tensor ``uniforms=`` [batch, k + 1], or a
        source that nobody outside controls ("internal").
    draft_probs
        True: takes q. False: only deterministic drafts, ``draft_probs`` is None.
        "optional": both.
    bonus
        False: the engine draws the bonus token elsewhere; after full acceptance the row
        holds the k drafts only.
    greedy
        Decodes greedily: the most likely path must come out, of ties the lowest ids.
    ragged
        Chains: takes ``num_draft_tokens=`` [batch]. Several drafts and trees: takes rows
        that leave slots or nodes unused, token -1.
    max_batch
        Most rows in one call; None is no limit.
    min_draft_tokens, max_draft_tokens
        Range of k; of several drafts at one position, range of their number; of trees,
        range of the depth.
    drafts
        How several drafts at one position, or the children of a node, are drawn:
        independently ("iid"), one after the other without replacement, as the most likely
        tokens ("deterministic"), as SpecHub's pairs ("hub"), or as the most likely tokens
        and one drawn from the rest ("greedy"). Of trees also "paths": independent paths
        that share the root only.
    devices, dtypes
        Where it runs, and the dtypes of the probabilities it takes.
    efficiency
        The acceptance law that it claims, by the name of a rule: see `EFFICIENCIES`.
        None: nothing is assumed.
    """

    rng: Rng = "torch"
    draft_probs: bool | Literal["optional"] = True
    bonus: bool = True
    greedy: bool = False
    ragged: bool = False
    max_batch: int | None = None
    min_draft_tokens: int = 0
    max_draft_tokens: int | None = None
    drafts: Drafts = "iid"
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = ("float32",)
    efficiency: str | None = None

    def allows(self, k: int) -> bool:
        """Whether k drafts can be verified in one step."""
        longest = self.max_draft_tokens
        return self.min_draft_tokens <= k and (longest is None or k <= longest)

    def to_json(self) -> dict[str, Any]:
        """Write as JSON data."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True, slots=True)
class Subject:
    """An implementation under test.

    Attributes
    ----------
    fn
        The function itself; calling the subject calls it.
    name
        Short name for test ids and reports.
    kind
        Which contract it follows.
    target
        What ``specverify run`` needs to find it again; empty if it cannot.
    source, version
        Where the code comes from.
    capabilities
        See `Capabilities`.
    draft
        Its own drafter, ``draft(draft_probs, *, generator) -> (token_ids, declared_probs)``
        with rows [batch, vocab]: draws what it then verifies, so that its own stream of
        randomness and the q that it declares are under test. Chains draft token by token,
        token_ids [batch]; several drafts come at once, [batch, n],
        where n is declared as min_draft_tokens and max_draft_tokens.
    """

    fn: Callable[..., Any]
    name: str
    kind: Kind = "chain"
    target: str = ""
    source: str = ""
    version: str = ""
    capabilities: Capabilities = field(default_factory=Capabilities)
    draft: Callable[..., Any] | None = None

    def declared(self) -> dict[str, Any]:
        """What is declared of it, as JSON data; ``drafter`` where it brings its own."""
        drafter = {"drafter": True} if self.draft is not None else {}
        return self.capabilities.to_json() | drafter

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the implementation."""
        return self.fn(*args, **kwargs)


#: Rules whose law of acceptance is known, by kind; see `specverify.laws`.
EFFICIENCIES: Final[dict[str, tuple[str, ...]]] = {
    "chain": ("token", "block", "match", "coupling"),
    "exercise": ("token",),
    "multidraft": tuple(multidraft.RULES),
    "tree": tuple(tree.RULES),
}
_ALLOWED: Final = {
    "rng": get_args(Rng),
    "drafts": get_args(Drafts),
    "draft_probs": (True, False, "optional"),
}


def subject(
    fn: Any,
    *,
    name: str | None = None,
    kind: Kind = "chain",
    source: str | None = None,
    version: str = "",
    draft: Callable[..., Any] | None = None,
    **capabilities: Any,
) -> Subject:
    """Declare what the signature of `fn` cannot tell.

    Parameters
    ----------
    fn
        The implementation; see `specverify.subjects.protocol` for the contracts.
    name
        Name in reports; the function's own by default.
    kind
        "chain", "multidraft", "tree" or "exercise".
    source, version
        Where the code comes from; module and line by default.
    draft
        Drafter of the subject's own, see `Subject`; chains and several drafts only.
    **capabilities
        Fields of `Capabilities`. ``rng`` is read off the signature where it is not given.

    Raises
    ------
    UsageError
        Unknown kind, unknown capability or a value that it cannot have.
    """
    if not callable(fn):
        msg = f"fn is a {type(fn).__name__}; a subject must be callable"
        raise UsageError(msg)
    if kind not in get_args(Kind):
        msg = f"kind is {kind!r}; allowed are {', '.join(get_args(Kind))}"
        raise UsageError(msg)
    _check_capabilities(kind, capabilities)
    if draft is not None and (
        kind not in ("chain", "multidraft") or not callable(draft)
    ):
        msg = (
            f"draft is a {type(draft).__name__} for a subject of kind {kind!r}; allowed "
            "is a function, for the kinds chain and multidraft"
        )
        raise UsageError(msg)
    declared = Capabilities(**capabilities)
    fixed = declared.min_draft_tokens == declared.max_draft_tokens
    if draft is not None and kind == "multidraft" and not fixed:
        msg = (
            f"min_draft_tokens is {declared.min_draft_tokens}, max_draft_tokens "
            f"{declared.max_draft_tokens}; with a drafter both are the number of drafts "
            "that it draws"
        )
        raise UsageError(msg)
    capabilities.setdefault("rng", _rng_of(fn))
    for name_ in ("devices", "dtypes"):
        if name_ in capabilities:
            capabilities[name_] = tuple(capabilities[name_])
    return Subject(
        fn=fn,
        name=name or str(getattr(fn, "__name__", type(fn).__name__)),
        kind=kind,
        source=source if source is not None else _source_of(fn),
        version=version,
        capabilities=Capabilities(**capabilities),
        draft=draft,
    )


def _check_capabilities(kind: str, given: dict[str, Any]) -> None:
    known = [f.name for f in fields(Capabilities)]
    for name, value in given.items():
        if name not in known:
            hint = nearest(name, known)
            msg = f"capability {name!r} is unknown{hint} Known are {', '.join(known)}"
            raise UsageError(msg)
        values = (
            (*EFFICIENCIES[kind], None) if name == "efficiency" else _ALLOWED.get(name)
        )
        if values is not None and value not in values:
            allowed = ", ".join(repr(x) for x in values)
            msg = f"capability {name} is {value!r}; allowed are {allowed}"
            raise UsageError(msg)


def _rng_of(fn: Callable[..., Any]) -> Rng:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return "torch"
    candidates: tuple[Rng, ...] = ("generator", "seed", "uniforms")
    for rng in candidates:
        if rng in parameters:
            return rng
    return "torch"


def _source_of(fn: Callable[..., Any]) -> str:
    code = getattr(fn, "__code__", None)
    module = getattr(fn, "__module__", "") or ""
    return f"{module}, line {code.co_firstlineno}" if code else module
