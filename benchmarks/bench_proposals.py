"""Moves that know the release: smallest bulk ESS a second, over what it is without them.

``crank_nicolson``: shorter steps of the records' noises in place of fresh records, where bounds
bind (at one standard deviation of the predictors) and the budget grows. ``stand_ins``: some records
stand for all in the move of params.
"""

import numpy as np

import noiseaware as na
from benchmarks.against_loops import NUM_CHAINS, ess_per_second
from benchmarks.compiled_loop import Regressions, interweaved_ess_per_second
from benchmarks.regression_loop import Regression

EPSILONS = (1.0, 10.0, 30.0, 100.0)
STEP = 0.5
SIZES = {"1e3": 10**3, "1e4": 10**4, "1e5": 10**5}


def run(quick: bool) -> dict[str, float]:
    num_seeds, num_draws = (1, 200) if quick else (3, 250)
    found = {}
    for epsilon in (30.0,) if quick else EPSILONS:
        ratios = []
        for seed in range(num_seeds):
            release, model = clamped_problem_at(epsilon, seed)
            short, fresh = (
                ess_per_second(release, model, num_draws, proposal=proposal)
                for proposal in (na.CrankNicolson(STEP), None)
            )
            ratios.append(short / fresh)
        found[f"proposals.crank_nicolson_ess_ratio.eps{epsilon:g}"] = float(
            np.exp(np.mean(np.log(ratios)))
        )
    for name in ("1e3",) if quick else SIZES:
        some, all_ = (
            interweaved_ess_per_second(Regressions(SIZES[name], NUM_CHAINS), has_stand_ins)
            for has_stand_ins in (True, False)
        )
        found[f"proposals.stand_ins_ess_ratio.n{name}"] = some / all_
    return found


def clamped_problem_at(epsilon: float, seed: int) -> tuple[na.Release, na.LinearRegression]:
    """The regression of [JAGR22, Section 5], n = 100, with bounds that cut off much of it."""
    rng = np.random.default_rng(seed)
    regressions = Regressions(100)
    x = rng.normal(Regression.means, size=(100, 2))
    intercept, *slopes = regressions.coefficients
    y = intercept + x @ slopes + rng.normal(scale=Regression.noise_stddev, size=100)
    bounds = {"x1": (-1.0, 1.0), "x2": (-1.0, 1.0), "y": (-3.0, 3.0)}
    statistic = na.RegressionMoments("y", regressions.names, bounds)
    records = {"x1": x[:, 0], "x2": x[:, 1], "y": y}
    mechanism = na.calibrate(na.Laplace, statistic, neighbours="replace", epsilon=epsilon)
    release = na.simulate_release(seed, records, statistic, mechanism, neighbours="replace")
    return release, regressions.model
