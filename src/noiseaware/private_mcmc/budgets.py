"""How long a chain may run: iterations from a budget.

Every question costs a Gaussian mechanism, so a run costs ``GDP(mu)`` with squares that add over
questions, iterations and chains. Three accountants turn a budget (epsilon, delta) into the most
iterations; the first is exact, the others are looser and are there to be compared with:

- ``gaussian``: the largest mu whose ``delta(epsilon)`` is within [R21, Theorems 6 and 11];
- ``zcdp``: ``rho = (sqrt(epsilon - log delta) - sqrt(-log delta))^2`` [R21, Theorems 5 and 10];
- ``pld``: the privacy loss distribution, discretised from above, of Google's dp_accounting.
"""

import math

from noiseaware import accounting, validate
from noiseaware.accounting import GDP, ZCDP, ApproxDP, Cost
from noiseaware.private_mcmc.private_sampler import PrivateSampler

ACCOUNTANTS = ("gaussian", "zcdp", "pld")


def max_iterations(
    sampler: PrivateSampler, budget: Cost, *, chains: int = 1, accountant: str = "gaussian"
) -> int:
    """The most iterations that each of ``chains`` may make within the budget; 0 if none."""
    validate.one_of("accountant", accountant, ACCOUNTANTS)
    if not isinstance(sampler, PrivateSampler):
        raise ValueError(f"sampler must have its settings, got {sampler!r}.")
    validate.positive_integer("chains", chains)
    if not sampler.is_noisy:
        raise ValueError("noise_multiplier must be positive to keep a budget, got 0.")
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
            from_delta = -math.log(budget.delta)
            return 2 * (math.sqrt(budget.epsilon + from_delta) - math.sqrt(from_delta)) ** 2
        case ApproxDP() if budget.delta > 0:
            return accounting.mu_for_approx_dp(budget.epsilon, budget.delta) ** 2
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
        is_within = accounting.epsilon_by_pld(mu, budget.delta) <= budget.epsilon
        few, many = (middle, many) if is_within else (few, middle)
    return few
