# SPDX-License-Identifier: Apache-2.0
"""Counterexamples that others can run: a command, and a script without specverify."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Final

from specverify.checks.plan import PROFILES
from specverify.checks.session import Session
from specverify.evidence.records import Counterexample
from specverify.inputs.cases import Case
from specverify.inputs.models import ToyModel
from specverify.inputs.trees import TreeCase
from specverify.subjects.protocol import Subject
from specverify.subjects.resolve import BUILTIN

_ROWS: Final = 20_000
_LARGEST_VOCAB: Final = 64


def counterexample(session: Session, case: Case, where: str) -> Counterexample:
    """Write down an input that shows a violation, with all that repeats it.

    Parameters
    ----------
    session
        The check that found it.
    case
        The input.
    where
        What was observed there, in words.
    """
    seed = session.seed(case)
    return Counterexample(
        summary=case.describe(),
        where=where,
        case=case.to_json(),
        seed=seed,
        command=command(session),
        script=script(session.subject, case, seed % 2**31),
    )


def command(session: Session) -> str:
    """Shell command that repeats the check; empty if the subject has no address."""
    target = session.subject.target
    if not target:
        return ""
    words = ["specverify", "run", target, "--checks", session.check_id]
    if session.subject.kind != "chain":
        words += ["--kind", session.subject.kind]
    words += ["--profile", session.plan.profile, "--seed", str(session.plan.seed)]
    usual = PROFILES.get(session.plan.profile, session.plan)
    for name in (
        "error_rate",
        "detect_tv",
        "power",
        "device",
        "examples",
        "max_seconds",
    ):
        value = getattr(session.plan, name)
        if value != getattr(usual, name):
            words += [f"--{name.replace('_', '-')}", f"{value}"]
    return shlex.join(words)


def script(subject: Subject, case: Case, seed: int) -> str:
    """Python script that draws on `case` and prints observed and expected frequencies.

    For chains it needs the subject, torch and NumPy only; trees, several drafts, greedy
    decoding and subjects with a drafter are called through specverify. Empty for a large
    vocabulary, whose tables are no reading matter: the command repeats such a case.
    """
    if case.vocab > _LARGEST_VOCAB:
        return ""
    if isinstance(case, TreeCase) or case.greedy or subject.draft is not None:
        return _INSIDE.format(
            target=subject.target or "your.module:name",
            kind=subject.kind,
            type=type(case).__name__,
            module=type(case).__module__,
            case=json.dumps(case.to_json()),
            rows=_ROWS,
            seed=seed,
        )
    q = "None" if case.deterministic else "table(q, paths, range(k))"
    lines = {
        "import": _import(subject),
        "p": _literal(case.target),
        "q": _literal(case.draft),
        "p_memory": case.target.memory,
        "q_memory": case.draft.memory,
        "p_groups": case.target.groups,
        "q_groups": case.draft.groups,
        "vocab": case.vocab,
        "k": case.k,
        "rows": _ROWS,
        "seed": seed,
        "dtype": case.dtype,
        "draft_probs": q,
        "call": _call(subject),
        "batch": subject.capabilities.max_batch or 4000,
    }
    return _SCRIPT.format(**lines)


def _literal(model: ToyModel) -> str:
    rows = dict(zip(model.contexts, model.rows, strict=True))
    body = "".join(
        f"    {context}: [{', '.join(repr(float(x)) for x in row)}],\n"
        for context, row in rows.items()
    )
    return f"{{\n{body}}}"


def _import(subject: Subject) -> str:
    place, _, name = subject.target.rpartition(":")
    if subject.target in BUILTIN or (not place and subject.target):
        return (
            "from specverify.subjects.resolve import resolve\n\n"
            f"verify = resolve({subject.target!r})"
        )
    if place.endswith(".py"):
        folder = str(Path(place).parent)
        return (
            f"import runpy\nimport sys\n\nsys.path.insert(0, {folder!r})\n"
            f"verify = runpy.run_path({place!r})[{name!r}]"
        )
    if place:
        return f"from {place} import {name} as verify"
    return f"verify = ...  # put your function here: {subject.name}"


def _call(subject: Subject) -> str:
    extra = {
        "generator": ", generator=generator",
        "seed": ", seed=start",
        "uniforms": ", uniforms=torch.rand(len(ids[rows]), k + 1, generator=generator)",
    }.get(subject.capabilities.rng, "")
    q = "None if q_rows is None else q_rows[rows]"
    return f"verify(ids[rows], {q}, p_rows[rows]{extra})"


_INSIDE: Final = '''\
"""Draws one verification step many times; prints observed and expected frequencies."""
import json

from specverify.checks import tabulate
from {module} import {type}
from specverify.subjects.resolve import resolve
from specverify.subjects.rig import Rig

subject = resolve({target!r}, kind={kind!r})
case = {type}.from_json(json.loads({case!r}))
print(case.describe())
tabulation = tabulate.joint(case)
counts = tabulation.count(Rig(subject), {rows}, {seed})
print("tokens      observed  expected")
for label, count, expected in zip(tabulation.labels, counts, tabulation.probs):
    print(f"{{label:<12}}{{count / counts.sum():8.4f}}  {{expected:8.4f}}")
'''

_SCRIPT: Final = '''\
"""Draws one verification step many times; prints observed and expected frequencies."""
from collections import Counter
import itertools

import numpy as np
import torch

{import}
vocab, k, n = {vocab}, {k}, {rows}
p = {p}
q = {q}
memory, groups = {{"p": {p_memory}, "q": {q_memory}}}, {{"p": {p_groups}, "q": {q_groups}}}


def law(name, prefix):
    back = prefix[max(0, len(prefix) - memory[name]) :]
    return (p if name == "p" else q)[tuple(t % groups[name] for t in back)]


def sample(name, prefix):
    return int(rng.choice(vocab, p=law(name, prefix)))


def table(model, paths, lengths):
    name = "p" if model is p else "q"
    rows = [[law(name, path[:i]) for i in lengths] for path in paths]
    return torch.tensor(rows, dtype=torch.{dtype}).reshape(len(paths), len(lengths), vocab)


rng, generator = np.random.default_rng({seed}), torch.Generator().manual_seed({seed})
torch.manual_seed({seed})
paths = []
for _ in range(n):
    path = ()
    while len(path) < k:
        path += (sample("q", path),)
    paths.append(path)
ids = torch.tensor(paths, dtype=torch.int64).reshape(n, k)
p_rows, q_rows = table(p, paths, range(k + 1)), {draft_probs}
counts = Counter()
for start in range(0, n, {batch}):
    rows = slice(start, start + {batch})
    output = {call}
    output, emitted = output if isinstance(output, tuple) else (output, None)
    for row, tokens in enumerate(output.tolist()):
        tokens = tokens if emitted is None else tokens[: emitted[row]]
        path = tuple(itertools.takewhile(lambda token: token >= 0, tokens))
        while len(path) < k + 1:  # a lossless step leaves the rest to the target
            path += (sample("p", path),)
        counts[path] += 1
print("tokens      observed  expected")
for path in itertools.product(range(vocab), repeat=k + 1):
    expected = np.prod([law("p", path[:i])[token] for i, token in enumerate(path)])
    print(f"{{str(path):<12}}{{counts[path] / n:8.4f}}  {{expected:8.4f}}")
'''
