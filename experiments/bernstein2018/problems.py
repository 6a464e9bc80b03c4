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
PART = 1000  # releases in a call
NUM_CANDIDATES, NUM_RANKED = 100, 9
MAX_CORRELATION, MIN_SWEEPS, MORE_SWEEPS = 0.25, 30, 120


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
        if not statistics or (statistics[-1].lower, statistics[-1].upper) != (low, high):
            statistic = na.Redacted("x", low, high, ("x",))
        statistics.append(statistic)
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


class Noisy(NamedTuple):
    """Sums with Laplace noise ``[set, m]``, the noise simulated, for there is nobody to protect;
    and the mechanism of each.
    """

    values: np.ndarray
    mechanisms: list[na.Laplace]

    @property
    def scales(self) -> np.ndarray:
        return np.array([float(each.scale) for each in self.mechanisms])[:, None]


def add_noise(rng, simulated: Simulated, epsilon: float) -> Noisy:
    mechanisms: list[na.Laplace] = []
    for index, statistic in enumerate(simulated.statistics):
        if index == 0 or statistic is not simulated.statistics[index - 1]:
            mechanism = na.calibrate(na.Laplace, statistic, neighbours="replace", epsilon=epsilon)
        mechanisms.append(mechanism)
    noisy = Noisy(simulated.totals, mechanisms)
    noise = rng.laplace(scale=noisy.scales, size=simulated.totals.shape)
    return noisy._replace(values=simulated.totals + noise)


def as_releases(
    simulated: Simulated, noisy: Noisy, num_records: int, factor: float = 1.0, count=None
) -> list[na.Release]:
    """The first so many, as releases that say that their noise is ``factor`` times as large."""
    return [
        na.Release(
            values, statistic, mechanism.with_spread(factor * mechanism.spread()),
            neighbours="replace", num_records=num_records, noise="simulated",
        )
        for values, statistic, mechanism in zip(
            noisy.values[:count], simulated.statistics[:count], noisy.mechanisms[:count],
            strict=True,
        )
    ]  # fmt: skip


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


class Runs(NamedTuple):
    """Of each release: so many chains, from those of so many draws of the prior that explain it
    best, and of each chain some draws, the first after ``burn_in`` sweeps.
    """

    num_candidates: int
    num_chains: int
    num_draws: int
    burn_in: int
    sweeps_per_draw: int = 1


