"""Algorithm 1 for the regression of [JAGR22, Section 5] as a user would write it in NumPy.

Two baselines: one loop over the records that does everything record by record, and one that draws
all proposals and their statistics at once and loops over the accept-reject step alone.
"""

import numpy as np

BOUND = 10.0
PAIRS = np.triu_indices(3)


class Regression:
    """Known noise variance, predictor means and unit covariance; N(0, 2^2) coefficients."""

    means = np.array([0.9, -1.17])
    noise_stddev = np.sqrt(2.0)
    prior_stddev = 2.0


def contribution(record):
    """Linear, square and cross terms of (x1, x2, y), clamped and normalised."""
    unit = np.minimum(np.maximum(record, -BOUND), BOUND) / BOUND
    return np.concatenate([unit, (unit[:, None] * unit)[PAIRS]])


def contributions(records):
    unit = np.clip(records, -BOUND, BOUND) / BOUND
    return np.concatenate([unit, unit[:, PAIRS[0]] * unit[:, PAIRS[1]]], axis=1)


def sample_coefficients(rng, records):
    design = np.column_stack([np.ones(len(records)), records[:, :2]])
    variance = Regression.noise_stddev**2
    precision = design.T @ design / variance + np.eye(3) / Regression.prior_stddev**2
    factor = np.linalg.cholesky(precision)
    whitened = np.linalg.solve(factor, design.T @ records[:, 2] / variance)
    return np.linalg.solve(factor.T, whitened + rng.standard_normal(3))


def sweep_by_record(rng, records, released, scale):
    """One iteration of Algorithm 1; changes ``records`` in place and returns the coefficients."""
    coefficients = sample_coefficients(rng, records)
    total = contributions(records).sum(axis=0)
    distance = np.abs(released - total).sum()
    for i in range(len(records)):
        noise = rng.standard_normal(3)
        x = Regression.means + noise[:2]
        y = coefficients[0] + coefficients[1:] @ x + Regression.noise_stddev * noise[2]
        proposal = np.append(x, y)
        new_total = total - contribution(records[i]) + contribution(proposal)
        new_distance = np.abs(released - new_total).sum()
        if rng.standard_exponential() > (new_distance - distance) / scale:
            records[i], total, distance = proposal, new_total, new_distance
    return coefficients


def sweep_vectorised(rng, records, released, scale):
    """The same, with proposals, statistics and uniforms drawn in one call each."""
    coefficients = sample_coefficients(rng, records)
    noise = rng.standard_normal((len(records), 3))
    x = Regression.means + noise[:, :2]
    y = coefficients[0] + x @ coefficients[1:] + Regression.noise_stddev * noise[:, 2]
    proposals = np.column_stack([x, y])
    current = contributions(records)
    changes = contributions(proposals) - current
    thresholds = scale * rng.standard_exponential(len(records))
    total = current.sum(axis=0)
    distance = np.abs(released - total).sum()
    for i in range(len(records)):
        new_total = total + changes[i]
        new_distance = np.abs(released - new_total).sum()
        if thresholds[i] > new_distance - distance:
            records[i], total, distance = proposals[i], new_total, new_distance
    return coefficients
