"""How long a chain may run: iterations from a budget.

Every question costs a Gaussian mechanism, so a run costs ``GDP(mu)`` with squares that add over
questions, iterations and chains. Three accountants turn a budget (epsilon, delta) into the most
iterations; the first is exact, the others are looser and are there to be compared with:

- ``gaussian``: the largest mu whose ``delta(epsilon)`` is within [R21, Theorems 6 and 11];
- ``zcdp``: ``rho = (sqrt(epsilon - log delta) - sqrt(-log delta))^2`` [R21, Theorems 5 and 10];
- ``pld``: the privacy loss distribution, discretised from above, of Google's dp_accounting.

Questions to a batch have no cost as GDP; ``subsampling.py`` has the accountant of each kind of
batch, and another is refused. Of delta a share is kept for the rounding of noise.
"""

import math
from typing import Protocol

from noiseaware import accounting, validate
from noiseaware.accounting import GDP, ZCDP, ApproxDP, Cost
from noiseaware.private_mcmc.private_sampler import SHARE_FOR_ROUNDING, PrivateSampler
from noiseaware.schema import Neighbours

ACCOUNTANTS = ("gaussian", "zcdp", "pld")


def max_iterations(
    sampler: PrivateSampler, budget: Cost, *, chains: int = 1, accountant: str | None = None
) -> int:
    """The most iterations that each of ``chains`` may make within the budget; 0 if none. By the
    tightest accountant that covers the sampler, where none is named.
    """
    if not isinstance(sampler, PrivateSampler):
        raise ValueError(f"sampler must have its settings, by hand or from tune, got {sampler!r}.")
    covering = ACCOUNTANTS if sampler.batches is None else (sampler.batches.accountant,)
    accountant = covering[0] if accountant is None else accountant
    if accountant not in covering:
        raise ValueError(
            f"accountant must be one of {', '.join(covering)} for this sampler, got "
            f"{accountant!r}, which does not cover it."
        )
    validate.positive_integer("chains", chains)
    if not sampler.is_noisy:
        raise ValueError("noise_multiplier must be positive to keep a budget, got 0.")
    if sampler.batches is not None:
        return _most_of_batches(sampler, budget, chains)
    if accountant == "pld":
        return _most_by_pld(sampler, budget, chains)
    squared = squared_mu_of(budget, accountant)
    if chains * sampler.squared_mu(1) > squared:
        return 0
    of_start = sampler.squared_mu(0)
    slope = sampler.squared_mu(1) - of_start
    most = max(1, round((squared / chains - of_start) / slope) + 1)
    while chains * sampler.squared_mu(most) > squared:
        most -= 1
    return most


def _most_of_batches(sampler: PrivateSampler, budget: Cost, chains: int) -> int:
    allowed = checked_for_batches(budget)

    def is_within(iterations: int) -> bool:
        return is_within_budget(sampler, allowed, chains * iterations)

    few, many = 0, 1
    while is_within(many):
        few, many = many, 4 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if is_within(middle) else (few, middle)
    return few


def is_within_budget(sampler: PrivateSampler, budget: ApproxDP, iterations: int) -> bool:
    """Of all chains together, on batches."""
    return sampler.epsilon(iterations, less_rounding(budget.delta, sampler)) <= budget.epsilon


def less_rounding(delta: float, sampler: PrivateSampler | None = None) -> float:
    """The rest of delta is for ``delta_of_rounding``, which a run is refused if it exceeds. Of
    samplers with a cost as GDP, and pilots, the share is one.
    """
    share = SHARE_FOR_ROUNDING if sampler is None else sampler.share_for_rounding
    return (1 - share) * delta


def checked_for_batches(budget: Cost) -> ApproxDP:
    if not isinstance(budget, ApproxDP) or budget.delta == 0:
        raise ValueError(f"budget of batches must be ApproxDP with a positive delta, got {budget}.")
    if budget.neighbours is not Neighbours.REPLACE:
        raise ValueError("budget of batches must be under replace, got add_remove.")
    return budget


def squared_mu_of(budget: Cost, accountant: str = "gaussian") -> float:
    """That of the costliest Gaussian run within a budget, less what rounding may add."""
    return (1 - 1e-12) * _squared_mu_of(budget, accountant)


def _squared_mu_of(budget: Cost, accountant: str) -> float:
    match budget:
        case GDP():
            return budget.mu**2
        case ZCDP():
            return 2 * budget.rho
        case ApproxDP() if budget.delta > 0 and accountant == "zcdp":
            from_delta = -math.log(less_rounding(budget.delta))
            return 2 * (math.sqrt(budget.epsilon + from_delta) - math.sqrt(from_delta)) ** 2
        case ApproxDP() if budget.delta > 0:
            delta = less_rounding(budget.delta)
            return accounting.mu_for_approx_dp(budget.epsilon, delta) ** 2
    raise ValueError(
        f"budget must be ApproxDP with a positive delta, ZCDP or GDP, got {budget!r}: normal noise "
        "keeps no other."
    )


