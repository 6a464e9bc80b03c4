"""Every built-in model with a release of its records, so tight that records feel it; controls."""

import jax.numpy as jnp
import numpy as np

import noiseaware as na

NUM_RECORDS, DELTA = 8, 1e-3
EPSILON, EPSILON_OF_COUNT = 4.0, 1.0  # of one count at 4, noise is so small that it is hardly felt
BOUNDS = {"a": (-2.0, 3.0), "y": (-4.0, 5.0)}
DIGITS = na.NormalPrior([0.5, -0.5], [1.0, 0.8])

CASES: dict[str, tuple[na.Model, na.Statistic]] = {
    "BetaBernoulli": (na.BetaBernoulli("x", 2, 3), na.Count("x")),
    "Binomial": (na.Binomial("x", 5, 2, 3), na.Clamped("x", 0.0, 4.0)),
    "CategoricalLogisticRegression": (
        na.CategoricalLogisticRegression(
            "y", {"a": ("u", "v")}, coefficients=DIGITS, concentration=[1.0, 2.0]
        ),
        na.ContingencyTable({"a": ("u", "v"), "y": 2}),
    ),
    "DirichletCategorical": (
        na.DirichletCategorical("x", ("u", "v", "w"), [1.0, 2.0, 4.0]),
        na.Histogram("x", ("u", "v", "w")),
    ),
    "Exponential": (
        na.Exponential("x", na.GammaPrior(4.0, 3.0)),
        na.Redacted("x", 0.1, 2.0, ("1", "x")),
    ),
    "Gamma": (na.Gamma("x", 0.7, na.GammaPrior(4.0, 3.0)), na.Clamped("x", 0.1, 2.0)),
    "Geometric": (na.Geometric("x", 4, 3), na.Clamped("x", 0.0, 3.0)),
    "HierarchicalBernoulli": (
        na.HierarchicalBernoulli(
            "y", "g", ("u", "v"), center=na.NormalPrior(0.5, 1.0), spread=na.StddevPrior(0.8, 4.0)
        ),
        na.ContingencyTable({"g": ("u", "v"), "y": 2}),
    ),
    "LinearRegression": (
        na.LinearRegression(
            "y", ("a",), coefficients=DIGITS, noise_stddev=na.StddevPrior(1.2, 6.0),
            predictor_means=na.NormalPrior([0.3], 0.5),
            predictor_covariance=na.CovariancePrior([1.0], 6.0),
        ),
        na.RegressionMoments("y", ("a",), BOUNDS),
    ),
    "LogisticRegression": (
        na.LogisticRegression(
            "y", ("a",), coefficients=DIGITS, predictor_means=na.NormalPrior([0.3], 0.5),
            predictor_covariance=[[1.0]],
        ),
        na.RegressionMoments("y", ("a",), BOUNDS | {"y": (0.0, 1.0)}),
    ),
    "NaiveBayes": (
        na.NaiveBayes("c", 2, {"f": 2, "g": 3}, [2.0, 3.0], 1.5),
        na.ClassTables("c", 2, {"f": 2, "g": 3}),
    ),
    "Normal": (
        na.Normal("x", na.NormalPrior(1.0, 1.0), na.StddevPrior(1.5, 5.0)),
        na.Clamped("x", -3.0, 4.0, ("x", "x^2")),
    ),
    "Pareto": (
        na.Pareto("x", 2.0, na.GammaPrior(8.0, 3.0)),
        na.Clamped("x", 2.0, 6.0, ("log x",)),
    ),
    "Poisson": (na.Poisson("x", na.GammaPrior(3.0, 1.0)), na.Clamped("x", 0.0, 5.0)),
}  # fmt: skip
MECHANISMS = {"Laplace": na.Laplace, "DiscreteLaplace": na.DiscreteLaplace, "Gaussian": na.Gaussian}
METHODS = ("record_augmentation", "interweaving")


def mechanism_of(kind: str, statistic: na.Statistic) -> na.Mechanism:
    epsilon = EPSILON_OF_COUNT if isinstance(statistic, na.Count) else EPSILON
    extra = {"delta": DELTA} if kind == "Gaussian" else {}
    return na.calibrate(MECHANISMS[kind], statistic, neighbours="replace", epsilon=epsilon, **extra)


def known_of(model: na.Model) -> dict[str, list] | None:
    """Every level of a known category in turn."""
    return {
        name: [model.columns[name].levels[i % 2] for i in range(NUM_RECORDS)]
        for name in model.known
    } or None


def cells() -> list[tuple[str, str, str]]:
    """Model, mechanism and method: all that claims to be exact. Whole numbers need whole sums."""
    return [
        (name, kind, method)
        for name, (_, statistic) in CASES.items()
        for kind in MECHANISMS
        for method in METHODS
        if kind != "DiscreteLaplace" or statistic.is_integer
    ]


def from_prior(release: na.Release, model: na.Model, seed: int):
    """A sampler that looks at nothing."""
    draws = na.fit_naive(release, model, seed=seed, chains=2, draws=50)
    rng = np.random.default_rng(seed)
    changed = {"probability": rng.beta(float(model.a), float(model.b), size=(2, 50))}
    return draws.map(lambda group: group.copy(data=changed), groups="posterior")


def naive(release: na.Release, model: na.Model, seed: int):
    return na.fit_naive(release, model, seed=seed, chains=2, draws=50)


def stay(key, model, params, records):
    return records, jnp.zeros(())


def frozen(release: na.Release, model: na.Model, seed: int):
    """Records stay as they were drawn from the prior."""
    return na.fit(
        release, model, seed=seed, method="record_augmentation", proposal=stay, chains=2, draws=50,
        sweeps_per_draw=1, progress=False,
    )  # fmt: skip
