"""The two models of [JAGR22] with the params and settings of the authors' files."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import noiseaware as na

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
NUM_RECORDS, NUM_REPLICATES = 100, 100
NUM_ITERATIONS, NUM_DROPPED = 10_000, 5_000

CLASSES, FEATURES, LEVELS = 5, tuple(f"x{k}" for k in range(1, 6)), 3
CLASS_PROBABILITIES = (0.09785523, 0.14810553, 0.14471425, 0.44628085, 0.16304413)
# Of each feature, by level and class.
LEVEL_PROBABILITIES = (
    ((0.2718365, 0.1858934, 0.3488684, 0.2583010, 0.4026033),
     (0.3301669, 0.6345379, 0.1743813, 0.3683431, 0.3102376),
     (0.3979966, 0.1795687, 0.4767503, 0.3733559, 0.2871591)),
    ((0.4450594, 0.3295245, 0.1729811, 0.27890335, 0.5240992),
     (0.3995569, 0.5631395, 0.4209166, 0.07301331, 0.3093936),
     (0.1553837, 0.1073360, 0.4061024, 0.64808333, 0.1665071)),
    ((0.27613008, 0.6054932, 0.5037157, 0.7447332, 0.3591739),
     (0.66084647, 0.1849492, 0.3561468, 0.1149826, 0.4477254),
     (0.06302345, 0.2095577, 0.1401375, 0.1402841, 0.1931007)),
    ((0.3529426, 0.3851976, 0.5346273, 0.4476789, 0.3884830),
     (0.2781411, 0.3765621, 0.1826277, 0.1793023, 0.2583054),
     (0.3689163, 0.2382403, 0.2827451, 0.3730188, 0.3532115)),
    ((0.4714065, 0.5611538, 0.42481566, 0.2762619, 0.4760532),
     (0.3309220, 0.2999394, 0.06955742, 0.7068563, 0.3288446),
     (0.1976715, 0.1389068, 0.50562693, 0.0168818, 0.1951022)),
)  # fmt: skip
COEFFICIENTS = (-1.795, -2.889, -0.662)


@dataclasses.dataclass(frozen=True)
class Problem:
    """``param`` is the one that the paper's tables are about."""

    model: na.Model
    statistic: na.Statistic
    param: str
    truth: dict[str, np.ndarray]
    sensitivity: float

    def mechanism(self, epsilon: float) -> na.Laplace:
        return na.Laplace(self.sensitivity / epsilon)

    def records(self, seed: int) -> dict[str, np.ndarray]:
        """One confidential data set."""
        with jax.enable_x64(True):
            params = {name: jnp.asarray(value) for name, value in self.truth.items()}
            found = self.model.sample_records(jr.key(seed), params, NUM_RECORDS)
            return {name: np.asarray(column) for name, column in found.items()}


def log_linear() -> Problem:
    levels = dict.fromkeys(FEATURES, LEVELS)
    model = na.NaiveBayes("class", CLASSES, levels, 2.0, 2.0)
    names = list(model.supports)
    truth = {names[0]: np.array(CLASS_PROBABILITIES) / sum(CLASS_PROBABILITIES)}
    for name, table in zip(names[1:], LEVEL_PROBABILITIES, strict=True):
        by_class = np.array(table).T
        truth[name] = by_class / by_class.sum(axis=1, keepdims=True)
    statistic = na.ClassTables("class", CLASSES, levels)
    return Problem(model, statistic, names[0], truth, 2.0 * len(FEATURES))


def regression() -> Problem:
    names = ("x1", "x2")
    statistic = na.RegressionMoments("y", names, dict.fromkeys((*names, "y"), (-10, 10)))
    model = na.LinearRegression(
        "y", names, coefficients=na.NormalPrior(0.0, 2.0), noise_stddev=np.sqrt(2.0),
        predictor_means=[0.9, -1.17], predictor_covariance=np.eye(2),
    )  # fmt: skip
    return Problem(
        model, statistic, "coefficients", {"coefficients": np.array(COEFFICIENTS)},
        statistic.jagr22_sensitivity_l1(),
    )  # fmt: skip


PROBLEMS = {"log-linear": log_linear(), "regression": regression()}


@dataclasses.dataclass(frozen=True)
class Way:
    """How a release is fitted, and how many draws of each chain are dropped."""

    method: str
    chains: int
    draws: int
    dropped: int = 0
    sweeps_per_draw: int | None = None

    @property
    def options(self) -> dict:
        return {
            "method": self.method, "chains": self.chains, "draws": self.draws,
            "sweeps_per_draw": self.sweeps_per_draw, "progress": False,
        }  # fmt: skip


WAYS = {
    "paper": Way("record_augmentation", 1, NUM_ITERATIONS, NUM_DROPPED, sweeps_per_draw=1),
    "converged": Way("interweaving", 4, 500),
}
