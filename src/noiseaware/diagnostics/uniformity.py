"""Are ranks uniform?

Simulation-based calibration: if params ``theta*`` come from the prior and a release from them, the
rank of ``theta*`` among independent draws of ``p(theta | release)`` is uniform. With ``r`` of L
draws below it and V uniform, ``u = (r + V) / (L + 1)`` is uniform on (0, 1) exactly, and
``Phi^-1(u)`` standard normal, whose standard deviation shows a posterior too narrow (above 1) or
too wide (below 1) where Kolmogorov and Smirnov's distance sees little. Which ranks are too many or
too few, a band shows that the whole of their distribution function keeps to [SBV22].
"""

import dataclasses

import numpy as np
from scipy import special, stats

BAND_SEED, NUM_BAND_SAMPLES = 22, 10_000


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


def ranks_of_fits(
    draws: np.ndarray, truth: np.ndarray, effective: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """``u`` of each truth ``[set, quantity]`` among draws ``[chain, draw, set, quantity]``, of each
    set every k-th of a chain: half as many as are effective ``[set]``, since draws that are one
    autocorrelation time apart still have a correlation of 0.14. That number comes from the same
    draws, an effect of second order.
    """
    num_chains, num_draws = draws.shape[:2]
    steps = np.ceil(2 * num_chains * num_draws / np.maximum(np.nan_to_num(effective), 1.0))
    steps = np.clip(steps.astype(int), 1, num_draws)
    found = np.empty(truth.shape)
    for index, step in enumerate(steps):
        kept = draws[:, step - 1 :: step, index].reshape(-1, truth.shape[1])
        found[index] = ranks(kept, truth[index], rng)
    return found


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


def band(count: int, level: float, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the empirical distribution function of so many uniform ranks keeps to at all of the
    points ``at`` together, but for the share ``level`` of samples.

    At each point the share is binomial; the level of one point is set by simulation so that all
    together have the level asked for.
    """
    if not 10 / NUM_BAND_SAMPLES <= level < 1:
        raise ValueError(f"level must be from {10 / NUM_BAND_SAMPLES:g} to 1, got {level}.")
    rng, law = np.random.default_rng(BAND_SEED), stats.binom(count, np.asarray(at, float))
    below = np.empty((NUM_BAND_SAMPLES, len(at)))
    for index in range(NUM_BAND_SAMPLES):
        below[index] = np.searchsorted(np.sort(rng.uniform(size=count)), at, side="right")
    smallest = np.min(2 * np.minimum(law.cdf(below), law.sf(below - 1)), axis=1)
    one = float(np.quantile(smallest, level))
    return law.ppf(one / 2) / count, law.ppf(1 - one / 2) / count
