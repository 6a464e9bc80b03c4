"""The three models of [BS18, Section 4], data sets drawn from them, and the methods compared.

Settings: ``Beta(10, 10)``; ``Dirichlet(5, 5, 5)`` with two of three counts released; ``Gamma(8,
rate 2)`` for the rate of the exponential, where records outside some bounds count nothing.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from scipy import stats

import noiseaware as na
from noiseaware.diagnostics import Uniformity, ranks, thinned, uniformity
from noiseaware.samplers import statistic_gibbs

SHARES = (0.025, 0.975)
# Of records at the prior's mean rate: fixed before any rate is drawn.
FIXED_BOUNDS = tuple(stats.expon(scale=1 / 4).ppf(SHARES))
NUM_PRIVATE_DRAWS, PRIVATE_RANGE = 100, (0.1, 0.9)  # of one-posterior sampling
CHAINS, DRAWS, SHARE_KEPT = 4, 64, 1 / 4
LANES = 500  # of chains that fit a core's cache
NUM_RANKED, MAX_CORRELATION, MIN_SPACING = 9, 0.05, 40


@dataclasses.dataclass(frozen=True)
class Simulated:
    """Data sets: truth ``[set]``, sufficient sums ``[set, k]``, and sums ``[set, m]`` that are
    released once noise is added, each by its statistic.
    """

    truth: np.ndarray
    sums: np.ndarray
    totals: np.ndarray
    statistics: list[na.Statistic]


@dataclasses.dataclass(frozen=True)
class Problem:
    """``posterior(sums, n)`` has the parameter of interest; ``sample(rng, sums, n, size)`` draws
    all of them for one data set; ``possible`` moves sums to the nearest that records can have. The
    prior is worth ``prior_size`` records.
    """

    model: na.ExponentialFamily
    param: str
    prior_mean: float | list[float]
    prior_size: float
    simulate: Callable
    posterior: Callable
    sample: Callable
    possible: Callable


def binomial(rng, num_sets, num_records):
    truth = rng.beta(10, 10, size=num_sets)
    ones = rng.binomial(num_records, truth)[:, None].astype(float)
    return Simulated(truth, ones, ones, [na.Count("x")] * num_sets)


def multinomial(rng, num_sets, num_records):
    truth = rng.dirichlet([5, 5, 5], size=num_sets)
    counts = rng.multinomial(num_records, truth).astype(float)
    released = na.Histogram("x", 3, counted=(0, 1))
    return Simulated(truth[:, 0], counts, counts[:, :2], [released] * num_sets)


def exponential(rng, num_sets, num_records, bounds_of=lambda rate: FIXED_BOUNDS):
    truth = rng.gamma(8, 1 / 2, size=num_sets)
    sums, totals = np.zeros((2, num_sets, 1))
    statistics = []
    for index, rate in enumerate(truth):
        x = rng.exponential(1 / rate, size=num_records)
        low, high = bounds_of(rate)
        sums[index], totals[index] = np.sum(x), np.sum(x[(low <= x) & (x <= high)])
        statistics.append(na.Redacted("x", low, high, ("x",)))
    return Simulated(truth, sums, totals, statistics)


def exponential_with_the_bounds_of_the_truth(rng, num_sets, num_records):
    """As the authors' code has them: the rate can be read off the bounds."""
    return exponential(
        rng, num_sets, num_records, lambda rate: stats.expon(scale=1 / rate).ppf(SHARES)
    )


def possible_counts(counts, num_records):
    """Of three categories; the third has what the others leave."""
    two = np.clip(counts[:, :2], 0, num_records)
    two = two * np.minimum(1, num_records / np.maximum(two.sum(1, keepdims=True), 1e-9))
    return np.concatenate([two, num_records - two.sum(1, keepdims=True)], axis=1)


