"""The regression of [JAGR22, Section 5] on one GPU: blocks, ten million records, many chains.

Without a GPU there is nothing to measure, and the bench says so. On a machine with one,
``COMMIT=$(git rev-parse HEAD) python -m benchmarks --only gpu`` also writes ``gpu_record.json``:
device, date, commit and figures.
"""

import functools
import json
import os
import time
from pathlib import Path

import jax
import jax.random as jr
import numpy as np

import noiseaware as na
from benchmarks.bench_regression import COEFFICIENTS, MODEL, STATISTIC
from noiseaware import chains, convergence
from noiseaware.journeys import Settings, run_one
from noiseaware.running import Checkpoint, progress_bar
from noiseaware.samplers import interweaving, layout, record_augmentation
from noiseaware.samplers.proposals import from_model

RECORD = Path(__file__).parent / "gpu_record.json"
NOISE = na.Laplace(STATISTIC.jagr22_sensitivity_l1() / 1.0)


def run(quick: bool) -> dict[str, float]:
    if jax.default_backend() != "gpu":
        print("gpu: skipped, there is none")
        return {}
    found = {}
    with jax.enable_x64(True):
        block = milliseconds(record_augmentation.step, 10**6, laid_out(10**6))
        single = milliseconds(
            record_augmentation.step, 10**6, laid_out(10**6)._replace(block_size=1)
        )
        found["gpu.block_size_1e6"] = laid_out(10**6).block_size
        found["gpu.ms_per_sweep_1e6"] = block
        found["gpu.blocks_sweep_speedup_1e6"] = single / block
        found["gpu.ms_per_iteration_1e7"] = milliseconds(interweaving.step, 10**7, laid_out(10**7))
        for num_chains in (16_384,) if quick else (16_384, 65_536):
            shape = laid_out(100, num_chains)
            sweep = milliseconds(record_augmentation.step, 100, shape, num_chains)
            found[f"gpu.ns_per_record_update_{num_chains}"] = sweep * 1e6 / (100 * num_chains)
        if not quick:
            found |= posterior(10**8)
    header = {
        "device": jax.devices()[0].device_kind,
        "date": time.strftime("%Y-%m-%d"),
        "commit": os.environ.get("COMMIT", "not given"),
        "jax": jax.__version__,
    }
    RECORD.write_text(json.dumps(header | found, indent=2) + "\n")
    return found


def released_of(num_records: int) -> np.ndarray:
    """A release at epsilon = 1, its total from the model's own records."""
    state = records_of(num_records)
    total = jax.jit(functools.partial(layout.total_of, STATISTIC, size=2**21))(state.records)
    return np.asarray(total) + np.random.default_rng(0).laplace(scale=NOISE.scale, size=len(total))


def records_of(num_records: int) -> record_augmentation.RecordAugmentationState:
    params = {"coefficients": jax.numpy.asarray(COEFFICIENTS)}
    init = functools.partial(record_augmentation.init, model=MODEL, num_records=num_records)
    return jax.jit(init)(jr.key(0), params)


def laid_out(num_records: int, num_chains: int = 1) -> layout.Layout:
    problem = chains.Problem(MODEL, STATISTIC, NOISE, released_of(num_records), from_model)
    prior = jax.vmap(MODEL.sample_prior)(jr.split(jr.key(1), chains.NUM_CANDIDATES))
    variance = chains.swap_variance(jr.key(2), problem, prior, num_records)
    return layout.choose(True, num_records, num_chains, float(variance))


def milliseconds(step, num_records: int, shape: layout.Layout, num_chains: int = 1) -> float:
    """The best of three calls, one step a call."""
    settings = {
        "model": MODEL,
        "contribution": STATISTIC,
        "log_density": functools.partial(NOISE.log_density, released_of(num_records)),
        "layout": shape,
    }
    if step is interweaving.step:
        width = np.eye(len(COEFFICIENTS)) / np.sqrt(num_records)
        settings |= {"shape": interweaving.Shape(COEFFICIENTS, width), "num_stand_ins": 1}
    state = records_of(num_records)
    states = jax.tree.map(lambda x: jax.numpy.broadcast_to(x, (num_chains, *x.shape)), state)
    steps = jax.jit(jax.vmap(lambda key, state: step(key, state, **settings)))
    best = np.inf
    for index in range(4):  # the first compiles
        keys = jr.split(jr.key(index), num_chains)
        begin = time.perf_counter()
        jax.block_until_ready(steps(keys, states))
        best = min(best, time.perf_counter() - begin)
    return best * 1e3


def posterior(num_records: int) -> dict[str, float]:
    """A whole fit of two chains: seconds, and whether it converged."""
    problem = chains.Problem(MODEL, STATISTIC, NOISE, released_of(num_records), from_model)
    begin = time.perf_counter()
    with progress_bar(False) as bar:
        settings = Settings("interweaving", num_records, num_chains=2, num_draws=400)
        fitted = run_one(jr.key(0), problem, settings, bar, Checkpoint(None))
    free = np.asarray(fitted.draws.free)[0]
    error = np.abs(free.mean(axis=(0, 1)) - COEFFICIENTS) / free.std(axis=(0, 1))
    return {
        "gpu.fit_1e8_seconds": time.perf_counter() - begin,
        "gpu.fit_1e8_r_hat": float(np.max(convergence.r_hat(free))),
        "gpu.fit_1e8_bulk_ess": float(np.min(convergence.bulk_ess(free))),
        "gpu.fit_1e8_largest_error_in_posterior_sd": float(np.max(error)),
    }
