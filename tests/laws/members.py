"""Every member of every room. A law that is parametrised over these holds for all of them."""

import numpy as np

import noiseaware as na
from noiseaware.models.support import Covariance, Positive, RealLine, Simplex, UnitInterval

BOUNDS = {"a": (-2.0, 3.0), "b": (-3.0, 2.5), "y": (-4.0, 5.0)}

# Asymmetric priors and bounds that bind, so that a sign or a scale gone wrong shows.
CASES = {
    "beta-bernoulli": (na.BetaBernoulli("x", 2, 3), na.Count("x")),
    "dirichlet-categorical": (
        na.DirichletCategorical("x", ("u", "v", "w"), [1.0, 2.0, 4.0]),
        na.Histogram("x", ("u", "v", "w")),
    ),
    "naive-bayes": (
        na.NaiveBayes("c", 2, {"f": 2, "g": 3}, [2.0, 3.0], 1.5),
        na.ClassTables("c", 2, {"f": 2, "g": 3}),
    ),
    "normal-mean": (
        na.Normal("x", na.NormalPrior(1.0, 2.0), 1.5),
        na.Clamped("x", -3.0, 4.0),
    ),
    "normal": (
        na.Normal("x", na.NormalPrior(1.0, 1.0), na.StddevPrior(1.5, 5.0)),
        na.Clamped("x", -3.0, 4.0, ("x", "x^2")),
    ),
    "normal-redacted": (
        na.Normal("x", na.NormalPrior(1.0, 1.0), na.StddevPrior(1.5, 5.0)),
        na.Redacted("x", -2.0, 3.0, ("1", "x", "x^2")),
    ),
    "exponential": (
        na.Exponential("x", na.GammaPrior(4.0, 3.0)),
        na.Redacted("x", 0.1, 2.0, ("1", "x", "log x")),
    ),
    "poisson": (na.Poisson("x", na.GammaPrior(3.0, 1.0)), na.Clamped("x", 0.0, 5.0)),
    "regression-known": (
        na.LinearRegression(
            "y",
            ("a", "b"),
            coefficients=na.NormalPrior([0.5, 0.0, -0.5], [1.0, 0.7, 0.8]),
            noise_stddev=1.2,
            predictor_means=[0.3, -0.4],
            predictor_covariance=[[1.0, 0.4], [0.4, 0.8]],
        ),
        na.RegressionMoments("y", ("a", "b"), BOUNDS),
    ),
    "regression": (
        na.LinearRegression(
            "y",
            ("a", "b"),
            coefficients=na.NormalPrior([0.5, 0.0, -0.5], [1.0, 0.7, 0.8]),
            noise_stddev=na.StddevPrior(1.2, 6.0),
            predictor_means=na.NormalPrior([0.3, -0.4], 0.5),
            predictor_covariance=na.CovariancePrior([1.0, 0.8], 6.0),
        ),
        na.RegressionMoments("y", ("a", "b"), BOUNDS),
    ),
}
CASES["logistic"] = (
    na.LogisticRegression(
        "y",
        ("a", "b"),
        coefficients=na.NormalPrior([0.5, 0.0, -0.5], [1.0, 0.7, 0.8]),
        predictor_means=na.NormalPrior([0.3, -0.4], 0.5),
        predictor_covariance=[[1.0, 0.4], [0.4, 0.8]],
    ),
    na.RegressionMoments("y", ("a", "b"), BOUNDS | {"y": (0.0, 1.0)}),
)
CASES["logistic-table"] = (
    na.CategoricalLogisticRegression(
        "y",
        {"a": ("u", "v"), "b": 3},
        coefficients=na.NormalPrior([0.5, 0.0, -0.5, 0.3], [1.0, 0.7, 0.8, 1.2]),
        concentration=[1.0, 2.0, 1.0, 0.8, 1.5, 1.0],
    ),
    na.ContingencyTable({"a": ("u", "v"), "b": 3, "y": 2}),
)
CASES["hierarchical"] = (
    na.HierarchicalBernoulli(
        "y", "g", ("u", "v"), center=na.NormalPrior(0.5, 1.0), spread=na.StddevPrior(0.8, 4.0)
    ),
    na.ContingencyTable({"g": ("u", "v"), "y": 2}),
)
# Every exponential family, with releases of its sums: those of the cases above, and more.
FAMILIES = {
    "beta-bernoulli": CASES["beta-bernoulli"],
    "dirichlet-categorical": CASES["dirichlet-categorical"],
    "dirichlet-categorical-of-some": (
        na.DirichletCategorical("x", ("u", "v", "w"), [1.0, 2.0, 4.0]),
        na.Histogram("x", ("u", "v", "w"), counted=("u", "w")),
    ),
    "binomial": (na.Binomial("x", 5, 2, 3), na.Clamped("x", 0.0, 4.0)),
    "geometric": (na.Geometric("x", 4, 3), na.Clamped("x", 0.0, 3.0)),
    "geometric-redacted": (na.Geometric("x", 4, 3), na.Redacted("x", 0.0, 3.0)),
    "poisson": CASES["poisson"],
    "poisson-redacted": (na.Poisson("x", na.GammaPrior(3.0, 1.0)), na.Redacted("x", 0.0, 6.0)),
    "exponential": (na.Exponential("x", na.GammaPrior(4.0, 3.0)), na.Clamped("x", 0.0, 2.0)),
    "exponential-redacted": (
        na.Exponential("x", na.GammaPrior(4.0, 3.0)),
        na.Redacted("x", 0.0, 3.0),
    ),
    "gamma": (na.Gamma("x", 0.7, na.GammaPrior(4.0, 3.0)), na.Clamped("x", 0.1, 2.0)),
    "gamma-redacted": (na.Gamma("x", 2.5, na.GammaPrior(4.0, 3.0)), na.Redacted("x", 0.2, 6.0)),
    "pareto": (na.Pareto("x", 2.0, na.GammaPrior(8.0, 3.0)), na.Clamped("x", 2.0, 6.0, ("log x",))),
    "normal-mean": CASES["normal-mean"],
    "normal-mean-redacted": (
        na.Normal("x", na.NormalPrior(1.0, 2.0), 1.5),
        na.Redacted("x", -3.0, 4.0),
    ),
    "normal": CASES["normal"],
    "normal-redacted": CASES["normal-redacted"],
}
OTHER_RELEASES = (
    "dirichlet-categorical-of-some", "geometric-redacted", "poisson-redacted",
    "exponential-redacted", "gamma-redacted", "normal-mean-redacted",
)  # fmt: skip
MODELS = {
    name: model for name, (model, _) in (FAMILIES | CASES).items() if name not in OTHER_RELEASES
}