PROBLEMS = {
    "binomial": Problem(
        na.BetaBernoulli("x", 10, 10),
        "probability",
        0.5,
        20,
        binomial,
        lambda sums, n: stats.beta(10 + sums[:, 0], 10 + n - sums[:, 0]),
        lambda rng, sums, n, size: rng.beta(10 + sums[0], 10 + n - sums[0], size)[:, None],
        lambda sums, n: np.clip(sums, 0, n),
    ),
    "multinomial": Problem(
        na.DirichletCategorical("x", 3, 5.0),
        "probabilities",
        [1 / 3] * 3,
        15,
        multinomial,
        lambda sums, n: stats.beta(5 + sums[:, 0], 10 + n - sums[:, 0]),
        lambda rng, sums, n, size: rng.dirichlet(5 + sums, size),
        possible_counts,
    ),
    "exponential": Problem(
        na.Exponential("x", na.GammaPrior(8.0, 2.0)),
        "rate",
        4.0,
        8,
        exponential,
        lambda sums, n: stats.gamma(8 + n, scale=1 / (2 + sums[:, 0])),
        lambda rng, sums, n, size: rng.gamma(8 + n, 1 / (2 + sums[0]), size)[:, None],
        lambda sums, n: np.maximum(sums, 1e-9),
    ),
}
PROBLEMS["exponential, authors' bounds"] = dataclasses.replace(
    PROBLEMS["exponential"], simulate=exponential_with_the_bounds_of_the_truth
)


def release(
    rng, simulated: Simulated, epsilon: float, num_records: int, factor: float = 1.0
) -> list[na.Release]:
    """Each sum with Laplace noise; the noise is simulated, for there is nobody to protect. The
    release says that it is ``factor`` times as large as it is.
    """
    found = []
    for total, statistic in zip(simulated.totals, simulated.statistics, strict=True):
        noise = na.calibrate(na.Laplace, statistic, neighbours="replace", epsilon=epsilon)
        values = total + rng.laplace(scale=noise.scale, size=total.shape)
        found.append(
            na.Release(
                values, statistic, noise.with_spread(factor * noise.spread()),
                neighbours="replace", num_records=num_records, noise="simulated",
            )
        )  # fmt: skip
    return found


