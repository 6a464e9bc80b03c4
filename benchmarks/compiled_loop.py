"""The compiled loop of a fit, apart from the rest of it: the only file here that calls it.

``Regressions`` is the regression of [JAGR22, Section 5] at any size, started at the true records.
"""

import functools
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import noiseaware as na
from benchmarks.regression_loop import Regression
from noiseaware import chains
from noiseaware.convergence import bulk_ess
from noiseaware.elliptical_slice import Shape
from noiseaware.journeys import Run, Settings, run_one
from noiseaware.running import Checkpoint, progress_bar
from noiseaware.samplers import layout, record_augmentation
from noiseaware.samplers.proposals import from_model
from noiseaware.warming import learn_shape

RECORDS_AT_ONCE = 2**20
NUM_STAND_INS = 2  # segments: what warm-up chooses from 10^4 records on, at epsilon = 1
UPDATES_TIMED = 4_000_000
DRAWN_RECORDS = 40_000_000


class Regressions(NamedTuple):
    """So many chains of one regression, released at ``epsilon``."""

    num_records: int
    num_chains: int = 1
    epsilon: float = 1.0
    num_predictors: int = 2

    @property
    def coefficients(self) -> np.ndarray:
        """The paper's three, repeated where there are more predictors."""
        return np.resize([-1.795, -2.889, -0.662], self.num_predictors + 1)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"x{k}" for k in range(1, self.num_predictors + 1))

    @property
    def model(self) -> na.LinearRegression:
        return na.LinearRegression(
            "y",
            self.names,
            coefficients=na.NormalPrior(0.0, Regression.prior_stddev),
            noise_stddev=Regression.noise_stddev,
            predictor_means=np.resize(Regression.means, self.num_predictors),
            predictor_covariance=np.eye(self.num_predictors),
        )

    @property
    def statistic(self) -> na.RegressionMoments:
        return na.RegressionMoments("y", self.names, dict.fromkeys((*self.names, "y"), (-10, 10)))

    def state(self) -> record_augmentation.RecordAugmentationState:
        """Of one chain: the true params, and records of theirs."""
        init = functools.partial(
            record_augmentation.init, model=self.model, num_records=self.num_records
        )
        return jax.jit(init)(jr.key(0), {"coefficients": jnp.asarray(self.coefficients)})

    def states(self, state: record_augmentation.RecordAugmentationState):
        """The same in every chain."""
        shape = (self.num_chains,)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, shape + x.shape), state)

    def problem(self, state: record_augmentation.RecordAugmentationState) -> chains.Problem:
        mechanism = na.Laplace(self.statistic.jagr22_sensitivity_l1() / self.epsilon)
        total_of = functools.partial(layout.total_of, self.statistic, size=RECORDS_AT_ONCE)
        total = np.asarray(jax.jit(total_of)(state.records))
        noise = np.random.default_rng(0).laplace(scale=mechanism.scale, size=len(total))
        return chains.Problem(self.model, self.statistic, mechanism, total + noise, from_model)

    def layout(self, problem: chains.Problem) -> layout.Layout:
        """What a fit would choose."""
        prior = jax.vmap(self.model.sample_prior)(jr.split(jr.key(1), chains.NUM_CANDIDATES))
        variance = chains.swap_variance(jr.key(2), problem, prior, self.num_records)
        is_gpu = jax.default_backend() != "cpu"
        size, num_sums = self.num_records, len(problem.released)
        return layout.choose(is_gpu, size, num_sums, self.num_chains, float(variance))

    def shape(self, problem: chains.Problem) -> Shape:
        """Of the posterior to first order, which is what warm-up learns.

        With ``n mu(theta)`` and ``n V`` the mean and covariance of T, J = d mu / d theta, noise of
        variance 2 b^2 and prior precision P: ``(P + n^2 J' (n V + 2 b^2)^-1 J)^-1``.
        """
        noise = self.model.sample_noise(jr.key(3), 10_000)

        def contributions(coefficients):
            records = self.model.records({"coefficients": coefficients}, noise)
            return jax.vmap(self.statistic)(records)

        at = jnp.asarray(self.coefficients)
        slopes = jax.jacobian(lambda at: jnp.mean(contributions(at), axis=0))(at)
        n, scale = self.num_records, problem.mechanism.scale
        spread = n * jnp.cov(contributions(at), rowvar=False) + 2 * scale**2 * jnp.eye(len(slopes))
        precision = n**2 * slopes.T @ jnp.linalg.solve(spread, slopes)
        precision += jnp.eye(len(at)) / Regression.prior_stddev**2
        return Shape(at, jnp.linalg.cholesky(jnp.linalg.inv(precision)))


