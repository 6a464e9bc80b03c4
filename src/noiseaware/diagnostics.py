"""Is a posterior calibrated, and how far is it from another? Numbers only.

Simulation-based calibration: if params ``theta*`` come from the prior and a release from them, the
rank of ``theta*`` among independent draws of ``p(theta | release)`` is uniform. With ``r`` of L
draws below it and V uniform, ``u = (r + V) / (L + 1)`` is uniform on (0, 1) exactly, and
``Phi^-1(u)`` standard normal, whose standard deviation shows a posterior too narrow (above 1) or
too wide (below 1) where Kolmogorov and Smirnov's distance sees little.
"""

import dataclasses

import numpy as np
from scipy import special, stats


@dataclasses.dataclass(frozen=True)
class Uniformity:
    """How far ranks are from uniform: Kolmogorov and Smirnov's distance, and mean and standard
    deviation of ``Phi^-1(u)``, with p-values of each.
    """

    count: int
    ks: float
    ks_p: float
    mean: float
    mean_p: float
    sd: float
    sd_p: float

    @property
    def p(self) -> float:
        """The smallest of the three, times three."""
        return min(1.0, 3 * min(self.ks_p, self.mean_p, self.sd_p))


def ranks(draws: np.ndarray, truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """``u`` of each truth ``[set]`` among its draws ``[draw, set]``, which must be nearly
    independent; see ``thinned``.
    """
    draws, truth = np.asarray(draws, float), np.asarray(truth, float)
    if len(draws) == 0:
        raise ValueError("draws must be one or more, got none.")
    below = np.sum(draws < truth, axis=0)
    ties = np.sum(draws == truth, axis=0)
    return (below + rng.uniform(size=truth.shape) * (1 + ties)) / (len(draws) + 1)


def thinned(draws: np.ndarray, effective: np.ndarray) -> np.ndarray:
    """Draws ``[chain, draw, set]`` as ``[draw, set]``, all chains together, every k-th of each: so
    few that no set has more than its effective size.
    """
    num_chains, num_draws = draws.shape[:2]
    step = int(np.ceil(num_chains * num_draws / max(float(np.min(effective)), 1.0)))
    if step > num_draws:
        raise ValueError(
            f"draws are too dependent to thin: {np.min(effective):g} effective in {num_chains} "
            f"chains of {num_draws}."
        )
    kept = draws[:, step - 1 :: step]
    return kept.reshape(-1, *draws.shape[2:])


def uniformity(u: np.ndarray) -> Uniformity:
    """Of ranks on (0, 1)."""
    u = np.asarray(u, float)
    if u.ndim != 1 or len(u) < 2 or not np.all((u > 0) & (u < 1)):
        raise ValueError("u must be two or more numbers strictly between 0 and 1.")
    found = stats.kstest(u, "uniform")
    z = special.ndtri(u)
    count = len(u)
    mean, sd = float(np.mean(z)), float(np.std(z, ddof=1))
    square = (count - 1) * sd**2
    tail = min(stats.chi2(count - 1).cdf(square), stats.chi2(count - 1).sf(square))
    mean_p = 2 * stats.norm.sf(abs(mean) * np.sqrt(count))
    return Uniformity(
        count, float(found.statistic), float(found.pvalue), mean, float(mean_p), sd,
        float(min(1.0, 2 * tail)),
    )  # fmt: skip


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
