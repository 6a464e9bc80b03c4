"""Convergence of many scalars at once [VGSCB21]: rank-normalised, over split chains.

ArviZ gives the same numbers one scalar at a time, which is slow for thousands of them, and a
machine with an accelerator may lack it.
"""

import numpy as np
from scipy import special, stats

MIN_ESS = 400  # for intervals to be trusted
MIN_DRAWS = 4  # in half a chain: with fewer there is nothing to say


def finite(free: np.ndarray) -> np.ndarray:
    """Unconstrained params at the edge of their support are infinite, or of no value at all where
    two of a simplex are 0. Ranks need numbers.
    """
    return np.nan_to_num(free, nan=0.0, posinf=1e300, neginf=-1e300)


def bulk_ess(draws: np.ndarray) -> np.ndarray:
    """Bulk effective sample size of each scalar of ``[chain, draw, ...]``."""
    normal = _rank_normalised(_split(draws))
    num_chains, num_draws = normal.shape[:2]
    if num_draws < MIN_DRAWS:
        return np.full(draws.shape[2:], np.nan)
    covariance = _autocovariance(normal)
    within = np.mean(covariance[:, 0], axis=0) * num_draws / (num_draws - 1)
    between = np.var(np.mean(normal, axis=1), axis=0, ddof=1)
    variance = within * (num_draws - 1) / num_draws + between
    with np.errstate(invalid="ignore"):
        correlation = 1 - (within - np.mean(covariance, axis=0)) / variance
    correlation = np.where(variance == 0, 0, correlation)  # a constant says nothing against it
    correlation[0] = 1
    # Sums of neighbouring pairs are positive and fall [Geyer 1992]: cut where they do not.
    num_pairs = (num_draws - 3) // 2
    pairs = correlation[0 : 2 * num_pairs : 2] + correlation[1 : 2 * num_pairs : 2]
    is_kept = np.cumprod(pairs > 0, axis=0)
    falling = np.minimum.accumulate(pairs, axis=0)
    time = -1 + 2 * np.sum(falling * is_kept, axis=0)
    first_cut = np.sum(is_kept, axis=0)[None]
    time = time + np.maximum(np.take_along_axis(correlation, 2 * first_cut, axis=0)[0], 0)
    total = num_chains * num_draws
    size = total / np.maximum(time, 1 / np.log10(total))
    return np.where(np.isnan(variance), np.nan, size)


def r_hat(draws: np.ndarray) -> np.ndarray:
    """The larger of bulk and folded R-hat of each scalar of ``[chain, draw, ...]``."""
    split = _split(draws)
    if split.shape[1] < MIN_DRAWS:
        return np.full(draws.shape[2:], np.nan)
    folded = np.abs(split - np.median(split, axis=(0, 1)))
    return np.maximum(_ratio(_rank_normalised(split)), _ratio(_rank_normalised(folded)))


def _ratio(values: np.ndarray) -> np.ndarray:
    num_draws = values.shape[1]
    within = np.mean(np.var(values, axis=1, ddof=1), axis=0)
    between = np.var(np.mean(values, axis=1), axis=0, ddof=1)
    return np.sqrt((between / within) + (num_draws - 1) / num_draws)


def _split(draws: np.ndarray) -> np.ndarray:
    """Each chain as its two halves, without the middle draw of an odd number."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def _rank_normalised(values: np.ndarray) -> np.ndarray:
    flat = values.reshape(values.shape[0] * values.shape[1], -1)
    ranks = stats.rankdata(flat, axis=0)
    return special.ndtri((ranks - 0.375) / (len(flat) + 0.25)).reshape(values.shape)


def _autocovariance(values: np.ndarray) -> np.ndarray:
    """At every lag along axis 1, by a transform padded with zeros."""
    num_draws = values.shape[1]
    centred = values - np.mean(values, axis=1, keepdims=True)
    size = 2 ** int(np.ceil(np.log2(2 * num_draws)))
    spectrum = np.abs(np.fft.rfft(centred, size, axis=1)) ** 2
    return np.fft.irfft(spectrum, size, axis=1)[:, :num_draws] / num_draws
