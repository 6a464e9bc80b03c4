"""Iterations from a budget, against the thesis's theorems evaluated apart from the library."""

import itertools
import math

import mpmath
import pytest
from experiments.raisa2021.problems import EPSILONS, PROBLEMS

import noiseaware as na
from noiseaware.accounting import epsilon_by_pld, log_delta_of_gdp
from noiseaware.private_mcmc.budgets import squared_mu_of

SAMPLERS = (("penalty", True), ("guided", True), ("hamiltonian", True), ("hamiltonian", False))
ROWS = [
    pytest.param(problem, *sampler, epsilon, id=f"{name}-{sampler[0]}-{sampler[1]}-{epsilon}")
    for name, problem in PROBLEMS.items()
    for sampler, epsilon in itertools.product(SAMPLERS, EPSILONS[name])
]


def delta_of(mean, epsilon):
    """[R21, Theorems 6 and 11] with 50 digits; ``mean`` is that of the privacy loss."""
    with mpmath.workdps(50):
        mean, epsilon = mpmath.mpf(mean), mpmath.mpf(epsilon)
        root = 2 * mpmath.sqrt(mean)
        first, second = mpmath.erfc((epsilon - mean) / root), mpmath.erfc((epsilon + mean) / root)
        return (first - mpmath.exp(epsilon) * second) / 2


def loss_mean(problem, sampler, iterations, *, is_reused):
    """Of the row of R21_SETTINGS as printed: tau, not multipliers."""
    n = problem.num_records
    if sampler != "hamiltonian":
        tau = getattr(problem, sampler)[0]
        return iterations / (2 * tau**2 * n)
    tau, tau_gradient, num_steps = problem.hamiltonian[:3]
    gradients = iterations * num_steps + 1 if is_reused else iterations * (num_steps + 1)
    return iterations / (2 * tau**2 * n) + gradients / (2 * tau_gradient**2 * n)


def with_reuse(sampler, is_reused):
    if is_reused:
        return sampler
    return na.HamiltonianPenalty(
        step_size=sampler.step_size,
        num_steps=sampler.num_steps,
        clip=sampler.clip,
        gradient_clip=sampler.gradient_clip,
        noise_multiplier=sampler.noise_multiplier,
        gradient_noise_multiplier=sampler.gradient_noise_multiplier,
        reuse_gradient=False,
    )


@pytest.mark.parametrize(("problem", "name", "is_reused", "epsilon"), ROWS)
def test_iterations_are_the_most_that_the_theorems_allow(problem, name, is_reused, epsilon):
    sampler = with_reuse(problem.samplers()[name], is_reused)
    budget = na.ApproxDP(epsilon, problem.delta, "replace")
    most = na.max_iterations(sampler, budget)
    within, beyond = (
        delta_of(loss_mean(problem, name, count, is_reused=is_reused), epsilon)
        for count in (most, most + 1)
    )
    delta = (1 - 1e-3) * problem.delta  # the rest is for rounding
    assert within <= delta < beyond

    rho = (math.sqrt(epsilon - math.log(delta)) - math.sqrt(-math.log(delta))) ** 2
    by_rho = na.max_iterations(sampler, budget, accountant="zcdp")
    assert loss_mean(problem, name, by_rho, is_reused=is_reused) <= rho * (1 + 1e-12)
    assert loss_mean(problem, name, by_rho + 1, is_reused=is_reused) > rho
    assert by_rho < most


def test_most_by_pld_is_hardly_less():
    problem = PROBLEMS["flat-2"]
    sampler = problem.samplers()["hamiltonian"]
    budget = na.ApproxDP(4.0, problem.delta, "replace")
    most = na.max_iterations(sampler, budget)
    assert 0 <= most - na.max_iterations(sampler, budget, accountant="pld") <= 1


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.2), (0.5, 1.0), (1.0, 1.0), (2.0, 6.0)])
def test_closed_form_agrees_with_the_loss_distribution(mu, epsilon):
    """To 1e-8 in delta's ratio, by a discretisation fine enough for that."""
    from dp_accounting.pld import privacy_loss_distribution

    loss = privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=1e-5
    )
    delta = math.exp(log_delta_of_gdp(epsilon, mu))
    assert loss.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=1e-8)
    assert epsilon_by_pld(mu, delta) == pytest.approx(epsilon, rel=1e-3)
    assert epsilon_by_pld(mu, delta) >= epsilon * (1 - 1e-9)


@pytest.mark.parametrize("name", ["penalty", "guided", "hamiltonian"])
def test_cost_of_iterations_is_the_composition_of_their_costs(name):
    sampler = PROBLEMS["flat-2"].samplers()[name]
    one, start = sampler.squared_mu(1), sampler.squared_mu(0)
    each = na.GDP(math.sqrt(one - start), "replace")
    first = na.GDP(math.sqrt(start), "replace")
    total = sampler.cost(7, neighbours=na.Neighbours.REPLACE)
    assert total.mu == pytest.approx(na.compose(first, *[each] * 7).mu, rel=1e-12)
    chains = sampler.cost(7, neighbours=na.Neighbours.REPLACE, chains=3)
    assert chains.mu == pytest.approx(na.compose(total, total, total).mu, rel=1e-12)


def test_chains_share_the_budget():
    sampler = PROBLEMS["flat-2"].samplers()["penalty"]
    budget = na.ApproxDP(4.0, 1e-6, "replace")
    for chains in (1, 3, 4):
        most = na.max_iterations(sampler, budget, chains=chains)
        assert most == na.max_iterations(sampler, budget) // chains


@pytest.mark.parametrize(
    ("budget", "squared"),
    [(na.GDP(0.3, "replace"), 0.09), (na.ZCDP(0.08, "replace"), 0.16)],
)
def test_budgets_in_other_currencies(budget, squared):
    assert squared_mu_of(budget) == pytest.approx(squared)


@pytest.mark.parametrize("budget", [na.PureDP(1.0, "replace"), na.ApproxDP(1.0, 0.0, "replace")])
def test_budgets_that_normal_noise_cannot_keep_are_refused(budget):
    with pytest.raises(ValueError, match="positive delta, ZCDP or GDP"):
        na.max_iterations(PROBLEMS["flat-2"].samplers()["penalty"], budget)
