"""Dirichlet-categorical: ``probabilities ~ Dirichlet(concentration)``, ``x_i ~ Categorical``.

phi: x is the cell of the cumulated probabilities into which u, uniform, falls; given x, u is
uniform on that cell.
"""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int

from noiseaware import validate
from noiseaware.models.model import Model
from noiseaware.models.priors import dirichlet_log_density
from noiseaware.models.support import Simplex
from noiseaware.schema import Category, as_levels


class DirichletCategorical(Model):
    """A column of levels. ``concentration`` counts as earlier records of each level."""

    column: str = eqx.field(static=True)
    levels: tuple[str | int, ...] = eqx.field(static=True)
    concentration: np.ndarray

    def __init__(self, column: str, levels: int | Sequence[str | int], concentration=1.0):
        self.column = validate.column_name("column", column)
        self.levels = as_levels(self.column, levels)
        self.concentration = concentrations(concentration, (len(self.levels),))

    @property
    def columns(self):
        return {self.column: Category(self.levels)}

    @property
    def supports(self):
        return {"probabilities": Simplex()}

    @property
    def labels(self):
        return {"probabilities": {self.column: tuple(map(str, self.levels))}}

    def sample_prior(self, key):
        return {"probabilities": jr.dirichlet(key, self.concentration)}

    def log_prior(self, params):
        return dirichlet_log_density(params["probabilities"], self.concentration)

    def sample_posterior(self, key, params, records):
        is_level = records[self.column][:, None] == np.arange(len(self.levels))
        return {"probabilities": jr.dirichlet(key, self.concentration + jnp.sum(is_level, 0))}

    def log_record(self, params, record):
        return jnp.log(params["probabilities"][record[self.column]])

    def sample_noise(self, key, num_records):
        return {self.column: jr.uniform(key, (num_records,))}

    def record(self, params, noise):
        return {self.column: cell(params["probabilities"], noise[self.column])}

    def noise(self, params, record, fresh):
        inside = within_cell(params["probabilities"], record[self.column], fresh[self.column])
        return {self.column: inside}


def concentrations(value, shape: tuple[int, ...]) -> np.ndarray:
    array = validate.positive("concentration", value)
    try:
        return np.broadcast_to(array, shape).copy()
    except ValueError:
        raise ValueError(
            f"concentration must be one number or of shape {shape}, got shape {array.shape}."
        ) from None


def cell(probabilities: Float[Array, " k"], uniform: Float[Array, ""]) -> Int[Array, ""]:
    """The cell of the cumulated probabilities that holds ``uniform``; the last takes the rest."""
    return jnp.sum(uniform >= jnp.cumsum(probabilities)[:-1])


def within_cell(probabilities, index, uniform) -> Float[Array, ""]:
    """``uniform`` moved into cell ``index``."""
    upper = jnp.cumsum(probabilities)[index]
    return upper - probabilities[index] * (1 - uniform)