def draws_of(problem: Problem, releases, method: str, seed: int) -> np.ndarray:
    """Nearly independent draws of all params ``[draw, set, d]``: of those that ``fit_many`` has
    spaced by their sweeps, every fourth.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", na.ConvergenceWarning)  # few draws on purpose
        draws = na.fit_many(
            releases, problem.model, seed=seed, method=method, chains=CHAINS, draws=DRAWS,
            progress=False,
        )  # fmt: skip
    values = draws.posterior[problem.param].values
    values = values.reshape(*values.shape[:2], len(releases), -1)
    return thinned(values, np.full(len(releases), SHARE_KEPT * CHAINS * DRAWS))


def chains_of_sums(
    problem: Problem, releases, seed: int, burn_in: int, sweeps_per_draw: int, num_draws: int
) -> np.ndarray:
    """Draws of all params ``[draw, set, d]`` of the kernel itself, a chain a release, from a draw
    of the prior. Releases have one statistic, noise and n.
    """
    first, values = releases[0], np.array([each.values for each in releases])
    with jax.enable_x64(True):
        keys = jr.split(jr.key(seed), len(releases))
        numbers = map(np.asarray, (float(first.num_records), burn_in, sweeps_per_draw))
        drawn = _chains(
            keys, values, problem.model, first.statistic, first.mechanism, *numbers, num_draws
        )
        drawn = np.asarray(drawn[problem.param])
    return np.moveaxis(drawn.reshape(*drawn.shape[:2], -1), 1, 0)


@eqx.filter_jit
def _chains(
    keys, values, model, statistic, mechanism, num_records, burn_in, sweeps_per_draw, num_draws
):
    law = functools.partial(
        statistic_gibbs.sum_law, model=model, contribution=statistic, bounds=statistic.bounds
    )

    def chain(key, released):
        key_start, key_burn, key_draws = jr.split(key, 3)

        def sweeps(key, state, count):
            def sweep(index, state):
                return statistic_gibbs.step(
                    jr.fold_in(key, index),
                    state,
                    model=model,
                    num_records=num_records,
                    released=released,
                    law=law,
                    sample_variances=mechanism.sample_variances,
                    log_density=functools.partial(mechanism.log_density, released),
                )[0]

            return jax.lax.fori_loop(0, count, sweep, state)

        start = statistic_gibbs.init(
            model.sample_prior(key_start), num_records=num_records, law=law, size=len(released)
        )
        start = sweeps(key_burn, start, burn_in)

        def draw(state, key):
            return sweeps(key, state, sweeps_per_draw), state.params

        return jax.lax.scan(draw, start, jr.split(key_draws, num_draws))[1]

    return jax.lax.map(lambda of: chain(*of), (keys, values), batch_size=LANES)


def naive_sums(rng, problem: Problem, simulated: Simulated, releases, num_records) -> np.ndarray:
    """The noisy sums as if they had no noise. Where records were left out, cheating: the whole sum
    with noise of the same scale.
    """
    noisy = np.array([each.values for each in releases])
    if isinstance(simulated.statistics[0], na.Redacted):
        scales = np.array([float(each.mechanism.scale) for each in releases])[:, None]
        noisy = simulated.sums + rng.laplace(scale=scales)
    return problem.possible(noisy, num_records)


def one_posterior_ranks(rng, simulated: Simulated, epsilon: float, num_records: int) -> np.ndarray:
    """Of the truth among private draws; binomial."""
    low, high = PRIVATE_RANGE
    weight = epsilon / NUM_PRIVATE_DRAWS / (2 * np.log(high / low))
    ones = simulated.sums[:, 0]
    law = stats.beta(1 + weight * (9 + ones), 1 + weight * (9 + num_records - ones))
    start, end = law.cdf(low), law.cdf(high)
    uniform = rng.uniform(size=(NUM_PRIVATE_DRAWS, len(ones)))
    return ranks(law.ppf(start + (end - start) * uniform), simulated.truth, rng)


def sweeps_to_forget(problem: Problem, noisy: na.Release) -> int:
    """Until the correlation of two draws falls below MAX_CORRELATION. A sweep multiplies it by the
    share ``n / (n + n_0)`` that S has of params given S, n_0 being the records that the prior is
    worth, times the share of S's variance that the release leaves; and the variances of the noise
    have a memory of their own, hence MIN_SPACING.
    """
    statistic, model = noisy.statistic, problem.model
    with jax.enable_x64(True):
        params = {problem.param: jnp.asarray(problem.prior_mean)}
        law = statistic_gibbs.sum_law(
            params, model=model, contribution=statistic, bounds=statistic.bounds
        )
        covariance = noisy.num_records * np.asarray(law.factor @ law.factor.T)
    size = len(noisy.values)
    noise = 2 * np.square(noisy.mechanism.spread()) * np.eye(size)
    gain = np.linalg.solve(covariance[:size, :size] + noise, covariance[:size, size])
    left = 1 - gain @ covariance[:size, size] / covariance[size, size]
    kept = left * noisy.num_records / (noisy.num_records + problem.prior_size)
    spacing = int(np.ceil(np.log(MAX_CORRELATION) / np.log(kept)))
    if statistic.bounds is not None:  # near a maximum of E[T], which says little of params there
        spacing = max(spacing, noisy.num_records // 5)
    return max(min(MIN_SPACING, noisy.num_records), spacing)


class Cell(NamedTuple):
    """Calibration of one model at one n and epsilon, and how much of the prior's sd the posterior
    has on average: near 1, a release says so little that any method passes.
    """

    ours: Uniformity
    naive: Uniformity
    contraction: float


def calibration_cell(
    name: str, num_records: int, epsilon: float, num_sets: int, seed: int, factor: float = 1.0
) -> Cell:
    problem = PROBLEMS[name]
    rng = np.random.default_rng([seed, num_records, int(1e3 * epsilon)])
    simulated = problem.simulate(rng, num_sets, num_records)
    releases = release(rng, simulated, epsilon, num_records, factor)
    naive = naive_sums(rng, problem, simulated, releases, num_records)
    naive_ranks = problem.posterior(naive, num_records).cdf(simulated.truth)
    spacing = sweeps_to_forget(problem, releases[0])
    draws = chains_of_sums(problem, releases, seed, 100 + spacing, spacing, NUM_RANKED)[..., 0]
    return Cell(
        uniformity(ranks(draws, simulated.truth, rng)),
        uniformity(np.clip(naive_ranks, 1e-12, 1 - 1e-12)),
        float(np.sqrt(np.mean(np.var(draws, axis=0, ddof=1)) / np.var(simulated.truth))),
    )