STATISTICS = {
    "count": na.Count("x"),
    "histogram": na.Histogram("x", 4),
    "histogram-of-some": na.Histogram("x", 4, counted=(2, 0)),
    "histogram-of-one": na.Histogram("x", 4, counted=(2,)),
    "contingency-table": na.ContingencyTable({"a": ("u", "v"), "b": 3}),
    "class-tables": na.ClassTables("c", 3, {"f": 2, "g": 3}),
    "class-tables-one-class": na.ClassTables("c", 1, {"f": 2, "g": 3}),
    "clamped-mean": na.Clamped("x", -1.0, 3.0),
    "clamped-moments": na.Clamped("x", -1.0, 3.0, ("x", "x^2")),
    "clamped-moments-narrow": na.Clamped("x", -0.2, 0.3, ("x^2", "x")),
    "clamped-square": na.Clamped("x", -2.0, 1.0, ("x^2",)),
    "clamped-positive": na.Clamped("x", 0.5, 4.0, ("x", "x^2", "log x", "1/x")),
    "redacted-moments": na.Redacted("x", -1.0, 3.0, ("1", "x", "x^2")),
    "redacted-far": na.Redacted("x", 5.0, 6.0, ("1", "x")),
    "redacted-positive": na.Redacted("x", 0.1, 4.0, ("1", "log x", "1/x")),
    "regression-1": na.RegressionMoments("y", ("a",), {"a": (-2, 3), "y": (-4, 5)}),
    "regression-2": na.RegressionMoments("y", ("a", "b"), BOUNDS),
    "regression-3": na.RegressionMoments("y", ("a", "b", "c"), BOUNDS | {"c": (0, 1)}),
}

MECHANISMS = {
    "laplace": na.Laplace(1.3),
    "laplace-per-coordinate": na.Laplace([0.7, 2.0]),
    "discrete-laplace": na.DiscreteLaplace(1.7),
    "discrete-laplace-sharp": na.DiscreteLaplace(0.2),
    "gaussian": na.Gaussian(1.4),
    "gaussian-per-coordinate": na.Gaussian([0.5, 3.0]),
}

SUPPORTS = {
    "real-line": (RealLine(), np.array([0.3, -2.0])),
    "positive": (Positive(), np.array([0.3, -2.0])),
    "unit-interval": (UnitInterval(), np.array([0.3, -2.0])),
    "simplex": (Simplex(), np.array([0.3, -2.0, 1.0])),
    "covariance": (Covariance(3), np.array([0.1, -0.3, 0.4, 0.5, -0.7, 0.2])),
}


def known_for(model, num_records):
    """Known columns: every level of a category in turn."""
    return {name: np.arange(num_records) % len(model.columns[name].levels) for name in model.known}


def known_levels(model, num_records):
    """The same as a person would give them."""
    columns = known_for(model, num_records)
    return {
        name: [model.columns[name].levels[code] for code in codes]
        for name, codes in columns.items()
    } or None


def rescaled(mechanism, factor):
    """The same mechanism with its noise multiplied: what a wrong analyst would believe."""
    return mechanism.with_spread(mechanism.spread() * factor)
