"""How long a first fit takes in a fresh process: compilation included, imports not.

``cold.seconds_to_first_draw_cached`` is the same after ``cache_compilations``, with the folder
filled by an earlier process. Medians of a few processes.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
SCRIPT = """
import sys, time
import noiseaware as na
from benchmarks.bench_regression import problem_at
release, model, _ = problem_at(1.0, 0)
fit = na.fit
for folder in sys.argv[1:]:
    na.cache_compilations(folder)
begin = time.perf_counter()
fit(release, model, seed=0, draws=10, progress=False)
print(time.perf_counter() - begin)
"""


def run(quick: bool) -> dict[str, float]:
    repeats = 1 if quick else 5
    with tempfile.TemporaryDirectory() as folder:
        seconds_of_fit(folder)  # fills it
        cached = [seconds_of_fit(folder) for _ in range(repeats)]
    cold = [seconds_of_fit() for _ in range(repeats)]
    return {
        "cold.seconds_to_first_draw": float(np.median(cold)),
        "cold.seconds_to_first_draw_cached": float(np.median(cached)),
    }


def seconds_of_fit(*folder: str) -> float:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, *folder],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(found.stdout)
