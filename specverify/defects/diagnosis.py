# SPDX-License-Identifier: Apache-2.0
"""Which known defect explains what was observed, by likelihood.

Counts of emitted tokens on a few inputs are put beside the law of every catalogued defect
and, as an alternative, beside "none of them": a defect that shows on some of the inputs,
with a law that is not known and has a Dirichlet prior. That prior is one on simplicity: a
known defect, which has nothing to fit, wins if it explains the counts better than a fitted
law would deserve to; a new one wins as soon as the draws tell it apart from all known ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import gammaln

#: Counts of emitted tokens by label, for each input by name.
Observations = Mapping[str, Mapping[str, int]]
#: Laws of emitted tokens by label, for each input by name.
Laws = Mapping[str, Mapping[str, float]]

#: What a cell of probability zero gets: an answer once in a while from rounding.
_FLOOR: Final = 1e-7
#: Total variation below which some thousand draws do not tell two laws apart.
_SAME: Final = 0.012
#: How much more a token tells that is impossible under one of two laws: one in a thousand
#: of them is seen, and is a proof.
_PROOF: Final = 40.0
#: Smallest weight of a cause that is mentioned.
_MENTIONED: Final = 0.05
#: Prior of "none of the known ones", shared with all known ones together.
_UNKNOWN: Final = 0.1
#: Dirichlet parameter of an unknown law, in each cell.
_PRIOR: Final = 0.5


@dataclass(frozen=True, slots=True)
class Cause:
    """A candidate.

    Attributes
    ----------
    ids
        Defects with one and the same law on all inputs; empty for "none of the known".
    weight
        Posterior probability.
    distance
        Largest total variation between its law and the observed shares.
    """

    ids: tuple[str, ...]
    weight: float
    distance: float


def diagnose(
    observed: Observations, known: Mapping[str, Laws], lossless: Laws
) -> list[Cause]:
    """Rank causes by posterior weight, the likeliest first.

    Parameters
    ----------
    observed
        Counts.
    known
        Laws of the candidates, by id, on the same inputs. On an input for which a
        candidate has no law, it is as good as an unknown one.
    lossless
        Laws of the correct rule: a candidate called "lossless", for defects that these
        inputs do not show.

    Returns
    -------
    list of Cause
        Weights sum to 1.
    """
    shown = {
        id_: law
        for id_, law in known.items()
        if _unlike(law, {name: lossless[name] for name in observed}) > _SAME
    }
    groups = _grouped({"lossless": lossless, **shown}, observed)
    unknown = {
        name: _log_novel(counts, lossless[name], _cells(name, counts, known, lossless))
        for name, counts in observed.items()
    }
    share = math.log((1 - _UNKNOWN) / max(len(groups), 1))
    scores = [
        (ids, share + _log_likelihood(observed, law, unknown)) for ids, law in groups
    ]
    scores.append(((), math.log(_UNKNOWN) + sum(unknown.values())))
    top = max(score for _, score in scores)
    total = sum(math.exp(score - top) for _, score in scores)
    laws = dict(groups)
    causes = [
        Cause(
            ids,
            math.exp(score - top) / total,
            _distance(observed, laws[ids]) if ids else 0.0,
        )
        for ids, score in scores
    ]
    return sorted(causes, key=lambda cause: (-cause.weight, cause.distance))


def in_words(causes: Sequence[Cause], sentences: Mapping[str, str]) -> str:
    """Say what the likeliest causes are, with their weights."""
    first = causes[0]
    if not first.ids:
        known = [cause for cause in causes if cause.ids]
        nearest = min(known, key=lambda cause: cause.distance, default=None)
        words = "none of the known defects"
        if nearest is None or nearest.ids == ("lossless",):
            return words
        return (
            f"{words}; the nearest, {' or '.join(nearest.ids)}, is a total variation of "
            f"{nearest.distance:.3f} away"
        )
    if "lossless" in first.ids:
        return "not shown on the inputs of the diagnosis, where the law holds"
    said = [
        f"{' or '.join(cause.ids)} ({cause.weight:.2f}): {sentences[cause.ids[0]]}"
        for cause in causes[:3]
        if cause.weight >= _MENTIONED and cause.ids and "lossless" not in cause.ids
    ]
    return "; ".join(said)


def apart(a: Laws, b: Laws) -> float:
    """Largest total variation between two sets of laws over the inputs that both have."""
    return max(
        (
            sum(abs(a[n].get(c, 0.0) - b[n].get(c, 0.0)) for c in {*a[n], *b[n]}) / 2
            for n in {*a} & {*b}
        ),
        default=0.0,
    )


def _unlike(a: Laws, b: Laws) -> float:
    """Total variation, or what tokens that only one law allows are worth beside it."""
    impossible = max(
        (
            sum(mass for cell, mass in x[n].items() if not y[n].get(cell))
            for x, y in ((a, b), (b, a))
            for n in {*a} & {*b}
        ),
        default=0.0,
    )
    return max(apart(a, b), _PROOF * impossible)


def _grouped(
    laws: Mapping[str, Laws], observed: Observations
) -> list[tuple[tuple[str, ...], Laws]]:
    """Candidates whose laws no such sample tells apart, as one."""
    groups: list[tuple[list[str], Laws]] = []
    for id_, law in laws.items():
        mine = {name: law[name] for name in observed if name in law}
        for ids, theirs in groups:
            if mine.keys() == theirs.keys() and _unlike(mine, theirs) < _SAME:
                ids.append(id_)
                break
        else:
            groups.append(([id_], mine))
    return [(tuple(ids), law) for ids, law in groups]


def _log_likelihood(
    observed: Observations, laws: Laws, unknown: Mapping[str, float]
) -> float:
    return sum(
        _log_of(counts, laws[name]) if name in laws else unknown[name]
        for name, counts in observed.items()
    )


def _log_of(counts: Mapping[str, int], law: Mapping[str, float]) -> float:
    """Likelihood of counts under a law."""
    return sum(
        count * math.log(max(law.get(cell, 0.0), _FLOOR))
        for cell, count in counts.items()
        if count
    )


def _cells(
    name: str, counts: Mapping[str, int], known: Mapping[str, Laws], lossless: Laws
) -> int:
    """Number of outcomes that anybody can think of on an input."""
    laws = [lossless[name], *(law[name] for law in known.values() if name in law)]
    return len({*counts, *(cell for law in laws for cell in law)})


def _log_novel(
    counts: Mapping[str, int], lossless: Mapping[str, float], cells: int
) -> float:
    """Likelihood under a defect that nobody knows: it shows on this input, or does not.

    Where it shows, any law may come; the prior is Dirichlet's.
    """
    prior, n = _PRIOR * cells, sum(counts.values())
    shows = float(gammaln(prior) - gammaln(prior + n))
    shows += sum(
        float(gammaln(_PRIOR + count) - gammaln(_PRIOR)) for count in counts.values()
    )
    return float(np.logaddexp(shows, _log_of(counts, lossless))) - math.log(2)


def _distance(observed: Observations, laws: Laws) -> float:
    """Largest total variation from the observed shares over the inputs."""
    shares = {
        name: {
            cell: count / max(sum(counts.values()), 1) for cell, count in counts.items()
        }
        for name, counts in observed.items()
    }
    return apart(shares, laws)
