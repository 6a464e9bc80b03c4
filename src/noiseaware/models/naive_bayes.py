"""Naive Bayes log-linear model [JAGR22, Section 4].

``p`` and every ``p^k_i`` are Dirichlet; class ``y ~ p``, and given ``y = i`` the features
``x_k ~ p^k_i`` are independent.

phi: class first, then each feature given the class, every one by its own uniform.
"""

from collections.abc import Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from noiseaware import randomness, validate
from noiseaware.models.dirichlet_categorical import cell, concentrations, edges, within_cell
from noiseaware.models.model import Model
from noiseaware.models.priors import dirichlet_log_density
from noiseaware.models.support import Simplex
from noiseaware.schema import Category, as_levels


class NaiveBayes(Model):
    """A class column, and feature columns independent given the class.

    ``class_concentration`` counts as earlier records of each class, ``feature_concentration``
    as earlier records of each level within each class.
    """

    class_column: str = eqx.field(static=True)
    class_levels: tuple[str | int, ...] = eqx.field(static=True)
    features: tuple[tuple[str, tuple[str | int, ...]], ...] = eqx.field(static=True)
    class_concentration: np.ndarray
    feature_concentrations: dict[str, np.ndarray]

    def __init__(
        self,
        class_column: str,
        class_levels: int | Sequence[str | int],
        features: Mapping[str, int | Sequence[str | int]],
        class_concentration=1.0,
        feature_concentration=1.0,
    ):
        self.class_column = validate.column_name("class_column", class_column)
        self.class_levels = as_levels(class_column, class_levels)
        validate.distinct("features", tuple(features))
        validate.distinct("columns", (class_column, *features))
        self.features = tuple((name, as_levels(name, levels)) for name, levels in features.items())
        self.class_concentration = concentrations(class_concentration, (len(self.class_levels),))
        self.feature_concentrations = {
            name: concentrations(feature_concentration, (len(self.class_levels), len(levels)))
            for name, levels in self.features
        }

    @property
    def columns(self):
        kinds = {self.class_column: Category(self.class_levels)}
        return kinds | {name: Category(levels) for name, levels in self.features}

    @property
    def supports(self):
        return {_of(name): Simplex() for name in self.columns}

    @property
    def labels(self):
        classes = {self.class_column: tuple(map(str, self.class_levels))}
        of_features = {
            _of(name): classes | {name: tuple(map(str, levels))} for name, levels in self.features
        }
        return {_of(self.class_column): classes} | of_features

    def sample_prior(self, key):
        return self._sample(key, self.class_concentration, self.feature_concentrations)

    def log_prior(self, params):
        of_features = [
            dirichlet_log_density(params[_of(name)], self.feature_concentrations[name])
            for name, _ in self.features
        ]
        return dirichlet_log_density(
            params[_of(self.class_column)], self.class_concentration
        ) + sum(of_features)

    def sample_posterior(self, key, params, records):
        in_class = records[self.class_column][:, None] == np.arange(len(self.class_levels))
        in_class = in_class.astype(float)
        tables = {}
        for name, levels in self.features:
            at_level = (records[name][:, None] == np.arange(len(levels))).astype(float)
            tables[name] = self.feature_concentrations[name] + in_class.T @ at_level
        return self._sample(key, self.class_concentration + jnp.sum(in_class, 0), tables)

    def log_record(self, params, record):
        y = record[self.class_column]
        of_features = [jnp.log(params[_of(name)][y, record[name]]) for name, _ in self.features]
        return jnp.log(params[_of(self.class_column)][y]) + sum(of_features)

    def sample_noise(self, key, num_records):
        uniforms = randomness.uniform(key, (1 + len(self.features), num_records))
        return dict(zip(self.columns, uniforms, strict=True))

    def record(self, params, noise):
        y = cell(edges(params[_of(self.class_column)]), noise[self.class_column])
        of_features = {
            name: cell(edges(params[_of(name)])[y], noise[name]) for name, _ in self.features
        }
        return {self.class_column: y} | of_features

    def noise(self, params, record, fresh):
        y = record[self.class_column]
        of_features = {
            name: within_cell(edges(params[_of(name)])[y], record[name], fresh[name])
            for name, _ in self.features
        }
        of_class = within_cell(edges(params[_of(self.class_column)]), y, fresh[self.class_column])
        return {self.class_column: of_class} | of_features

    def _sample(self, key, class_concentration, feature_concentrations):
        """All gammas at once, then a Dirichlet of each row."""
        names = [name for name, _ in self.features]
        tables = [class_concentration, *(feature_concentrations[name] for name in names)]
        flat = jnp.concatenate([jnp.ravel(table) for table in tables])
        ends = np.cumsum([table.size for table in tables])[:-1]
        drawn = jnp.split(randomness.log_gamma(key, flat), ends)
        return {
            _of(name): jax.nn.softmax(logs.reshape(table.shape), axis=-1)
            for name, logs, table in zip([self.class_column, *names], drawn, tables, strict=True)
        }


def _of(column: str) -> str:
    return f"{column}_probabilities"
