"""Bayesian inference from differentially private releases.

The curator ``publish``es, the analyst ``fit``s. Names load on first use.
"""

import importlib

__version__ = "0.2.0"

_HOMES = {
    "accounting": ("ApproxDP", "GDP", "PureDP", "ZCDP", "compose", "to_approx_dp", "to_zcdp"),
    "baselines": ("fit_naive", "fit_one_posterior_samples", "fit_records"),
    "diagnostics.calibration": ("Calibration", "sbc"),
    "diagnostics.comparing": ("Comparison", "compare"),
    "diagnostics.coverage": ("Coverage", "coverage"),
    "diagnostics.release_check": ("Check", "check"),
    "draws": ("ConvergenceWarning", "IncompleteWarning", "summarize"),
    "fitting": ("fit", "fit_many"),
    "maximizing": ("Maximum", "maximize"),
    "mechanisms": ("DiscreteLaplace", "FunctionMechanism", "Gaussian", "Laplace", "Mechanism"),
    "models": (
        "BetaBernoulli", "Binomial", "CategoricalLogisticRegression", "CovariancePrior",
        "DirichletCategorical", "Exponential", "ExponentialFamily", "FunctionModel", "Gamma",
        "GammaPrior", "Geometric", "HierarchicalBernoulli", "LinearRegression",
        "LogisticRegression", "Model", "NaiveBayes", "Normal", "NormalPrior", "Pareto", "Poisson",
        "StddevPrior",
    ),
    "models.numpyro_model": ("NumpyroModel",),
    "models.support": ("Positive", "RealLine", "Simplex", "UnitInterval"),
    "private_mcmc": (
        "Barker", "FixedBatches", "GuidedPenalty", "HamiltonianPenalty", "Langevin",
        "OneComponentPenalty", "Penalty", "PoissonBatches", "PrivateSampler",
    ),
    "private_mcmc.budgets": ("max_iterations",),
    "private_mcmc.tuning": ("tune",),
    "private_pilots": ("PilotChain", "PilotRelease"),
    "private_sampling": ("ClippingWarning", "SmallBudgetError", "private_sample"),
    "publishing": ("calibrate", "publish", "simulate_release"),
    "release": ("Noise", "Release"),
    "release_file": ("read", "write"),
    "running": ("cache_compilations",),
    "samplers": ("HMC", "NUTS", "CrankNicolson", "Metropolis", "RandomWalk", "Slice"),
    "schema": ("Binary", "Category", "Neighbours", "Real", "Whole"),
    "studies": ("StudyError", "run_study"),
    "statistics": (
        "Clamped", "ClassTables", "ContingencyTable", "Count", "FunctionStatistic",
        "Histogram", "Redacted", "RegressionMoments", "Statistic",
    ),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, "__version__"])


def __getattr__(name: str):
    if name not in _HOME_OF:
        raise AttributeError(f"module 'noiseaware' has no attribute {name!r}.")
    value = getattr(importlib.import_module(f"noiseaware.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return __all__
