"""A private chain, or one noisy release and ``fit``, at the same (epsilon, delta)?

How far the posterior's mean lies from that given the records, and how wide it is, both in the
latter's standard deviations. Of an exponential and a logistic regression a bounded statistic says
nearly all; of the middle of a double exponential a sum says half, whatever its noise. The
chain has a pilot of a fifth of its budget; where that buys too few draws it is refused. The
logistic regression given the records is taken as normal at its mode.
"""

import itertools
import math
import warnings
from typing import NamedTuple

import numpy as np
import numpyro
from numpyro import distributions as dist
from scipy import stats

import noiseaware as na

SEED, SHARE, DELTA = 2021, 0.2, 1e-6
EPSILONS = (0.5, 2.0, 6.0)


class Case(NamedTuple):
    records: dict
    model: na.Model
    statistic: na.Statistic
    param: str
    mean: np.ndarray  # given the records
    stddev: np.ndarray
    method: str


def exponential(num_records: int = 200_000) -> Case:
    x = np.random.default_rng(SEED).exponential(0.5, num_records)
    shape, rate = 2.0 + num_records, 1.0 + x.sum()
    return Case(
        {"x": x},
        na.Exponential("x", na.GammaPrior(2.0, 1.0)),
        na.Clamped("x", 0.0, 2.0),
        "rate",
        np.array([shape / rate]),
        np.array([math.sqrt(shape) / rate]),
        "statistic_gibbs",  # its error is a hundredth of a posterior sd at this n
    )


def logistic(num_records: int = 5_000) -> Case:
    rng = np.random.default_rng(SEED)
    x = rng.normal(0.3, 1.0, num_records)
    y = (rng.uniform(size=num_records) < 1 / (1 + np.exp(-(0.4 + 0.8 * x)))).astype(float)
    design, precision, mode = np.stack([np.ones_like(x), x], 1), np.diag([0.25, 0.25]), np.zeros(2)
    for _ in range(30):  # Newton's
        mean = 1 / (1 + np.exp(-design @ mode))
        information = (design * (mean * (1 - mean))[:, None]).T @ design + precision
        mode = mode + np.linalg.solve(information, design.T @ (y - mean) - precision @ mode)
    return Case(
        {"x": x, "y": y},
        na.LogisticRegression(
            "y",
            ["x"],
            coefficients=na.NormalPrior([0.0, 0.0], 2.0),
            predictor_means=0.3,
            predictor_covariance=[[1.0]],
        ),
        na.RegressionMoments("y", ["x"], {"x": (-3.0, 3.0), "y": (0.0, 1.0)}),
        "coefficients",
        mode,
        np.sqrt(np.diag(np.linalg.inv(information))),
        "auto",
    )


def middle(num_records: int = 5_000) -> Case:
    """Of a double exponential, whose mean a sum estimates half as well as the likelihood does."""
    x = np.random.default_rng(SEED).laplace(1.0, 1.0, num_records)
    at = np.linspace(0.8, 1.2, 1001)
    log_density = np.array([stats.laplace.logpdf(x - centre).sum() for centre in at])
    log_density += stats.norm.logpdf(at, 0.0, 2.0)
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    mean = np.sum(weights * at)

    def model():
        centre = numpyro.sample("mean", dist.Normal(0.0, 2.0))
        numpyro.sample("x", dist.Laplace(centre, 1.0))

    return Case(
        {"x": x},
        na.NumpyroModel(model, ["x"]),
        na.Clamped("x", -5.0, 5.0),
        "mean",
        np.array([mean]),
        np.sqrt([np.sum(weights * (at - mean) ** 2)]),
        "auto",
    )


CASES = {"exponential": exponential, "logistic": logistic, "middle": middle}


def advice(quick: bool) -> list[dict]:
    cells = itertools.product(
        ("exponential",) if quick else CASES,
        EPSILONS[:2] if quick else EPSILONS,
        (chain, release),
    )
    rows = []
    for name, epsilon, way in cells:
        case, budget = CASES[name](), na.ApproxDP(epsilon, DELTA, "replace")
        row = {"model": name, "n": len(case.records["x"]), "epsilon": epsilon, "way": way.__name__}
        try:
            each = [
                way(case, budget, SEED + repeat).reshape(-1, len(case.mean))
                for repeat in range(2 if quick else 5)
            ]
        except na.SmallBudgetError:
            rows.append(row | {"error_of_mean": math.nan, "width": math.nan})
        else:
            errors = [(drawn.mean(axis=0) - case.mean) / case.stddev for drawn in each]
            widths = [drawn.std(axis=0) / case.stddev for drawn in each]
            found = {
                "error_of_mean": float(np.sqrt(np.mean(np.square(errors)))),
                "width": float(np.mean(widths)),
            }
            rows.append(row | found)
        print("  ", *rows[-1].values(), flush=True)
    return rows


def chain(case: Case, budget: na.ApproxDP, seed: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", na.ConvergenceWarning)  # the error says it
        draws = na.private_sample(
            case.records, case.model, na.Penalty, budget, start=na.PilotChain(share=SHARE),
            seed=seed, progress=False,
        )  # fmt: skip
    return draws.posterior[case.param].values


def release(case: Case, budget: na.ApproxDP, seed: int) -> np.ndarray:
    noise = na.calibrate(
        na.Gaussian, case.statistic, neighbours="replace", epsilon=budget.epsilon,
        delta=budget.delta,
    )  # fmt: skip
    released = na.simulate_release(seed, case.records, case.statistic, noise, neighbours="replace")
    draws = na.fit(released, case.model, method=case.method, seed=seed, progress=False)
    return draws.posterior[case.param].values
