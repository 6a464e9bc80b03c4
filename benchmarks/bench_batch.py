"""Many releases at once: ``fit_many`` of the regression, on all cores, warm-up and all included.

A record update is one visit of one record in one sweep of one chain.
"""

import concurrent.futures
import multiprocessing
import os
import warnings

import noiseaware as na
from benchmarks.against_loops import NUM_CHAINS, NUM_RECORDS
from benchmarks.bench_regression import problem_at


def run(quick: bool) -> dict[str, float]:
    return in_all_cores(_run, quick)


def in_all_cores(bench, quick: bool) -> dict[str, float]:
    """In a process of its own, since this one is pinned to a core."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn, _use_all_cores) as pool:
        return pool.submit(bench, quick).result()


def _use_all_cores() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def _run(quick: bool) -> dict[str, float]:
    num_releases, num_draws = (20, 200) if quick else (100, 1_000)
    problems = [problem_at(1.0, seed) for seed in range(num_releases)]
    releases, model = [release for release, _, _ in problems], problems[0][1]
    warnings.simplefilter("ignore", na.ConvergenceWarning)
    settings = {"seed": 0, "chains": NUM_CHAINS, "draws": num_draws, "progress": False}
    na.fit_many(releases[:2], model, **settings)  # compiles
    draws = na.fit_many(releases, model, **settings)
    sweeps = draws.fits["warm_up_sweeps"] + num_draws * draws.fits["sweeps_per_draw"]
    num_updates = float(sweeps.sum()) * NUM_CHAINS * NUM_RECORDS
    return {
        "batch.us_per_record_update": draws.attrs["seconds"] / num_updates * 1e6,
        "batch.fits_per_second": num_releases / draws.attrs["seconds"],
        "batch.smallest_bulk_ess": float(draws.fits["ess_bulk"].min()),
    }