def chains_of_sums(
    problem: Problem, releases: list[na.Release], seed: int, runs: Runs
) -> np.ndarray:
    """Draws of all params ``[draw, chain, set, d]`` of the kernel itself, given each release."""
    values = np.stack([release.values for release in releases])
    statistics, mechanisms = (
        jax.tree.map(lambda *leaves: np.stack(leaves), *parts)
        for parts in zip(*((release.statistic, release.mechanism) for release in releases))
    )
    with jax.enable_x64(True):
        keys = jr.split(jr.key(seed), len(values))
        counts = float(releases[0].num_records), runs.burn_in, runs.sweeps_per_draw
        fixed = (problem.model, *map(np.asarray, counts), *runs[:3])
        # In parts of one size, the last filled up: one compilation for any number of sets.
        size = min(PART, len(values))
        numbered = np.arange(-(-len(values) // size) * size) % len(values)
        parts = [
            np.asarray(
                _chains(
                    keys[part],
                    values[part],
                    *jax.tree.map(lambda leaf, part=part: leaf[part], (statistics, mechanisms)),
                    *fixed,
                )[problem.param]
            )
            for part in np.split(numbered, len(numbered) // size)
        ]
        drawn = np.concatenate(parts)[: len(values)]
    return np.moveaxis(drawn.reshape(*drawn.shape[:3], -1), 0, 2)


@eqx.filter_jit
def _chains(
    keys, values, statistics, mechanisms, model, num_records, burn_in, sweeps_per_draw,
    num_candidates, num_chains, num_draws,
):  # fmt: skip
    def starts(key, released, law, mechanism):
        key_prior, key_choice = jr.split(key)
        prior = jax.vmap(model.sample_prior)(jr.split(key_prior, num_candidates))
        log_likelihoods = jax.vmap(
            lambda params: statistic_gibbs.log_likelihood(
                law(params), num_records, released, mechanism.spread()
            )
        )(prior)
        chosen = statistic_gibbs.choose_starts(key_choice, log_likelihoods, num_chains)
        return jax.tree.map(lambda draws: draws[chosen], prior)

    def chain(key, params, released, law, mechanism):
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

        def draw(state, key):
            return sweeps(key, state, sweeps_per_draw), state.params

        key_burn, key_draws = jr.split(key)
        start = statistic_gibbs.init(params, num_records=num_records, law=law, size=len(released))
        start = sweeps(key_burn, start, burn_in)
        return jax.lax.scan(draw, start, jr.split(key_draws, num_draws))[1]

    def of_release(key, released, statistic, mechanism):
        law = functools.partial(
            statistic_gibbs.sum_law, model=model, contribution=statistic, bounds=statistic.bounds
        )
        key_starts, key_chains = jr.split(key)
        drawn = jax.vmap(lambda key, params: chain(key, params, released, law, mechanism))(
            jr.split(key_chains, num_chains), starts(key_starts, released, law, mechanism)
        )
        return jax.tree.map(lambda values: jnp.swapaxes(values, 0, 1), drawn)

    size = max(1, LANES // num_chains)
    return jax.lax.map(
        lambda of: of_release(*of), (keys, values, statistics, mechanisms), batch_size=size
    )


def naive_sums(rng, problem: Problem, simulated: Simulated, noisy: Noisy, num_records: int):
    """The noisy sums as if they had no noise. Where records were left out, cheating: the whole sum
    with noise of the same scale.
    """
    sums = noisy.values
    if isinstance(simulated.statistics[0], na.Redacted):
        sums = simulated.sums + rng.laplace(scale=noisy.scales)
    return problem.possible(sums, num_records)


def one_posterior_ranks(rng, simulated: Simulated, epsilon: float, num_records: int) -> np.ndarray:
    """Of the truth among private draws; binomial."""
    low, high = PRIVATE_RANGE
    weight = epsilon / NUM_PRIVATE_DRAWS / (2 * np.log(high / low))
    ones = simulated.sums[:, 0]
    law = stats.beta(1 + weight * (9 + ones), 1 + weight * (9 + num_records - ones))
    start, end = law.cdf(low), law.cdf(high)
    uniform = rng.uniform(size=(NUM_PRIVATE_DRAWS, len(ones)))
    return ranks(law.ppf(start + (end - start) * uniform), simulated.truth, rng)


def sweeps_to_forget(problem: Problem, release: na.Release) -> int:
    """Until the correlation with a start falls below MAX_CORRELATION. A sweep multiplies it by the
    share ``n / (n + n_0)`` that S has of params given S, n_0 being the records that the prior is
    worth, times the share of S's variance that the release leaves; and the variances of the noise
    have a memory of their own, longest where noise and sums vary alike: hence MIN_SWEEPS, and up to
    MORE_SWEEPS.
    """
    statistic, model = release.statistic, problem.model
    with jax.enable_x64(True):
        params = {problem.param: jnp.asarray(problem.prior_mean)}
        law = statistic_gibbs.sum_law(
            params, model=model, contribution=statistic, bounds=statistic.bounds
        )
        covariance = release.num_records * np.asarray(law.factor @ law.factor.T)
    size = len(release.values)
    noise = 2 * np.square(release.mechanism.spread()) * np.eye(size)
    gain = np.linalg.solve(covariance[:size, :size] + noise, covariance[:size, size])
    left = 1 - gain @ covariance[:size, size] / covariance[size, size]
    kept = left * release.num_records / (release.num_records + problem.prior_size)
    of_noise = MIN_SWEEPS + MORE_SWEEPS * 4 * left * (1 - left)
    return int(np.ceil(max(of_noise, np.log(MAX_CORRELATION) / np.log(kept))))


def independent_draws(problem: Problem, releases: list[na.Release], seed: int) -> np.ndarray:
    """Of the param of interest ``[draw, set]``, each by a chain of its own."""
    runs = Runs(NUM_CANDIDATES, NUM_RANKED, 1, sweeps_to_forget(problem, releases[0]))
    return chains_of_sums(problem, releases, seed, runs)[0, ..., 0]


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
    noisy = add_noise(rng, simulated, epsilon)
    naive = naive_sums(rng, problem, simulated, noisy, num_records)
    naive_ranks = problem.posterior(naive, num_records).cdf(simulated.truth)
    draws = independent_draws(problem, as_releases(simulated, noisy, num_records, factor), seed)
    return Cell(
        uniformity(ranks(draws, simulated.truth, rng)),
        uniformity(np.clip(naive_ranks, 1e-12, 1 - 1e-12)),
        float(np.sqrt(np.mean(np.var(draws, axis=0, ddof=1)) / np.var(simulated.truth))),
    )
