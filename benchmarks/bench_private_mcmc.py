"""Iterations a second of the penalty walk at n = 100,000 in 2 dimensions: ours, against a loop over
un-jitted JAX and one over NumPy of the same step, both in float64 over columns; and 20 chains over
one.

The loops make no whole numbers, and hide nothing from their caller: they do less than ours.
"""

import time
import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from experiments.raisa2021.problems import PROBLEMS, Banana, Problem

import noiseaware as na

BUDGET = na.GDP(100.0, "replace")


def run(quick: bool) -> dict[str, float]:
    problem = PROBLEMS["flat-2"]
    records = problem.simulate(0)
    iterations, repeats = (512, 2) if quick else (2048, 5)
    ours, twenty, numpy_loop, unjitted, mixed = [], [], [], [], []
    for _ in range(repeats + 1):
        ours.append(seconds_of_ours(problem, records, iterations, chains=1) / iterations)
        few, fewer = iterations // 8, iterations // 32
        twenty.append(seconds_of_ours(problem, records, few, chains=20) / few)
        numpy_loop.append(seconds_of_numpy(problem, records, few) / few)
        unjitted.append(seconds_of_unjitted(problem, records, fewer) / fewer)
        mixed.append(seconds_of_mixed(problem, records, few) / few)
    # The first of each compiles.
    one, many, plain, eager, half = (
        min(times[1:]) for times in (ours, twenty, numpy_loop, unjitted, mixed)
    )
    return {
        "private_mcmc.iterations_per_second": 1 / one,
        "private_mcmc.speedup_over_numpy": plain / one,
        "private_mcmc.speedup_over_unjitted": eager / one,
        "private_mcmc.speedup_over_unjitted_records": half / one,
        "private_mcmc.cost_ratio_20_chains": many / one,
    }


def seconds_of_ours(problem: Problem, records, iterations: int, chains: int) -> float:
    """Of a simulated run, its checks and container included, less those of a run of one chunk."""
    times = []
    for count in (256, 256 + iterations):
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", na.ConvergenceWarning)  # only its time counts
            na.private_sample(
                records, problem.model, problem.samplers()["penalty"], BUDGET, seed=0,
                start={"theta": problem.centre}, chains=chains, iterations=count, progress=False,
            )  # fmt: skip
        times.append(time.perf_counter() - begin)
    return times[1] - times[0]


def seconds_of_unjitted(problem: Problem, records, iterations: int) -> float:
    """All of the step in JAX, random numbers too, as one would write it before ``jit``."""
    with jax.enable_x64(True):
        columns = jax.tree.map(jnp.asarray, records)
        step, theta = (
            plain_step(problem, columns, jnp, jnp.clip, jnp.sum),
            jnp.asarray(problem.centre),
        )
        key = jr.key(0)
        begin = time.perf_counter()
        for _ in range(iterations):
            key, key_step, key_noise, key_uniform = jr.split(key, 4)
            theta = step(
                theta, jr.normal(key_step, (2,)), jr.normal(key_noise), jr.uniform(key_uniform)
            )
        jax.block_until_ready(theta)
        return time.perf_counter() - begin


def seconds_of_mixed(problem: Problem, records, iterations: int) -> float:
    """Only what has n entries in JAX, the rest in NumPy."""
    with jax.enable_x64(True):
        columns = jax.tree.map(jnp.asarray, records)
        return seconds_of_numpy(problem, columns, iterations, jnp.clip, jnp.sum)


def seconds_of_numpy(
    problem: Problem, records, iterations: int, clip=np.clip, total=np.sum
) -> float:
    step, theta = plain_step(problem, records, np, clip, total), problem.centre.copy()
    rng = np.random.default_rng(0)
    begin = time.perf_counter()
    for _ in range(iterations):
        theta = step(theta, rng.standard_normal(2), rng.standard_normal(), rng.uniform())
    return time.perf_counter() - begin


def plain_step(problem: Problem, records, xp, clip_each, total):
    """Of the penalty walk, with the arrays of NumPy or of JAX; ``clip_each`` and ``total`` are for
    those of n entries.
    """
    model = problem.model
    assert isinstance(model, Banana)
    tau, step_size, clip = problem.penalty
    multiplier = tau * np.sqrt(problem.num_records)
    weights = np.diagonal(model.whitening) ** 2 / 2
    curvature, prior_variance = float(model.curvature), float(model.prior_variance)

    def log_records(theta):
        u2 = theta[1] + curvature * theta[0] ** 2
        first, second = (records["x1"] - theta[0]) ** 2, (records["x2"] - u2) ** 2
        return -weights[0] * first - weights[1] * second

    def log_prior(theta):
        u2 = theta[1] + curvature * theta[0] ** 2
        return -(theta[0] ** 2 + u2**2) / (2 * prior_variance)

    def step(theta, normals, noise, uniform):
        proposal = theta + step_size * normals
        bound = clip * xp.linalg.norm(proposal - theta)
        ratios = clip_each(log_records(proposal) - log_records(theta), -bound, bound)
        stddev = 2 * multiplier * bound
        log_ratio = total(ratios) + stddev * noise + log_prior(proposal) - log_prior(theta)
        return xp.where(xp.log(uniform) < log_ratio - stddev**2 / 2, proposal, theta)

    return step
