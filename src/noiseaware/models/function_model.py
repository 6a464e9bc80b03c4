"""A model out of plain functions: how params and one record are drawn, and how params move.

``p(params)`` is the law of ``prior``, ``f(record | params)`` that of ``record``. With
``posterior``, a kernel that leaves ``p(params | records)`` invariant, the plain sweep needs no
densities [JAGR22, Alg. 1]; without it, the sampler's kernels need both.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

from noiseaware.models.model import Model, numbered_axes
from noiseaware.models.support import RealLine, Support
from noiseaware.schema import Category, Kind, Real, as_kind
from noiseaware.tracing import Fresh, attempt, name_of


class FunctionModel(Model):
    """Params and records are dicts of numbers or arrays.

    Args:
        prior: ``(key) -> params``.
        record: ``(key, params) -> record`` or, with known columns, ``(key, params, known)``.
        posterior: ``(key, params, records) -> params``, with a leading axis in each column.
        log_prior: ``(params) -> log p(params)``.
        log_record: ``(params, record) -> log f(record | params)``, for one record with its known
            columns.
        columns: the kinds of the record's columns, ``Real()`` where not given: ``Whole()``,
            ``Binary()`` or a list of levels, of which a record has the index.
        known: the kinds of the known columns.
        supports: where each parameter lives, the real line where not given; kernels then meet the
            edge of a narrower one as a density of 0.
    """

    prior_function: Callable = eqx.field(static=True)
    record_function: Callable = eqx.field(static=True)
    posterior_function: Callable | None = eqx.field(static=True)
    log_prior_function: Callable | None = eqx.field(static=True)
    log_record_function: Callable | None = eqx.field(static=True)
    column_kinds: tuple[tuple[str, Kind], ...] = eqx.field(static=True)
    known_kinds: tuple[tuple[str, Kind], ...] = eqx.field(static=True)
    given_supports: tuple[tuple[str, Support], ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = eqx.field(static=True)
    record_names: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        prior: Callable,
        record: Callable,
        posterior: Callable | None = None,
        *,
        log_prior: Callable | None = None,
        log_record: Callable | None = None,
        columns: Mapping[str, Any] | None = None,
        known: Mapping[str, Any] | None = None,
        supports: Mapping[str, Support] | None = None,
    ):
        self.prior_function, self.record_function = Fresh(prior), Fresh(record)
        self.posterior_function = posterior and Fresh(posterior)
        self.log_prior_function = log_prior and Fresh(log_prior)
        self.log_record_function = log_record and Fresh(log_record)
        kinds = {name: as_kind(name, value) for name, value in (columns or {}).items()}
        self.column_kinds = tuple(kinds.items())
        kinds = {name: as_kind(name, value) for name, value in (known or {}).items()}
        self.known_kinds = tuple(kinds.items())
        self.given_supports = tuple((supports or {}).items())
        # What the functions return, before anything is drawn.
        with jax.enable_x64(True):
            what = f"{name_of(prior)}(key)"
            raw = attempt(what, jax.eval_shape, prior, jr.key(0))
            params = {name: jax.ShapeDtypeStruct(x.shape, float) for name, x in raw.items()}
            columns_known = {
                name: jax.ShapeDtypeStruct((), int if isinstance(kind, Category) else float)
                for name, kind in self.known_kinds
            }
            arguments = (jr.key(0), params, columns_known)[: 3 if known else 2]
            what = f"{name_of(record)}(key, params{', known' if known else ''})"
            drawn = attempt(what, jax.eval_shape, record, *arguments)
        self.shapes = tuple((name, value.shape) for name, value in params.items())
        self.record_names = tuple(drawn)
        for name, value in raw.items():
            if posterior is None and not jnp.issubdtype(value.dtype, jnp.floating):
                raise ValueError(
                    f"{name!r} must be a real number, so that a kernel can move it, got "
                    f"{value.dtype}: give a posterior."
                )
        for name in columns or {}:
            if name not in drawn:
                raise ValueError(f"columns must be of {sorted(drawn)}, got {name!r}.")
        for name in supports or {}:
            if name not in params:
                raise ValueError(f"supports must be of {sorted(params)}, got {name!r}.")

    @property
    def columns(self):
        kinds = {name: Real() for name in self.record_names}
        return kinds | dict(self.column_kinds) | dict(self.known_kinds)

    @property
    def known(self):
        return tuple(name for name, _ in self.known_kinds)

    @property
    def supports(self):
        return {name: RealLine() for name, _ in self.shapes} | dict(self.given_supports)

    @property
    def labels(self):
        return numbered_axes(dict(self.shapes))

    @property
    def has_posterior_step(self):
        return self.posterior_function is not None

    @property
    def has_densities(self):
        return None not in (self.log_prior_function, self.log_record_function)

    def sample_prior(self, key):
        return _as_floats(self.prior_function(key))

    def log_prior(self, params):
        return self._given("log_prior", self.log_prior_function)(params)

    def log_record(self, params, record):
        return self._given("log_record", self.log_record_function)(params, record)

    def sample_posterior(self, key, params, records):
        return _as_floats(self._given("posterior", self.posterior_function)(key, params, records))

    def sample_records(self, key, params, num_records, known=None):
        draw = jax.vmap(self._record, in_axes=(0, None, 0))
        return draw(jr.split(key, num_records), params, known or {})

    def _record(self, key, params, known):
        arguments = (key, params, known) if self.known_kinds else (key, params)
        record = self.record_function(*arguments)
        whole = {name for name, kind in self.column_kinds if isinstance(kind, Category)}
        return {
            name: jnp.asarray(value, int if name in whole else float)
            for name, value in record.items()
        } | known

    def _given(self, name: str, function: Callable | None) -> Callable:
        if function is None:
            raise ValueError(f"FunctionModel needs {name} for this, got none.")
        return function


def _as_floats(params):
    return {name: jnp.asarray(value, float) for name, value in params.items()}
