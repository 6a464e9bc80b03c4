"""Logistic regression with predictors of a few levels each, as in a contingency table.

``cell ~ Categorical(probabilities)`` over all combinations of levels, with Dirichlet probabilities;
``y | cell ~ Bernoulli(1 / (1 + exp(-eta)))``, eta the intercept plus one coefficient for each level
of the cell but a predictor's first.

Params given records, which matter through the counts of (cell, y): probabilities from their
conjugate law, coefficients by slices. phi: the cell into which a uniform falls, then ``y = 1``
where a logistic noise is below eta.
"""

import itertools
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from noiseaware import elliptical_slice, randomness, validate
from noiseaware.elliptical_slice import Point
from noiseaware.models.dirichlet_categorical import cell, concentrations, edges, within_cell
from noiseaware.models.model import Model
from noiseaware.models.noise import is_below, logistic_noise, noise_given_side
from noiseaware.models.priors import NormalPrior, dirichlet_log_density, normal_prior_of_size
from noiseaware.models.support import RealLine, Simplex
from noiseaware.schema import Binary, Category, as_levels

NUM_SLICES = 3


class CategoricalLogisticRegression(Model):
    """A yes/no response, 0 or 1, and its predictors, each with its levels.

    ``coefficients`` is the prior of the intercept, which belongs to every predictor's first level,
    and of what each other level adds. ``concentration`` counts as earlier records of each
    combination of levels.
    """

    response: str = eqx.field(static=True)
    predictors: tuple[tuple[str, tuple[str | int, ...]], ...] = eqx.field(static=True)
    coefficients: NormalPrior
    concentration: np.ndarray

    def __init__(
        self,
        response: str,
        predictors: Mapping[str, int | Sequence[str | int]],
        *,
        coefficients: NormalPrior,
        concentration=1.0,
    ):
        self.response = validate.column_name("response", response)
        validate.distinct("columns", (*predictors, response))
        self.predictors = tuple(
            (validate.column_name("predictor", name), as_levels(name, levels))
            for name, levels in predictors.items()
        )
        for name, levels in self.predictors:
            if len(levels) < 2:
                raise ValueError(f"levels of {name} must be two or more, got {levels!r}.")
        size = 1 + sum(len(levels) - 1 for _, levels in self.predictors)
        self.coefficients = normal_prior_of_size("coefficients", coefficients, size)
        self.concentration = concentrations(concentration, (len(self._cells()),))

    @property
    def columns(self):
        kinds = {name: Category(levels) for name, levels in self.predictors}
        return kinds | {self.response: Binary()}

    @property
    def supports(self):
        return {"probabilities": Simplex(), "coefficients": RealLine()}

    @property
    def labels(self):
        each = [[f"{name}={level}" for level in levels] for name, levels in self.predictors]
        return {
            "probabilities": {"cell": tuple(map(",".join, itertools.product(*each)))},
            "coefficients": {
                "coefficient": ("intercept", *(label for labels in each for label in labels[1:]))
            },
        }

    def sample_prior(self, key):
        key_cells, key_coefficients = jr.split(key)
        shape = self.coefficients.location.shape
        return {
            "probabilities": jr.dirichlet(key_cells, self.concentration),
            "coefficients": self.coefficients.sample(key_coefficients, shape),
        }

    def log_prior(self, params):
        of_cells = dirichlet_log_density(params["probabilities"], self.concentration)
        return of_cells + self.coefficients.log_density(params["coefficients"])

    def sample_posterior(self, key, params, records):
        key_cells, key_slices = jr.split(key)
        index = jax.vmap(self._cell)(records)
        is_in = index[:, None] == np.arange(len(self.concentration))
        sizes = jnp.sum(is_in, axis=0, dtype=float)
        ones = jnp.sum(jnp.where(is_in, records[self.response][:, None], 0.0), axis=0)
        prior = self.coefficients

        def log_density(whitened):
            scores = self._design() @ (prior.location + prior.scale * whitened)
            log_ones = ones @ jax.nn.log_sigmoid(scores)
            log_zeros = (sizes - ones) @ jax.nn.log_sigmoid(-scores)
            return log_ones + log_zeros - whitened @ whitened / 2, ()

        whitened = (params["coefficients"] - prior.location) / prior.scale
        end, _ = jax.lax.scan(
            lambda at, key: (elliptical_slice.move(key, at, log_density), None),
            Point(whitened, *log_density(whitened)),
            jr.split(key_slices, NUM_SLICES),
        )
        return {
            "probabilities": jr.dirichlet(key_cells, self.concentration + sizes),
            "coefficients": prior.location + prior.scale * end.whitened,
        }

    def log_record(self, params, record):
        index, sign = self._cell(record), 2 * record[self.response] - 1
        log_y = jax.nn.log_sigmoid(sign * self._score(params, index))
        return jnp.log(params["probabilities"][index]) + log_y

    def sample_noise(self, key, num_records):
        key_cell, key_response = jr.split(key)
        return {
            "cell": randomness.uniform(key_cell, (num_records,)),
            "response": logistic_noise(key_response, (num_records,)),
        }

    def record(self, params, noise):
        index = cell(edges(params["probabilities"]), noise["cell"])
        y = is_below(self._score(params, index), noise["response"])
        levels = jnp.asarray(self._cells())[index]
        return {name: levels[k] for k, (name, _) in enumerate(self.predictors)} | {self.response: y}

    def noise(self, params, record, fresh):
        index, y = self._cell(record), record[self.response]
        bounds = edges(params["probabilities"])
        return {
            "cell": within_cell(bounds, index, fresh["cell"]),
            "response": noise_given_side(self._score(params, index), y, fresh["response"]),
        }

    def _cells(self) -> np.ndarray:
        """The levels of each cell, the last predictor's fastest."""
        return np.array(list(itertools.product(*(range(len(k)) for _, k in self.predictors))))

    def _design(self) -> np.ndarray:
        """Row by cell: 1, then for each predictor which of its levels but the first."""
        cells = self._cells()
        columns = [
            cells[:, k] == level
            for k, (_, levels) in enumerate(self.predictors)
            for level in range(1, len(levels))
        ]
        return np.stack([np.ones(len(cells)), *columns], axis=1)

    def _cell(self, record):
        index = jnp.zeros((), int)
        for name, levels in self.predictors:
            index = index * len(levels) + record[name]
        return index

    def _score(self, params, index):
        return (jnp.asarray(self._design()) @ params["coefficients"])[index]
