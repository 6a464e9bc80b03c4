"""Normal column: ``x_i ~ N(mean, stddev^2)``, the standard deviation known or learned.

phi: ``x = mean + stddev e`` with e standard normal. Given records, mean and stddev are drawn one
after the other from their conjugate conditionals, a Gibbs step for ``p(mean, stddev | x)``.
"""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy import stats

from noiseaware import randomness, validate
from noiseaware.models.model import Model
from noiseaware.models.priors import NormalPrior, StddevPrior
from noiseaware.models.support import Positive, RealLine
from noiseaware.schema import Real


class Normal(Model):
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

    def sample_posterior(self, key, params, records):
        key_mean, key_stddev = jr.split(key)
        x = records[self.column]
        precision = self.mean.scale**-2.0 + x.size / self._stddev(params) ** 2
        shift = self.mean.location / self.mean.scale**2 + jnp.sum(x) / self._stddev(params) ** 2
        drawn = {"mean": shift / precision + randomness.normal(key_mean) / jnp.sqrt(precision)}
        if isinstance(self.stddev, StddevPrior):
            sum_of_squares = jnp.sum((x - drawn["mean"]) ** 2)
            drawn["stddev"] = self.stddev.sample_posterior(key_stddev, sum_of_squares, x.size)
        return drawn

    def log_record(self, params, record):
        return stats.norm.logpdf(record[self.column], params["mean"], self._stddev(params))

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
