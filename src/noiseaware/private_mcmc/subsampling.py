"""What questions to a random batch of records cost. A replaced record is in few batches, so each
question costs less than it would with all records: privacy is amplified by sampling.

Two accountants, each for one way to sample, both for neighbours that differ by one replaced record:

- ``pld``, for Poisson batches, which take every record with probability q on its own: the privacy
  loss distribution of ``(1 - q) N(0, s^2) + q N(1, s^2)`` against ``(1 - q) N(0, s^2) + q N(-1,
  s^2)``, discretised from above, of Google's dp_accounting; s is the noise in units of the largest
  contribution. The size of a batch is secret, so a sum is divided by q and never by the size.
- ``rdp``, for batches of a fixed size without replacement: with a mechanism that has RDP
  ``epsilon'(a)`` on the batch, [WBK19, Theorem 9; R21, Theorems 7 and 8]

      epsilon(a) = log(1 + q^2 C(a, 2) min{4 (e^epsilon'(2) - 1), 2 e^epsilon'(2)}
                         + 2 sum_{j=3}^{a} q^j C(a, j) e^{(j - 1) epsilon'(j)}) / (a - 1)

  for whole orders a, the sum to a inclusive, or ``epsilon'(a)`` where that is less, since a mixture
  over batches diverges by no more than its worst part. Of k questions, at the best order,
  ``epsilon = k epsilon(a) + log((a - 1) / a) - (log delta + log a) / (a - 1)`` [CKS20, Prop. 12].

Neither covers the other's case: a PLD of the Poisson pair does not bound sampling without
replacement, where two explicit data sets can need half as much again [LRKS24].
"""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, logsumexp, rel_entr

MAX_ORDER = 256
OVERFLOW = 1e-40  # probability that a Poisson batch exceeds its capacity


@functools.lru_cache(maxsize=4096)
def epsilon_of_poisson_batches(
    num_questions: int, rate: float, noise_multiplier: float, delta: float
) -> float:
    """An upper bound, for sums of contributions from the unit ball with normal noise."""
    try:
        from dp_accounting import dp_event
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.privacy_accountant import NeighboringRelation
    except ImportError as error:
        raise ImportError("Poisson batches need noiseaware[accounting].") from error

    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    question = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise_multiplier))
    accountant.compose(dp_event.SelfComposedDpEvent(question, num_questions))
    return float(accountant.get_epsilon(delta))


def capacity(num_records: int, rate: float) -> int:
    """Of Poisson batches: larger ones, which are cut, are rarer than OVERFLOW, by Chernoff's bound
    ``P(Bin(n, q) >= m) <= exp(-n KL(m / n, q))``.
    """
    few, enough = math.floor(num_records * rate), num_records
    while enough - few > 1:
        middle = (few + enough) // 2
        share = middle / num_records
        divergence = rel_entr(share, rate) + rel_entr(1 - share, 1 - rate)
        if num_records * divergence >= -math.log(OVERFLOW):
            enough = middle
        else:
            few = middle
    return enough


def epsilon_of_fixed_batches(
    num_questions: int, rate: float, rdp_of_batch: Callable[[int], float], delta: float
) -> float:
    """An upper bound; ``rdp_of_batch`` is infinite at orders where there is none."""
    orders = np.arange(2, MAX_ORDER + 1)
    rdp = num_questions * np.array(sampled_rdp(rate, rdp_of_batch))
    epsilons = rdp + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(np.min(epsilons)))


def sampled_rdp(rate: float, rdp_of_batch: Callable[[int], float]) -> list[float]:
    """At orders 2 to MAX_ORDER, in log space."""
    orders = np.arange(MAX_ORDER + 1)
    of_batch = np.array([math.inf if order < 2 else rdp_of_batch(int(order)) for order in orders])
    at_2 = of_batch[2]
    factor = min(math.log(2) + at_2, math.log(4) + _log_expm1(at_2))
    found = []
    for order in range(2, MAX_ORDER + 1):
        if not math.isfinite(of_batch[order]):
            found.append(math.inf)
            continue
        j = np.arange(3, order + 1)
        log_choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
        rest = math.log(2) + j * math.log(rate) + log_choose + (j - 1) * of_batch[j]
        second = 2 * math.log(rate) + math.log(order * (order - 1) / 2) + factor
        sampled = float(np.logaddexp(0.0, logsumexp([second, *rest]))) / (order - 1)
        found.append(min(sampled, of_batch[order]))
    return found


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))


def rdp_of_gaussian(noise_multiplier: float) -> Callable[[int], float]:
    """Of normal noise in units of the sensitivity."""
    return lambda order: order / (2 * noise_multiplier**2)
