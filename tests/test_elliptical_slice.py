"""Points tried in one go are those tried in turn."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from noiseaware import elliptical_slice
from noiseaware.elliptical_slice import Point

NUM_KEYS = 500


def log_target(whitened):
    """A thin shell, which most angles miss; also its radius."""
    radius = jnp.sqrt(whitened @ whitened)
    return -((radius - 2) ** 2) / 0.005, radius


def ends(at_once):
    with jax.enable_x64(True):
        begin = jnp.array([2.0, 0.0, 0.1])
        start = Point(begin, *log_target(begin))
        move = jax.vmap(lambda key: elliptical_slice.move(key, start, log_target, at_once))
        return move(jr.split(jr.key(0), NUM_KEYS))


@pytest.mark.parametrize("at_once", [2, 3, 4])
def test_points_tried_at_once_end_where_those_tried_in_turn_do(at_once):
    in_turn, together = ends(1), ends(at_once)
    for one, other in zip(jax.tree.leaves(in_turn), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


def test_control_the_shell_needs_more_than_one_point():
    with jax.enable_x64(True):
        tries = []

        def at_angle(angle):
            jax.debug.callback(tries.append, angle)
            return angle, jnp.abs(angle) < 0.1

        for number in range(20):
            elliptical_slice.shrink(jr.key(number), at_angle, jnp.zeros(()))
        jax.effects_barrier()
    assert len(tries) > 60
