"""Compare a fit with hand-written loops of Algorithm 1: time a sweep, and effective draws a second.

The loops' effective size per sweep is that of our compiled plain sweep, which is the same kernel
(``tests/test_benchmarks.py``): the loops themselves would take hours. Their seconds per sweep are
their own. Ratios are geometric means over releases.
"""

import time
import warnings

import numpy as np

import noiseaware as na
from benchmarks.compiled_loop import plain_chains
from noiseaware.samplers.proposals import Proposal

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


def ess_per_second(
    release: na.Release, model: na.Model, num_draws: int, proposal: Proposal | None = None
) -> float:
    """Of a default fit, compilation and warm-up excluded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", na.ConvergenceWarning)
        draws = na.fit(
            release, model, seed=0, chains=NUM_CHAINS, draws=num_draws, proposal=proposal,
            progress=False,
        )  # fmt: skip
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
