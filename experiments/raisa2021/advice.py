"""A private chain, or one noisy release and ``fit``, at the same (epsilon, delta)?

For two models with bounded statistics: how far the posterior's mean lies from that given the
records, and how wide it is, both in the latter's standard deviations. The chain has a pilot of a
fifth of its budget. The logistic regression given the records is taken as normal at its mode.
"""

import math
import warnings
from typing import NamedTuple

import numpy as np

import noiseaware as na

SEED, SHARE, DELTA = 2021, 0.2, 1e-6
EPSILONS = (0.1, 0.5, 2.0)


class Case(NamedTuple):
    records: dict
    model: na.Model
    statistic: na.Statistic
    param: str
    mean: np.ndarray  # given the records
    stddev: np.ndarray
    method: str


def exponential(num_records: int = 20_000) -> Case:
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


def advice(quick: bool) -> list[dict]:
    rows = []
    cases = {"exponential": exponential()} if quick else {
        "exponential": exponential(), "logistic": logistic()
    }  # fmt: skip
    for name, case in cases.items():
        for epsilon in EPSILONS[:2] if quick else EPSILONS:
            budget = na.ApproxDP(epsilon, DELTA, "replace")
            for way in (chain, release):
                errors, widths = [], []
                for repeat in range(2 if quick else 5):
                    drawn = way(case, budget, SEED + repeat).reshape(-1, len(case.mean))
                    errors.append((drawn.mean(axis=0) - case.mean) / case.stddev)
                    widths.append(drawn.std(axis=0) / case.stddev)
                rows.append(
                    {
                        "model": name,
                        "way": way.__name__,
                        "epsilon": epsilon,
                        "error_of_mean": float(np.sqrt(np.mean(np.square(errors)))),
                        "width": float(np.mean(widths)),
                    }
                )
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
