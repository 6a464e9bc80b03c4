"""Linear regression with random predictors [JAGR22, Section 5].

``x ~ N_p(means, covariance)``, ``y | x ~ N(intercept + coefficients . x, noise_stddev^2)``.

phi: ``x = means + L e`` with ``L L^T = covariance``, then ``y`` by its own standard normal. Given
records, coefficients, noise_stddev, means and covariance are drawn one after the other
from their conjugate conditionals; those that are known are left alone.
"""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy import linalg, stats
from jaxtyping import Array, Float

from noiseaware import randomness, validate
from noiseaware.models.model import Model
from noiseaware.models.normal import known_or_prior
from noiseaware.models.priors import CovariancePrior, NormalPrior, StddevPrior
from noiseaware.models.support import Covariance, Positive, RealLine, Support
from noiseaware.schema import Real


class LinearRegression(Model):
    """A response and its predictors, all real columns.

    ``coefficients`` is the prior of (intercept, slopes). ``noise_stddev``, ``predictor_means`` and
    ``predictor_covariance`` are numbers, then known, or a ``StddevPrior``, ``NormalPrior`` and
    ``CovariancePrior``.
    """

    response: str = eqx.field(static=True)
    predictors: tuple[str, ...] = eqx.field(static=True)
    coefficients: NormalPrior
    noise_stddev: np.ndarray | StddevPrior
    predictor_means: np.ndarray | NormalPrior
    predictor_covariance: np.ndarray | CovariancePrior

    def __init__(
        self,
        response: str,
        predictors: Sequence[str],
        *,
        coefficients: NormalPrior,
        noise_stddev,
        predictor_means,
        predictor_covariance,
    ):
        self.response = validate.column_name("response", response)
        self.predictors = validate.distinct("predictors", predictors)
        validate.distinct("columns", (*self.predictors, response))
        size = len(self.predictors)
        self.coefficients = _normal_prior("coefficients", coefficients, size + 1)
        self.noise_stddev = known_or_prior("noise_stddev", noise_stddev)
        if isinstance(predictor_means, NormalPrior):
            self.predictor_means = _normal_prior("predictor_means", predictor_means, size)
        else:
            means = validate.finite("predictor_means", predictor_means)
            self.predictor_means = _of_length("predictor_means", means, size)
        self.predictor_covariance = _covariance(predictor_covariance, size)

    @property
    def columns(self):
        return {name: Real() for name in (*self.predictors, self.response)}

    @property
    def supports(self):
        supports: dict[str, Support] = {"coefficients": RealLine()}
        if isinstance(self.noise_stddev, StddevPrior):
            supports["noise_stddev"] = Positive()
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

    def sample_posterior(self, key, params, records):
        keys = jr.split(key, 4)
        x = jnp.stack([records[name] for name in self.predictors], axis=1)
        y = records[self.response]
        design = jnp.concatenate([jnp.ones((len(y), 1)), x], axis=1)
        params = dict(params)

        variance = self._get(params, "noise_stddev") ** 2
        params["coefficients"] = _normal_posterior(
            keys[0], self.coefficients, design.T @ design / variance, design.T @ y / variance
        )
        if isinstance(self.noise_stddev, StddevPrior):
            residuals = y - design @ params["coefficients"]
            params["noise_stddev"] = self.noise_stddev.sample_posterior(
                keys[1], jnp.sum(residuals**2), len(y)
            )
        if isinstance(self.predictor_means, NormalPrior):
            factor = jnp.linalg.cholesky(self._get(params, "predictor_covariance"))
            precision = linalg.cho_solve((factor, True), jnp.eye(len(self.predictors)))
            params["predictor_means"] = _normal_posterior(
                keys[2], self.predictor_means, len(y) * precision, precision @ jnp.sum(x, axis=0)
            )
        if isinstance(self.predictor_covariance, CovariancePrior):
            deviations = x - self._get(params, "predictor_means")
            params["predictor_covariance"] = self.predictor_covariance.sample_posterior(
                keys[3], deviations.T @ deviations, len(y)
            )
        return params

    def log_record(self, params, record):
        noise = self.noise(params, record, None)
        factor = jnp.linalg.cholesky(self._get(params, "predictor_covariance"))
        log_stretch = jnp.log(self._get(params, "noise_stddev"))
        log_stretch += jnp.sum(jnp.log(jnp.diagonal(factor)))
        log_noise = stats.norm.logpdf(noise["response"])
        return log_noise + jnp.sum(stats.norm.logpdf(noise["predictors"])) - log_stretch

    @property
    def has_normal_noise(self):
        return True

    def sample_noise(self, key, num_records):
        normals = randomness.normal(key, (len(self.predictors) + 1, num_records)).T
        return {"predictors": normals[:, :-1], "response": normals[:, -1]}

    def record(self, params, noise):
        factor = jnp.linalg.cholesky(self._get(params, "predictor_covariance"))
        x = self._get(params, "predictor_means") + factor @ noise["predictors"]
        y = self._expected(params, x) + self._get(params, "noise_stddev") * noise["response"]
        return dict(zip(self.predictors, x, strict=True)) | {self.response: y}

    def noise(self, params, record, fresh):
        x = jnp.stack([record[name] for name in self.predictors])
        factor = jnp.linalg.cholesky(self._get(params, "predictor_covariance"))
        deviations = x - self._get(params, "predictor_means")
        residual = record[self.response] - self._expected(params, x)
        # An inverse shared by all records: a triangular solve would be repeated for each.
        inverse = linalg.solve_triangular(factor, jnp.eye(len(x)), lower=True)
        return {
            "predictors": inverse @ deviations,
            "response": residual / self._get(params, "noise_stddev"),
        }

    def _expected(self, params, x):
        return params["coefficients"][0] + params["coefficients"][1:] @ x

    def _get(self, params, name: str):
        """A learned parameter, or its known value."""
        return params[name] if name in params else getattr(self, name)

    def _priors(self) -> dict:
        return {name: getattr(self, name) for name in self.supports}


