"""Algorithm 1 for the regression of [JAGR22, Section 5] as the fastest loop a user could write.

Compiled by numba: a whole chain in one call, nothing allocated between sweeps, the nine sums in
registers. Random numbers come from NumPy's ``Generator``, five times faster here than
``np.random.standard_normal`` and the like, and in the order of ``regression_loop.sweep_by_record``:
equal seeds give equal chains.
"""

import math

import numpy as np
from numba import njit

from benchmarks.regression_loop import BOUND, Regression

MEAN_1, MEAN_2 = map(float, Regression.means)
NOISE_STDDEV = float(Regression.noise_stddev)
VARIANCE, PRIOR_PRECISION = NOISE_STDDEV**2, Regression.prior_stddev**-2

compiled = njit(fastmath=True, error_model="numpy")


@compiled
def contribution(x1, x2, y):
    u = min(max(x1, -BOUND), BOUND) / BOUND
    v = min(max(x2, -BOUND), BOUND) / BOUND
    w = min(max(y, -BOUND), BOUND) / BOUND
    return u, v, w, u * u, u * v, u * w, v * v, v * w, w * w


@compiled
def sample_coefficients(rng, records):
    """By the Cholesky factor ``l`` of the posterior precision, written out."""
    sum1 = sum2 = sum11 = sum12 = sum22 = sum_y = sum1y = sum2y = 0.0
    for i in range(len(records)):
        x1, x2, y = records[i, 0], records[i, 1], records[i, 2]
        sum1, sum2, sum_y = sum1 + x1, sum2 + x2, sum_y + y
        sum11, sum12, sum22 = sum11 + x1 * x1, sum12 + x1 * x2, sum22 + x2 * x2
        sum1y, sum2y = sum1y + x1 * y, sum2y + x2 * y
    l00 = math.sqrt(len(records) / VARIANCE + PRIOR_PRECISION)
    l10, l20 = sum1 / VARIANCE / l00, sum2 / VARIANCE / l00
    l11 = math.sqrt(sum11 / VARIANCE + PRIOR_PRECISION - l10 * l10)
    l21 = (sum12 / VARIANCE - l20 * l10) / l11
    l22 = math.sqrt(sum22 / VARIANCE + PRIOR_PRECISION - l20 * l20 - l21 * l21)
    w0 = sum_y / VARIANCE / l00
    w1 = (sum1y / VARIANCE - l10 * w0) / l11
    w2 = (sum2y / VARIANCE - l20 * w0 - l21 * w1) / l22
    w0 += rng.standard_normal()
    w1 += rng.standard_normal()
    w2 += rng.standard_normal()
    c2 = w2 / l22
    c1 = (w1 - l21 * c2) / l11
    return (w0 - l10 * c1 - l20 * c2) / l00, c1, c2


@compiled
def chain(rng, records, released, scale, num_sweeps):
    """The coefficients of every sweep; changes ``records`` in place."""
    size = len(records)
    drawn = np.empty((num_sweeps, 3))
    proposals, thresholds, changes = np.empty((size, 3)), np.empty(size), np.empty((size, 9))
    for sweep in range(num_sweeps):
        c0, c1, c2 = sample_coefficients(rng, records)
        drawn[sweep, 0], drawn[sweep, 1], drawn[sweep, 2] = c0, c1, c2
        # Apart from the rest: a loop of calls beside a loop that the compiler can vectorise.
        for i in range(size):
            proposals[i, 0] = rng.standard_normal()
            proposals[i, 1] = rng.standard_normal()
            proposals[i, 2] = rng.standard_normal()
            thresholds[i] = scale * rng.standard_exponential()
        # d: released minus total; n: the same after the swap.
        d0, d1, d2, d3, d4, d5, d6, d7, d8 = (
            released[0], released[1], released[2], released[3], released[4], released[5],
            released[6], released[7], released[8],
        )  # fmt: skip
        for i in range(size):
            x1, x2 = MEAN_1 + proposals[i, 0], MEAN_2 + proposals[i, 1]
            y = c0 + c1 * x1 + c2 * x2 + NOISE_STDDEV * proposals[i, 2]
            proposals[i, 0], proposals[i, 1], proposals[i, 2] = x1, x2, y
            a0, a1, a2, a3, a4, a5, a6, a7, a8 = contribution(
                records[i, 0], records[i, 1], records[i, 2]
            )
            b0, b1, b2, b3, b4, b5, b6, b7, b8 = contribution(x1, x2, y)
            d0, d1, d2, d3, d4 = d0 - a0, d1 - a1, d2 - a2, d3 - a3, d4 - a4
            d5, d6, d7, d8 = d5 - a5, d6 - a6, d7 - a7, d8 - a8
            changes[i, 0], changes[i, 1], changes[i, 2] = a0 - b0, a1 - b1, a2 - b2
            changes[i, 3], changes[i, 4], changes[i, 5] = a3 - b3, a4 - b4, a5 - b5
            changes[i, 6], changes[i, 7], changes[i, 8] = a6 - b6, a7 - b7, a8 - b8
        distance = (
            abs(d0) + abs(d1) + abs(d2) + abs(d3) + abs(d4) + abs(d5) + abs(d6) + abs(d7) + abs(d8)
        )
        for i in range(size):
            n0, n1, n2 = d0 + changes[i, 0], d1 + changes[i, 1], d2 + changes[i, 2]
            n3, n4, n5 = d3 + changes[i, 3], d4 + changes[i, 4], d5 + changes[i, 5]
            n6, n7, n8 = d6 + changes[i, 6], d7 + changes[i, 7], d8 + changes[i, 8]
            new_distance = (
                abs(n0) + abs(n1) + abs(n2) + abs(n3) + abs(n4)
                + abs(n5) + abs(n6) + abs(n7) + abs(n8)
            )  # fmt: skip
            if thresholds[i] > new_distance - distance:
                records[i, 0], records[i, 1] = proposals[i, 0], proposals[i, 1]
                records[i, 2] = proposals[i, 2]
                d0, d1, d2, d3, d4, d5, d6, d7, d8 = n0, n1, n2, n3, n4, n5, n6, n7, n8
                distance = new_distance
    return drawn
