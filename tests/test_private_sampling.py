import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiments.raisa2021.problems import Banana, Circle
from scipy.special import ndtri

import noiseaware as na
from noiseaware import private_pilots, private_sampling
from noiseaware.private_mcmc import chains
from noiseaware.private_mcmc.host_noise import Secure, Simulated
from noiseaware.private_mcmc.queries import (
    Queries,
    Target,
    contribute_gradient,
    contribute_log_ratio,
    num_bits,
)
from noiseaware.private_mcmc.tuning import expected_effective
from noiseaware.private_pilots import Learned

MODEL = Banana(0.7, [2.0, 0.5], prior_variance=3.0)
BUDGET = na.ApproxDP(20.0, 1e-6, "replace")
PENALTY = na.Penalty(step_size=0.1, clip=3.0, noise_multiplier=5.0)
PATHS = na.HamiltonianPenalty(
    step_size=0.02, num_steps=3, clip=3.0, gradient_clip=3.0, noise_multiplier=5.0,
    gradient_noise_multiplier=10.0,
)  # fmt: skip
START = {"theta": [0.0, 0.5]}


def records(num_records=300, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x1": rng.normal(0.1, np.sqrt(2.0), num_records),
        "x2": rng.normal(0.5, np.sqrt(0.5), num_records),
    }


def sample(data=None, model=MODEL, sampler=PENALTY, budget=BUDGET, **options):
    options = {"start": START, "progress": False} | options
    return na.private_sample(records() if data is None else data, model, sampler, budget, **options)


# What is released


@pytest.mark.parametrize("sampler", [PENALTY, PATHS])
def test_a_private_run_shows_nothing_but_draws_and_acceptance(sampler):
    draws = sample(sampler=sampler)
    assert set(draws.sample_stats) == {"accepted"}
    assert draws.attrs["privacy"] == "private at its cost"
    assert "seed" not in draws.attrs
    assert draws.attrs["cost_epsilon"] <= BUDGET.epsilon
    iterations = draws.attrs["iterations"]
    assert iterations == na.max_iterations(sampler, BUDGET)
    assert draws.posterior.sizes["draw"] == iterations - iterations // 2
    again = sample(sampler=sampler)
    assert not np.array_equal(draws.posterior["theta"], again.posterior["theta"])


def test_a_seeded_run_is_marked_and_repeats():
    draws = sample(seed=3, sampler=PATHS)
    assert draws.attrs["privacy"] == "simulated, not private"
    assert set(draws.sample_stats) == {"accepted", "ratios_clipped", "gradients_clipped"}
    np.testing.assert_array_equal(
        draws.posterior["theta"], sample(seed=3, sampler=PATHS).posterior["theta"]
    )


def test_chains_have_their_own_starts_and_share_the_budget():
    draws = sample(chains=3, start={"theta": np.arange(6.0).reshape(3, 2)}, seed=0, discard=0.0)
    assert draws.posterior.sizes["chain"] == 3
    assert draws.attrs["cost_epsilon"] <= BUDGET.epsilon
    assert draws.attrs["iterations"] == na.max_iterations(PENALTY, BUDGET, chains=3)
    first = draws.posterior["theta"].values[:, 0]
    assert np.all(np.abs(first - np.arange(6.0).reshape(3, 2)) < 1.0)


def test_a_start_from_the_prior_and_one_given_chain():
    draws = sample(start=None, chains=2, seed=1, iterations=3)
    assert np.ptp(draws.posterior["theta"].values[:, 0, 0]) > 0


def test_order_and_shards_of_records_change_nothing():
    """Sums are exact, so the draws are the same, but for rounding after the noise."""
    data = records()
    order = np.random.default_rng(1).permutation(300)
    shuffled = {name: column[order] for name, column in data.items()}

    def shards():
        for part in (slice(0, 100), slice(100, 250), slice(250, 300)):
            yield {name: column[part] for name, column in data.items()}

    expected = sample(data, sampler=PATHS, seed=2, iterations=5)
    for other in (shuffled, shards):
        found = sample(other, sampler=PATHS, seed=2, iterations=5)
        for group in ("posterior", "sample_stats"):
            for name in expected[group]:
                np.testing.assert_allclose(
                    found[group][name], expected[group][name], rtol=1e-13, atol=0
                )


def test_segments_change_nothing(monkeypatch):
    expected = sample(seed=2, iterations=5, sampler=PATHS)
    monkeypatch.setattr("noiseaware.private_mcmc.queries.SEGMENT_RECORDS", 64)
    jax.clear_caches()
    found = sample(seed=2, iterations=5, sampler=PATHS)
    np.testing.assert_allclose(found.posterior["theta"], expected.posterior["theta"], rtol=1e-13)


def test_chunks_go_on_where_the_last_one_ended(monkeypatch):
    monkeypatch.setattr(chains, "CHUNK_ITERATIONS", 64)
    jax.clear_caches()
    far = {"theta": [3.0, -4.0]}
    draws = sample(discard=0.0, iterations=150, seed=0, start=far)
    theta = draws.posterior["theta"].values[0]
    assert len(theta) == 150
    assert np.max(np.abs(np.diff(theta, axis=0))) < 6 * 0.1
    assert np.linalg.norm(theta[128] - far["theta"]) > 0.7, "the start is far behind"


