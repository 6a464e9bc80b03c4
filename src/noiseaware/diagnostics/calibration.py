"""Simulation-based calibration [TBSVG18]: are posteriors right on average over the prior?

Params ``theta*`` from the prior, records from them, a release of those, a fit: the rank of
``theta*`` among draws of ``p(theta | release)`` is uniform, and so is that of any function of
params, records and release. What is not uniform shows a sampler, a model or a noise scale that is
not the one that made the data.

Ranks of params alone do not show a sampler that returns the prior [MMKB23]. So there is ``log g``,
which depends on the records imputed. And in half of the data sets each param is ranked once more
from the end to which its release points: ``u`` where the release makes the param likely to be
large, ``1 - u`` elsewhere. Where a release points is learned by least squares from the other half,
so given that half it depends on the release alone, and these ranks are uniform, too.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from noiseaware import validate
from noiseaware.diagnostics.fits import NOISE, Fits, fits_of
from noiseaware.diagnostics.simulating import Source
from noiseaware.diagnostics.uniformity import Uniformity, band, uniformity
from noiseaware.fitting import METHODS
from noiseaware.mechanisms import Mechanism
from noiseaware.models import Model
from noiseaware.release import Release
from noiseaware.samplers.params_given_records import ParamsKernel, UserStep
from noiseaware.samplers.proposals import Proposal
from noiseaware.statistics import Statistic
from noiseaware.studies import run_study

NO_EVIDENCE = 0.95
LEVEL = 1e-3  # of all tests of a calibration together
MIN_RANKED, MIN_FITS = 4, 50  # with fewer nearly anything passes
MAX_R_HAT, MAX_UNCONVERGED = 1.1, 0.05  # of short chains, and their share in a study
DRAWS = 100  # a chain: enough for ranks
EDGE = 1e-12


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Ranks ``[fit, quantity]`` of what is known of every simulated data set, not a number where
    it was not ranked, and of each quantity the posterior's sd over the prior's (``contraction``).
    ``p`` is the smallest p-value of all tests, times their number.
    """

    quantities: tuple[str, ...]
    ranks: np.ndarray
    contraction: np.ndarray
    r_hat: np.ndarray
    ess: np.ndarray
    seed: int

    @property
    def uniformities(self) -> dict[str, Uniformity]:
        return {name: uniformity(self._of(name)) for name in self.quantities}

    def _of(self, quantity: str) -> np.ndarray:
        u = self.ranks[:, self.quantities.index(quantity)]
        return np.clip(u[np.isfinite(u)], EDGE, 1 - EDGE)

    @property
    def p(self) -> float:
        found = self.uniformities.values()
        return min(1.0, len(found) * min(each.p for each in found))

    @property
    def worst(self) -> str:
        """The quantity whose ranks are the least likely."""
        found = self.uniformities
        return min(found, key=lambda name: found[name].p)

    @property
    def is_calibrated(self) -> bool:
        """Nothing speaks against it, at the level of 0.001 for all tests together, and chains agree
        in nearly all fits.
        """
        return self.verdict == "calibrated"

    @property
    def verdict(self) -> str:
        if self.p < LEVEL:
            return "NOT calibrated"
        is_decided = len(self.ranks) >= MIN_FITS and self.unconverged <= MAX_UNCONVERGED
        return "calibrated" if is_decided else "undecided"

    @property
    def unconverged(self) -> float:
        """Share of fits whose chains disagree: their ranks say little about the target."""
        return float(np.mean(~(self.r_hat <= MAX_R_HAT)))

    def ecdf(self, quantity: str, level: float = 0.05):
        """Points, the share of ranks below each, and a band for all of them together."""
        at = np.linspace(0.01, 0.99, 99)
        u = np.sort(self._of(quantity))
        share = np.searchsorted(u, at, side="right") / len(u)
        return (at, share, *band(len(u), level, at))

    def table(self):
        """A data frame, one row a quantity."""
        import pandas

        rows = {}
        for (name, found), left in zip(self.uniformities.items(), self.contraction, strict=True):
            rows[name] = dataclasses.asdict(found) | {
                "p": found.p,
                "contraction": left,
                "evidence": "no evidence" if left > NO_EVIDENCE else "",
            }
        return pandas.DataFrame.from_dict(rows, orient="index")

    def __str__(self) -> str:
        found = self.uniformities[self.worst]
        return (
            f"{self.verdict}: {len(self.ranks)} fits, p {self.p:.2g} of all tests together; worst "
            f"{self.worst}, KS {found.ks:.3f}, sd of normal scores {found.sd:.3f}; chains disagree "
            f"in {100 * self.unconverged:.1f} % of fits\n"
            f"{self.table().to_string(float_format='{:.3g}'.format)}"
        )


