"""A study: a thousand simulated releases of the regression, fitted by 2,000 sweeps each, over all
cores, with everything included: processes, compilation, data, warm-up and the table.

A record update is one visit of one record in one sweep of one chain.
"""

import dataclasses
import time
import warnings

import noiseaware as na
from benchmarks.against_loops import NUM_CHAINS, NUM_RECORDS
from benchmarks.bench_batch import in_all_cores
from benchmarks.bench_regression import problem_at

WARM_UP, SWEEPS = 200, 500  # of each chain
BATCH = 100


@dataclasses.dataclass(frozen=True)
class Fits:
    epsilon: float = 1.0

    def __call__(self, numbers):
        warnings.simplefilter("ignore", na.ConvergenceWarning)
        problems = [problem_at(self.epsilon, int(number)) for number in numbers]
        draws = na.fit_many(
            [release for release, _, _ in problems], problems[0][1], seed=0, first=int(numbers[0]),
            chains=NUM_CHAINS, draws=SWEEPS - WARM_UP, sweeps_per_draw=1, progress=False,
        )  # fmt: skip
        assert (draws.fits["warm_up_sweeps"] == WARM_UP).all()
        return {"mean": draws.posterior["coefficients"].mean(("chain", "draw")).values}


def run(quick: bool) -> dict[str, float]:
    return in_all_cores(_run, quick)


def _run(quick: bool) -> dict[str, float]:
    num_fits = 200 if quick else 1000
    begin = time.perf_counter()
    na.run_study(Fits(), num_fits, batch_size=BATCH, progress=False)
    seconds = time.perf_counter() - begin
    updates = num_fits * NUM_CHAINS * SWEEPS * NUM_RECORDS
    return {"study.us_per_record_update": seconds / updates * 1e6, "study.seconds": seconds}