def test_noise_and_sums_are_float64_whatever_the_caller_uses():
    assert jnp.ones(()).dtype == jnp.float32
    draws = sample(iterations=2)
    assert draws.posterior["theta"].dtype == np.float64
    queries = bound(records())
    with jax.enable_x64(True):
        arguments = (jnp.zeros(2), jnp.full(2, 0.1), 0.5)
        total, _ = queries._total(contribute_log_ratio, arguments)
        each = jax.vmap(
            lambda record: contribute_log_ratio(queries.target, arguments, record, queries.bits)[0]
        )
        whole = np.asarray(each(queries.records))
    assert total.dtype == np.float64
    assert int(total) == sum(map(int, whole))
    assert int(total) % 2**16 != 0  # so it has more digits than float32 could hold
    assert abs(int(total)) > 2**40


def test_models_of_the_library_and_of_numpyro_and_functions():
    import numpyro
    import numpyro.distributions as dist

    def one_record():
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        numpyro.sample("x", dist.Exponential(rate))

    data = {"x": np.random.default_rng(0).exponential(0.5, 200)}
    functions = na.FunctionModel(
        lambda key: {"rate": jax.random.gamma(key, 2.0)},
        lambda key, params: {"x": jax.random.exponential(key) / params["rate"]},
        log_prior=lambda params: jnp.log(params["rate"]) - params["rate"],
        log_record=lambda params, record: jnp.log(params["rate"]) - params["rate"] * record["x"],
        supports={"rate": na.Positive()},
    )
    built_in = na.Exponential("x", na.GammaPrior(2.0, 1.0))
    found = [
        sample(data, model, start={"rate": 1.0}, seed=0).posterior["rate"].values
        for model in (built_in, na.NumpyroModel(one_record, ["x"]), functions)
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)
    np.testing.assert_allclose(found[0], found[2], rtol=1e-9)


# Sensitivity


def nasty(params, record):
    """Whatever a person may write: NaN, infinities, any size."""
    x, theta = record["x1"], params["theta"]
    return jnp.where(x > 0, theta[0] * x, jnp.log(x * theta[1])) + theta[1] * x**3


class Nasty(Banana):
    def log_record(self, params, record):
        return nasty(params, record)


VALUES = [0.0, 1.0, -1.0, 1e-308, 1e308, -1e308, np.inf, -np.inf, np.nan, 3.0, 1e10]


@pytest.mark.parametrize("model", [MODEL, Nasty(0.0, [1.0, 1.0])])
@pytest.mark.parametrize("contribute", [contribute_log_ratio, contribute_gradient])
def test_no_record_contributes_more_than_its_bound(model, contribute):
    """Over records and positions of every size, one call: the ball is never left."""
    rng = np.random.default_rng(0)
    x = np.concatenate([VALUES, rng.standard_normal(500) * 10.0 ** rng.uniform(-300, 300, 500)])
    pool = rng.choice(x, (4000, 2))
    with jax.enable_x64(True):
        target = Target(model, {"theta": jnp.zeros(2)}, jnp.eye(2), jnp.ones(()))
        places = np.concatenate([rng.choice(x, (200, 2)), rng.standard_normal((200, 2))])
        ends = np.concatenate(
            [rng.choice(x, (100, 2)), places[100:] + rng.normal(0, 0.1, (300, 2))]
        )
        for bits in (20, 35, 40):
            bounds = 10.0 ** rng.uniform(-8, 8, 400)

            def each(place, end, bound, record, bits=bits):
                arguments = (
                    (place, end, bound) if contribute is contribute_log_ratio else (place, bound)
                )
                return contribute(target, arguments, record, bits)[0]

            over_records = jax.vmap(each, in_axes=(None, None, None, 0))
            both = jax.jit(jax.vmap(over_records, in_axes=(0, 0, 0, None)))
            whole = np.asarray(both(places, ends, bounds, {"x1": pool[:, 0], "x2": pool[:, 1]}))
            assert np.all(whole == np.trunc(whole))
            vectors = whole.reshape(400, 4000, -1)
            largest = max(
                sum(int(entry) ** 2 for entry in vector)
                for vector in vectors.reshape(-1, vectors.shape[-1])[_largest(vectors)]
            )
            assert largest <= 2 ** (2 * bits)
            assert largest > 0.9 * 2 ** (2 * bits)


def _largest(vectors):
    """Where to look with exact numbers: the longest by floating point."""
    norms = np.sum(vectors.reshape(-1, vectors.shape[-1]) ** 2, axis=1)
    return np.argsort(norms)[-2000:]


def bound(data, is_study=False, neighbours_sensitivity=2.0):
    with jax.enable_x64(True):
        target = Target(MODEL, {"theta": jnp.zeros(2)}, jnp.eye(2), jnp.ones(()))
    bits = num_bits(len(data["x1"]), 1.0)
    return Queries(target, data, bits=bits, sensitivity=neighbours_sensitivity, is_study=is_study)


