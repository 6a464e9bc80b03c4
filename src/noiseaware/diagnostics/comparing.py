"""One release, several methods: how far apart are their posteriors?

Where n is too large for an exact run, there are two ways out. For the count of a yes/no column the
law of the sum is known, and the posterior is a sum over all counts s:

    p(params | release) = sum_s Beta(params; a + s, b + n - s) p(s | release),
    p(s | release) proportional to BetaBinomial(s; n, a, b) g(release | s).

Else both methods run on a smaller release: n' records, sums scaled by n'/n and noise by
sqrt(n'/n), which keeps the ratio of noise to sampling error. What a central limit theorem leaves
out is larger at n' than at n; but the prior weighs more there, and may hide it.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from scipy import special

from noiseaware import draws as draws_
from noiseaware import validate
from noiseaware.fitting import EXACT, METHODS, agreed_count, exact_run_is_long, fit
from noiseaware.models import BetaBernoulli, Model
from noiseaware.release import Release
from noiseaware.statistics import Count

MAX_SMALLER = 100_000
MAX_TERMS = 5_000_000
NEGLIGIBLE = 1e-20


@dataclasses.dataclass(frozen=True)
class Comparison:
    """``how`` says what was compared; ``num_records`` with how many; ``rows`` has, for each
    parameter, mean and sd by either method, their difference in Monte Carlo standard errors and
    in posterior sds of the first, and the ratio of sds.
    """

    methods: tuple[str, str]
    num_records: int
    how: str
    rows: dict[str, dict[str, float]]

    def table(self):
        """A data frame, one row a parameter."""
        import pandas

        return pandas.DataFrame.from_dict(self.rows, orient="index")

    @property
    def largest_difference(self) -> float:
        """Of means, and of sds, in posterior sds."""
        return max(
            max(abs(row["difference_in_sd"]), abs(row["sd_ratio"] - 1))
            for row in self.rows.values()
        )

    def __str__(self) -> str:
        first, second = self.methods
        return (
            f"{second} against {first}: {self.how}\n"
            f"{self.table().to_string(float_format='{:.4g}'.format)}"
        )


@dataclasses.dataclass(frozen=True)
class _Moments:
    """By parameter; an exact one has no Monte Carlo error."""

    mean: dict[str, float]
    sd: dict[str, float]
    error: dict[str, float]


def compare(
    release: Release,
    model: Model,
    *,
    seed: int,
    methods: Sequence[str] = ("auto", "statistic_gibbs"),
    num_records: int | None = None,
    chains: int = 4,
    draws: int = 2500,
    progress: bool = True,
) -> Comparison:
    """Run two methods on one release and say how far apart their posteriors are.

    Args:
        release: what was published.
        model: prior and record law.
        seed: of all random numbers.
        methods: two of ``fit``'s; ``"auto"`` stands for its exact one here.
        num_records: n, where the release does not make it public.
        chains: of each fit.
        draws: kept draws a chain.
        progress: show a bar, where there is a terminal.

    Where an exact run would take more than ten minutes, the comparison is with the exact law of the
    sum if that is known, else with fewer records; ``how`` says so.
    """
    for method in methods:
        validate.one_of("method", method, METHODS)
    exact_method = "interweaving" if model.has_noise_map else "record_augmentation"
    methods = [exact_method if method == "auto" else method for method in methods]
    methods = validate.distinct("methods", methods)
    if len(methods) != 2:
        raise ValueError(f"methods must be two, got {len(methods)}.")
    fixed: dict[str, Any] = {"seed": seed, "chains": chains, "draws": draws}
    n = agreed_count(release, num_records)
    how, exact = "both on the release", None
    num_exact = sum(method in EXACT for method in methods)
    if num_exact > 0 and exact_run_is_long(release, model, num_records=n, **fixed):
        is_count = isinstance(release.statistic, Count) and num_exact == 1
        if is_count and isinstance(model, BetaBernoulli):
            exact = _count_moments(release, model, n)
            how = "on the release, against the exact law of its sum"
        else:
            smaller = min(MAX_SMALLER, max(n // 10, 1))
            full, release, n = n, _scaled(release, n, smaller), smaller
            how = (
                f"both on a release of {n} records, its noise scaled with their square root; "
                f"beside so few the prior weighs {full / n:.3g} times more"
            )
    found = []
    for method in methods:
        if method in EXACT and exact is not None:
            found.append(exact)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", draws_.ConvergenceWarning)  # the error says it
            container = fit(
                release, model, method=method, num_records=n, progress=progress, **fixed
            )
        found.append(_moments(container))
    return Comparison(methods, n, how, _rows(*found))


def _moments(container) -> _Moments:
    summary = draws_.summarize(container)
    error = summary["sd"] / np.sqrt(summary["ess_bulk"])
    return _Moments(summary["mean"].to_dict(), summary["sd"].to_dict(), error.to_dict())


def _rows(first: _Moments, second: _Moments) -> dict[str, dict[str, float]]:
    rows = {}
    for name, sd in first.sd.items():
        difference = second.mean[name] - first.mean[name]
        error = float(np.hypot(first.error[name], second.error[name]))
        rows[name] = {
            "mean": first.mean[name],
            "other_mean": second.mean[name],
            "sd": sd,
            "other_sd": second.sd[name],
            "difference_in_errors": difference / error,
            "difference_in_sd": difference / sd,
            "sd_ratio": second.sd[name] / sd,
        }
    return rows


def _scaled(release: Release, num_records: int, smaller: int) -> Release:
    ratio = smaller / num_records
    mechanism = release.mechanism.with_spread(release.mechanism.spread() * np.sqrt(ratio))
    values = release.values * ratio
    return Release(
        np.round(values) if mechanism.is_discrete else values,
        release.statistic,
        mechanism,
        neighbours=release.neighbours,
        num_records=smaller,
        noise=release.noise,
    )


def _count_moments(release: Release, model: BetaBernoulli, num_records: int) -> _Moments:
    """Of the probability, over all counts that matter: a window around the release that widens
    until its ends have no weight.
    """
    reach = 60 * float(np.max(release.mechanism.spread()))
    while True:
        low = int(np.clip(np.floor(release.values[0] - reach), 0, num_records))
        high = int(np.clip(np.ceil(release.values[0] + reach), 0, num_records))
        stride = -(-(high - low + 1) // MAX_TERMS)
        counts = np.arange(low, high + 1, stride, dtype=float)
        ones, zeros = model.a + counts, model.b + num_records - counts
        log_choices = -special.betaln(1 + counts, 1 + num_records - counts)
        weight = special.softmax(
            log_choices + special.betaln(ones, zeros) + _log_noise(release, counts)
        )
        is_low_end = low == 0 or weight[0] < NEGLIGIBLE
        if is_low_end and (high == num_records or weight[-1] < NEGLIGIBLE):
            break
        reach *= 2
    total = ones + zeros
    mean = weight @ (ones / total)
    within = weight @ (ones * zeros / (total**2 * (total + 1)))
    sd = np.sqrt(within + weight @ (ones / total - mean) ** 2)
    return _Moments({"probability": mean}, {"probability": sd}, {"probability": 0.0})


def _log_noise(release: Release, counts: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        log_density = jax.vmap(
            lambda count: release.mechanism.log_density(release.values, count[None])
        )
        return np.asarray(jax.jit(log_density)(counts))
