# SPDX-License-Identifier: Apache-2.0
"""Which known defect explains what was observed, by likelihood.

Counts of emitted tokens on a few inputs are put beside the law of every catalogued defect
and, as an alternative, beside "none of them": a law that is not known, with a Dirichlet
prior. A known defect wins if it explains the counts better than a law fitted to them would
deserve to; a new one wins against all known ones as soon as the draws tell it apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scipy.special import gammaln

#: Counts of emitted tokens by label, for each input by name.
Observations = Mapping[str, Mapping[str, int]]
#: Laws of emitted tokens by label, for each input by name.
Laws = Mapping[str, Mapping[str, float]]

#: What a cell of probability zero gets: an answer once in a while from rounding.
_FLOOR: Final = 1e-7
#: Total variation from the correct law below which a defect does not show here.
_INDISTINCT: Final = 0.01
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
        Laws of the candidates, by id, on the same inputs.
    lossless
        Law of the correct rule: a candidate called "lossless", for defects that these
        inputs do not show.

    Returns
    -------
    list of Cause
        Weights sum to 1.
    """
    shown = {
        id_: law for id_, law in known.items() if _apart(law, lossless) > _INDISTINCT
    }
    groups = _grouped({**shown, "lossless": lossless}, observed)
    share = math.log((1 - _UNKNOWN) / max(len(groups), 1))
    scores = [(ids, share + _log_likelihood(observed, law)) for ids, law in groups]
    scores.append(((), math.log(_UNKNOWN) + _log_unknown(observed, known, lossless)))
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


def _apart(a: Laws, b: Laws) -> float:
    """Largest total variation between two sets of laws over the inputs."""
    return max(
        sum(
            abs(a[name].get(c, 0.0) - b[name].get(c, 0.0)) for c in {*a[name], *b[name]}
        )
        / 2
        for name in b
    )


def _grouped(
    laws: Mapping[str, Laws], observed: Observations
) -> list[tuple[tuple[str, ...], Laws]]:
    """Candidates with one law, as one."""
    groups: dict[tuple[tuple[str, str, float], ...], list[str]] = {}
    for id_, law in laws.items():
        key = tuple(
            (name, cell, round(mass, 4))
            for name in observed
            for cell, mass in sorted(law.get(name, {}).items())
            if round(mass, 4)
        )
        groups.setdefault(key, []).append(id_)
    return [(tuple(ids), laws[ids[0]]) for ids in groups.values()]


def _log_likelihood(observed: Observations, laws: Laws) -> float:
    return sum(
        count * math.log(max(laws[name].get(cell, 0.0), _FLOOR))
        for name, counts in observed.items()
        for cell, count in counts.items()
        if count
    )


def _log_unknown(
    observed: Observations, known: Mapping[str, Laws], lossless: Laws
) -> float:
    """Marginal likelihood of counts under a law that nobody knows."""
    total = 0.0
    for name, counts in observed.items():
        cells = set(counts) | set(lossless[name])
        cells.update(*(law[name] for law in known.values()))
        prior, n = _PRIOR * len(cells), sum(counts.values())
        total += float(gammaln(prior) - gammaln(prior + n))
        total += sum(
            float(gammaln(_PRIOR + count) - gammaln(_PRIOR))
            for count in counts.values()
        )
    return total


def _distance(observed: Observations, laws: Laws) -> float:
    """Largest total variation from the observed shares over the inputs."""
    distances = []
    for name, counts in observed.items():
        n, law = sum(counts.values()), laws[name]
        cells = set(counts) | set(law)
        distances.append(
            sum(abs(counts.get(c, 0) / max(n, 1) - law.get(c, 0.0)) for c in cells) / 2
        )
    return max(distances, default=0.0)