def nanoseconds(kernel: str, regressions: Regressions) -> tuple[float, float]:
    """(per record update, acceptance rate) of one iteration of the kernel, tuned as in a fit.

    From the difference between a draw of many iterations and a draw of one: what a draw costs
    beside its iterations, and the call itself, is left out. The best of three.
    """
    with jax.enable_x64(True):
        state = regressions.state()
        problem = regressions.problem(state)
        states = regressions.states(state)
        chunk = functools.partial(
            chains.run_chunk, jr.split(jr.key(4), regressions.num_chains)[None],
            problems=chains.stack([problem]), kernel=kernel, layout=regressions.layout(problem),
            capacity=1,
        )  # fmt: skip
        states = jax.tree.map(lambda x: x[None], states)
        shape = jax.tree.map(lambda x: x[None], regressions.shape(problem))

        def seconds(num_iterations: int, states):
            tuning = chains.Tuning(shape, *map(np.asarray, (num_iterations, NUM_STAND_INS, True)))
            begin = time.perf_counter()
            states, drawn = chunk(states, tuning, np.asarray(0), np.asarray(1))
            rate = float(jnp.mean(drawn.acceptance_rate))
            return time.perf_counter() - begin, rate, states

        *_, states = seconds(1, states)  # compiles
        updates = regressions.num_records * regressions.num_chains
        more = max(2, UPDATES_TIMED // updates)
        few = min(seconds(1, states)[0] for _ in range(3))
        timed = [seconds(1 + more, states) for _ in range(3)]
        best = min(elapsed for elapsed, *_ in timed)
    return (best - few) / (more * updates) * 1e9, timed[0][1]


def interweaved_ess_per_second(regressions: Regressions, has_stand_ins: bool) -> float:
    """Smallest bulk ESS of a second of iterations, one a draw, after a tenth of them."""
    with jax.enable_x64(True):
        state = regressions.state()
        problem = regressions.problem(state)
        shape = regressions.layout(problem)
        if not has_stand_ins:  # one segment of all records: the exact branch
            shape = shape._replace(stand_in_size=regressions.num_records)
        states = jax.tree.map(lambda x: x[None], regressions.states(state))
        move = jax.tree.map(lambda x: x[None], regressions.shape(problem))
        tuning = chains.Tuning(move, *map(np.asarray, (1, NUM_STAND_INS, True)))
        count = int(np.clip(DRAWN_RECORDS // regressions.num_records, 200, 2_000))
        chunk = functools.partial(
            chains.run_chunk, jr.split(jr.key(4), regressions.num_chains)[None],
            problems=chains.stack([problem]), kernel="interweaving", layout=shape, capacity=count,
        )  # fmt: skip
        states, drawn = chunk(states, tuning, np.asarray(0), np.asarray(count // 10))  # compiles
        jax.block_until_ready(drawn)
        begin = time.perf_counter()
        _, drawn = chunk(states, tuning, np.asarray(count), np.asarray(count))
        free = np.asarray(drawn.free)[0]
    return float(np.min(bulk_ess(free))) / (time.perf_counter() - begin)


def plain_chains(release: na.Release, model: na.Model, num_draws: int, sweeps_per_draw: int):
    """(ESS per chain-sweep, seconds per chain-sweep) of the compiled plain sweep."""
    problem = chains.Problem(
        model, release.statistic, release.mechanism, release.values, from_model
    )
    num_records, num_chains = release.num_records, 4
    with jax.enable_x64(True):
        key = jr.key(0)
        problems = chains.stack([problem])
        begun = chains.start(
            key[None], problems, None, num_records, num_chains, "record_augmentation"
        )
        states, shape = begun.states, learn_shape(np.asarray(begun.free))
        laid_out = layout.choose(
            False, num_records, len(release.values), num_chains, np.nan, num_chains
        )
        keys = jr.split(key, num_chains)[None]
        seconds, free = [], []
        for index in range(12):
            begin = time.perf_counter()
            count = num_draws // 10
            tuning = chains.Tuning(shape, *map(np.asarray, (sweeps_per_draw, 1, True)))
            states, drawn = chains.run_chunk(
                keys, states, tuning, np.asarray(index * count), np.asarray(count),
                problems=problems, kernel="record_augmentation", layout=laid_out, capacity=count,
            )  # fmt: skip
            free.append(np.asarray(drawn.free)[0])
            seconds.append(time.perf_counter() - begin)
    kept = np.concatenate(free[2:], axis=1)  # the first two warm up, and the first compiles
    num_sweeps = num_chains * kept.shape[1] * sweeps_per_draw
    per_chunk = num_sweeps / 10
    return float(np.min(bulk_ess(kept))) / num_sweeps, min(seconds[2:]) / per_chunk


def fitted(
    problem: chains.Problem, num_records: int, num_chains: int, num_draws: int, checkpoint: Path
) -> Run:
    """A whole fit without ArviZ: after Ctrl-C, what was drawn until then."""
    with progress_bar(False) as bar:
        settings = Settings("interweaving", num_records, num_chains, num_draws)
        return run_one(jr.key(0), problem, settings, bar, Checkpoint(checkpoint))
