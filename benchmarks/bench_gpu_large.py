"""A hundred million records on one GPU: a whole fit of the regression at epsilon = 1.

``COMMIT=$(git rev-parse HEAD) python -m benchmarks --only gpu_large`` writes
``gpu_large_record.json``: device, date, commit and figures.
"""

import time

import jax
import numpy as np

from benchmarks.bench_gpu import record
from benchmarks.compiled_loop import Regressions, fitted
from noiseaware import convergence


def run(quick: bool) -> dict[str, float]:
    if jax.default_backend() != "gpu" or quick:
        print("gpu_large: skipped, there is no GPU, or no time")
        return {}
    with jax.enable_x64(True):
        found = posterior(Regressions(10**8, num_chains=2))
    record("gpu_large_record.json", found)
    return found


def posterior(regressions: Regressions) -> dict[str, float]:
    """A whole fit: seconds, and whether it converged."""
    problem = regressions.problem(regressions.state())
    begin = time.perf_counter()
    free = fitted(problem, regressions.num_records, regressions.num_chains, num_draws=300)
    error = np.abs(free.mean(axis=(0, 1)) - regressions.coefficients) / free.std(axis=(0, 1))
    return {
        "gpu.fit_1e8_seconds": time.perf_counter() - begin,
        "gpu.fit_1e8_r_hat": float(np.max(convergence.r_hat(free))),
        "gpu.fit_1e8_bulk_ess": float(np.min(convergence.bulk_ess(free))),
        "gpu.fit_1e8_largest_error_in_posterior_sd": float(np.max(error)),
    }
