"""Uniforms, exponentials, normals and gammas in bulk, faster on a CPU than ``jax.random``.

A sweep needs some numbers for every record, and with ``jax.random`` they took most of its time.
Here draw i of a key is a hash of (key, i): two rounds of the 64-bit finaliser of SplitMix64
(Steele, Lea & Flood 2014), both keyed. Keys are split likewise in loops that split many: a child is
the hash of (key, place), at places far from those of numbers, so no two children of a key coincide,
nor does one with a number of it. For Monte Carlo only: no secret may rest on these numbers, and no
noise of a release is drawn from them.

Normals come in pairs, ``sqrt(-2 log u) (cos a, sin a)`` (Box & Muller 1958), with ``a`` uniform in
a quarter of a turn and two bits for the signs; the series for log, sine and cosine end below the
rounding of float64. Gammas are rejected and drawn again until all are accepted [MT00], the cubes of
normals. Where JAX computes in float32, its own generators are called.
"""

import functools
import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray, UInt64

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SPLIT, FOLD_IN = np.uint64(2**63), np.uint64(2**62)  # places of keys, far from those of numbers
QUARTER = np.pi / 2
SINE = [(-1) ** k * QUARTER ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(11)]
COSINE = [(-1) ** k * QUARTER ** (2 * k) / math.factorial(2 * k) for k in range(11)]
LOGARITHM = [2 / (2 * k + 1) for k in range(11)]  # of (1 + f) / (1 - f), over f


def split(key: PRNGKeyArray, num: int = 2) -> PRNGKeyArray:
    """As ``jax.random.split``, with fewer operations."""
    if _is_single() or not _is_one_of_threefry(key):
        return jr.split(key, num)
    return _child(key, SPLIT + jax.lax.iota(jnp.uint64, num))


def fold_in(key: PRNGKeyArray, number: Int[ArrayLike, ""]) -> PRNGKeyArray:
    """As ``jax.random.fold_in``, with fewer operations; numbers are below 2^32."""
    if _is_single() or not _is_one_of_threefry(key):
        return jr.fold_in(key, number)
    return _child(key, FOLD_IN + jnp.asarray(number, jnp.uint64))


