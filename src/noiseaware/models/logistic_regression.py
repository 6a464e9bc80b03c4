"""Logistic regression with random predictors.

``x ~ N_p(means, covariance)``, ``y | x ~ Bernoulli(1 / (1 + exp(-eta)))`` with
``eta = intercept + coefficients . x``.

phi: x as in ``regression``, then ``y = 1`` where a logistic noise is below eta; given y it is that
noise on its side of eta. No prior is conjugate: a sampler moves params given records by a slice.
"""

import jax
import jax.random as jr

from noiseaware import randomness
from noiseaware.models.noise import is_below, logistic_noise, noise_given_side
from noiseaware.models.regression import Regression
from noiseaware.schema import Binary, Real


class LogisticRegression(Regression):
    """A yes/no response, 0 or 1, and its predictors, real columns.

    ``coefficients`` is the prior of (intercept, slopes). ``predictor_means`` and
    ``predictor_covariance`` are numbers, then known, or a ``NormalPrior`` and ``CovariancePrior``.
    """

    @property
    def columns(self):
        return {name: Real() for name in self.predictors} | {self.response: Binary()}

    def log_record(self, params, record):
        x, sign = self._x(record), 2 * record[self.response] - 1
        log_y = jax.nn.log_sigmoid(sign * self._predicted(params, x))
        return self._log_density_of_x(params, x) + log_y

    def sample_noise(self, key, num_records):
        key_predictors, key_response = jr.split(key)
        normals = randomness.normal(key_predictors, (len(self.predictors), num_records)).T
        return {"predictors": normals, "response": logistic_noise(key_response, (num_records,))}

    def record(self, params, noise):
        x = self._place(params, noise["predictors"])
        y = is_below(self._predicted(params, x), noise["response"])
        return dict(zip(self.predictors, x, strict=True)) | {self.response: y}

    def noise(self, params, record, fresh):
        x, y = self._x(record), record[self.response]
        response = noise_given_side(self._predicted(params, x), y, fresh["response"])
        return {"predictors": self._normals(params, x), "response": response}
