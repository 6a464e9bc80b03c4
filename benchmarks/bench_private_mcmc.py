"""Iterations a second of the penalty walk at n = 100,000 in 2 dimensions: ours, against a loop over
un-jitted JAX and one over NumPy of the same step, both in float64 over columns; and 20 chains over
one.

The loops make no whole numbers and take their noise from NumPy: they do less than ours.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from experiments.raisa2021.problems import PROBLEMS, Banana, Problem

import noiseaware as na

BUDGET = na.GDP(100.0, "replace")


def run(quick: bool) -> dict[str, float]:
    problem = PROBLEMS["flat-2"]
    records = problem.simulate(0)
    iterations, repeats = (512, 2) if quick else (2048, 5)
    ours, twenty, numpy_loop, unjitted = [], [], [], []
    for _ in range(repeats + 1):
        ours.append(seconds_of_ours(problem, records, iterations, chains=1) / iterations)
        few, fewer = iterations // 8, iterations // 32
        twenty.append(seconds_of_ours(problem, records, few, chains=20) / few)
        numpy_loop.append(seconds_of_loop(problem, records, few, np) / few)
        unjitted.append(seconds_of_unjitted(problem, records, fewer) / fewer)
    # The first of each compiles.
    one, many, plain, eager = (min(times[1:]) for times in (ours, twenty, numpy_loop, unjitted))
    return {
        "private_mcmc.iterations_per_second": 1 / one,
        "private_mcmc.speedup_over_numpy": plain / one,
        "private_mcmc.speedup_over_unjitted": eager / one,
        "private_mcmc.cost_ratio_20_chains": many / one,
    }


def seconds_of_ours(problem: Problem, records, iterations: int, chains: int) -> float:
    """Of a simulated run, its checks and container included, less those of a run of one chunk."""
    times = []
    for count in (256, 256 + iterations):
        begin = time.perf_counter()
        na.private_sample(
            records, problem.model, problem.samplers()["penalty"], BUDGET, seed=0,
            start={"theta": problem.centre}, chains=chains, iterations=count, progress=False,
        )  # fmt: skip
        times.append(time.perf_counter() - begin)
    return times[1] - times[0]


def seconds_of_unjitted(problem: Problem, records, iterations: int) -> float:
    with jax.enable_x64(True):
        columns = jax.tree.map(jnp.asarray, records)
        return seconds_of_loop(problem, columns, iterations, jnp)


def seconds_of_loop(problem: Problem, records, iterations: int, xp) -> float:
    model = problem.model
    assert isinstance(model, Banana)
    rng = np.random.default_rng(0)
    tau, step, clip = problem.penalty
    multiplier = tau * np.sqrt(problem.num_records)
    weights = np.diagonal(model.whitening) ** 2 / 2
    theta = problem.centre.copy()

    def log_records(theta):
        u2 = theta[1] + model.curvature * theta[0] ** 2
        first, second = (records["x1"] - theta[0]) ** 2, (records["x2"] - u2) ** 2
        return -weights[0] * first - weights[1] * second

    def log_prior(theta):
        u2 = theta[1] + model.curvature * theta[0] ** 2
        return -(theta[0] ** 2 + u2**2) / (2 * model.prior_variance)

    begin = time.perf_counter()
    for _ in range(iterations):
        proposal = theta + step * rng.standard_normal(2)
        bound = clip * np.linalg.norm(proposal - theta)
        ratios = xp.clip(log_records(proposal) - log_records(theta), -bound, bound)
        stddev = 2 * multiplier * bound
        log_ratio = float(xp.sum(ratios)) + stddev * rng.standard_normal()
        log_ratio += log_prior(proposal) - log_prior(theta)
        if np.log(rng.uniform()) < log_ratio - stddev**2 / 2:
            theta = proposal
    return time.perf_counter() - begin
