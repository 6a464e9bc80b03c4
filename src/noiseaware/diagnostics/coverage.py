"""How often do intervals cover the params that the data came from?

At fixed params a Bayesian's intervals need not cover at their level: where a release says little,
they are those of the prior, which cover a likely value always and an unlikely one never. What is
reported is what a table of a paper would hold, with the error of so many fits.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from noiseaware import validate
from noiseaware.diagnostics.calibration import check_asked, source_of
from noiseaware.diagnostics.fits import NOISE, SHARES, fits_of
from noiseaware.mechanisms import Mechanism
from noiseaware.models import Model
from noiseaware.models.support import unconstrain
from noiseaware.release import Release
from noiseaware.statistics import Statistic
from noiseaware.studies import run_study

LEVEL = SHARES[1] - SHARES[0]
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Whether each fit's equal-tailed 90 % interval covered ``[fit, param]``; means and widths of
    posteriors; R-hat and effective size of each fit.
    """

    params: tuple[str, ...]
    truth: np.ndarray
    covered: np.ndarray
    means: np.ndarray
    widths: np.ndarray
    r_hat: np.ndarray
    ess: np.ndarray

    def table(self):
        """A data frame, one row a param: the share covered, with an interval of Clopper and
        Pearson's for it.
        """
        import pandas

        rows = {}
        for index, name in enumerate(self.params):
            hits, count = int(np.sum(self.covered[:, index])), len(self.covered)
            interval = stats.binomtest(hits, count).proportion_ci(CONFIDENCE)
            rows[name] = {
                "truth": self.truth[index],
                "covered": hits / count,
                "low": interval.low,
                "high": interval.high,
                "mean": np.mean(self.means[:, index]),
                "width": np.mean(self.widths[:, index]),
            }
        return pandas.DataFrame.from_dict(rows, orient="index")

    def __str__(self) -> str:
        return (
            f"{len(self.covered)} fits, 90 % intervals; median R-hat {np.median(self.r_hat):.3f}, "
            f"median effective size {np.median(self.ess):.0f}\n"
            f"{self.table().to_string(float_format='{:.3g}'.format)}"
        )


def coverage(
    model: Model,
    statistic: Statistic,
    mechanism: Mechanism,
    params: Mapping[str, Any],
    *,
    num_records: int,
    num_fits: int,
    seed: int,
    known: Mapping[str, Any] | None = None,
    method: str | Callable = "auto",
    chains: int = 4,
    draws: int = 1000,
    sweeps_per_draw: int | None = None,
    told: Callable[[Release], Release] | None = None,
    batch_size: int = 64,
    folder=None,
    processes: int | None = None,
    cluster: str | None = None,
    progress: bool = True,
) -> Coverage:
    """Fit ``num_fits`` releases of data that come from these ``params``, and count the intervals
    that cover them. Other arguments are those of ``sbc``.
    """
    source = source_of(model, statistic, mechanism, num_records, known, _checked(model, params))
    options = {"chains": chains, "draws": draws, "sweeps_per_draw": sweeps_per_draw}
    fits = fits_of(source, model, seed, method, told, options=options)
    check_asked(num_fits, method)
    table = run_study(
        fits, num_fits, batch_size=batch_size, folder=folder, identity=fits.identity,
        processes=processes, cluster=cluster, progress=progress,
    )  # fmt: skip
    names = tuple(name for name in fits.quantities if name != NOISE)
    truth, low, high, mean = (
        table[column][:, : len(names)] for column in ("truth", "low", "high", "mean")
    )
    covered = (low <= truth) & (truth <= high)
    return Coverage(names, truth[0], covered, mean, high - low, table["r_hat"], table["ess"])


def _checked(model: Model, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    if set(params) != set(model.supports):
        raise ValueError(f"params must be {sorted(model.supports)}, got {sorted(params)}.")
    found = {name: validate.finite(name, value) for name, value in params.items()}
    with jax.enable_x64(True), np.errstate(invalid="ignore", divide="ignore"):
        likely = model.sample_prior(jax.random.key(0))
        for name, value in found.items():
            if value.shape != likely[name].shape:
                raise ValueError(f"{name} must have the shape {likely[name].shape}.")
        free, _ = unconstrain(model.supports, jax.tree.map(jnp.asarray, found))
    if not np.all(np.isfinite(free)):
        raise ValueError(f"params must lie in their supports, got {dict(params)}.")
    return found
