"""Fits of simulated releases, whose truth is known: what ``sbc``, ``coverage`` and ``check`` share.

A batch of numbers in, a table out: of every fit and quantity the truth, its rank among the draws
and the posterior's moments and quantiles. The quantities are the params that the data came from and
``log g``, the log density of the noise in the release, which depends on the records imputed: a
sampler that draws params from their prior and never looks at the release would pass on params alone
[MMKB23].
"""

import dataclasses
import hashlib
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np

from noiseaware import draws as draws_
from noiseaware.diagnostics.simulating import Source
from noiseaware.diagnostics.uniformity import ranks_of_fits
from noiseaware.fitting import fit_many
from noiseaware.models import Model
from noiseaware.release import Release
from noiseaware.studies import Table

NOISE = "log g"
SHARES = (0.05, 0.95)

Scalar = tuple[str, tuple[int, ...]]


def params_of(model: Model) -> dict[str, Scalar]:
    """Label -> (name, index) of every scalar parameter."""
    with jax.enable_x64(True):
        params = model.sample_prior(jr.key(0))
    one = {name: np.asarray(value)[None, None] for name, value in params.items()}
    container = draws_.as_inference_data(
        posterior=one, prior=None, param_labels=model.labels, attrs={}
    )
    return {label: (name, index) for name, index, label in draws_.scalars(container.posterior)}


@dataclasses.dataclass(frozen=True)
class Fits:
    """A task of a study. ``told`` changes a release before it is fitted, and a ``method`` that is a
    function fits it alone: controls, and whatever else is to be judged. ``chosen`` has the numbers
    of data sets, where not all of them are fitted.
    """

    source: Source
    model: Model
    seed: int
    method: str | Callable = "auto"
    told: Callable[[Release], Release] | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    chosen: np.ndarray | None = None

    @property
    def quantities(self) -> dict[str, Scalar | None]:
        """Those whose truth is known; of ``log g`` it is if the analyst knows the statistic."""
        of_data = params_of(self.source.model)
        found: dict[str, Scalar | None] = {
            label: scalar
            for label, scalar in params_of(self.model).items()
            if of_data.get(label) == scalar
        }
        if not callable(self.method) and self._knows_statistic:
            found[NOISE] = None
        return found

    @property
    def _knows_statistic(self) -> bool:
        if self.told is None:
            return True
        (release,) = self.source.releases(self.source.simulate(self.seed, [0]).values)
        return self.told(release).statistic is release.statistic

    @property
    def identity(self) -> str:
        """Of all that the fits depend on, functions by their names."""
        digest = hashlib.sha256(f"{self.seed} {self.method!r} {self.options}".encode())
        parts = (self.source, self.model, self.told, self.chosen)
        digest.update(eqx.tree_pformat(parts).encode())
        for leaf in jax.tree.leaves(parts):
            if eqx.is_array(leaf):
                digest.update(np.asarray(leaf).tobytes())
        return digest.hexdigest()[:16]

    def __call__(self, numbers: np.ndarray) -> Table:
        data_sets = numbers if self.chosen is None else self.chosen[numbers]
        simulated = self.source.simulate(self.seed, data_sets)
        releases = self.source.releases(simulated.values)
        log_noise = simulated.log_density
        if self.told is not None:
            releases = [self.told(release) for release in releases]
            with jax.enable_x64(True):
                each = zip(releases, simulated.totals, strict=True)
                log_noise = np.array([_log_density(r.mechanism, r.values, t) for r, t in each])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", draws_.ConvergenceWarning)  # the table has R-hat
            posterior, log_density, r_hat, ess = self._fit(releases, int(numbers[0]))
        quantities = self.quantities
        truth = np.stack(
            [
                log_noise if scalar is None else _scalar(simulated.params, scalar)
                for scalar in quantities.values()
            ],
            axis=-1,
        )
        drawn = np.stack(
            [
                log_density if scalar is None else _scalar(posterior, scalar)
                for scalar in quantities.values()
            ],
            axis=-1,
        )
        rng = np.random.default_rng([self.seed, int(numbers[0])])
        low, high = np.quantile(drawn, SHARES, axis=(0, 1))
        return {
            "number": data_sets,
            "values": simulated.values,
            "truth": truth,
            "rank": ranks_of_fits(drawn, truth, ess, rng),
            "mean": np.mean(drawn, axis=(0, 1)),
            "sd": np.std(drawn, axis=(0, 1), ddof=1),
            "low": low,
            "high": high,
            "r_hat": r_hat,
            "ess": ess,
        }

    def _fit(self, releases, first: int):
        """Params and log g ``[chain, draw, fit, ...]``; R-hat and effective size of each fit."""
        if not callable(self.method):
            draws = fit_many(
                releases, self.model, seed=self.seed, method=self.method, known=self.source.known,
                first=first, progress=False, **self.options,
            )  # fmt: skip
            posterior = {name: value.values for name, value in draws.posterior.items()}
            density = draws.sample_stats["log_density"].values
            return posterior, density, draws.fits["r_hat"].values, draws.fits["ess_bulk"].values
        found = [
            self.method(release, self.model, seed=self.seed + first + index)
            for index, release in enumerate(releases)
        ]
        posterior = {
            name: np.stack([draws.posterior[name].values for draws in found], axis=2)
            for name in found[0].posterior
        }
        summaries = [draws_.summarize(draws) for draws in found]
        r_hat = np.array([summary["r_hat"].max() for summary in summaries])
        ess = np.array([summary["ess_bulk"].min() for summary in summaries])
        return posterior, None, r_hat, ess


@eqx.filter_jit
def _log_density(mechanism, released, total):
    return mechanism.log_density(released, total)


def _scalar(values, scalar: Scalar) -> np.ndarray:
    name, index = scalar
    return values[name][(..., *index)]