def _most_by_pld(sampler: PrivateSampler, budget: Cost, chains: int) -> int:
    if not isinstance(budget, ApproxDP):
        raise ValueError(f"budget must be ApproxDP for accountant 'pld', got {budget!r}.")
    few, many = 0, max_iterations(sampler, budget, chains=chains) + 1
    while many - few > 1:
        middle = (few + many) // 2
        mu = math.sqrt(chains * sampler.squared_mu(middle))
        found = accounting.epsilon_by_pld(mu, less_rounding(budget.delta))
        is_within = found <= budget.epsilon
        few, many = (middle, many) if is_within else (few, middle)
    return few


class Purse(Protocol):
    """A budget, of which a pilot may spend a share first."""

    @property
    def budget(self) -> Cost: ...

    @property
    def for_pilot(self) -> float:
        """Squared mu that a pilot may spend."""

    def left(self, by_pilot: float) -> Cost:
        """For chains, after a pilot that spent this squared mu."""

    def share_of(self, by_pilot: float) -> float:
        """Of the budget."""

    def for_rounding(self, sampler: PrivateSampler) -> float:
        """Of delta, if there is one."""

    def spent(self, sampler: PrivateSampler, chains: int, begun: int, by_pilot: float) -> dict:
        """By so many iterations of each chain, and by the pilot."""


class GaussianPurse:
    """Squares of mu add, so a pilot's are taken off, and the rest is GDP."""

    def __init__(self, budget: Cost, share: float):
        self.budget, self._share = budget, share

    @property
    def for_pilot(self):
        return self._share * squared_mu_of(self.budget)

    def left(self, by_pilot):
        if by_pilot == 0:
            return self.budget
        squared = squared_mu_of(self.budget) - by_pilot
        return GDP(math.sqrt(squared), self.budget.neighbours)

    def share_of(self, by_pilot):
        return by_pilot / squared_mu_of(self.budget)

    def for_rounding(self, sampler):
        if not isinstance(self.budget, ApproxDP):
            return math.inf
        return self.budget.delta - less_rounding(self.budget.delta)

    def spent(self, sampler, chains, begun, by_pilot):
        squared = by_pilot + chains * sampler.squared_mu(begun)
        cost = GDP(math.sqrt(squared), self.budget.neighbours)
        spent = {"cost_mu": cost.mu, "cost_mu_pilot": math.sqrt(by_pilot)}
        if isinstance(self.budget, ApproxDP):
            epsilon = accounting.to_approx_dp(cost, less_rounding(self.budget.delta)).epsilon
            spent |= {"cost_epsilon": epsilon, "cost_delta": self.budget.delta}
        return spent


class BatchPurse:
    """Chains that ask batches have no mu: epsilon and delta are divided between pilot and chains,
    and add.
    """

    def __init__(self, budget: Cost, share: float):
        self.budget: ApproxDP = checked_for_batches(budget)
        self._share = share

    @property
    def for_pilot(self):
        return squared_mu_of(self._part(self._share)) if self._share > 0 else 0.0

    def left(self, by_pilot):
        return self._part(1 - self._share)

    def share_of(self, by_pilot):
        return self._share

    def for_rounding(self, sampler):
        pilot, chains = (self._part(share).delta for share in (self._share, 1 - self._share))
        return self.budget.delta - less_rounding(pilot) - less_rounding(chains, sampler)

    def spent(self, sampler, chains, begun, by_pilot):
        left = self._part(1 - self._share)
        epsilon = sampler.epsilon(chains * begun, less_rounding(left.delta, sampler))
        if by_pilot > 0:
            pilot = GDP(math.sqrt(by_pilot), self.budget.neighbours)
            delta = less_rounding(self.budget.delta - left.delta)
            epsilon += accounting.to_approx_dp(pilot, delta).epsilon
        return {
            "cost_epsilon": epsilon, "cost_delta": self.budget.delta,
            "accountant": sampler.batches.accountant,
        }  # fmt: skip

    def _part(self, share: float) -> ApproxDP:
        whole = self.budget
        return ApproxDP(share * whole.epsilon, share * whole.delta, whole.neighbours)


def purse_of(sampler: PrivateSampler | type[PrivateSampler], budget: Cost, share: float) -> Purse:
    is_sampled = isinstance(sampler, PrivateSampler) and sampler.batches is not None
    return (BatchPurse if is_sampled else GaussianPurse)(budget, share)
