# SPDX-License-Identifier: Apache-2.0
"""What the catalogue says of a defect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specverify.defects.requests import Request
from specverify.inputs.cases import Case
from specverify.inputs.generation import Generation
from specverify.subjects.protocol import Kind, Subject, subject


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One way of doing it wrong.

    Attributes
    ----------
    id
        Name, unique in the catalogue.
    sentence
        What is wrong, in one sentence.
    sources
        Public reports: repository and number, or "mutant" for a generic mistake.
    make
        Gives the implementation, a fresh one where it keeps state between calls.
    bias
        Total variation of the joint law on the smallest input that shows it; 0 where no
        law is broken.
    blind_on
        What hides it, in words.
    effect
        "law": the law is broken. "contract": shape, range, independence of rows or the
        like. "none": it is right, a control.
    family
        Module that it stands in; filled in by the catalogue.
    """

    id: str
    sentence: str
    sources: tuple[str, ...]
    make: Callable[[], Callable[..., Any]]
    bias: float = 0.0
    blind_on: str = ""
    effect: Literal["law", "contract", "none"] = "law"
    family: str = ""


@dataclass(frozen=True, kw_only=True)
class Defect(Entry):
    """A defect of the verification step.

    Attributes
    ----------
    shown_on
        The smallest input that shows it.
    kind, capabilities
        Of the subject.
    draft
        Drafter of its own, where the defect is in what drafter and verifier share.
    """

    shown_on: Case
    kind: Kind = "chain"
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    draft: bool = False

    def subject(self) -> Subject:
        """The defect as a subject."""
        fn = self.make()
        return subject(
            fn,
            name=self.id,
            kind=self.kind,
            source=f"specverify.defects.{self.family}",
            draft=getattr(fn, "draft", None) if self.draft else None,
            **self.capabilities,
        )


@dataclass(frozen=True, kw_only=True)
class DecoderDefect(Entry):
    """A defect of the loop around the verification step, in a whole decoder.

    Attributes
    ----------
    shown_on
        The smallest input that shows it.
    request
        What is asked of the decoder: the law that is due follows from both.
    """

    shown_on: Generation
    request: Request = field(default_factory=Request)
