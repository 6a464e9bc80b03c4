"""Every compiled program takes some memory maps of the process, and Linux allows 65,530: a worker
that runs hundreds of tests would crash inside the compiler. So forget programs now and then.
"""

from pathlib import Path

import jax
import pytest

MAX_MAPS = 30_000
MAPS = Path("/proc/self/maps")


@pytest.fixture(autouse=True)
def _few_programs():
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MAX_MAPS:
        jax.clear_caches()
