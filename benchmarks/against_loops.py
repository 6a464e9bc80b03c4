"""Compare a fit with hand-written loops of Algorithm 1: time a sweep, and effective draws a second.

The loops' effective size per sweep is that of our compiled plain sweep, which is the same kernel
(``tests/test_benchmarks.py``): the loops themselves would take hours. Their seconds per sweep are
their own. Ratios are geometric means over releases.
"""

import time
import warnings

import jax
import numpy as np

import noiseaware as na
from noiseaware import chains
from noiseaware.convergence import bulk_ess
from noiseaware.samplers.proposals import from_model
from noiseaware.warming import learn_shape

NUM_RECORDS, NUM_CHAINS = 100, 4
EPSILONS = (0.1, 1.0, 10.0)


def seconds_per_sweep(sweep, records, released, scale, num_sweeps: int) -> float:
    rng = np.random.default_rng(0)
    sweep(rng, records.copy(), released, scale)
    best = np.inf
    for _ in range(3):
        current = records.copy()
        begin = time.perf_counter()
        for _ in range(num_sweeps):
            sweep(rng, current, released, scale)
        best = min(best, (time.perf_counter() - begin) / num_sweeps)
    return best


def plain_chains(release: na.Release, model: na.Model, num_draws: int, sweeps_per_draw: int):
    """(ESS per chain-sweep, seconds per chain-sweep) of the compiled plain sweep."""
    problem = chains.Problem(
        model, release.statistic, release.mechanism, release.values, from_model
    )
    with jax.enable_x64(True):
        key = jax.random.key(0)
        problems = chains.stack([problem])
        begun = chains.start(key[None], problems, None, NUM_RECORDS, NUM_CHAINS)
        states, shape = begun.states, learn_shape(np.asarray(begun.free))
        keys = jax.random.split(key, NUM_CHAINS)[None]
        seconds, free = [], []
        for index in range(12):
            begin = time.perf_counter()
            count = num_draws // 10
            tuning = chains.Tuning(shape, *map(np.asarray, (sweeps_per_draw, 1, True)))
            states, drawn = chains.run_chunk(
                keys, states, tuning, np.asarray(index * count), np.asarray(count),
                problems=problems, kernel="record_augmentation", capacity=count,
            )  # fmt: skip
            free.append(np.asarray(drawn.free)[0])
            seconds.append(time.perf_counter() - begin)
    kept = np.concatenate(free[2:], axis=1)  # the first two warm up, and the first compiles
    num_sweeps = NUM_CHAINS * kept.shape[1] * sweeps_per_draw
    per_chunk = num_sweeps / 10
    return float(np.min(bulk_ess(kept))) / num_sweeps, min(seconds[2:]) / per_chunk


def ess_per_second(release: na.Release, model: na.Model, num_draws: int) -> float:
    """Of a default fit, compilation and warm-up excluded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", na.ConvergenceWarning)
        draws = na.fit(release, model, seed=0, chains=NUM_CHAINS, draws=num_draws, progress=False)
    return na.summarize(draws)["ess_bulk"].min() / draws.attrs["sampling_seconds"]


def compare(name: str, problem_at, loops, quick: bool) -> dict[str, float]:
    """``problem_at(epsilon, seed) -> (release, model, records for the loop)``."""
    found: dict[str, float] = {}
    num_seeds, num_draws, num_plain_draws = (1, 100, 200) if quick else (5, 1_000, 5_000)
    for epsilon in EPSILONS:
        ratios = {loop: [] for loop in loops}
        for seed in range(num_seeds):
            release, model, records = problem_at(epsilon, seed)
            scale = float(release.mechanism.scale)
            ours = ess_per_second(release, model, num_draws)
            plain_ess, plain_seconds = plain_chains(release, model, num_plain_draws, 10)
            for loop, sweep in loops.items():
                loop_seconds = seconds_per_sweep(sweep, records, release.values, scale, 20)
                ratios[loop].append((ours * loop_seconds / plain_ess, loop_seconds / plain_seconds))
                found[f"{name}.{loop}_ms_per_sweep"] = loop_seconds * 1e3
            found[f"{name}.plain_us_per_sweep"] = plain_seconds * 1e6
        for loop, suffix in zip(loops, ("", "_vs_vectorised"), strict=True):
            ess, sweep = np.exp(np.mean(np.log(ratios[loop]), axis=0))
            found[f"{name}.ess_speedup{suffix}.eps{epsilon:g}"] = float(ess)
            found[f"{name}.sweep_speedup{suffix}"] = float(sweep)
    return found
