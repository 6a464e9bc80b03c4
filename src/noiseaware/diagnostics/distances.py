"""How far apart are two samples?"""

import numpy as np


def median_distance(x: np.ndarray) -> float:
    """Between draws ``[draw, d]`` of a sample: a bandwidth for all that are compared with it."""
    x = np.asarray(x, float).reshape(len(x), -1)
    first, second = np.triu_indices(len(x), 1)
    return float(np.median(np.linalg.norm(x[first] - x[second], axis=1)))


def squared_mmd(x: np.ndarray, y: np.ndarray, bandwidth: float) -> float:
    """Unbiased estimate of the squared maximum mean discrepancy of two samples ``[draw, d]`` under
    ``exp(-|x - y|^2 / (2 bandwidth^2))`` [GBRSS12]; it may be negative.
    """
    x, y = (np.asarray(sample, float).reshape(len(sample), -1) for sample in (x, y))

    def mean_kernel(a, b, is_same):
        squares = np.sum(a**2, 1)[:, None] + np.sum(b**2, 1) - 2 * a @ b.T
        kernel = np.exp(-np.maximum(squares, 0) / (2 * bandwidth**2))
        if is_same:
            return (np.sum(kernel) - np.trace(kernel)) / (len(a) * (len(a) - 1))
        return np.mean(kernel)

    return float(mean_kernel(x, x, True) + mean_kernel(y, y, True) - 2 * mean_kernel(x, y, False))
