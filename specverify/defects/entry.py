# SPDX-License-Identifier: Apache-2.0
"""What the catalogue says of a defect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specverify.inputs.cases import Case
from specverify.subjects.protocol import Kind, Subject, subject


@dataclass(frozen=True)
class Defect:
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
        Gives the verifier, a fresh one where it keeps state between calls.
    shown_on
        The smallest input that shows it.
    bias
        Total variation of the joint law there; 0 where no law is broken.
    blind_on
        What hides it, in words.
    effect
        "law": the law is broken. "contract": shape, range, independence of rows or the
        like. "none": it is right, a control.
    kind, capabilities
        Of the subject.
    draft
        Drafter of its own, where the defect is in what drafter and verifier share.
    family
        Module that it stands in; filled in by the catalogue.
    """

    id: str
    sentence: str
    sources: tuple[str, ...]
    make: Callable[[], Callable[..., Any]]
    shown_on: Case
    bias: float
    blind_on: str = ""
    effect: Literal["law", "contract", "none"] = "law"
    kind: Kind = "chain"
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    draft: bool = False
    family: str = ""

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
