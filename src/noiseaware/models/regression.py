"""What regressions share: normal predictors, known or learned, and coefficients.

``x ~ N_p(means, covariance)``, written as ``x = means + L e`` with ``L L^T = covariance`` and e
standard normal; the response depends on ``intercept + coefficients . x``.
"""

import functools
import operator
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy import linalg, stats
from jaxtyping import Array, Float

from noiseaware import validate
from noiseaware.models.model import Model, Params
from noiseaware.models.priors import CovariancePrior, NormalPrior, normal_prior_of_size, of_length
from noiseaware.models.support import Covariance, RealLine, Support
from noiseaware.schema import Record

MAX_SPELLED = 4


class Regression(Model):
    response: str = eqx.field(static=True)
    predictors: tuple[str, ...] = eqx.field(static=True)
    coefficients: NormalPrior
    predictor_means: np.ndarray | NormalPrior
    predictor_covariance: np.ndarray | CovariancePrior

    def __init__(
        self,
        response: str,
        predictors: Sequence[str],
        *,
        coefficients: NormalPrior,
        predictor_means,
        predictor_covariance,
    ):
        self.response = validate.column_name("response", response)
        self.predictors = validate.distinct("predictors", predictors)
        validate.distinct("columns", (*self.predictors, response))
        size = len(self.predictors)
        self.coefficients = normal_prior_of_size("coefficients", coefficients, size + 1)
        if isinstance(predictor_means, NormalPrior):
            self.predictor_means = normal_prior_of_size("predictor_means", predictor_means, size)
        else:
            means = validate.finite("predictor_means", predictor_means)
            self.predictor_means = of_length("predictor_means", means, size)
        self.predictor_covariance = _covariance(predictor_covariance, size)

    @property
    def supports(self):
        supports: dict[str, Support] = {"coefficients": RealLine()}
        if isinstance(self.predictor_means, NormalPrior):
            supports["predictor_means"] = RealLine()
        if isinstance(self.predictor_covariance, CovariancePrior):
            supports["predictor_covariance"] = Covariance(len(self.predictors))
        return supports

    @property
    def labels(self):
        labels = {
            "coefficients": {"coefficient": ("intercept", *self.predictors)},
            "predictor_means": {"predictor": self.predictors},
            "predictor_covariance": {
                "predictor": self.predictors,
                "other_predictor": self.predictors,
            },
        }
        return {name: axes for name, axes in labels.items() if name in self.supports}

    def sample_prior(self, key):
        priors = self._priors()
        keys = dict(zip(priors, jr.split(key, len(priors)), strict=True))
        return {
            name: prior.sample(keys[name], prior.location.shape)
            if isinstance(prior, NormalPrior)
            else prior.sample(keys[name])
            for name, prior in priors.items()
        }

    def log_prior(self, params):
        return sum(prior.log_density(params[name]) for name, prior in self._priors().items())

    def _x(self, record: Record) -> Float[Array, " p"]:
        return jnp.stack([record[name] for name in self.predictors])

    def _place(self, params: Params, normals: Float[Array, " p"]) -> Float[Array, " p"]:
        return self._get(params, "predictor_means") + _product(self._factor(params), normals)

    def _normals(self, params: Params, x: Float[Array, " p"]) -> Float[Array, " p"]:
        # An inverse shared by all records: a triangular solve would be repeated for each.
        inverse = linalg.solve_triangular(self._factor(params), jnp.eye(len(x)), lower=True)
        return _product(inverse, x - self._get(params, "predictor_means"))

    def _log_density_of_x(self, params: Params, x: Float[Array, " p"]) -> Float[Array, ""]:
        log_stretch = jnp.sum(jnp.log(jnp.diagonal(self._factor(params))))
        return jnp.sum(stats.norm.logpdf(self._normals(params, x))) - log_stretch

    def _predicted(self, params: Params, x: Float[Array, " p"]) -> Float[Array, ""]:
        return params["coefficients"][0] + _product(params["coefficients"][1:], x)

    def _factor(self, params: Params) -> Float[Array, "p p"]:
        return jnp.linalg.cholesky(self._get(params, "predictor_covariance"))

    def _get(self, params: Params, name: str):
        """A learned parameter, or its known value."""
        return params[name] if name in params else getattr(self, name)

    def _priors(self) -> dict:
        return {name: getattr(self, name) for name in self.supports}


def _product(matrix: Float[Array, "*k p"], vector: Float[Array, " p"]) -> Float[Array, "*k"]:
    """``matrix @ vector``, spelled out where it is small: there a call of a library's product would
    take longer than all the rest of a record.
    """
    if vector.size > MAX_SPELLED:
        return matrix @ vector
    return functools.reduce(operator.add, (matrix[..., k] * vector[k] for k in range(vector.size)))


def _covariance(value, size: int) -> np.ndarray | CovariancePrior:
    if isinstance(value, CovariancePrior):
        return CovariancePrior(of_length("stddevs", value.stddevs, size), value.weight)
    covariance = validate.finite("predictor_covariance", value)
    if covariance.shape != (size, size) or not np.array_equal(covariance, covariance.T):
        raise ValueError(
            f"predictor_covariance must be symmetric of shape {(size, size)}, got {value!r}."
        )
    if np.min(np.linalg.eigvalsh(covariance)) <= 0:
        raise ValueError(f"predictor_covariance must be positive definite, got {value!r}.")
    return covariance
