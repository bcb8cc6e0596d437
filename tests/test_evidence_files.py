# SPDX-License-Identifier: Apache-2.0
"""What a reader of an evidence file can rely on."""

import json
import math
from dataclasses import fields, replace

import pytest

from specverify.errors import EvidenceError
from specverify.evidence.files import from_json, load, save, schema, to_json
from specverify.evidence.records import (
    CheckRecord,
    Claim,
    Counterexample,
    Evidence,
    SubjectInfo,
    Table,
)

TABLE = Table("law", "law", ("0", "1"), (3, 7), (10 / 3, 20 / 3))
POSITIONS = Table("accepted", "position", ("1",), (81,), (80.1,), (100,))
FAILURE = Counterexample(
    "vocab 2", "token 1", {"p": [0.1, 0.9]}, 2**63, "cmd", "script"
)
FULL = CheckRecord(
    id="joint-law",
    claim="The tokens follow the law.",
    law="theorem 1",
    status="violation",
    effect="law",
    grade="statistical",
    statistic=math.pi * 1e17,
    df=3,
    p_value=0.0,
    log10_p=-412.25,
    e_value=1 / 3,
    limit=5e-324,
    samples=10**15,
    examples=3,
    examples_planned=4,
    tv_estimate=0.1,
    tv_upper=0.30000000000000004,
    detectable_tv=0.05,
    reason="because",
    counterexample=FAILURE,
    likely_cause="a bug",
    observations=("slow",),
    tables=(TABLE, POSITIONS),
    duration_s=0.1,
)
PLAIN = CheckRecord(
    "rows", "Rows differ.", "contract", "pass", "contract", "structural"
)
EVIDENCE = Evidence(
    subject=SubjectInfo("émile </script>", "chain", "a.b:c", "1", {"ragged": True}),
    claim=Claim(1e-9, 0.05, 0.99),
    checks=(FULL, PLAIN),
    checks_promised=("joint-law", "rows"),
    seed=-5,
    profile="ci",
    environment={"torch": "2.13"},
    duration_s=1e-3,
    strict_efficiency=True,
)


def document(**changes):
    return {**to_json(EVIDENCE), **changes}


def test_what_is_written_is_read_back_equal(tmp_path):
    """Saving and loading changes nothing, to the last bit of every float."""
    path = save(EVIDENCE, tmp_path / "new" / "evidence.json")

    assert load(path) == EVIDENCE
    assert [entry.name for entry in path.parent.iterdir()] == ["evidence.json"]


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (SubjectInfo, "subject"),
        (Claim, "claim"),
        (CheckRecord, "check"),
        (Counterexample, "counterexample"),
        (Table, "table"),
        (Evidence, None),
    ],
)
def test_the_schema_knows_exactly_the_fields_of_the_records(cls, name):
    """A field that is added to a record has to be added to the schema."""
    part = schema()["$defs"][name] if name else schema()
    derived = set() if name else {"kind", "verdict"}

    assert set(part["properties"]) == {f.name for f in fields(cls)} | derived
    assert part["additionalProperties"] is False


def test_fields_with_defaults_may_be_missing():
    """A document written before a field was added is still read."""
    old = document()
    del old["strict_efficiency"], old["checks"][1]["tables"]

    assert from_json(old) == replace(EVIDENCE, strict_efficiency=False)


def edited(path, value):
    """The document with one value changed."""
    changed = json.loads(json.dumps(to_json(EVIDENCE)))
    *parents, last = path
    place = changed
    for step in parents:
        place = place[step]
    place[last] = value
    return changed


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (["kind"], "junit", r"\$\.kind: found \"junit\"; allowed: specverify-evidence"),
        (["schema_version"], "2.0", r"\$\.schema_version: found \"2.0\".*reads, 1\.x"),
        (["checks", 0, "p_value"], 1.5, r"\$\.checks\[0\]\.p_value: .* at most 1"),
        (["checks", 1, "status"], "ok", r"found \"ok\"; allowed: pass or violation"),
        (["checks", 1, "sample"], 3, r"\$\.checks\[1\]: found .*'sample'.*'samples'"),
        (["checks", 0, "samples"], "3", r"\.samples: found \"3\"; allowed: integer"),
        (["claim"], {"power": 0.9}, r"\$\.claim: found no field 'error_rate'"),
        (
            ["checks", 0, "tables", 0, "observed"],
            [1],
            r"tables\[0\]\.observed: found 1",
        ),
        (["checks", 0, "tables", 1, "trials"], [], r"found 0 entries; allowed: 1"),
        (["verdict"], "lossless", r"found 'lossless'; allowed: 'lossy'"),
    ],
)
def test_an_invalid_document_is_refused_with_its_place(path, value, told):
    """The message names the place, what was found and what is allowed."""
    with pytest.raises(EvidenceError, match=told):
        from_json(edited(path, value))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_not_written(bad, tmp_path):
    """A number that JSON has no place for is refused, and no file is left."""
    wrong = replace(EVIDENCE, checks=(PLAIN, replace(FULL, statistic=bad)))

    with pytest.raises(EvidenceError, match=r"\$\.checks\[1\]\.statistic: found"):
        save(wrong, tmp_path / "evidence.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_nan_and_infinity_are_not_read(bad, tmp_path):
    """A file that another program wrote with NaN in it is refused by name."""
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps(document(duration_s=123456)).replace("123456", bad))

    with pytest.raises(EvidenceError, match=rf"evidence\.json: .*found {bad}"):
        load(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"[]", "allowed: object"),
        (b"[" * 100_000, "is not JSON"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_is_no_evidence_is_refused_by_name(content, told, tmp_path):
    """Whatever the file holds, the error is one sentence that names it."""
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(EvidenceError, match=rf"other\.json: .*{told}"):
        load(path)


@pytest.mark.parametrize("value", [{1, 2}, 1j, b"x", {3: "x"}])
def test_values_that_are_no_json_are_refused_with_their_place(value):
    """A capability that JSON cannot hold is named instead of turned into text."""
    subject = replace(EVIDENCE.subject, capabilities={"odd": value})

    with pytest.raises(EvidenceError, match=r"\$\.subject\.capabilities\.odd: found"):
        to_json(replace(EVIDENCE, subject=subject))