def _normal_posterior(
    key, prior: NormalPrior, precision: Float[Array, "k k"], shift: Float[Array, " k"]
) -> Float[Array, " k"]:
    """``N(prior) x exp(-b' precision b / 2 + b' shift)``, by one Cholesky factor of the sum."""
    precision = precision + jnp.diag(prior.scale**-2.0)
    shift = shift + prior.location / prior.scale**2
    factor = jnp.linalg.cholesky(precision)
    whitened = linalg.solve_triangular(factor, shift, lower=True) + randomness.normal(
        key, shift.shape
    )
    return linalg.solve_triangular(factor.T, whitened, lower=False)


def _normal_prior(name: str, prior, size: int) -> NormalPrior:
    if not isinstance(prior, NormalPrior):
        raise ValueError(f"{name} must be a NormalPrior, got {prior!r}.")
    return NormalPrior(
        _of_length(f"location of {name}", prior.location, size),
        _of_length(f"scale of {name}", prior.scale, size),
    )


def _of_length(name: str, array: np.ndarray, size: int) -> np.ndarray:
    if array.shape not in ((), (size,)):
        raise ValueError(f"{name} must be one number or {size}, got shape {array.shape}.")
    return np.broadcast_to(array, (size,)).copy()


def _covariance(value, size: int) -> np.ndarray | CovariancePrior:
    if isinstance(value, CovariancePrior):
        return CovariancePrior(_of_length("stddevs", value.stddevs, size), value.weight)
    covariance = validate.finite("predictor_covariance", value)
    if covariance.shape != (size, size) or not np.array_equal(covariance, covariance.T):
        raise ValueError(
            f"predictor_covariance must be symmetric of shape {(size, size)}, got {value!r}."
        )
    if np.min(np.linalg.eigvalsh(covariance)) <= 0:
        raise ValueError(f"predictor_covariance must be positive definite, got {value!r}.")
    return covariance