def test_neighbours_move_an_answer_by_at_most_the_sensitivity():
    """Without noise, in units of the bound; reached by the worst pair of records."""
    rng = np.random.default_rng(1)
    worst = 0.0
    with jax.enable_x64(True):
        for _ in range(200):
            data = records(50, seed=int(rng.integers(1000)))
            other = {name: column.copy() for name, column in data.items()}
            for name in other:
                data[name][0], other[name][0] = rng.choice([1e6, -1e6, 1e308, -1e308, 0.3], 2)
            at, end = rng.normal(size=(2, 2))
            answers = [
                bound(each).log_ratio(at, end, clip=0.5, noise_multiplier=1.0, noise=np.int64(0))
                for each in (data, other)
            ]
            unit = 0.5 * np.linalg.norm(end - at)
            worst = max(worst, abs(float(answers[0].value - answers[1].value)) / unit)
    assert worst <= 2.0 * (1 + 1e-12)
    assert worst > 1.99


# Audit: one step with a known proposal and uniform is a threshold on the noisy answer, so that the
# two rates of acceptance show mu itself. 100,000 runs each: a standard error of 0.006.

AUDIT_MULTIPLIER = 2.0
NUM_RUNS = 100_000


def acceptance_rate(data, noise_factor, source):
    queries = bound(data)
    sampler = na.Penalty(step_size=1.0, clip=0.5, noise_multiplier=AUDIT_MULTIPLIER)
    unit = noise_factor * queries.sensitivity * 2.0**queries.bits
    noise = sampler.draw_noise(source, (NUM_RUNS,), 2, unit)
    noise = noise._replace(
        proposal=np.broadcast_to([0.3, 0.1], (NUM_RUNS, 2)), uniform=np.full(NUM_RUNS, 0.5)
    )
    with jax.enable_x64(True):
        state = sampler.init((), jnp.zeros(2), queries)
        step = jax.vmap(lambda noise: sampler.step(noise, state, queries)[1].is_accepted)
        return float(np.mean(jax.jit(step)(noise)))


def audited_mu(noise_factor, source):
    rates = []
    for extreme in (1e6, -1e6):
        data = records(20)
        data["x1"][0] = extreme
        rates.append(acceptance_rate(data, noise_factor, source))
    return float(ndtri(rates[0]) - ndtri(rates[1]))


def test_an_audit_finds_no_more_than_the_claim_and_catches_half_the_noise():
    claim = 1 / AUDIT_MULTIPLIER
    error = 4.5 * 0.0065
    assert claim - error < audited_mu(1.0, Secure()) < claim + error
    assert audited_mu(0.5, Simulated(0)) > claim + 5 * error


