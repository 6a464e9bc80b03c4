"""Linear regression with random predictors [JAGR22, Section 5].

``x ~ N_p(means, covariance)``, ``y | x ~ N(intercept + coefficients . x, noise_stddev^2)``.

phi: x as in ``regression``, then ``y`` by its own standard normal. Given records, coefficients,
noise_stddev, means and covariance are drawn one after the other from their conjugate conditionals;
those that are known are left alone.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax.scipy import linalg, stats
from jaxtyping import Array, Float

from noiseaware import randomness
from noiseaware.models.normal import known_or_prior
from noiseaware.models.priors import CovariancePrior, NormalPrior, StddevPrior
from noiseaware.models.regression import Regression
from noiseaware.models.support import Positive
from noiseaware.schema import Real


class LinearRegression(Regression):
    """A response and its predictors, all real columns.

    ``coefficients`` is the prior of (intercept, slopes). ``noise_stddev``, ``predictor_means`` and
    ``predictor_covariance`` are numbers, then known, or a ``StddevPrior``, ``NormalPrior`` and
    ``CovariancePrior``.
    """

    noise_stddev: np.ndarray | StddevPrior

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
        super().__init__(
            response,
            predictors,
            coefficients=coefficients,
            predictor_means=predictor_means,
            predictor_covariance=predictor_covariance,
        )
        self.noise_stddev = known_or_prior("noise_stddev", noise_stddev)

    @property
    def columns(self):
        return {name: Real() for name in (*self.predictors, self.response)}

    @property
    def supports(self):
        is_learned = isinstance(self.noise_stddev, StddevPrior)
        return super().supports | ({"noise_stddev": Positive()} if is_learned else {})

    @property
    def has_normal_noise(self):
        return True

    def sample_posterior(self, key, params, records):
        keys = randomness.split(key, 4)
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
        x, stddev = self._x(record), self._get(params, "noise_stddev")
        log_y = stats.norm.logpdf(record[self.response], self._predicted(params, x), stddev)
        return self._log_density_of_x(params, x) + log_y

    def sample_noise(self, key, num_records):
        normals = randomness.normal(key, (len(self.predictors) + 1, num_records)).T
        return {"predictors": normals[:, :-1], "response": normals[:, -1]}

    def record(self, params, noise):
        x = self._place(params, noise["predictors"])
        y = self._predicted(params, x) + self._get(params, "noise_stddev") * noise["response"]
        return dict(zip(self.predictors, x, strict=True)) | {self.response: y}

    def noise(self, params, record, fresh):
        x = self._x(record)
        residual = record[self.response] - self._predicted(params, x)
        return {
            "predictors": self._normals(params, x),
            "response": residual / self._get(params, "noise_stddev"),
        }


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
