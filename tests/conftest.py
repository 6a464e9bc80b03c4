"""Every compiled program takes some memory maps of the process, and Linux allows 65,530: a worker
that runs hundreds of tests would crash inside the compiler. So forget programs now and then.
"""

import gc
from pathlib import Path

import jax
import pytest

FIRST_LIMIT, ROOM, LAST_LIMIT = 30_000, 20_000, 55_000
MAPS = Path("/proc/self/maps")
_limit = FIRST_LIMIT


def _num_maps() -> int:
    return MAPS.read_bytes().count(b"\n")


@pytest.fixture(autouse=True)
def _few_programs():
    global _limit
    yield
    if MAPS.exists() and _num_maps() > _limit:
        jax.clear_caches()
        gc.collect()
        # What is left belongs to others: forgetting again after every test would not help.
        _limit = min(max(FIRST_LIMIT, _num_maps() + ROOM), LAST_LIMIT)