def test_whole_normals_of_both_sources_have_their_variance():
    for source in (Secure(), Simulated(0)):
        noise = source.whole_normals((20_000,), 1000.5 * 2.0**30)
        assert noise.dtype == np.int64
        scaled = noise / (1000.5 * 2.0**30)
        assert abs(scaled.mean()) < 4.5 / np.sqrt(20_000)
        assert abs(scaled.var() - 1) < 4.5 * np.sqrt(2 / 20_000)
        uniforms = source.uniforms((20_000,))
        assert uniforms.min() > 0
        assert uniforms.max() < 1
        assert abs(uniforms.mean() - 0.5) < 4.5 / np.sqrt(12 * 20_000)


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint": "file"}, "a second spend"),
        ({"chains": 0}, "chains must be a positive integer"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"discard": 1.0}, "discard must be a share"),
        ({"start": {"beta": 0.0}}, "start must be of"),
        ({"start": na.PilotChain}, "got the class PilotChain"),
        ({"start": {"theta": [0.0]}}, "must have the shape"),
        ({"iterations": 10**6}, "at most"),
        ({"budget": na.ApproxDP(0.001, 1e-9, "replace")}, "allow one iteration"),
        ({"budget": na.PureDP(1.0, "replace")}, "positive delta, ZCDP or GDP"),
        ({"budget": na.ApproxDP(800.0, 1e-6, "replace"), "iterations": 1}, "rounding of noise"),
        ({"sampler": na.Slice()}, "sampler must be a PrivateSampler"),
        (
            {"model": na.DirichletCategorical("draw", 2), "data": {"draw": [0, 1]}, "start": None},
            "must not be called 'draw'",
        ),
        ({"data": {"x1": [1.0, np.nan], "x2": [0.0, 0.0]}}, "no missing values"),
        (
            {"sampler": na.Penalty(step_size=0.1, clip=3.0, noise_multiplier=0.0)},
            "not private: give seed and iterations",
        ),
        (
            {"sampler": na.Penalty(step_size=0.1, clip=3.0, noise_multiplier=5.0, scale=[1.0] * 3)},
            "scale must be one number or one for each",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_spent(options, message, monkeypatch):
    monkeypatch.setattr(private_sampling, "run", None)
    with pytest.raises(ValueError, match=message):
        sample(**options)


@pytest.mark.parametrize(("name", "value"), [("clip", 0.0), ("step_size", -1.0), ("scale", 0.0)])
def test_settings_must_be_positive(name, value):
    settings = {"step_size": 0.1, "clip": 1.0, "noise_multiplier": 2.0, name: value}
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        na.Penalty(**settings)


def test_a_model_that_is_not_finite_at_its_start_is_refused(monkeypatch):
    monkeypatch.setattr(private_sampling, "run", None)
    model = Nasty(0.0, [1.0, 1.0])
    with pytest.raises(ValueError, match="log_record must be finite at the start"):
        sample(model=model, start={"theta": [0.0, 1.0]})
    with pytest.raises(ValueError, match="log_prior must be finite at the start"):
        sample(start={"theta": [1e200, 0.0]})


def test_an_improper_prior_needs_a_start():
    data = {"r": np.random.default_rng(0).normal(3.0, 1.0, 200)}
    with pytest.raises(ValueError, match="start must be given"):
        sample(data, Circle(1e-2), start=None)
    draws = sample(data, Circle(1e-2), start={"theta": [0.0, 3.0]}, seed=0)
    assert not hasattr(draws, "prior")
    assert np.all(np.isnan(na.summarize(draws)["prior_sd"]))
    apart = {"theta": [[0.0, 3.0], [0.0, -3.0]]}  # one for each chain
    draws = sample(data, Circle(1e-2), start=apart, seed=0, chains=2, iterations=2, discard=0.0)
    np.testing.assert_array_equal(np.sign(draws.posterior["theta"].values[:, 0, 1]), [1, -1])


def test_a_large_delta_is_warned_of():
    with pytest.warns(UserWarning, match="at least 1 / n"):
        sample(budget=na.ApproxDP(2.0, 0.01, "replace"), iterations=2)


def test_an_interrupt_returns_what_was_drawn_and_charges_what_was_begun(monkeypatch):
    monkeypatch.setattr(chains, "CHUNK_ITERATIONS", 10)
    advance = chains._advance_compiled
    calls = []

    def interrupted(*arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(None)
        return advance(*arguments)

    monkeypatch.setattr(chains, "_advance_compiled", interrupted)
    jax.clear_caches()
    with pytest.warns(na.IncompleteWarning, match="20 of 50 iterations, of which 30"):
        draws = sample(iterations=50, discard=0.0)
    assert draws.posterior.sizes["draw"] == 20
    assert draws.attrs["cost_mu"] == pytest.approx(np.sqrt(30) / 5.0)


@pytest.mark.parametrize(("relation", "of_one"), [("replace", 2.0), ("add_remove", 1.0)])
@pytest.mark.parametrize("sampler", [PENALTY, PATHS])
def test_noise_of_a_run_is_that_of_its_sensitivity(relation, of_one, sampler, monkeypatch):
    """What the operating system's noise is asked for, against what one record can change."""
    stddevs, seen = [], []

    class Spied(Secure):
        def whole_normals(self, shape, stddev):
            stddevs.append(stddev)
            return super().whole_normals(shape, stddev)

    def spied(source, sampler, queries, *rest):
        seen.append(queries)
        return run(source, sampler, queries, *rest)

    run = private_sampling.run
    monkeypatch.setattr(private_sampling, "Secure", Spied)
    monkeypatch.setattr(private_sampling, "run", spied)
    budget = na.ApproxDP(8.0, 1e-6, relation)
    draws = sample(sampler=sampler, budget=budget, iterations=3)
    unit = of_one * 2.0 ** seen[0].bits
    assert set(stddevs) == {multiplier * unit for multiplier in sampler.multipliers}
    assert draws.attrs["cost_mu"] == pytest.approx(np.sqrt(sampler.squared_mu(3)))
    # And one record, exchanged or taken away, moves a sum by as much as that, and no more.
    extreme = records(50) | {"x1": np.r_[1e6, records(49)["x1"]]}
    other = (
        records(50) | {"x1": np.r_[-1e6, records(49)["x1"]]}
        if relation == "replace"
        else {name: column[1:] for name, column in extreme.items()}
    )
    with jax.enable_x64(True):
        arguments = (jnp.zeros(2), jnp.array([0.3, 0.0]), jnp.asarray(0.15))
        target, bits = seen[0].target, seen[0].bits
        totals = [
            Queries(target, each, bits, of_one, False)._total(contribute_log_ratio, arguments)[0]
            for each in (extreme, other)
        ]
    assert abs(float(totals[0] - totals[1])) / 2.0**bits == pytest.approx(of_one, abs=0.05)


def test_the_sum_and_its_noise_fit_in_whole_numbers():
    for multiplier in (1.0, 1e6, 1e9):
        bits = num_bits(10**5, 2 * multiplier)
        assert 2 * multiplier * 2.0**bits <= 2.0**58
    with pytest.raises(ValueError, match="noise_multiplier must be smaller"):
        num_bits(10**5, 1e16)
    for source in (Secure(), Simulated(0)):
        with pytest.raises(ValueError, match=r"at most 2\^58"):
            source.whole_normals((3,), 2.0**59)


def test_an_audit_of_gradients_finds_no_more_than_the_claim():
    """Of one noisy gradient, told apart by its first coordinate."""
    claim, error = 0.5, 4.5 * 0.0065
    noise = Secure().whole_normals((NUM_RUNS, 2), 2.0 * 2.0 * 2.0**40)
    rates = []
    for extreme in (1e6, -1e6):
        data = records(20)
        data["x1"][0], data["x2"][0] = extreme, 0.0
        with jax.enable_x64(True):
            answer = jax.jit(
                jax.vmap(
                    lambda noise, queries=bound(data): queries.gradient(
                        jnp.zeros(2), clip=0.5, noise_multiplier=2.0, noise=noise
                    ).value[0]
                )
            )
            rates.append(np.asarray(answer(noise)))
    threshold = np.median(np.concatenate(rates))
    hits = [float(np.mean(each > threshold)) for each in rates]
    assert claim - error < ndtri(hits[0]) - ndtri(hits[1]) < claim + error


def test_a_log_record_of_several_numbers_is_refused(monkeypatch):
    """Its sums would share one noise, and their difference would have none."""
    monkeypatch.setattr(private_sampling, "run", None)

    class Several(Banana):
        def log_record(self, params, record):
            return -((record["x1"] - params["theta"]) ** 2)

    with pytest.raises(ValueError, match="log_record must return one number"):
        sample(model=Several(0.0, [1.0, 1.0]))


def test_records_that_become_impossible_count_as_much_as_they_may():
    """U(0, top): a top below the largest record must not be free."""
    model = na.FunctionModel(
        lambda key: {"top": 0.5 + jax.random.exponential(key)},
        lambda key, params: {"x": params["top"] * jax.random.uniform(key)},
        log_prior=lambda params: -params["top"],
        log_record=lambda params, record: jnp.where(
            record["x"] <= params["top"], -jnp.log(params["top"]), -jnp.inf
        ),
        supports={"top": na.Positive()},
    )
    data = {"x": np.random.default_rng(0).uniform(0.0, 1.0, 2000)}
    sampler = na.Penalty(step_size=0.05, clip=500.0, noise_multiplier=0.02)
    draws = na.private_sample(
        data, model, sampler, na.GDP(1000.0, "replace"), start={"top": 1.2}, seed=0, progress=False
    )
    assert np.min(draws.posterior["top"]) > 0.99
    assert draws.sample_stats["ratios_clipped"].mean() > 0


def test_a_budget_exactly_exhausted_is_not_exceeded():
    for mu in np.linspace(0.3, 3.0, 60):
        epsilon = na.to_approx_dp(na.GDP(mu, "replace"), 1e-6).epsilon
        budget = na.ApproxDP(epsilon, 1e-6, "replace")
        sampler = na.Penalty(step_size=1.0, clip=1.0, noise_multiplier=np.sqrt(50) / mu)
        cost = sampler.cost(na.max_iterations(sampler, budget), neighbours=na.Neighbours.REPLACE)
        assert na.to_approx_dp(cost, 1e-6).epsilon <= epsilon


# Settings and starts that saw no record


def test_tuned_settings_fit_the_posterior():
    """Of a normal mean in units far from 1: the scale is its posterior's, and few are clipped."""
    model = na.Normal("x", na.NormalPrior(1000.0, 50.0), 20.0)
    budget = na.GDP(1.0, "replace")
    for kind in (na.Penalty, na.GuidedPenalty, na.HamiltonianPenalty):
        sampler = na.tune(kind, model, 10_000, budget, seed=0)
        assert float(sampler.scale.squeeze()) == pytest.approx(20.0 / 100, rel=0.03)
        data = {"x": np.random.default_rng(1).normal(1010.0, 20.0, 10_000)}
        draws = na.private_sample(
            data, model, sampler, budget, start={"mean": 1010.0}, seed=0, progress=False
        )
        assert 0.15 < draws.sample_stats["accepted"].mean() < 0.7
        assert 0.003 < draws.sample_stats["ratios_clipped"].mean() < 0.03


NUM_CLIPPED = 200_000
SCORED = {  # the largest of a record's scores over their sd, and 1 % of skewed ones beyond 3.6
    "yes/no": (na.BetaBernoulli("x", 40, 60), 1.0, 1.5),
    "normal": (na.Normal("x", na.NormalPrior(0.0, 1.0), 1.0), 2.0, 4.5),
    "exponential": (na.Exponential("x", na.GammaPrior(200.0, 100.0)), 6.0, 10.0),
}


@pytest.mark.parametrize("name", SCORED)
def test_clips_follow_the_tails_of_scores(name):
    model, low, high = SCORED[name]
    sampler = na.tune(na.Penalty, model, NUM_CLIPPED, na.GDP(1.0, "replace"), seed=0)
    assert low < float(sampler.clip) * np.sqrt(NUM_CLIPPED) < high


def test_a_tuned_clip_leaves_the_posterior_where_it_is():
    """Of an exponential the score is 1 - E, E standard exponential: clipping at -t moves the
    posterior by sqrt(n) E[(E - 1 - t)+] = sqrt(n) exp(-1 - t) of its standard deviations.
    """

    def moved_by(clip):
        return np.sqrt(NUM_CLIPPED) * np.exp(-1 - clip * np.sqrt(NUM_CLIPPED))

    model = SCORED["exponential"][0]
    sampler = na.tune(na.Penalty, model, NUM_CLIPPED, na.GDP(1.0, "replace"), seed=0)
    assert moved_by(float(sampler.clip)) < 0.3
    one_percent = (np.log(100) - 1) / np.sqrt(NUM_CLIPPED)
    assert moved_by(one_percent) > 4, "the control: one percent of records clipped"


def test_effective_draws_are_as_many_as_expected():
    """Within a factor of 2, and the prediction is far from the number of draws."""
    model, budget = na.BetaBernoulli("owns"), na.GDP(1.5, "replace")
    data = {"owns": np.random.default_rng(0).uniform(size=5_000) < 0.4}
    for kind in (na.Penalty, na.HamiltonianPenalty):
        sampler = na.tune(kind, model, 5_000, budget, seed=0)
        iterations = na.max_iterations(sampler, budget)
        draws = na.private_sample(
            data, model, sampler, budget, start={"probability": 0.4}, seed=1, discard=0.0,
            progress=False,
        )  # fmt: skip
        found = na.summarize(draws)["ess_bulk"].iloc[0]
        expected = expected_effective(sampler, 1, 2.0, iterations)
        assert 0.5 < found / expected < 2
        assert expected < 0.5 * iterations


def test_a_budget_that_buys_no_draws_is_refused_before_anything_is_spent(monkeypatch):
    for module, name in (
        (private_sampling, "run"), (private_pilots, "run"), (private_pilots, "publish")
    ):  # fmt: skip
        monkeypatch.setattr(module, name, None)
    data = {"owns": np.random.default_rng(0).uniform(size=2_000) < 0.4}
    budget = na.ApproxDP(0.3, 1e-6, "replace")
    for start in (None, na.PilotChain(share=0.2)):
        with pytest.raises(na.SmallBudgetError, match="must buy 20 effective draws"):
            sample(data, na.BetaBernoulli("owns"), na.Penalty, budget, start=start)


def test_tuning_reads_the_budget_and_the_temperature():
    small, large = na.GDP(0.01, "replace"), na.GDP(1.0, "replace")
    poor = na.tune(na.Penalty, MODEL, 1000, small, seed=0)
    assert na.max_iterations(poor, small) >= 499  # shorter steps rather than few
    assert poor.step_size < na.tune(na.Penalty, MODEL, 1000, large, seed=0).step_size
    cold = na.tune(na.Penalty, MODEL, 1000, large, seed=0, temperature=0.01)
    assert cold.scale[0, 0] > na.tune(na.Penalty, MODEL, 1000, large, seed=0).scale[0, 0]


NORMAL = na.Normal("x", na.NormalPrior(0.0, 100.0), 2.0)  # its prior is 5,000 posterior sds wide
FAR = {"x": np.random.default_rng(2).normal(70.0, 2.0, 10_000)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "pilot",
    [
        na.PilotChain(share=0.2),
        na.PilotRelease(na.Clamped("x", -300.0, 300.0), share=0.2),
        na.PilotRelease(
            [na.Clamped("x", -300.0, 300.0)],
            share=0.2,
            estimate=lambda sums: {"mean": sums["x"] / 10_000},
        ),
    ],
    ids=["chain", "release", "estimate"],
)
@pytest.mark.filterwarnings("ignore::noiseaware.ConvergenceWarning")
def test_a_pilot_leads_to_the_posterior_within_the_budget(pilot):
    budget = na.ApproxDP(4.0, 1e-6, "replace")
    draws = na.private_sample(FAR, NORMAL, na.Penalty, budget, start=pilot, seed=4, progress=False)
    assert draws.attrs["cost_epsilon"] <= budget.epsilon
    assert draws.attrs["cost_mu_pilot"] ** 2 <= 0.2001 * draws.attrs["cost_mu"] ** 2 / 0.99
    mean = draws.posterior["mean"].values
    assert abs(mean.mean() - FAR["x"].mean()) < 3 * 0.02
    assert 0.5 < mean.std() / 0.02 < 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::noiseaware.ConvergenceWarning")
def test_the_rounding_of_a_pilots_noise_is_charged(monkeypatch):
    """What every chain draws, the pilot's too, is within ``delta_of_rounding``, and near it."""
    drawn = []

    def spy(source, sampler, queries, positions, iterations, *rest):
        unit = queries.sensitivity * 2.0**queries.bits
        drawn.append(len(positions) * iterations / (20 * (sampler.noise_multiplier * unit) ** 2))
        return chains.run(source, sampler, queries, positions, iterations, *rest)

    for module in (private_sampling, private_pilots):
        monkeypatch.setattr(module, "run", spy)
    budget = na.ApproxDP(4.0, 1e-6, "replace")
    pilot = na.PilotChain(share=0.5)
    found = na.private_sample(
        FAR, NORMAL, na.Penalty, budget, start=pilot, seed=4, progress=False
    ).attrs
    assert len(drawn) == 5
    assert sum(drawn[:-1]) > 0.1 * drawn[-1]
    charged = found["delta_of_rounding"] / (1 + np.exp(found["cost_epsilon"]))
    assert sum(drawn) <= charged < 2 * sum(drawn)


def test_rounding_is_refused_before_a_pilot_spends(monkeypatch):
    """At an epsilon at which the chain's own would do."""
    budget = na.ApproxDP(40.0, 1e-6, "replace")
    assert sample(budget=budget, iterations=1, discard=0.0, seed=0).attrs["iterations"] == 1
    monkeypatch.setattr(private_pilots, "run", None)
    with pytest.raises(ValueError, match="rounding of noise takes"):
        sample(budget=budget, iterations=1, start=na.PilotChain(share=0.9))


def test_control_without_a_pilot_the_posterior_is_not_reached():
    budget = na.ApproxDP(4.0, 1e-6, "replace")
    draws = na.private_sample(FAR, NORMAL, na.Penalty, budget, seed=4, progress=False)
    assert abs(draws.posterior["mean"].values.mean() - FAR["x"].mean()) > 100 * 0.02


ESTIMATED = na.PilotRelease(
    na.Clamped("x1", -3.0, 3.0), share=0.2, estimate=lambda sums: {"beta": sums["x1"]}
)


OF_ANOTHER_SHAPE = na.PilotRelease(
    na.Clamped("x1", -3.0, 3.0), share=0.2, estimate=lambda sums: {"theta": sums["x1"]}
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": na.PilotChain(share=0.2), "model": Circle(1e-2)}, "has no prior"),
        ({"budget": na.GDP(1.0, "add_remove"), "sampler": na.Penalty}, "is secret"),
        ({"budget": na.GDP(9.0, "add_remove"), "start": na.PilotChain(share=0.2)}, "is secret"),
        ({"start": na.PilotChain(share=0.9999999)}, "allow one iteration"),
        ({"start": na.PilotChain(share=0.2), "iterations": 0}, "positive integer"),
        ({"start": ESTIMATED}, "estimate must return"),
        ({"start": OF_ANOTHER_SHAPE}, "theta of the shape"),
        (
            {"start": na.PilotRelease(na.Clamped("z", -3.0, 3.0), share=0.2)},
            "model must have the column 'z'",
        ),
        (
            {
                "start": na.PilotChain(share=0.2),
                "sampler": na.Penalty(step_size=1.0, clip=1.0, noise_multiplier=5.0, scale=[1] * 3),
            },
            "scale must be one number",
        ),
    ],
)
def test_pilots_that_cannot_be_are_refused_before_anything_is_spent(options, message, monkeypatch):
    for module, name in (
        (private_sampling, "run"), (private_pilots, "run"), (private_pilots, "publish")
    ):  # fmt: skip
        monkeypatch.setattr(module, name, None)
    data = {"r": np.ones(50)} if "model" in options else records() | {"z": np.zeros(300)}
    with pytest.raises(ValueError, match=message):
        sample(data, **options)


def test_tuned_paths_can_be_afforded():
    budget = na.GDP(0.01, "replace")
    sampler = na.tune(na.HamiltonianPenalty, MODEL, 1000, budget, seed=0)
    assert na.max_iterations(sampler, budget) >= 49


def test_shards_that_end_are_refused():
    parts = iter([records()])
    with pytest.raises(ValueError, match="same shards each time"):
        sample(lambda: parts)


def test_a_message_about_records_of_another_kind_shows_none_of_them():
    with pytest.raises(ValueError, match=r"must have a column '.*', got list_iterator\.$"):
        sample(iter([records()]))


def test_known_columns_need_settings_and_a_start():
    model = na.HierarchicalBernoulli(
        "x", "group", 3, center=na.NormalPrior(0.0, 1.0), spread=na.StddevPrior(1.0, 4.0)
    )
    data = {"x": [0, 1, 1, 0], "group": [0, 1, 2, 0]}
    for options in ({"sampler": na.Penalty, "start": None}, {"start": na.PilotChain(share=0.5)}):
        with pytest.raises(ValueError, match="no records can be simulated"):
            sample(data, model, **options)


def test_several_statistics_need_an_estimate():
    statistics = [na.Clamped("x1", 0.0, 1.0), na.Clamped("x2", 0.0, 1.0)]
    with pytest.raises(ValueError, match="estimate must be given"):
        na.PilotRelease(statistics, share=0.1)


def test_statistics_of_a_pilot_must_have_labels_of_their_own():
    statistics = [na.Clamped("x", -1.0, 1.0), na.Clamped("x", -5.0, 5.0)]
    with pytest.raises(ValueError, match="labels of the statistics must be distinct"):
        na.PilotRelease(statistics, share=0.1, estimate=lambda sums: {})


@pytest.mark.parametrize("levels", [(2, 0, 1), ("c", "a", "b")])
def test_a_pilot_counts_levels_by_their_names(levels):
    """Records are coded by the model for its chains, and by a statistic for its sums: once."""
    data = {"x": [levels[0]] * 600 + [levels[1]] * 300 + [levels[2]] * 100}
    seen = []

    def estimate(sums):
        seen.append(sums)
        return {"probabilities": np.full(3, 1 / 3)}

    pilot = na.PilotRelease(na.Histogram("x", levels), share=0.5, estimate=estimate)
    model = na.DirichletCategorical("x", levels)
    sample(data, model, start=pilot, iterations=4, seed=0)
    noisy = {label: np.mean([sums[label] for sums in seen[1:]]) for label in seen[1]}
    for level, count in zip(levels, (600, 300, 100), strict=True):
        assert noisy[f"x={level}"] == pytest.approx(count, abs=10)  # noise of less than 1


def test_an_interrupt_of_a_pilots_fit_ends_the_run(monkeypatch):
    fit = private_pilots.fit

    def interrupted(*arguments, **options):
        draws = fit(*arguments, **options)
        draws.attrs["is_complete"] = 0  # what ``fit`` says after Ctrl-C
        return draws

    monkeypatch.setattr(private_pilots, "fit", interrupted)
    monkeypatch.setattr(private_sampling, "run", None)
    pilot = na.PilotRelease(na.Clamped("x", -300.0, 300.0), share=0.2)
    with pytest.raises(KeyboardInterrupt, match="pilot's whole share is charged"):
        sample(FAR, NORMAL, start=pilot, seed=0)


def test_how_far_rounding_is_from_normal_noise_is_stated_under_gdp():
    found = sample(budget=na.GDP(1.0, "replace"), iterations=10, discard=0.0).attrs
    unit = 2.0 * 2.0 ** num_bits(300, 2.0 * 5.0)
    assert found["variation_of_rounding"] == pytest.approx(10 / (20 * (5.0 * unit) ** 2))


SHARE = na.FunctionModel(
    lambda key: {"share": jax.random.uniform(key)},
    lambda key, params: {"x": jax.random.bernoulli(key, params["share"]).astype(float)},
    log_prior=lambda params: jnp.where(jnp.abs(params["share"] - 0.5) < 0.5, 0.0, -jnp.inf),
    log_record=lambda params, record: jnp.log(
        jnp.where(record["x"] == 1, params["share"], 1 - params["share"])
    ),
    columns={"x": na.Binary()},
)


def test_a_pilot_starts_no_chain_where_the_prior_is_zero():
    """An edge that only the prior knows, and sums whose noise goes beyond it."""
    data = {"x": np.ones(300)}
    pilot = na.PilotRelease(
        na.Count("x"), share=0.2, estimate=lambda sums: {"share": sums["x"] / 300}
    )
    draws = sample(data, SHARE, start=pilot, iterations=4, seed=0)
    assert np.all(np.abs(draws.posterior["share"] - 0.5) < 0.5)


@pytest.mark.parametrize(
    ("stop", "told"),
    [(KeyboardInterrupt, "share is charged"), (ValueError("no settings"), "no settings")],
)
def test_what_ends_a_run_between_pilot_and_chains_tells_of_the_pilots_share(
    stop, told, monkeypatch
):
    tune, has_learned = private_sampling.tune, []

    def stopped(*arguments, **options):
        if has_learned:
            raise stop
        return tune(*arguments, **options)

    def learn(*_):
        has_learned.append(True)
        return Learned({"mean": np.linspace(109.0, 111.0, 50)}, 0.1)

    monkeypatch.setattr(private_sampling, "tune", stopped)
    monkeypatch.setattr(na.PilotRelease, "learn", learn)
    pilot = na.PilotRelease(na.Clamped("x", -300.0, 300.0), share=0.2)
    with pytest.raises((KeyboardInterrupt, ValueError), match=told) as caught:
        na.private_sample(FAR, NORMAL, na.Penalty, BUDGET, start=pilot, progress=False, seed=0)
    told = "; ".join([*map(str, caught.value.args), *getattr(caught.value, "__notes__", [])])
    assert told.endswith("the pilot's whole share is charged")


def test_an_interrupt_before_anything_is_asked_says_so(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(private_sampling, "_check_start", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"^nothing is charged$"):
        sample(iterations=10)


def test_an_interrupt_after_the_first_gradient_tells_of_it(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(chains, "_init_compiled", interrupted)
    for sampler, told in ((PENALTY, "charged$"), (PATHS, "and what the start asked$")):
        with pytest.raises(KeyboardInterrupt, match=told):
            sample(sampler=sampler, iterations=10)


def test_noise_of_batches_that_no_whole_number_holds_is_refused_before_a_pilot_spends(monkeypatch):
    for module, name in ((private_sampling, "run"), (private_pilots, "publish")):
        monkeypatch.setattr(module, name, None)
    batches = na.FixedBatches(num_records=300, size=10)
    sampler = na.Penalty(step_size=0.1, clip=3.0, noise_multiplier=2.0**30, batches=batches)
    with pytest.raises(ValueError, match="whole noise must be at most"):
        sample(sampler=sampler, start=na.PilotChain(share=0.2), iterations=2)


def test_an_error_in_the_chains_tells_what_is_charged():
    """Records in shards that can be read for some passes, and then no more."""
    passes = []

    def shards():
        passes.append(1)
        if len(passes) > 10:
            raise OSError("disk gone")
        yield records()

    with pytest.raises(OSError, match="disk gone") as raised:
        sample(shards, iterations=50)
    (note,) = raised.value.__notes__
    assert note.endswith("50 iterations were begun and are charged")
