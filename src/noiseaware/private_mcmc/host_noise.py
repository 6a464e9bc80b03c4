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

    def whole_numbers(self, count: int, below: int) -> np.ndarray:
        """So many of 0, 1, ..., ``below - 1``, each as likely as any other."""

    def binomial(self, trials: int, successes: int) -> int:
        """How many of so many trials succeed, each with probability ``successes / trials``."""


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

    def whole_numbers(self, count, below):
        """Remainders of 64 bits, without the last of these that would make some likelier."""
        end = 2**64 - 2**64 % below
        found = np.empty(0, np.uint64)
        while len(found) < count:
            words = np.frombuffer(os.urandom(8 * (count - len(found))), np.uint64)
            found = np.concatenate([found, words[words <= np.uint64(end - 1)]])
        return (found % np.uint64(below)).astype(np.int64)

    def binomial(self, trials, successes):
        """Every trial compares a uniform with the probability, bit by bit, until they differ. How
        many of those still equal have the next bit set is a count of random bits.
        """
        found, equal, rest = 0, trials, successes
        while equal > 0:
            if rest == trials:  # the probability is 1, with no bits left to compare
                return found + equal
            set_bits = _num_set_bits(equal)
            rest *= 2
            if rest >= trials:  # the probability's bit is 1: a bit of 0 is below it
                found, equal, rest = found + equal - set_bits, set_bits, rest - trials
            else:
                equal -= set_bits
            if rest == 0:
                return found
        return found


def _num_set_bits(count: int) -> int:
    """Of so many random bits."""
    whole, left = divmod(count, 8)
    words = np.frombuffer(os.urandom(whole + 1), np.uint8)
    last = int(words[-1]) & (2**left - 1)
    return int(np.sum(np.bitwise_count(words[:-1]), dtype=np.int64)) + last.bit_count()


class Simulated:
    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)

    def whole_normals(self, shape, stddev):
        check_stddev(stddev)
        return np.rint(stddev * self._rng.standard_normal(shape)).astype(np.int64)

    def uniforms(self, shape):
        return _centred(self._rng.integers(0, 2**52, shape, np.uint64))

    def whole_numbers(self, count, below):
        return self._rng.integers(0, below, count)

    def binomial(self, trials, successes):
        return int(self._rng.binomial(trials, successes / trials))


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
