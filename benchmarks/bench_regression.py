"""The regression of [JAGR22, Section 5]: n = 100, p = 2, the paper's params, bounds and noise."""

import numpy as np

import noiseaware as na
from benchmarks import regression_loop as loop
from benchmarks.against_loops import NUM_RECORDS, compare

COEFFICIENTS = np.array([-1.795, -2.889, -0.662])
MODEL = na.LinearRegression(
    "y",
    ("x1", "x2"),
    coefficients=na.NormalPrior(0.0, loop.Regression.prior_stddev),
    noise_stddev=loop.Regression.noise_stddev,
    predictor_means=loop.Regression.means,
    predictor_covariance=np.eye(2),
)
STATISTIC = na.RegressionMoments("y", ("x1", "x2"), dict.fromkeys(("x1", "x2", "y"), (-10, 10)))


def problem_at(epsilon: float, seed: int):
    rng = np.random.default_rng(seed)
    x = loop.Regression.means + rng.standard_normal((NUM_RECORDS, 2))
    noise = loop.Regression.noise_stddev * rng.standard_normal(NUM_RECORDS)
    y = COEFFICIENTS[0] + x @ COEFFICIENTS[1:] + noise
    records = np.column_stack([x, y])
    columns = dict(zip(("x1", "x2", "y"), records.T, strict=True))
    laplace = na.Laplace(STATISTIC.jagr22_sensitivity_l1() / epsilon)
    release = na.simulate_release(seed, columns, STATISTIC, laplace, neighbours="replace")
    return release, MODEL, records


def run(quick: bool) -> dict[str, float]:
    loops = {"by_record": loop.sweep_by_record, "vectorised": loop.sweep_vectorised}
    return compare("regression", problem_at, loops, quick)
