"""Tolerances in standard errors, with the rate at which a right result would fail."""

import numpy as np

MAX_Z = 5.0  # two-sided 6e-7 a check: one false alarm in 1,000 runs of all 1,700 checks
MIN_P = 1e-6  # for Kolmogorov-Smirnov and chi-squared checks


def z_score(samples, expected=0.0, axis=0):
    """How many standard errors the mean of independent samples is from ``expected``."""
    samples = np.asarray(samples, float)
    standard_error = np.std(samples, axis=axis, ddof=1) / np.sqrt(samples.shape[axis])
    difference = np.mean(samples, axis=axis) - expected
    with np.errstate(divide="ignore", invalid="ignore"):
        z = difference / standard_error
    # Constant samples are right only if they equal the expectation; NaN never passes.
    z = np.where(standard_error > 0, z, np.where(np.abs(difference) < 1e-12, 0.0, np.inf))
    return np.where(np.isnan(difference), np.inf, z)[()]
