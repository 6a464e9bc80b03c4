"""A NumPyro model of ONE record as a model: ``p(params)`` is the product of the densities at its
prior sites, ``f(record | params)`` of those at its record sites.

phi: every record site by the noise map of its distribution, in the order in which the function
visits them. Where a distribution has no map there is no phi, and a fit takes the plain sweep.
Params given records are moved by the sampler's slice. The arguments of the function are the known
columns, so f is the law given them; at places that do not depend on them they are 0.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.primitives import Messenger

from noiseaware import validate
from noiseaware.models import noise_maps
from noiseaware.models.model import Model, numbered_axes
from noiseaware.models.support import Support
from noiseaware.schema import Binary, Category, Kind, Real, Whole, as_kind, as_levels
from noiseaware.tracing import Fresh


class NumpyroModel(Model):
    """``function`` samples params and one record; ``records`` names the sites that are the record's
    columns, all others are params; ``levels`` gives names to the values 0, 1, ... of categorical
    columns. ``known`` maps each argument of the function, a known column, to its kind: ``Real()``,
    ``Whole()``, ``Binary()`` or a list of levels, of which the function gets the index.
    """

    function: Callable[..., Any] = eqx.field(static=True)
    record_sites: tuple[str, ...] = eqx.field(static=True)
    levels: tuple[tuple[str, tuple[str | int, ...]], ...] = eqx.field(static=True)
    known_kinds: tuple[tuple[str, Kind], ...] = eqx.field(static=True)

    def __init__(
        self,
        function: Callable[..., Any],
        records: Sequence[str],
        levels: Mapping[str, int | Sequence[str | int]] | None = None,
        known: Mapping[str, Any] | None = None,
    ):
        self.function = Fresh(function)
        self.record_sites = validate.distinct("records", records)
        named = {name: as_levels(name, values) for name, values in (levels or {}).items()}
        self.levels = tuple(named.items())
        kinds = {name: as_kind(name, value) for name, value in (known or {}).items()}
        self.known_kinds = tuple(kinds.items())
        with jax.enable_x64(True):
            _check(self)

    @property
    def columns(self):
        kinds = {name: _kind(site["fn"]) for name, site in self._record_sites().items()}
        kinds |= {name: Category(levels) for name, levels in self.levels}
        return kinds | dict(self.known_kinds)

    @property
    def known(self):
        return tuple(name for name, _ in self.known_kinds)

    @property
    def supports(self):
        return {name: Transformed(site["fn"].support) for name, site in self._prior_sites().items()}

    @property
    def labels(self):
        sites = self._prior_sites()
        return numbered_axes({name: np.shape(site["value"]) for name, site in sites.items()})

    @property
    def has_noise_map(self):
        return not self.unmapped

    @property
    def unmapped(self) -> tuple[str, ...]:
        """The record sites whose distribution has no noise map, and its name."""
        return tuple(
            f"{name!r} ({type(site['fn']).__name__})"
            for name, site in self._record_sites().items()
            if noise_maps.find(site["fn"]) is None
        )

    def sample_prior(self, key):
        return {name: site["value"] for name, site in self._prior_sites(key).items()}

    def log_prior(self, params):
        return _log_density(self._prior_sites(values=params))

    def log_record(self, params, record):
        sites = self._record_sites(values=params | record)
        is_inside = [_is_inside(site["fn"], site["value"]) for site in sites.values()]
        return jnp.where(jnp.all(jnp.stack(is_inside)), _log_density(sites), -jnp.inf)

    def sample_records(self, key, params, num_records, known=None):
        known = known or {}
        if self.has_noise_map:
            return super().sample_records(key, params, num_records, known)

        def draw(key, known):
            sites = self._record_sites(key, params | known)
            return {name: site["value"] for name, site in sites.items()} | known

        return jax.vmap(draw)(jr.split(key, num_records), known)

    def sample_noise(self, key, num_records):
        sites = self._record_sites()
        keys = jr.split(key, len(sites))
        return {
            name: _map_of(site).sample(key, (num_records, *np.shape(site["value"])))
            for key, (name, site) in zip(keys, sites.items(), strict=True)
        }

    def record(self, params, noise):
        known = self.known_of(noise)
        sites = self._record_sites(values=params | known, noise=noise)
        return {name: site["value"] for name, site in sites.items()} | known

    def noise(self, params, record, fresh):
        sites = self._record_sites(values=params | record)
        return {
            name: _map_of(site).noise(site["fn"], record[name], fresh[name])
            for name, site in sites.items()
        } | self.known_of(record)

    def _prior_sites(self, key=None, values=None) -> dict[str, dict]:
        sites = self._trace(key, values)
        return {name: site for name, site in sites.items() if name not in self.record_sites}

    def _record_sites(self, key=None, values=None, noise=None) -> dict[str, dict]:
        sites = self._trace(key, values, noise)
        return {name: site for name, site in sites.items() if name in self.record_sites}

    def _trace(self, key=None, values=None, noise=None) -> dict[str, dict]:
        """The sample sites, in order; those with a value take it, as do known columns, the others
        are drawn.
        """
        key = jr.key(0) if key is None else key  # where no draw is looked at
        values = values or {}
        function = handlers.seed(self.function, key)
        known = {
            name: values.get(name, np.zeros((), int if isinstance(kind, Category) else float))
            for name, kind in self.known_kinds
        }
        with handlers.trace() as sites, handlers.substitute(data=values), _Place(noise or {}):
            function(**known)
        return {name: site for name, site in sites.items() if site["type"] == "sample"}


class _Place(Messenger):
    """Gives sites the value that their noise makes."""

    def __init__(self, noise: Mapping[str, Any]):
        self._noise = noise
        super().__init__()

    def process_message(self, message):
        if message["type"] == "sample" and message["name"] in self._noise:
            distribution, noise = message["fn"], self._noise[message["name"]]
            message["value"] = _map_of(message).value(distribution, noise)


class Transformed(Support):
    """What a NumPyro constraint allows."""

    constraint: Any

    def unconstrain(self, value):
        return biject_to(self.constraint).inv(value)

    def constrain(self, free):
        return biject_to(self.constraint)(free)

    def log_jacobian(self, free):
        transform = biject_to(self.constraint)
        return jnp.sum(transform.log_abs_det_jacobian(free, transform(free)))


def _map_of(site: dict) -> noise_maps.NoiseMap:
    found = noise_maps.find(site["fn"])
    if found is None:
        raise ValueError(f"{type(site['fn']).__name__} at {site['name']!r} has no noise map.")
    return found


def _log_density(sites: Mapping[str, dict]):
    terms = [jnp.sum(site["fn"].log_prob(site["value"])) for site in sites.values()]
    return sum(terms, start=jnp.zeros(()))


def _is_inside(distribution, value):
    """Whether the value is in the support: NumPyro's densities do not say. The support of a
    transformed distribution is read off its base, since transforms state theirs too widely.
    """
    if isinstance(distribution, (dist.Independent, dist.ExpandedDistribution)):
        return _is_inside(distribution.base_dist, value)
    if isinstance(distribution, dist.TransformedDistribution):
        for transform in reversed(distribution.transforms):
            value = transform.inv(value)
        return _is_inside(distribution.base_dist, value)
    return jnp.all(distribution.support(value))


def _kind(distribution) -> Kind:
    while isinstance(distribution, (dist.Independent, dist.ExpandedDistribution)):
        distribution = distribution.base_dist
    if isinstance(distribution, (dist.CategoricalProbs, dist.CategoricalLogits)):
        return Category(tuple(range(distribution.probs.shape[-1])))
    if not distribution.support.is_discrete:
        return Real()
    return Binary() if distribution.support is constraints.boolean else Whole()


def _check(model: NumpyroModel) -> None:
    """That sites are what they are taken for, from some draws."""
    arguments = tuple(inspect.signature(model.function).parameters)
    if set(arguments) != set(model.known):
        raise ValueError(
            f"the function's arguments must be the known columns: it takes {list(arguments)}, and "
            f"known= says {list(model.known)}."
        )
    first, second = (model._trace(jr.key(seed)) for seed in (1, 2))
    if set(first) != set(second):
        raise ValueError(
            "the function must visit the same sites in every call, got "
            f"{sorted(set(first) ^ set(second))} in some."
        )
    for name in model.known:
        if name in first:
            raise ValueError(f"{name!r} must not be both a site and a known column.")
    for name in model.record_sites:
        if name not in first:
            raise ValueError(f"records must name sites, of {sorted(first)}, got {name!r}.")
    for name, site in first.items():
        if site["scale"] is not None:
            raise ValueError(f"site {name!r} must not be scaled: a record is one record.")
        if isinstance(site["fn"], dist.Unit):
            raise ValueError(f"site {name!r} is a factor: write prior and record as distributions.")
        if site["is_observed"]:
            raise ValueError(f"site {name!r} must not be observed: its value comes from the fit.")
        is_record = name in model.record_sites
        if not is_record and site["fn"].support.is_discrete:
            kind = type(site["fn"]).__name__
            raise ValueError(f"prior site {name!r} must be continuous, got {kind}.")
        if not _equal(site["fn"].support, second[name]["fn"].support):
            what = "record" if is_record else "prior"
            raise ValueError(
                f"the support of {what} site {name!r} must not depend on other sites, "
                f"got {site['fn'].support} and {second[name]['fn'].support}."
            )
    for name, levels in model.levels:
        expected = _kind(first[name]["fn"]) if name in model.record_sites else None
        if not isinstance(expected, Category) or len(expected.levels) != len(levels):
            what = expected.description if expected else "no record site"
            raise ValueError(f"levels of {name!r} must fit its site, {what}, got {levels}.")
    params = {name: site["value"] for name, site in model._prior_sites(jr.key(1)).items()}
    record = {name: first[name]["value"] for name in model.record_sites}
    draws = [model._record_sites(jr.key(seed)) for seed in range(2, 10)]
    others = [{name: site["value"] for name, site in sites.items()} for sites in draws]
    for what, values in [
        ("the known columns", record | _ones(model)),
        *[("the record: name it in records too", other) for other in others],
    ]:
        for name, site in model._prior_sites(values=params | values).items():
            if not _equal(site["fn"], first[name]["fn"]):
                raise ValueError(f"prior site {name!r} must not depend on {what}.")


def _ones(model: NumpyroModel) -> dict[str, np.ndarray]:
    """Other values of the known columns than 0, where there are others."""
    return {
        name: np.array(min(1, len(kind.levels) - 1)) if isinstance(kind, Category) else np.ones(())
        for name, kind in model.known_kinds
    }


def _equal(one, other) -> bool:
    one, other = jax.tree.leaves(one), jax.tree.leaves(other)
    return len(one) == len(other) and all(map(np.array_equal, one, other))
