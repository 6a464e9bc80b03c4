"""What the tests do about their time, most of which is compiling.

Every worker has a core of its own: XLA's threads would hand work to and fro between them. Programs
are compiled with few optimisations, which halves the time of most tests, but for those that are
marked ``optimized``; with JAX_DISABLE_MOST_OPTIMIZATIONS=0 for none. Workers share one folder of
compiled programs, which lives as long as the run. And since every program in memory takes some
memory maps of the process, of which Linux allows 65,530, they are forgotten now and then: a worker
that runs hundreds of tests would crash inside the compiler.
"""

import gc
import os
import tempfile
from pathlib import Path

import jax
import pytest

CACHE, PLAIN = "JAX_COMPILATION_CACHE_DIR", "JAX_DISABLE_MOST_OPTIMIZATIONS"
FIRST_LIMIT, ROOM, LAST_LIMIT = 30_000, 20_000, 55_000
MAPS = Path("/proc/self/maps")
_limit = FIRST_LIMIT


def pytest_configure(config):
    _pin()
    if CACHE not in os.environ:  # not in a worker, which has it from here
        config.programs = tempfile.TemporaryDirectory(prefix="programs")
        config.add_cleanup(config.programs.cleanup)
        config.add_cleanup(lambda: os.environ.pop(CACHE))
        os.environ[CACHE] = config.programs.name
    jax.config.update("jax_compilation_cache_dir", os.environ[CACHE])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _pin():
    """Before JAX starts, which counts cores."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


def pytest_collection_modifyitems(items):
    """Long tests first, so that no worker is left with one when the others have ended."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def _num_maps() -> int:
    return MAPS.read_bytes().count(b"\n")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Before fixtures, those of a module too, are made."""
    is_plain = not item.get_closest_marker("optimized") and os.environ.get(PLAIN) != "0"
    jax.config.update("jax_disable_most_optimizations", is_plain)


@pytest.fixture(autouse=True)
def _few_programs():
    global _limit
    yield
    if MAPS.exists() and _num_maps() > _limit:
        jax.clear_caches()
        gc.collect()
        # What is left belongs to others: forgetting again after every test would not help.
        _limit = min(max(FIRST_LIMIT, _num_maps() + ROOM), LAST_LIMIT)
