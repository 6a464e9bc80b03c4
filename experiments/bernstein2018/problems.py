"""The three models of [BS18, Section 4], and data sets drawn from them."""

import dataclasses
from collections.abc import Callable

import numpy as np
from scipy import stats

import noiseaware as na

# From 2.5 to 97.5 % of records at the prior's mean rate, fixed before any rate is drawn.
FIXED_BOUNDS = tuple(stats.expon(scale=1 / 4).ppf([0.025, 0.975]))


@dataclasses.dataclass(frozen=True)
class Simulated:
    """Data sets: true params ``[set, ...]``, sufficient sums ``[set, k]``, released sums ``[set,
    m]`` before their noise, with the bounds of each if they differ.
    """

    truth: np.ndarray
    sums: np.ndarray
    totals: np.ndarray


@dataclasses.dataclass(frozen=True)
class Problem:
    model: na.ExponentialFamily
    statistic: na.Statistic
    param: str
    simulate: Callable[[np.random.Generator, int, int], Simulated]
    # The cdf of the parameter of interest given sums and n, and a draw of all of them.
    cdf: Callable[[np.ndarray, np.ndarray, int], np.ndarray]
    sample: Callable[[np.random.Generator, np.ndarray, int, int], np.ndarray]


def binomial(rng, num_sets, num_records):
    truth = rng.beta(10, 10, size=num_sets)
    sums = rng.binomial(num_records, truth)[:, None].astype(float)
    return Simulated(truth, sums, sums)


def multinomial(rng, num_sets, num_records):
    truth = rng.dirichlet([5, 5, 5], size=num_sets)
    sums = rng.multinomial(num_records, truth).astype(float)
    return Simulated(truth[:, 0], sums, sums[:, :2])


def exponential(rng, num_sets, num_records):
    truth = rng.gamma(8, 1 / 2, size=num_sets)
    sums, totals = np.zeros((2, num_sets, 1))
    for index, rate in enumerate(truth):
        x = rng.exponential(1 / rate, size=num_records)
        is_kept = (FIXED_BOUNDS[0] <= x) & (x <= FIXED_BOUNDS[1])
        sums[index], totals[index] = np.sum(x), np.sum(x[is_kept])
    return Simulated(truth, sums, totals)


PROBLEMS = {
    "binomial": Problem(
        na.BetaBernoulli("x", 10, 10),
        na.Count("x"),
        "probability",
        binomial,
        lambda value, sums, n: stats.beta.cdf(value, 10 + sums[:, 0], 10 + n - sums[:, 0]),
        lambda rng, sums, n, size: rng.beta(10 + sums[0], 10 + n - sums[0], size)[:, None],
    ),
    "multinomial": Problem(
        na.DirichletCategorical("x", 3, 5.0),
        na.Histogram("x", 3, counted=(0, 1)),
        "probabilities",
        multinomial,
        lambda value, sums, n: stats.beta.cdf(value, 5 + sums[:, 0], 10 + n - sums[:, 0]),
        lambda rng, sums, n, size: rng.dirichlet(5 + sums, size),
    ),
    "exponential": Problem(
        na.Exponential("x", na.GammaPrior(8.0, 2.0)),
        na.Redacted("x", *FIXED_BOUNDS, ("x",)),
        "rate",
        exponential,
        lambda value, sums, n: stats.gamma.cdf(value, 8 + n, scale=1 / (2 + sums[:, 0])),
        lambda rng, sums, n, size: rng.gamma(8 + n, 1 / (2 + sums[0]), size)[:, None],
    ),
}


def possible(name: str, sums: np.ndarray, num_records: int) -> np.ndarray:
    """The nearest sums that records can have; the third count is what the others leave."""
    if name == "binomial":
        return np.clip(sums, 0, num_records)
    if name == "exponential":
        return np.maximum(sums, 1e-9)
    counts = np.clip(sums[:, :2], 0, num_records)
    counts *= np.minimum(1, num_records / np.maximum(counts.sum(1, keepdims=True), 1e-9))
    return np.concatenate([counts, num_records - counts.sum(1, keepdims=True)], axis=1)
