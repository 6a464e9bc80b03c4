"""What a NumPyro model costs beside its hand-written twin: seconds a sweep of a fit, n = 100.

The regression of [JAGR22, Section 5], for which the twin has a conjugate step where NumPyro's model
makes slices, and a logistic regression, where both do.
"""

import numpy as np
import numpyro
import numpyro.distributions as dist

import noiseaware as na
from benchmarks.bench_regression import problem_at
from benchmarks.regression_loop import Regression

FIXED = {"seed": 0, "sweeps_per_draw": 5, "progress": False}


def run(quick: bool) -> dict[str, float]:
    release, model, _ = problem_at(1.0, 0)
    found = {"regression": overhead(release, model, by_numpyro(), quick)}
    release, model = logistic_release()
    found["logistic"] = overhead(release, model, logistic_by_numpyro(), quick)
    largest = {"custom.numpyro_overhead": max(found.values())}
    return largest | {f"custom.numpyro_overhead.{name}": value for name, value in found.items()}


def overhead(release: na.Release, twin: na.Model, model: na.Model, quick: bool) -> float:
    """Seconds a sweep over the twin's: the best of some fits each, in turn."""
    repeats, num_draws = (2, 500) if quick else (5, 2_000)
    seconds: dict[str, list[float]] = {"twin": [], "model": []}
    for _ in range(repeats):
        for name, each in (("twin", twin), ("model", model)):
            draws = na.fit(release, each, draws=num_draws, **FIXED)
            seconds[name].append(draws.attrs["sampling_seconds"])
    return min(seconds["model"]) / min(seconds["twin"])


def by_numpyro() -> na.NumpyroModel:
    def one():
        prior = dist.Normal(np.zeros(3), Regression.prior_stddev)
        coefficients = numpyro.sample("coefficients", prior.to_event(1))
        x1 = numpyro.sample("x1", dist.Normal(Regression.means[0], 1.0))
        x2 = numpyro.sample("x2", dist.Normal(Regression.means[1], 1.0))
        expected = coefficients[0] + coefficients[1] * x1 + coefficients[2] * x2
        numpyro.sample("y", dist.Normal(expected, Regression.noise_stddev))

    return na.NumpyroModel(one, records=["x1", "x2", "y"])


def logistic_release() -> tuple[na.Release, na.Model]:
    rng = np.random.default_rng(0)
    x = rng.normal(0.5, 1.0, size=100)
    y = (rng.logistic(size=100) < 1.5 * x - 0.5).astype(float)
    statistic = na.RegressionMoments("y", ["x"], {"x": (-3, 3), "y": (0, 1)})
    noise = na.calibrate(na.Laplace, statistic, neighbours="replace", epsilon=1.0)
    release = na.simulate_release(0, {"x": x, "y": y}, statistic, noise, neighbours="replace")
    model = na.LogisticRegression(
        "y",
        ["x"],
        coefficients=na.NormalPrior(0.0, 2.0),
        predictor_means=0.5,
        predictor_covariance=[[1.0]],
    )
    return release, model


def logistic_by_numpyro() -> na.NumpyroModel:
    def one():
        coefficients = numpyro.sample("coefficients", dist.Normal(np.zeros(2), 2.0).to_event(1))
        x = numpyro.sample("x", dist.Normal(0.5, 1.0))
        numpyro.sample("y", dist.Bernoulli(logits=coefficients[0] + coefficients[1] * x))

    return na.NumpyroModel(one, records=["x", "y"])
