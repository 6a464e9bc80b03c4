"""What a model is: a prior for params and a law for one record.

``p(params) prod_i f(x_i | params)``. Every built-in model also writes a record as
``phi(params, noise)`` with noise whose law is free of params, and its inverse, which is what
interweaving needs: one function each, ``record`` and ``noise``, for ONE record.

Some columns may be ``known``, such as a group or a covariate that is public. The law is then that
of the others given them. They stand in every record, and in the noise of a record too.
"""

import abc

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from noiseaware.models.support import Support
from noiseaware.schema import Kind, Record, Records

Params = dict[str, Array]


class Model(eqx.Module):
    @property
    @abc.abstractmethod
    def columns(self) -> dict[str, Kind]:
        """The columns of a record."""

    @property
    @abc.abstractmethod
    def supports(self) -> dict[str, Support]:
        """The support of each parameter."""

    @property
    def known(self) -> tuple[str, ...]:
        """Those of ``columns`` that the analyst knows of every record."""
        return ()

    def known_of(self, columns: Records) -> Records:
        """The known ones of the columns of records, or of noises."""
        return {name: columns[name] for name in self.known}

    @property
    def has_noise_map(self) -> bool:
        """Whether ``sample_noise``, ``record`` and ``noise`` are there; if not, ``sample_records``
        must be, and only plain sweeps can be made.
        """
        return type(self).noise is not Model.noise

    @property
    def has_records(self) -> bool:
        """Whether records can be drawn, by a noise map or in another way."""
        has_own = type(self).sample_records is not Model.sample_records
        return has_own or type(self).record is not Model.record

    @property
    def has_normal_noise(self) -> bool:
        """Whether the noise is standard normal, each number of it."""
        return False

    @property
    def labels(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Parameter -> axis name -> labels along it, for parameters that are not scalars."""
        return {}

    @abc.abstractmethod
    def sample_prior(self, key: PRNGKeyArray) -> Params: ...

    @abc.abstractmethod
    def log_prior(self, params: Params) -> Float[Array, ""]: ...

    def sample_posterior(self, key: PRNGKeyArray, params: Params, records: Records) -> Params:
        """One step of a kernel that leaves ``p(params | records)`` invariant. A model may leave it
        out: a sampler then makes a slice of ``log_prior`` and ``log_record``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step for params given records.")

    @property
    def has_posterior_step(self) -> bool:
        return type(self).sample_posterior is not Model.sample_posterior

    @property
    def has_densities(self) -> bool:
        """Whether ``log_prior`` and ``log_record`` are there; if not, ``sample_posterior`` must."""
        return True

    @abc.abstractmethod
    def log_record(self, params: Params, record: Record) -> Float[Array, ""]:
        """``log f(record | params)``; minus infinity outside the support."""

    def sample_noise(self, key: PRNGKeyArray, num_records: int) -> Records:
        """Noise of ``num_records`` records, free of params, drawn in one call; without what is
        known.
        """
        raise NotImplementedError(f"{type(self).__name__} has no sample_noise.")

    def record(self, params: Params, noise: Record) -> Record:
        """``phi(params, noise)``: one record, of law ``f(. | params)`` if the noise is fresh; its
        known columns are those of the noise.
        """
        raise NotImplementedError(f"{type(self).__name__} has no record.")

    def noise(self, params: Params, record: Record, fresh: Record) -> Record:
        """Noise given params and one record: ``phi(params, .)`` inverted, with the known columns.

        Where several noises give the same record, a draw from them, made from ``fresh``, one
        record's noise out of ``sample_noise``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no noise.")

    def sample_records(
        self, key: PRNGKeyArray, params: Params, num_records: int, known: Records | None = None
    ) -> Records:
        """Records at these params, given what is known of each."""
        return self.records(params, self.sample_noise(key, num_records) | (known or {}))

    def records(self, params: Params, noise: Records) -> Records:
        return jax.vmap(self.record, in_axes=(None, 0))(params, noise)

    def noises(self, key: PRNGKeyArray, params: Params, records: Records) -> Records:
        num_records = len(next(iter(records.values())))
        fresh = self.sample_noise(key, num_records)
        return jax.vmap(self.noise, in_axes=(None, 0, 0))(params, records, fresh)


def numbered_axes(shapes: dict[str, tuple[int, ...]]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Labels for params whose axes have no names: 0, 1, ... along each."""
    return {
        name: {
            f"{name}_dim_{axis}": tuple(map(str, range(size))) for axis, size in enumerate(shape)
        }
        for name, shape in shapes.items()
        if shape
    }
