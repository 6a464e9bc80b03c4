"""Normal column: ``x_i ~ N(mean, stddev^2)``, the standard deviation known or learned.

phi: ``x = mean + stddev e`` with e standard normal. Given records, mean and stddev are drawn one
after the other from their conjugate conditionals, a Gibbs step for ``p(mean, stddev | x)``.
"""

import math

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy import stats

from noiseaware import randomness, validate
from noiseaware.models.domain import Reals
from noiseaware.models.exponential_family import ExponentialFamily
from noiseaware.models.priors import NormalPrior, StddevPrior
from noiseaware.models.support import Positive, RealLine
from noiseaware.schema import Real


class Normal(ExponentialFamily):
    """A real column. ``stddev`` is a number, then known, or a ``StddevPrior``."""

    column: str = eqx.field(static=True)
    mean: NormalPrior
    stddev: np.ndarray | StddevPrior

    def __init__(self, column: str, mean: NormalPrior, stddev):
        self.column = validate.column_name("column", column)
        if not isinstance(mean, NormalPrior) or mean.location.ndim or mean.scale.ndim:
            raise ValueError(f"mean must be a NormalPrior of one number, got {mean!r}.")
        self.mean = mean
        self.stddev = known_or_prior("stddev", stddev)

    @property
    def columns(self):
        return {self.column: Real()}

    @property
    def supports(self):
        is_learned = isinstance(self.stddev, StddevPrior)
        return {"mean": RealLine()} | ({"stddev": Positive()} if is_learned else {})

    def sample_prior(self, key):
        key_mean, key_stddev = jr.split(key)
        params = {"mean": self.mean.sample(key_mean)}
        if isinstance(self.stddev, StddevPrior):
            params["stddev"] = self.stddev.sample(key_stddev)
        return params

    def log_prior(self, params):
        log_density = self.mean.log_density(params["mean"])
        if isinstance(self.stddev, StddevPrior):
            log_density += self.stddev.log_density(params["stddev"])
        return log_density

    @property
    def features(self):
        return ("x", "x^2") if isinstance(self.stddev, StddevPrior) else ("x",)

    @property
    def domain(self):
        return Reals()

    def natural(self, params):
        precision = self._stddev(params) ** -2.0
        return jnp.stack([params["mean"] * precision, -precision / 2][: len(self.features)])

    def log_partition(self, natural):
        if isinstance(self.stddev, StddevPrior):
            return -(natural[0] ** 2) / (4 * natural[1]) - jnp.log(-2 * natural[1]) / 2
        return natural[0] ** 2 * self.stddev**2 / 2

    def log_base(self, x):
        if isinstance(self.stddev, StddevPrior):
            return jnp.full_like(x, -math.log(2 * math.pi) / 2)
        return stats.norm.logpdf(x, 0.0, self.stddev)

    def log_density(self, params, x):
        # Not by natural parameters, which cancel where the mean is many stddevs from 0.
        return stats.norm.logpdf(x, params["mean"], self._stddev(params))

    def sample_posterior(self, key, params, records):
        x = records[self.column]

        def squares(mean):
            return jnp.sum((x - mean) ** 2)

        return self._draw(key, params, jnp.sum(x), squares, x.size)

    def sample_params(self, key, params, sums, num_records):
        def squares(mean):
            squares = sums[1] - 2 * mean * sums[0] + num_records * mean**2
            return jnp.maximum(squares, 0.0)

        return self._draw(key, params, sums[0], squares, num_records)

    def _draw(self, key, params, sum, squares, num_records):
        """Given the sum, and ``squares(mean) = sum_i (x_i - mean)^2``."""
        key_mean, key_stddev = jr.split(key)
        precision = self.mean.scale**-2.0 + num_records / self._stddev(params) ** 2
        shift = self.mean.location / self.mean.scale**2 + sum / self._stddev(params) ** 2
        drawn = {"mean": shift / precision + randomness.normal(key_mean) / jnp.sqrt(precision)}
        if isinstance(self.stddev, StddevPrior):
            drawn["stddev"] = self.stddev.sample_posterior(
                key_stddev, squares(drawn["mean"]), num_records
            )
        return drawn

    def is_possible(self, sums, num_records):
        if isinstance(self.stddev, StddevPrior):
            return sums[1] >= sums[0] ** 2 / num_records
        return jnp.isfinite(sums[0])

    @property
    def has_normal_noise(self):
        return True

    def sample_noise(self, key, num_records):
        return {self.column: randomness.normal(key, (num_records,))}

    def record(self, params, noise):
        return {self.column: params["mean"] + self._stddev(params) * noise[self.column]}

    def noise(self, params, record, fresh):
        return {self.column: (record[self.column] - params["mean"]) / self._stddev(params)}

    def _stddev(self, params):
        return params.get("stddev", self.stddev)


def known_or_prior(name: str, value) -> np.ndarray | StddevPrior:
    if isinstance(value, StddevPrior):
        return value
    return validate.scalar(name, validate.positive(name, value))
