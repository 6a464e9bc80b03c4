"""A smaller problem with nearly the same answer, to start a large one from.

With n' records in place of n, the released sums scaled by n'/n and their noise by sqrt(n'/n), noise
and sampling error keep their ratio: by the central limit theorem the posterior has the same centre,
and sqrt(n/n') times the width wherever the release outweighs the prior. In the prior's own units,
a posterior variance v (at most 1) is 1 / (1 + information), and information grows with n.
"""

import dataclasses

import numpy as np

from noiseaware.chains import Problem
from noiseaware.elliptical_slice import Shape

MAX_VARIANCE_LEFT = 0.5  # with more, little was learned: such directions keep their width
START_SPREAD = 3.0  # of the chains, in standard deviations expected


def scaled(problem: Problem, ratio: float) -> Problem:
    """The problem with ``ratio`` times as many records."""
    mechanism = problem.mechanism.with_spread(problem.mechanism.spread() * np.sqrt(ratio))
    released = problem.released * ratio
    if mechanism.is_discrete:
        released = np.round(released)
    known = {name: _evenly(column, ratio) for name, column in problem.known.items()}
    return dataclasses.replace(problem, mechanism=mechanism, released=released, known=known)


def _evenly(column: np.ndarray, ratio: float) -> np.ndarray:
    """Such a share of the column, from all along it."""
    size = round(len(column) * ratio)
    return column[np.arange(size) * len(column) // size]


def transfer(
    prior: Shape, posterior: Shape, free: np.ndarray, ratio: float
) -> tuple[Shape, np.ndarray]:
    """The shape to expect with ``ratio`` times the pilot's records, and where chains start.

    ``free`` has the pilot's last params, ``[set, chain, d]``.
    """
    in_prior_units = np.linalg.solve(prior.cholesky, posterior.cholesky)
    variances, directions = np.linalg.eigh(in_prior_units @ in_prior_units.swapaxes(1, 2))
    variances = np.maximum(variances, np.finfo(float).tiny)
    expected = 1 / (1 + (1 / variances - 1) * ratio)
    expected = np.where(variances < MAX_VARIANCE_LEFT, expected, variances)
    basis = prior.cholesky @ directions
    covariance = (basis * expected[:, None]) @ basis.swapaxes(1, 2)
    offsets = np.linalg.solve(basis, (free - posterior.location[:, None]).swapaxes(1, 2))
    shrink = np.minimum(1.0, START_SPREAD * np.sqrt(expected / variances))
    starts = posterior.location[:, None] + (basis @ (shrink[..., None] * offsets)).swapaxes(1, 2)
    return Shape(posterior.location, np.linalg.cholesky(covariance)), starts
