"""Params given records, for a model that brings no step of its own [JAGR22, Assumption 1].

Targets ``p(theta | x)``, proportional to ``p(theta) prod_i f(x_i | theta)``, by a generalised
elliptical slice in unconstrained coordinates, whose Jacobian enters: invariant for any shape that
is fixed beforehand. The shape is the one that warm-up learns of the private posterior. That is the
wider of the two, so the bracket shrinks further, by itself: there is no step size to adapt.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.models.support import unconstrain
from noiseaware.samplers import elliptical_slice
from noiseaware.samplers.elliptical_slice import Point, Shape
from noiseaware.samplers.layout import Layout, total_of
from noiseaware.schema import Records

ParamsStep = Callable[[PRNGKeyArray, Params, Records], Params]


def step_of(model: Model, shape: Shape, layout: Layout = Layout()) -> ParamsStep:
    """The model's own step, or a slice."""
    if model.has_posterior_step:
        return model.sample_posterior

    def step(key, params, records):
        free, constrain = unconstrain(model.supports, params)

        def log_density(whitened):
            params, log_jacobian = constrain(shape.place(whitened))

            def log_record(record):
                return model.log_record(params, record)[None]

            log_records = total_of(log_record, records, layout.segment_size)[0]
            return model.log_prior(params) + log_jacobian + log_records, ()

        whitened = shape.whiten(free)
        start = Point(whitened, *log_density(whitened))
        end = elliptical_slice.move(key, start, log_density)
        # Params at the edge of their support have no unconstrained point: no move then.
        is_moved = jnp.all(jnp.isfinite(end.whitened)) & jnp.isfinite(start.log_density)
        moved, _ = constrain(shape.place(end.whitened))
        return {name: jnp.where(is_moved, moved[name], params[name]) for name in params}

    return step