def uniform(key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
    """Odd multiples of 2^-53: never 0 or 1, and ``1 - u`` is exact."""
    if _is_single():
        return jr.uniform(key, shape, minval=jnp.finfo(jnp.float32).tiny)
    return _unit(_bits(key, shape))


def uniform_at(key: PRNGKeyArray, place: Int[ArrayLike, ""]) -> Float[Array, ""]:
    """Draw number ``place`` of ``uniform``, alone."""
    if _is_single():
        return uniform(jr.fold_in(key, place))
    return _unit(_hash(key, jnp.asarray(place, jnp.uint64)))


def exponential(key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
    if _is_single():
        return jr.exponential(key, shape)
    return -_log(uniform(key, shape))


def normal(key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
    if _is_single():
        return jr.normal(key, shape)
    size = math.prod(shape)
    bits = _bits(key, (2, -(-size // 2)))
    radius = jnp.sqrt(-2 * _log(_unit(bits[0])))
    turn = _unit(bits[1])  # from the high 52 bits, and the signs from the lowest two
    sine = turn * _polynomial(SINE, turn**2)
    cosine = _polynomial(COSINE, turn**2)
    pairs = jnp.concatenate(
        [
            radius * jnp.where(bits[1] & 1 == 0, sine, -sine),
            radius * jnp.where(bits[1] & 2 == 0, cosine, -cosine),
        ]
    )
    return pairs[:size].reshape(shape)


def log_gamma(key: PRNGKeyArray, shape: Float[Array, "..."]) -> Float[Array, "..."]:
    """Logs of ``Gamma(shape, 1)``; those of a shape below 1 are ``u^(1/shape)`` of the next.

    ``d v`` with ``v = (1 + x / sqrt(9 d))^3``, x normal and ``d = shape - 1/3``, is accepted with
    the probability ``exp(x^2 / 2 + d (1 - v + log v))``, which is above 0.95.
    """
    key, key_lower = jr.split(key)
    is_low = shape < 1
    d = shape + is_low - 1 / 3

    def draw(carry):
        key, drawn, is_left = carry
        key, key_normal, key_accept = jr.split(key, 3)
        x = normal(key_normal, shape.shape)
        root = 1 + x / jnp.sqrt(9 * d)
        log_v = 3 * jnp.log(jnp.maximum(root, jnp.finfo(float).tiny))
        log_accept = x**2 / 2 + d * (1 - root**3 + log_v)
        is_refused = (root <= 0) | (-exponential(key_accept, shape.shape) >= log_accept)
        # Of no possible shape all may be NaN, and nothing is refused.
        return key, jnp.where(is_left, jnp.log(d) + log_v, drawn), is_left & is_refused

    begin = (key, jnp.zeros(shape.shape), jnp.ones(shape.shape, bool))
    _, drawn, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[2]), draw, begin)
    drawn -= jnp.where(is_low, exponential(key_lower, shape.shape) / shape, 0.0)
    return jnp.where(shape >= 0, drawn, jnp.nan)


def _child(key: PRNGKeyArray, place: UInt64[Array, "*n"]) -> PRNGKeyArray:
    words = _hash(key, place)
    data = jnp.stack([words >> 32, words], axis=-1).astype(jnp.uint32)
    return jr.wrap_key_data(data, impl=jr.key_impl(key))


def _is_one_of_threefry(key: PRNGKeyArray) -> bool:
    return jr.key_data(key).shape == (2,)


def _bits(key: PRNGKeyArray, shape: tuple[int, ...]) -> UInt64[Array, "..."]:
    return _hash(key, jax.lax.iota(jnp.uint64, math.prod(shape))).reshape(shape)


def _hash(key: PRNGKeyArray, place: UInt64[Array, "..."]) -> UInt64[Array, "..."]:
    high, low = jr.key_data(key).astype(jnp.uint64).reshape(-1, 2).T
    seed = jnp.zeros((), jnp.uint64)
    for word in (high << 32) | low:  # one, for Threefry's keys
        seed = _mix(seed ^ word)
    return _mix(_mix(seed + (place + 1) * GOLDEN) + _mix(~seed))


def _mix(z: UInt64[Array, "..."]) -> UInt64[Array, "..."]:
    z = (z ^ (z >> 30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> 27)) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> 31)


def _unit(bits: UInt64[Array, "..."]) -> Float[Array, "..."]:
    one_to_two = (bits >> 12) | np.uint64(0x3FF0000000000000)
    return jax.lax.bitcast_convert_type(one_to_two, jnp.float64) - (1 - 2.0**-53)


def _log(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """``u = 2^e m`` with m in [0.7, 1.41], ``log m`` as a series in f = (m - 1) / (m + 1)."""
    bits = jax.lax.bitcast_convert_type(u, jnp.uint64)
    # Adding the gap between 1 and sqrt(2) to the mantissa carries into the exponent above it.
    gap = np.float64(1).view(np.uint64) - np.float64(math.sqrt(0.5)).view(np.uint64)
    shifted = bits + gap
    exponent = (shifted >> 52).astype(jnp.int64) - 1023
    m = jax.lax.bitcast_convert_type(bits - (exponent << 52).astype(jnp.uint64), jnp.float64)
    f = (m - 1) / (m + 1)
    return exponent.astype(float) * math.log(2) + f * _polynomial(LOGARITHM, f**2)


def _polynomial(coefficients, x):
    return functools.reduce(lambda sum_, c: sum_ * x + c, coefficients[::-1], jnp.zeros_like(x))


def _is_single() -> bool:
    return jnp.zeros(()).dtype != jnp.float64
