# SPDX-License-Identifier: Apache-2.0
"""What a reader of a report can rely on."""

import json
import math
import random
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import matplotlib as mpl
import pytest

from specverify.evidence.files import to_json
from specverify.evidence.records import (
    CheckRecord,
    Claim,
    Counterexample,
    Evidence,
    SubjectInfo,
    Table,
)
from specverify.report.cells import clopper_pearson, law_cells, residual
from specverify.report.charts import chart
from specverify.report.formats import number, p_value
from specverify.report.html import render_html, write_html
from specverify.report.markdown import render_markdown
from specverify.report.wording import headline, verdict_notes, verdict_sentence

KIB = 1024
DRAWS = 40_000


def law_table(cells=64, *, seed=0, excess=0.0):
    """Counts of a law; `excess` is moved onto its third cell."""
    rng = random.Random(seed)
    weights = [rng.expovariate(1) for _ in range(cells)]
    law = [weight / sum(weights) for weight in weights]
    drawn = list(law)
    drawn[2 % cells] += excess
    observed = [0] * cells
    for cell in rng.choices(range(cells), drawn, k=DRAWS):
        observed[cell] += 1
    return Table(
        title=f"emitted tokens, vocab 8, k = 2, input {seed}",
        kind="law",
        labels=tuple(f"{i // 8},{i % 8}" for i in range(cells)),
        observed=tuple(observed),
        expected=tuple(DRAWS * share for share in law),
    )


def position_table(*, shift=0.0):
    theory, trials, observed = (0.81, 0.74, 0.66), [DRAWS], []
    rng = random.Random(1)
    for rate in theory:
        observed.append(sum(rng.random() < rate + shift for _ in range(trials[-1])))
        trials.append(observed[-1])
    return Table(
        title="accepted drafts, vocab 8, k = 3",
        kind="position",
        labels=("draft 1", "draft 2", "draft 3"),
        observed=tuple(observed),
        expected=tuple(n * rate for n, rate in zip(trials, theory, strict=False)),
        trials=tuple(trials[:3]),
    )


def passing(name="joint-law", **changes):
    plain = CheckRecord(
        id=name,
        claim="The emitted tokens follow the target's autoregressive law.",
        law="Leviathan, Kalman, Matias 2023, theorem 1",
        status="pass",
        effect="law",
        grade="statistical",
        statistic=58.3,
        df=63,
        p_value=0.64,
        limit=4.2e-11,
        e_value=-1.7,
        samples=DRAWS,
        examples=12,
        examples_planned=12,
        tv_upper=0.021,
        detectable_tv=0.048,
        duration_s=2.4,
        tables=(law_table(), position_table()),
    )
    return replace(plain, **changes)


def violated(name="resample", **changes):
    found = Counterexample(
        summary="vocab 3, k = 1, p = [0.2, 0.3, 0.5], q = [0.6, 0.3, 0.1]",
        where="token 2: observed 10 412, expected 9 650.2 (+7.8 standard deviations)",
        case={"vocab": 3, "k": 1},
        seed=11,
        command="specverify reproduce build/specverify/failures/resample-1.json",
        script="import torch\n\nprint('lossy')\n",
    )
    changed = {
        "claim": "After a rejection the recovered token follows the residual.",
        "status": "violation",
        "p_value": 0.0,
        "log10_p": -412.4,
        "e_value": 405.1,
        "statistic": 1912.7,
        "tv_estimate": 0.031,
        "counterexample": found,
        "likely_cause": "the residual is not renormalised",
        "tables": (law_table(excess=0.03), position_table(shift=-0.02)),
    }
    return passing(name, **{**changed, **changes})


def run(*checks, promised=None, **changes):
    checks = checks or (passing(),)
    plain = Evidence(
        subject=SubjectInfo(
            name="engine-v2",
            kind="chain",
            source="engine.sampler:verify",
            version="3.2.0",
            capabilities={"rng": "generator", "devices": ["cpu", "cuda"]},
        ),
        claim=Claim(error_rate=1e-9, detect_tv=0.05, power=0.99),
        checks=checks,
        checks_promised=promised or tuple(check.id for check in checks),
        seed=20261129,
        profile="ci",
        environment={"python": "3.12.4", "torch": "2.13.0", "device": "cpu"},
        duration_s=41.0,
    )
    return replace(plain, **changes)


def named(name):
    return SubjectInfo(name=name, kind="chain", source=name, version=name)


