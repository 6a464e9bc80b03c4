"""Against the fastest loop that a user could write by hand: Algorithm 1 in numba, n = 100.

Ours is a default fit, compilation and warm-up excluded; the loop's effective size per sweep and
its seconds per sweep are its own, of one run. Ratios are geometric means over releases.
"""

import time

import numpy as np

from benchmarks.against_loops import ess_per_second
from benchmarks.bench_regression import problem_at
from benchmarks.compiled_loop import plain_chains
from benchmarks.regression_numba import chain
from noiseaware.convergence import bulk_ess

EPSILONS = (0.1, 1.0, 10.0, 30.0)
NUM_CHAINS = 4


def run(quick: bool) -> dict[str, float]:
    num_seeds, num_draws, num_sweeps = (1, 200, 50_000) if quick else (5, 1_000, 250_000)
    found, seconds, ratios = {}, [], []
    for epsilon in EPSILONS:
        speedups = []
        for seed in range(num_seeds):
            release, model, records = problem_at(epsilon, seed)
            loop_ess, loop_seconds = of_loop(release, records, num_sweeps)
            _, plain_seconds = plain_chains(release, model, 200 if quick else 1_000, 10)
            speedups.append(ess_per_second(release, model, num_draws) * loop_seconds / loop_ess)
            seconds.append(loop_seconds)
            ratios.append(plain_seconds / loop_seconds)
        found[f"numba.ess_speedup.eps{epsilon:g}"] = _geometric_mean(speedups)
    found["numba.sweep_ratio"] = _geometric_mean(ratios)
    found["numba.us_per_sweep"] = _geometric_mean(seconds) * 1e6
    return found


def of_loop(release, records, num_sweeps: int) -> tuple[float, float]:
    """(ESS per sweep, seconds per sweep) of chains that start at the true records."""
    scale = float(release.mechanism.scale)
    chain(np.random.default_rng(), records.copy(), release.values, scale, 1)  # compiles
    drawn, seconds = [], []
    for seed in range(NUM_CHAINS):
        rng = np.random.Generator(np.random.SFC64(seed))  # NumPy's fastest
        begin = time.perf_counter()
        drawn.append(chain(rng, records.copy(), release.values, scale, num_sweeps))
        seconds.append((time.perf_counter() - begin) / num_sweeps)
    kept = np.stack(drawn)[:, num_sweeps // 10 :]
    return float(np.min(bulk_ess(kept))) / kept[..., 0].size, min(seconds)


def _geometric_mean(values) -> float:
    return float(np.exp(np.mean(np.log(values))))
