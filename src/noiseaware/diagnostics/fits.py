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

import noiseaware
from noiseaware import draws as draws_
from noiseaware.convergence import bulk_ess, finite
from noiseaware.diagnostics.simulating import Simulated, Source
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
    of data sets, where not all of them are fitted. ``quantities`` are those whose truth is known.
    """

    source: Source
    model: Model
    seed: int
    quantities: dict[str, Scalar | None]
    method: str | Callable = "auto"
    told: Callable[[Release], Release] | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    chosen: np.ndarray | None = None

    @property
    def identity(self) -> str:
        """Of all that the fits depend on: versions too, and functions by their names and code."""
        parts = (self.source, self.model, self.options, self.chosen)
        digest = hashlib.sha256(eqx.tree_pformat(parts).encode())
        for leaf in jax.tree.leaves(parts):
            if eqx.is_array(leaf):
                digest.update(np.asarray(leaf).tobytes())
        versions = (noiseaware.__version__, jax.__version__, jax.default_backend())
        functions = [_named(each) for each in (self.method, self.told)]
        digest.update(repr((self.seed, versions, functions)).encode())
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
        truth = self._together(simulated.params, log_noise)
        drawn = self._together(posterior, log_density)
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

    def _together(self, params, log_density) -> np.ndarray:
        """All quantities along a last axis."""
        each = [
            # Of counts it has few values, and rounding must not tell equal ones apart.
            np.round(log_density, 9) if scalar is None else params[scalar[0]][(..., *scalar[1])]
            for scalar in self.quantities.values()
        ]
        return np.stack(each, axis=-1)

    def spread(self, simulated: Simulated) -> np.ndarray:
        """Of each quantity over these data sets."""
        return np.std(self._together(simulated.params, simulated.log_density), axis=0, ddof=1)

    def _fit(self, releases, first: int):
        """Params and log g ``[chain, draw, fit, ...]``; R-hat and effective size of each fit."""
        if not callable(self.method):
            draws = fit_many(
                releases, self.model, seed=self.seed, method=self.method, known=self.source.known,
                first=first, progress=False, **self.options,
            )  # fmt: skip
            posterior = {name: value.values for name, value in draws.posterior.items()}
            density = draws.sample_stats["log_density"].values
            # It may forget more slowly than params do.
            ess = np.minimum(draws.fits["ess_bulk"].values, bulk_ess(finite(density)))
            return posterior, density, draws.fits["r_hat"].values, ess
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


def _named(function: Any) -> Any:
    code = getattr(function, "__code__", None)
    if code is None:
        return function if isinstance(function, str) else type(function).__qualname__
    constants = [each for each in code.co_consts if not hasattr(each, "co_code")]
    return function.__qualname__, code.co_code.hex(), constants, code.co_names


def fits_of(source: Source, model: Model, seed: int, method, told=None, **rest: Any) -> Fits:
    """With the quantities to be ranked: params that data and model share and, if the analyst is
    told the true statistic, ``log g``.
    """
    of_data = params_of(source.model)
    quantities: dict[str, Scalar | None] = {
        label: scalar for label, scalar in params_of(model).items() if of_data.get(label) == scalar
    }
    (release,) = source.releases(source.simulate(seed, [0]).values)
    heard = release if told is None else told(release)
    if not callable(method) and eqx.tree_equal(heard.statistic, release.statistic):
        quantities[NOISE] = None
    return Fits(source, model, seed, quantities, method, told, **rest)
