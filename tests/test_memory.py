"""Memory grows with the records and nothing else, and sums over ten million of them stay exact.

While it runs, a chain of n records of c float64 columns takes five times ``8 c n`` bytes: the
records before and after a call, those that the loop carries, their noises, and the records rebuilt
from moved params. Proposals, statistics (n x m) and random bits exist for one segment at a time.
"""

import functools
import math
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import pytest
from benchmarks.compiled_loop import Regressions

import noiseaware as na
from noiseaware import chains
from noiseaware.elliptical_slice import Shape
from noiseaware.samplers import layout, record_augmentation
from noiseaware.samplers.proposals import from_model

pytestmark = pytest.mark.optimized

COPY = 8 * 3  # bytes of a record: two predictors and a response
NUM_COPIES = 5
NUM_CHAINS = 4
SLACK = 1.05  # segments, and room for the draws
MODEL, STATISTIC = Regressions(1).model, Regressions(1).statistic
MECHANISM = na.Laplace(13.0)


def compiled_bytes(num_records: int, kernel: str, shape: layout.Layout) -> int:
    """What a chunk of draws will allocate; nothing is run."""
    problem = chains.Problem(MODEL, STATISTIC, MECHANISM, np.zeros(9), from_model)
    chunk = functools.partial(
        chains.run_chunk, problems=chains.stack([problem]), kernel=kernel, layout=shape
    )
    with jax.enable_x64(True):
        keys = jr.split(jr.key(0), (1, NUM_CHAINS))
        start = eqx.filter_eval_shape(
            chains.start, keys[:, 0], chains.stack([problem]), None, num_records, NUM_CHAINS, kernel
        )
        move = Shape(np.zeros((1, 3)), np.eye(3)[None])
        tuning = chains.Tuning(move, *map(np.asarray, (1, 1, True)))
        lowered = jax.jit(chunk).lower(keys, start.states, tuning, *map(np.asarray, (0, 1)))
        found = lowered.compile().memory_analysis()
    return found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("num_records", [10**6, 10**7])
def test_compiled_loop_takes_five_copies_of_the_records(num_records):
    shape = layout.choose(False, num_records, 5, NUM_CHAINS, 0.01)
    found = compiled_bytes(num_records, "interweaving", shape)
    assert found < SLACK * NUM_COPIES * COPY * num_records * NUM_CHAINS


def test_all_records_at_once_would_take_twice_that():
    """The control, with the plain sweep, which needs less than the default kernel."""
    found = compiled_bytes(10**6, "record_augmentation", layout.Layout(segment_size=10**6))
    assert found > 2 * NUM_COPIES * COPY * 10**6 * NUM_CHAINS


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import noiseaware as na
from noiseaware import journeys, warming
from tests.test_memory import MECHANISM, MODEL, STATISTIC

num_records, num_chains = map(int, sys.argv[1:])
# Shorter, but as many copies as in a longer fit.
journeys.WINDOW_DRAWS = warming.WINDOW_DRAWS = 8
journeys.WINDOWS_AFTER_PILOT = 1
total = num_records * np.array([0.09, -0.117, -0.36, 0.02, -0.01, -0.06, 0.02, 0.04, 0.25])
release = na.Release(total, STATISTIC, MECHANISM, neighbours="replace", num_records=num_records)
na.fit(release, MODEL, seed=0, chains=num_chains, draws=4, sweeps_per_draw=1, progress=False)
# Not ru_maxrss, which begins at that of the process that started this one.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(1024 * int(status["VmHWM"].split()[0]))
"""
PROCESS_BYTES = 1.2e9  # Python, JAX, its compiler, ArviZ


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory read as on Linux")
@pytest.mark.parametrize(("num_records", "num_chains"), [(10**6, 4), (10**7, 1)])
def test_fit_takes_one_copy_more(num_records, num_chains):
    """The sixth is room for what a fit does between calls."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(num_records), str(num_chains)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."])},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    peak = int(found.stdout)
    assert peak < (NUM_COPIES + 1) * COPY * num_records * num_chains + PROCESS_BYTES


def exact_total(records) -> np.ndarray:
    """T without rounding in the sum, by ``math.fsum``."""
    units = [np.clip(np.asarray(records[name]), -10, 10) / 10 for name in ("x1", "x2", "y")]
    products = [units[i] * units[j] for i, j in zip(*np.triu_indices(3))]
    return np.array([math.fsum(memoryview(column)) for column in (*units, *products)])


@pytest.mark.slow
def test_sums_over_ten_million_records_are_those_of_exact_arithmetic():
    """The total with which a sweep begins, and log g with which it ends, n swaps later."""
    regressions = Regressions(10**7)
    total_of = functools.partial(layout.total_of, STATISTIC, size=layout.Layout().segment_size)
    with jax.enable_x64(True):
        state = regressions.state()
        released = regressions.problem(state).released
        log_density = functools.partial(MECHANISM.log_density, released)
        step = functools.partial(
            record_augmentation.step, model=MODEL, contribution=STATISTIC, log_density=log_density
        )
        end, info = jax.jit(step)(jr.key(5), state)
        total = np.asarray(jax.jit(total_of)(end.records))
        exact = exact_total(end.records)
        log_g = float(log_density(exact))
    assert np.allclose(total, exact, rtol=1e-12, atol=0)
    assert abs(float(info.log_density) - log_g) < 1e-6
    with jax.enable_x64(False):
        rounded = {name: np.asarray(end.records[name], np.float32) for name in end.records}
        single = np.asarray(jax.jit(total_of)(rounded), float)
    assert not np.allclose(single, exact, rtol=1e-12, atol=0), "the control"
    with jax.enable_x64(True):
        assert abs(float(log_density(single)) - log_g) > 1e-3, "the control"
