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

from benchmarks.compiled_loop import NUM_STAND_INS, Regressions
from noiseaware.samplers import interweaving, record_augmentation


def run(quick: bool) -> dict[str, float]:
    if jax.default_backend() != "gpu":
        print("gpu: skipped, there is none")
        return {}
    found = {}
    with jax.enable_x64(True):
        block, block_size = milliseconds(record_augmentation.step, Regressions(10**6))
        single, _ = milliseconds(record_augmentation.step, Regressions(10**6), block_size=1)
        found["gpu.block_size_1e6"] = block_size
        found["gpu.ms_per_sweep_1e6"] = block
        found["gpu.blocks_sweep_speedup_1e6"] = single / block
        found["gpu.ms_per_iteration_1e7"], _ = milliseconds(interweaving.step, Regressions(10**7))
        for num_chains in (16_384,) if quick else (16_384, 65_536):
            sweep, _ = milliseconds(record_augmentation.step, Regressions(100, num_chains))
            found[f"gpu.ns_per_record_update_{num_chains}"] = sweep * 1e6 / (100 * num_chains)
    record("gpu_record.json", found)
    return found


def record(name: str, found: dict[str, float]) -> None:
    header = {
        "device": jax.devices()[0].device_kind,
        "date": time.strftime("%Y-%m-%d"),
        "commit": os.environ.get("COMMIT", "not given"),
        "jax": jax.__version__,
    }
    (Path(__file__).parent / name).write_text(json.dumps(header | found, indent=2) + "\n")


def milliseconds(
    step, regressions: Regressions, *, block_size: int | None = None
) -> tuple[float, int]:
    """(the best of three calls, one step a call; the block size)."""
    state = regressions.state()
    problem = regressions.problem(state)
    shape = regressions.layout(problem)
    if block_size is not None:
        shape = shape._replace(block_size=block_size)
    settings = {
        "model": problem.model,
        "contribution": problem.statistic,
        "log_density": functools.partial(problem.mechanism.log_density, problem.released),
        "layout": shape,
    }
    if step is interweaving.step:
        settings |= {"shape": regressions.shape(problem), "num_stand_ins": NUM_STAND_INS}
    states = regressions.states(state)
    steps = jax.jit(jax.vmap(lambda key, state: step(key, state, **settings)))
    best = np.inf
    for index in range(4):  # the first compiles
        keys = jr.split(jr.key(index), regressions.num_chains)
        begin = time.perf_counter()
        jax.block_until_ready(steps(keys, states))
        best = min(best, time.perf_counter() - begin)
    return best * 1e3, shape.block_size
