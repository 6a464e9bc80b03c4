"""Random numbers from the host, drawn before the compiled loop and passed to it as inputs.

``Secure`` takes all of them from the operating system: noise for what is released from OpenDP's
exact sampler of whole normals, uniforms from 52 bits each, and normals for proposals, which hide
nothing, by inversion. ``Simulated`` takes them from a seeded generator, for studies: what is made
with it is not private.

A whole normal is ``N(0, stddev^2)`` rounded to the nearest whole number. OpenDP's has probabilities
proportional to ``exp(-z^2 / (2 stddev^2))`` at whole z, which differs: by Euler and Maclaurin the
distance in total variation is below ``1 / (20 stddev^2)``, for each number.
"""

import os
from typing import Protocol

import numpy as np
from scipy.special import ndtri

Shape = tuple[int, ...]
MAX_STDDEV = 2.0**58  # so that int64 holds noise and sums together


class Source(Protocol):
    def whole_normals(self, shape: Shape, stddev: float) -> np.ndarray:
        """int64: what hides a sum of whole numbers."""

    def uniforms(self, shape: Shape) -> np.ndarray:
        """Strictly between 0 and 1."""


class Secure:
    def whole_normals(self, shape, stddev):
        check_stddev(stddev)
        import opendp.prelude as dp

        dp.enable_features("contrib")
        domain = dp.vector_domain(dp.atom_domain(T="i64"))
        add_noise = dp.m.make_gaussian(domain, dp.l2_distance(T="f64"), scale=stddev)
        noise = add_noise([0] * int(np.prod(shape)))
        return np.array(noise, np.int64).reshape(shape)

    def uniforms(self, shape):
        words = np.frombuffer(os.urandom(8 * int(np.prod(shape))), np.uint64)
        return _centred(words >> np.uint64(12)).reshape(shape)


class Simulated:
    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)

    def whole_normals(self, shape, stddev):
        check_stddev(stddev)
        return np.rint(stddev * self._rng.standard_normal(shape)).astype(np.int64)

    def uniforms(self, shape):
        return _centred(self._rng.integers(0, 2**52, shape, np.uint64))


def check_stddev(stddev: float) -> None:
    """What int64 cannot hold would be cut at its end, where it hides nothing."""
    if not 0 <= stddev <= MAX_STDDEV:
        raise ValueError(f"stddev of whole noise must be at most 2^58, got {stddev:g}.")


def normals(source: Source, shape: Shape) -> np.ndarray:
    """For proposals, which are no secret; they end at 8.2 standard deviations."""
    return ndtri(source.uniforms(shape))


def _centred(bits: np.ndarray) -> np.ndarray:
    """52 bits as the middle of their cell of (0, 1), which is a float64 without rounding."""
    return (bits.astype(np.float64) + 0.5) * 2.0**-52