class Elements(HTMLParser):
    """Tags with their attributes, and what the evidence element holds."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.data, self.inside = [], "", False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script"

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.data += data


def test_the_verdict_sentence_states_both_error_rates():
    """The verdict of a pass names its false-alarm rate, resolution and limits."""
    sentence = verdict_sentence(run())

    assert "at most 1e-9" in sentence
    assert "0.048 or more would have been seen with probability 0.99" in sentence
    assert "not excluded" in sentence


@pytest.mark.parametrize(
    ("grade", "told"),
    [("exact", "precision of the arithmetic"), ("structural", "no check states")],
)
def test_a_verdict_without_resolution_does_not_invent_one(grade, told):
    """A run in which no check has a detectable bias says so, or why not."""
    assert told in verdict_sentence(run(passing(grade=grade, detectable_tv=None)))


def test_an_exercise_is_not_called_a_lossless_decoder():
    """A right accept/reject rule is not announced as a lossless decoder."""
    evidence = run(subject=replace(named("loop"), kind="exercise"))

    assert "not yet a lossless decoder" in verdict_sentence(evidence)
    assert "accept/reject rule" in headline(evidence)


@pytest.mark.parametrize(
    ("checks", "promised", "expected"),
    [
        ((passing(),), None, "LOSSLESS at the tested resolution"),
        ((passing(), violated()), None, "LOSSY"),
        ((violated(effect="contract"),), None, "BROKEN"),
        ((passing(),), ("joint-law", "rows"), "INCONCLUSIVE"),
    ],
)
def test_the_verdict_is_a_word(checks, promised, expected):
    """Each verdict has a word of its own, in the heading of both formats."""
    evidence = run(*checks, promised=promised)

    assert f"</span> {expected}</h1>" in render_html(evidence)
    assert render_markdown(evidence).splitlines()[0].endswith(f"{expected}: engine-v2")


def test_violations_precede_passes():
    """A reader meets what failed before what passed, in whatever order it ran."""
    page = render_html(run(passing("a-pass"), violated("z-violation")))
    text = render_markdown(run(passing("a-pass"), violated("z-violation")))

    assert page.index("z-violation") < page.index("a-pass")
    assert text.index("violation") < text.index("a-pass")


def test_a_violation_can_be_repeated_from_the_page():
    """A violation shows its number, place, smallest input, cause and command."""
    page = render_html(run(violated()))

    for part in ("p = 4e-413", "token 2: observed", "q = [0.6", "not renormalised"):
        assert part in page
    assert "specverify reproduce build" in page


def test_missing_checks_are_named():
    """A check that was promised and not heard of is listed by name."""
    evidence = run(passing(), promised=("joint-law", "silent-one"))

    assert "silent-one" in render_html(evidence)
    assert "silent-one" in render_markdown(evidence)


def test_declared_failures_limit_the_verdict():
    """A pass that needed a declared failure says which."""
    evidence = run(passing(), violated("typical", status="expected_failure"))

    assert "typical" in " ".join(verdict_notes(evidence))
    assert verdict_notes(run()) == ()


def test_the_page_needs_nothing_else():
    """The page links to nothing outside itself and runs no script."""
    page = render_html(run(passing(), violated()))
    elements = Elements(page)

    assert "http://" not in page
    assert "https://" not in page
    links = [attrs["href"] for tag, attrs in elements.tags if "href" in attrs]
    assert links
    assert all(link.startswith("#") for link in links)
    assert not [attrs for _, attrs in elements.tags if "src" in attrs]
    scripts = [attrs["type"] for tag, attrs in elements.tags if tag == "script"]
    assert scripts == ["application/json"]


def test_every_link_of_the_page_has_its_target():
    """No link leads nowhere, and no id occurs twice."""
    page = render_html(
        run(passing(), violated(), violated("slow", effect="efficiency"))
    )
    tags = Elements(page).tags
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]

    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for _, a in tags if "href" in a} <= set(ids)


def test_the_page_is_its_own_data():
    """The JSON in the page is the evidence document."""
    evidence = run(passing(), violated())

    assert json.loads(Elements(render_html(evidence)).data) == to_json(evidence)


def test_a_name_cannot_break_out_of_the_page():
    """Markup in a subject's name stays text, in the page and in its JSON."""
    attack = "</script><script>alert(1)</script><img src=x>|`"
    evidence = run(subject=named(attack))
    elements = Elements(render_html(evidence))

    assert [tag for tag, _ in elements.tags].count("script") == 1
    assert "img" not in [tag for tag, _ in elements.tags]
    assert json.loads(elements.data)["subject"]["name"] == attack
    assert re.findall(r"(.)<img", render_markdown(evidence)) == ["\\"]


