"""Is the posterior of this very release to be trusted?

Two questions. Are posteriors right for releases like it: params from the prior, releases from them,
and of many such the nearest to the one at hand are fitted. Which releases are kept depends on the
releases alone, so given one of them its params still come from ``p(params | release)``, and their
rank is uniform if the fit is right. (Params drawn from ``p(params | release)`` and ranked in the
posterior of a second release would not be: that posterior forgets the first.) And would the model
make such a release: replicated releases of the posterior, and how many of them are as far from
their mean as the one at hand. The release was used to fit, so this sees little where there are
about as many params as sums, and nothing where one sum meets one param.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from noiseaware import draws as draws_
from noiseaware.diagnostics.calibration import (
    DRAWS,
    NO_EVIDENCE,
    Calibration,
    as_calibration,
    check_asked,
    source_of,
)
from noiseaware.diagnostics.fits import fits_of
from noiseaware.fitting import agreed_count, fit
from noiseaware.models import Model
from noiseaware.release import Release
from noiseaware.studies import run_study

MAX_CANDIDATES, MIN_PER_FIT = 20_000, 2
MAX_RECORDS = 200_000_000  # simulated, over all candidates
MOST_RECORDS = 5_000_000_000  # that any check would simulate
MIN_P = 0.01  # of the posterior predictive check
MAX_R_HAT = 1.01
MAX_DISTANCE = 3.0  # in predictive sds a sum: farther away, a release is not like it
MIN_EIGENVALUE = 1e-12  # of a correlation matrix


@dataclasses.dataclass(frozen=True, repr=False)
class Check:
    """``calibration`` of the fits of like releases, ``distance`` of the farthest of them from the
    release, in predictive sds a sum; ``predictive_p`` and, of each sum, how many predictive sds it
    lies from its mean given the other sums; ``summary`` of the fit itself, and its ``method``.
    """

    calibration: Calibration
    distance: float
    predictive_p: float
    sum_scores: dict[str, float]
    summary: Any
    method: str

    @property
    def can_be_trusted(self) -> bool:
        return not self._faults() and not self._doubts()

    def _doubts(self) -> list[str]:
        doubts = []
        if self.distance > MAX_DISTANCE:
            doubts.append(
                f"few simulated releases are like it (the {len(self.calibration.ranks)} nearest "
                f"lie up to {self.distance:.1f} predictive sds away)"
            )
        if self.calibration.verdict == "undecided":
            share = 100 * self.calibration.unconverged
            doubts.append(f"chains disagree in {share:.0f} % of the fits of releases like it")
        return doubts

    def _faults(self) -> list[str]:
        faults = []
        if not np.all(self.summary["r_hat"] <= MAX_R_HAT):
            worst = self.summary["r_hat"].idxmax()
            faults.append(
                f"its chains disagree (R-hat {self.summary['r_hat'].max():.3f} of {worst})"
            )
        if self.predictive_p < MIN_P:
            farthest = max(self.sum_scores, key=lambda name: abs(self.sum_scores[name]))
            faults.append(
                f"the model does not make releases like it (predictive p {self.predictive_p:.2g}; "
                f"{farthest} lies {self.sum_scores[farthest]:+.1f} sd from its prediction"
                f"{' given the other sums' if len(self.sum_scores) > 1 else ''})"
            )
        if self.calibration.verdict == "NOT calibrated":
            faults.append(
                f"posteriors of releases like it are off (p {self.calibration.p:.2g}, worst "
                f"{self.calibration.worst})"
            )
        return faults

    @property
    def sentence(self) -> str:
        """Whether to trust the posterior, and why."""
        if faults := self._faults():
            return f"Do not trust it: {', and '.join(faults)}."
        if doubts := self._doubts():
            return f"Cannot say: {', and '.join(doubts)}."
        ratios = self.summary["sd_ratio"]
        silent = [name for name in ratios.index if ratios[name] > NO_EVIDENCE]
        about = f" Of {', '.join(silent)} it says next to nothing." if silent else ""
        return (
            f"Trust it: in {len(self.calibration.ranks)} simulated releases nearest to it the "
            f"truth ranks evenly (p {self.calibration.p:.2g}), {self._about_the_model()}.{about}"
        )

    def _about_the_model(self) -> str:
        if len(self.sum_scores) <= len(self.summary):
            return "though so few sums cannot show whether the model is right"
        return f"and the model makes such releases (predictive p {self.predictive_p:.2g})"

    def __str__(self) -> str:
        return self.sentence

    __repr__ = __str__


def check(
    release: Release,
    model: Model,
    *,
    seed: int,
    num_records: int | None = None,
    known: Mapping[str, Any] | None = None,
    method: str = "auto",
    num_fits: int = 200,
    processes: int | None = None,
    cluster: str | None = None,
    progress: bool = True,
) -> Check:
    """Fit the release, then those of many simulated ones that are nearest to it.

    Args:
        release: what was published.
        model: prior and record law.
        seed: of all random numbers.
        num_records: n, where the release does not make it public.
        known: the columns that the model calls known.
        method: as of ``fit``.
        num_fits: of like releases; 200 see a posterior sd off by two thirds.
        processes, cluster, progress: see ``run_study``.

    ``print`` the result for one sentence.
    """
    if not isinstance(release, Release):
        raise ValueError(f"release must be a Release, got {release!r}.")
    check_asked(num_fits, method)
    count = agreed_count(release, num_records)
    if MIN_PER_FIT * num_fits * count > MOST_RECORDS:
        raise ValueError(
            f"num_records must be at most {MOST_RECORDS // (MIN_PER_FIT * num_fits)} to simulate "
            f"releases like it, got {count}."
        )
    source = source_of(model, release.statistic, release.mechanism, count, known)
    draws = fit(
        release, model, seed=seed, num_records=num_records, known=known, method=method,
        progress=progress,
    )  # fmt: skip
    replicated = draws.posterior_predictive["release"].values
    replicated = replicated.reshape(-1, len(release.values))
    center = replicated.mean(axis=0)
    distance_of = _Distance(replicated)
    observed = distance_of(release.values[None] - center)[0]
    num_candidates = int(np.clip(MAX_RECORDS // count, MIN_PER_FIT * num_fits, MAX_CANDIDATES))
    simulated = source.simulate(seed, np.arange(num_candidates))
    away = distance_of(simulated.values - release.values)
    nearest = np.argsort(away)[:num_fits]
    # In the order of their numbers: what is near each other must not share a batch.
    method = draws.attrs["method"]  # the one that is judged, whatever "auto" would choose for many
    fits = fits_of(
        source, model, seed, method, options={"chains": 4, "draws": DRAWS}, chosen=np.sort(nearest)
    )
    table = run_study(fits, num_fits, processes=processes, cluster=cluster, progress=progress)
    return Check(
        as_calibration(fits, table, fits.spread(simulated), are_alike=True),
        float(away[nearest[-1]] / math.sqrt(len(release.values))),
        float(np.mean(distance_of(replicated - center) >= observed)),
        dict(zip(release.labels, distance_of.scores(release.values - center), strict=True)),
        draws_.summarize(draws),
        method,
    )


class _Distance:
    """In units of how replicated releases vary."""

    def __init__(self, replicated: np.ndarray):
        spread = replicated.std(axis=0, ddof=1)
        correlation = np.atleast_2d(np.corrcoef(replicated, rowvar=False))
        values, axes = np.linalg.eigh(correlation)
        self._whiten = axes / np.sqrt(np.maximum(values, MIN_EIGENVALUE)) / spread[:, None]

    def __call__(self, difference: np.ndarray) -> np.ndarray:
        return np.linalg.norm(difference @ self._whiten, axis=1)

    def scores(self, difference: np.ndarray) -> list[float]:
        """Of each coordinate given the others: with precision P, ``(P d)_j / sqrt(P_jj)``."""
        precision = self._whiten @ self._whiten.T
        return (precision @ difference / np.sqrt(np.diagonal(precision))).tolist()