def sbc(
    model: Model,
    statistic: Statistic,
    mechanism: Mechanism,
    *,
    num_records: int,
    num_fits: int,
    seed: int,
    known: Mapping[str, Any] | None = None,
    method: str | Callable = "auto",
    chains: int = 4,
    draws: int = DRAWS,
    sweeps_per_draw: int | None = None,
    proposal: Proposal | None = None,
    params_step: ParamsKernel | UserStep | None = None,
    data_model: Model | None = None,
    told: Callable[[Release], Release] | None = None,
    batch_size: int = 64,
    folder=None,
    processes: int | None = None,
    cluster: str | None = None,
    progress: bool = True,
) -> Calibration:
    """Fit ``num_fits`` simulated releases, and rank the truth in each posterior.

    Args:
        model: prior and record law, of the data and of the fits.
        statistic: what is released of the records.
        mechanism: how it is hidden.
        num_records: of every data set.
        num_fits: 1,000 see a posterior sd off by a third, 10,000 one off by 5 %.
        seed: of all random numbers; fit i depends on it and on i.
        known: the columns that the model calls known, the same in all data sets.
        method: one of ``fit``'s, or a function ``(release, model, seed=...) -> draws``.
        chains: of each fit.
        draws: kept draws a chain, thinned to as many as are effective.
        sweeps_per_draw, proposal, params_step: as of ``fit``.
        data_model: where data come from, if not from ``model``: what a wrong model would show.
        told: changes each release before it is fitted: what a wrong scale or bound would show.
        batch_size, folder, processes, cluster, progress: see ``run_study``.
    """
    source = source_of(data_model or model, statistic, mechanism, num_records, known)
    options = {
        "chains": chains, "draws": draws, "sweeps_per_draw": sweeps_per_draw,
        "proposal": proposal, "params_step": params_step,
    }  # fmt: skip
    fits = fits_of(source, model, seed, method, told, options=options)
    check_asked(num_fits, method)
    table = run_study(
        fits, num_fits, batch_size=batch_size, folder=folder, identity=fits.identity,
        processes=processes, cluster=cluster, progress=progress,
    )  # fmt: skip
    return as_calibration(fits, table, np.std(table["truth"], axis=0, ddof=1))


def _turned(table) -> np.ndarray:
    """Ranks from the end to which the release points, of every other data set."""
    values = table["values"]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.nan_to_num((values - values.mean(axis=0)) / values.std(axis=0))
    design = np.concatenate([np.ones((len(values), 1)), values], axis=1)
    to_learn = np.arange(len(values)) % 2 == 0
    truth = table["truth"][to_learn]
    slopes = np.linalg.lstsq(design[to_learn], truth - np.median(truth, axis=0))[0]
    turned = np.where(design @ slopes > 0, table["rank"], 1 - table["rank"])
    turned[to_learn] = np.nan
    return turned


def check_asked(num_fits: int, method: str | Callable) -> None:
    if validate.positive_integer("num_fits", num_fits) < MIN_RANKED:
        raise ValueError(f"num_fits must be at least {MIN_RANKED}, got {num_fits}.")
    if not callable(method):
        validate.one_of("method", method, METHODS)


def source_of(model: Model, statistic, mechanism, num_records, known, params=None) -> Source:
    num_records = validate.positive_integer("num_records", num_records)
    source = Source(model, statistic, mechanism, num_records, known, params)
    source.check()
    return source


def as_calibration(
    fits: Fits, table, prior_sd: np.ndarray, *, are_alike: bool = False
) -> Calibration:
    """Releases that are nearly alike all point to one end."""
    names = tuple(fits.quantities)
    with np.errstate(divide="ignore", invalid="ignore"):
        contraction = np.sqrt(np.mean(table["sd"] ** 2, axis=0)) / prior_sd
    is_param = np.array([name != NOISE for name in names])
    contraction = np.where(is_param, contraction, np.nan)
    ranks = table["rank"]
    if not are_alike:
        names += tuple(f"{name}, by release" for name in names if name != NOISE)
        ranks = np.concatenate([ranks, _turned(table)[:, is_param]], axis=1)
        contraction = np.concatenate([contraction, contraction[is_param]])
    return Calibration(
        names,
        ranks,
        contraction,
        table["r_hat"],
        table["ess"],
        fits.seed,
    )