@pytest.mark.parametrize("label", ["$x$", "<b>", "a\x00b\ud800", "日本", "a" * 90, ""])
def test_any_token_can_label_a_cell(label, tmp_path):
    """A label is drawn as text whatever is in it."""
    table = Table("law", "law", (label, "other"), (400, 600), (410.0, 590.0))
    page = write_html(run(passing(tables=(table,))), tmp_path / "r.html").read_text(
        "utf-8"
    )

    assert page.count("<svg") == 1
    assert "<b>" not in page.replace("<b>How to read this.</b>", "")


def test_a_large_run_stays_small():
    """25 checks with two tables of 64 cells each make less than 400 KiB."""
    checks = [
        passing(f"check-{i}", tables=(law_table(seed=i), law_table(seed=99 + i)))
        for i in range(24)
    ]
    page = render_html(run(*checks, violated()))

    assert len(page.encode()) < 400 * KIB


def test_the_report_is_a_function_of_the_evidence():
    """Equal evidence gives equal bytes, whatever style the host has set."""
    evidence = run(passing(), violated())
    before = render_html(evidence)

    with mpl.rc_context({"text.color": "red", "axes.facecolor": "k", "font.size": 30}):
        assert render_html(evidence) == before
        assert mpl.rcParams["font.size"] == 30


def test_a_chart_follows_the_page_into_the_dark():
    """Text and axes of a chart take the colour of the page, and it has a name."""
    drawn = chart(law_table(excess=0.02), limit=1e-11, ident="x")

    assert '<svg viewBox="0 0 720' in drawn
    assert 'role="img" aria-labelledby="x-t x-d" fill="currentColor"' in drawn
    assert '<title id="x-t">Observed and expected counts' in drawn
    assert "#000000" not in drawn
    assert "<style" not in drawn


def test_a_chart_pools_small_cells_and_keeps_the_guilty():
    """A rare cell that is far off is drawn, though small cells are pooled."""
    labels = tuple(f"t{i}" for i in range(100))
    expected = (1000.0,) * 99 + (0.0,)
    table = Table("law", "law", labels, (*(1000,) * 98, 995, 5), expected)
    drawn = chart(table, limit=1e-9, ident="x")

    assert ">t99<" in drawn
    assert ">+61 more<" in drawn


def test_an_outcome_that_the_law_excludes_is_called_impossible():
    """A hit on a cell of probability zero has an infinite residual, and says so."""
    table = Table("law", "law", ("a", "b"), (999, 1), (1000.0, 0.0))

    assert law_cells(table)[1].residual == math.inf
    assert "impossible" in render_html(run(violated(tables=(table,))))


def test_residuals_of_two_cells_mirror_each_other():
    """With two outcomes the standardised residuals differ in sign alone."""
    assert residual(70, 80.0, 100.0) == pytest.approx(-residual(30, 20.0, 100.0))


def test_intervals_are_exact():
    """The interval inverts the binomial tails, at the ends of the range too."""
    low, high = clopper_pearson(0, 10, 0.05)

    assert low == 0
    assert (1 - high) ** 10 == pytest.approx(0.025)
    assert clopper_pearson(10, 10, 0.05)[1] == 1


@pytest.mark.parametrize(
    ("p", "log10_p", "written"),
    [
        (0.0, -412.4, "4e-413"),
        (0.0, None, "below 1e-308"),
        (None, None, "–"),
        (3.14e-68, -67.5, "3.1e-68"),
        (0.0, -400.0000001, "1e-400"),
    ],
)
def test_small_p_values_are_told_by_their_logarithm(p, log10_p, written):
    """A p-value that underflows is still a number to the reader."""
    assert p_value(p, log10_p) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(1e-9, "1e-9"), (0.05, "0.05"), (412.72, "413"), (-0.25, "−0.25"), (0.0, "0")],
)
def test_numbers_are_short(value, written):
    """Three significant digits, no padding."""
    assert number(value) == written


def test_a_summary_stays_within_bounds():
    """A summary lists at most 20 checks and says how many it leaves out."""
    text = render_markdown(run(*(passing(f"c{i}") for i in range(31))))

    assert len(re.findall(r"^\| ✓ pass", text, re.MULTILINE)) == 20
    assert "11 more checks in the full report" in text


def test_a_report_needs_no_torch():
    """Making a report imports neither torch nor anything that runs checks."""
    code = (
        "import sys, specverify.report.html, specverify.report.markdown\n"
        "heavy = {'torch', 'hypothesis', 'specverify.core', 'specverify.checks',"
        " 'specverify.subjects', 'matplotlib.pyplot'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert told.stdout.strip() == "[]"
