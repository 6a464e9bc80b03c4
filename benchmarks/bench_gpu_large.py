"""A hundred million records on one GPU: a whole fit of the regression at epsilon = 1.

``COMMIT=$(git rev-parse HEAD) python -m benchmarks --only gpu_large`` writes
``gpu_large_record.json``: device, date, commit and figures. The fit keeps a checkpoint of some 5 GB
in the temporary folder: called again after an interruption, it goes on.
"""

import tempfile
from pathlib import Path

import jax
import numpy as np

from benchmarks.bench_gpu import record
from benchmarks.compiled_loop import Regressions, fitted
from noiseaware import convergence

NUM_DRAWS = 700


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
    checkpoint = Path(tempfile.gettempdir()) / "noiseaware_gpu_large.npz"
    fit = fitted(problem, regressions.num_records, regressions.num_chains, NUM_DRAWS, checkpoint)
    free = fit.draws.free[0]
    error = np.abs(free.mean(axis=(0, 1)) - regressions.coefficients) / free.std(axis=(0, 1))
    return {
        "gpu.fit_1e8_draws": free.shape[0] * free.shape[1],
        "gpu.fit_1e8_seconds": fit.warm_up_seconds + fit.sampling_seconds,
        "gpu.fit_1e8_warm_up_seconds": fit.warm_up_seconds,
        "gpu.fit_1e8_r_hat": float(np.max(convergence.r_hat(free))),
        "gpu.fit_1e8_bulk_ess": float(np.min(convergence.bulk_ess(free))),
        "gpu.fit_1e8_largest_error_in_posterior_sd": float(np.max(error)),
    }
