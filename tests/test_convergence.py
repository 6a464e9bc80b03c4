"""Our convergence measures of many scalars are ArviZ's of one."""

import numpy as np
import pytest

from noiseaware import convergence


def autoregressive(correlation, num_chains=4, num_draws=301, size=6, seed=0):
    rng = np.random.default_rng(seed)
    values = np.empty((num_chains, num_draws, size))
    at = rng.normal(size=(num_chains, size))
    for index in range(num_draws):
        at = correlation * at + np.sqrt(1 - correlation**2) * rng.normal(size=at.shape)
        values[:, index] = at
    return values


@pytest.mark.parametrize("correlation", [-0.6, 0.0, 0.7, 0.99])
@pytest.mark.parametrize("num_draws", [50, 301])
def test_sizes_and_r_hat_are_those_of_arviz(correlation, num_draws):
    import arviz

    draws = autoregressive(correlation, num_draws=num_draws)
    draws[:, :, 1] = np.round(draws[:, :, 1])  # ties
    draws[1, :, 2] += 3  # a chain elsewhere
    draws[1, :, 3] *= 5  # a chain with another spread
    for index in range(draws.shape[-1]):
        column = draws[..., index]
        ours, theirs = convergence.bulk_ess(column), arviz.ess(column, method="bulk")
        assert ours == pytest.approx(theirs, rel=1e-6)
        assert convergence.r_hat(column) == pytest.approx(arviz.rhat(column), rel=1e-9)
    assert convergence.bulk_ess(draws)[5] == pytest.approx(convergence.bulk_ess(draws[..., 5]))


def test_what_is_not_a_number_has_no_size():
    draws = autoregressive(0.5)
    draws[0, 7, 2] = np.nan
    assert np.array_equal(np.isnan(convergence.bulk_ess(draws)), np.arange(6) == 2)


def test_a_constant_counts_in_full():
    assert np.array_equal(convergence.bulk_ess(np.ones((4, 50, 2))), [4 * 50] * 2)
