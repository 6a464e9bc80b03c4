"""Fits over sums in place of records: what they say of themselves, and how near they come."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from experiments.bernstein2018 import problems
from scipy import stats

import noiseaware as na
from noiseaware import diagnostics, fitting
from noiseaware.chains import run_chunk
from noiseaware.diagnostics import comparing
from noiseaware.models.domain import Positives
from noiseaware.running import DeadlineError
from tests.laws.members import FAMILIES

pytestmark = pytest.mark.optimized

MODEL = na.BetaBernoulli("x", 10, 10)
QUIET = {"progress": False, "seed": 0}
SUMS = QUIET | {"method": "statistic_gibbs"}


def count_release(value, num_records=100, scale=1.0, mechanism=na.Laplace):
    return na.Release(
        [value], na.Count("x"), mechanism(scale), neighbours="replace", num_records=num_records
    )


def release_from_prior(model, statistic, epsilon, num_records, seed=0):
    mechanism = na.calibrate(na.Laplace, statistic, neighbours="replace", epsilon=epsilon)
    with jax.enable_x64(True):
        key_params, key_records, key_noise = jr.split(jr.key(seed), 3)
        records = model.sample_records(key_records, model.sample_prior(key_params), num_records)
        total = jnp.sum(jax.vmap(statistic)(records), axis=0)
        values = np.asarray(mechanism.simulate(key_noise, total))
    return na.Release(values, statistic, mechanism, neighbours="replace", num_records=num_records)


def test_the_result_says_that_it_is_approximate():
    draws = na.fit(count_release(40.0), MODEL, **SUMS)
    assert draws.attrs["exactness"] == "approximate: CLT on the statistic"
    assert draws.attrs["method"] == "statistic_gibbs"
    assert draws.attrs["method_reason"] == "asked for"
    groups = {"posterior", "prior", "sample_stats", "observed_data", "posterior_predictive"}
    assert groups <= set(draws.groups())
    assert draws.posterior["probability"].shape == (4, 1000)
    replicated = draws.posterior_predictive["release"].values
    assert abs(np.mean(replicated) - 100 * draws.posterior["probability"].values.mean()) < 1


def test_one_compilation_serves_every_n_scale_and_prior():
    na.fit(count_release(40.0), MODEL, draws=20, **SUMS)
    before = run_chunk._cached._cache_size()
    na.fit(count_release(4e8, 10**9, 30.0), na.BetaBernoulli("x", 2, 5), draws=20, **SUMS)
    assert run_chunk._cached._cache_size() == before


def test_seeds_settle_the_draws_and_an_interrupted_fit_goes_on(tmp_path):
    release, path = count_release(40.0), tmp_path / "checkpoint"
    first = na.fit(release, MODEL, checkpoint=path, **SUMS)
    again = na.fit(release, MODEL, checkpoint=path, **SUMS)
    assert again.attrs["is_resumed"]
    assert again.posterior.equals(first.posterior)
    assert na.fit(release, MODEL, **SUMS).posterior.equals(first.posterior)


@pytest.mark.parametrize("mechanism", [na.Laplace, na.Gaussian])
@pytest.mark.parametrize("num_records", [100, 10**9])
def test_binomial_posterior_is_that_of_the_exact_law_of_the_count(mechanism, num_records):
    """Within 0.05 sd, at any n; a scale off by a half is further off."""
    scale = 5 * np.sqrt(num_records / 100)
    release = count_release(0.4 * num_records, num_records, scale, mechanism)
    exact = comparing._count_moments(release, MODEL, num_records)
    mean, sd = exact.mean["probability"], exact.sd["probability"]
    drawn = na.fit(release, MODEL, draws=8000, **SUMS).posterior["probability"].values
    assert abs(np.mean(drawn) - mean) < 0.05 * sd
    assert abs(np.std(drawn) - sd) < 0.05 * sd
    wrong = count_release(0.4 * num_records, num_records, 1.5 * scale, mechanism)
    drawn = na.fit(wrong, MODEL, draws=8000, **SUMS).posterior["probability"].values
    assert abs(np.std(drawn) - sd) > 0.05 * sd, "the control"


@pytest.mark.parametrize("value", [-40.0, 140.0])
def test_a_count_that_cannot_be_has_a_posterior_at_the_edge(value):
    draws = na.fit(count_release(value), na.BetaBernoulli("x"), **SUMS)
    drawn = draws.posterior["probability"].values
    assert np.all(np.isfinite(drawn))
    distance = drawn if value < 0 else 1 - drawn
    assert np.quantile(distance, 0.95) < 0.1
    with pytest.raises(ValueError, match="values must be possible for 100 records"):
        count_release(-60.0)


@pytest.mark.parametrize("value", [1.0, 99.0])
def test_a_count_near_the_edge_is_a_known_deviation(value):
    """The mean is off by more than 0.05 posterior sd, and less than 0.5."""
    release, model = count_release(value), na.BetaBernoulli("x")
    exact = comparing._count_moments(release, model, 100)
    drawn = na.fit(release, model, draws=4000, **SUMS).posterior["probability"].values
    off = abs(np.mean(drawn) - exact.mean["probability"]) / exact.sd["probability"]
    assert 0.05 < off < 0.5


@pytest.mark.parametrize("value", [-5.0, -20.0, 130.0])
def test_a_count_far_outside_by_normal_noise_ends_at_the_edge(value):
    """No draw of the sum is possible there; the ellipse leads on."""
    release = na.Release(
        [value], na.Count("x"), na.Gaussian(1.0), neighbours="replace", num_records=100
    )
    model = na.BetaBernoulli("x")
    exact = comparing._count_moments(release, model, 100)
    drawn = na.fit(release, model, draws=2000, **SUMS).posterior["probability"].values
    off = abs(np.mean(drawn) - exact.mean["probability"]) / exact.sd["probability"]
    assert off < 0.5
    assert abs(np.std(drawn) / exact.sd["probability"] - 1) < 0.5


@pytest.mark.slow
def test_many_cells_that_are_nearly_empty_do_not_stop_the_sums():
    """With hardly any noise the posterior is that of the counts, 50 of 100 records."""
    rng = np.random.default_rng(3)
    counts = rng.multinomial(100, rng.dirichlet(np.ones(50)))
    release = na.Release(
        counts.astype(float), na.Histogram("x", 50), na.Gaussian(0.3), neighbours="replace",
        num_records=100,
    )  # fmt: skip
    draws = na.fit(release, na.DirichletCategorical("x", 50), draws=500, **SUMS)
    found = draws.posterior["probabilities"].values.mean(axis=(0, 1))
    expected = (1 + counts) / 150
    stddev = np.sqrt(expected * (1 - expected) / 151)
    assert np.max(np.abs(found - expected) / stddev) < 0.6
    assert np.corrcoef(found, expected)[0, 1] > 0.99


def test_auto_is_exact_unless_a_trial_says_that_it_would_take_long(monkeypatch):
    release = count_release(40.0)
    assert na.fit(release, MODEL, draws=50, **QUIET).attrs["exactness"] == "exact"
    monkeypatch.setattr(fitting, "LONG", 0)
    monkeypatch.setattr(fitting, "TRIAL_RECORDS", 50)
    assert na.fit(release, MODEL, draws=50, **QUIET).attrs["exactness"] == "exact"
    monkeypatch.setattr(fitting, "MAX_SECONDS", 1e-9)
    draws = na.fit(release, MODEL, draws=50, **QUIET)
    assert draws.attrs["method"] == "statistic_gibbs"
    assert draws.attrs["method_reason"].startswith("the exact run would take")
    kept = na.fit(release, MODEL, draws=50, keep_records=2, **QUIET)
    assert kept.attrs["exactness"] == "exact"


@pytest.mark.slow
def test_a_trial_that_does_not_end_ends_at_its_deadline(monkeypatch):
    """A thousandth of the records gets a thousandth of the second that an exact run may take."""
    monkeypatch.setattr(fitting, "MAX_SECONDS", 1.0)
    monkeypatch.setattr(fitting, "MIN_TRIAL_SECONDS", 0.0)
    run_one, ended = fitting.run_one, []

    def trial(key, problem, settings, bar, checkpoint):
        with pytest.raises(DeadlineError) as caught:
            run_one(key, problem, settings, bar, checkpoint)
        ended.append(bar.seconds)
        raise caught.value

    monkeypatch.setattr(fitting, "run_one", trial)
    asked = {"num_records": None, "seed": 0, "chains": 4, "draws": 1000}
    assert fitting.exact_run_is_long(count_release(4e6, 10**7, 0.05), MODEL, **asked)
    assert ended == [pytest.approx(1e-3)]


def test_a_trial_that_was_too_long_says_so(monkeypatch):
    def late(*arguments):
        raise DeadlineError

    asked = {"num_records": None, "seed": 0, "chains": 4, "draws": 1000}
    monkeypatch.setattr(fitting, "run_one", late)
    for num_records in (50_000, 10**6, 10**7):
        assert fitting.exact_run_is_long(count_release(4e4, num_records), MODEL, **asked)


def test_a_trial_has_no_more_records_than_the_release(monkeypatch):
    seen = []

    def look(key, problem, settings, bar, checkpoint):
        seen.append((settings.num_records, float(problem.mechanism.spread()), bar.seconds))
        raise DeadlineError

    monkeypatch.setattr(fitting, "run_one", look)
    asked = {"num_records": None, "seed": 0, "chains": 4, "draws": 250_000}
    fitting.exact_run_is_long(count_release(40.0), MODEL, **asked)
    assert seen == [(100, 1.0, 600.0)]
    fitting.exact_run_is_long(count_release(4e4, 10**7), MODEL, **asked | {"draws": 1000})
    assert seen[1][2] == fitting.MIN_TRIAL_SECONDS, "longer than a thousandth of 600"


def test_a_billion_records_need_no_trial(monkeypatch):
    monkeypatch.setattr(fitting, "run_one", _refuse_records)
    draws = na.fit(count_release(4e8, 10**9, 30.0), MODEL, **QUIET)
    assert draws.attrs["exactness"] == "approximate: CLT on the statistic"


def _refuse_records(key, problem, settings, *rest):
    assert settings.kernel == "statistic_gibbs"
    return _run_one(key, problem, settings, *rest)


_run_one = fitting.run_one


@pytest.mark.slow
def test_many_releases_at_once_are_as_one():
    releases = [count_release(value) for value in (30.0, 40.0, 60.0)]
    many = na.fit_many(releases, MODEL, draws=2000, **SUMS)
    assert many.attrs["exactness"] == "approximate: CLT on the statistic"
    for index, release in enumerate(releases):
        alone = na.fit(release, MODEL, draws=2000, **SUMS).posterior["probability"].values
        drawn = many.posterior["probability"].values[..., index]
        assert abs(np.mean(drawn) - np.mean(alone)) < 0.1 * np.std(alone)
        assert abs(np.std(drawn) - np.std(alone)) < 0.1 * np.std(alone)


class HalfNormal(na.ExponentialFamily):
    """The size of an error: ``x = |e|`` with e normal of the precision asked for."""

    column: str = eqx.field(static=True)
    precision: na.GammaPrior

    @property
    def columns(self):
        return {self.column: na.Real()}

    @property
    def supports(self):
        return {"precision": na.Positive()}

    @property
    def features(self):
        return ("x^2",)

    @property
    def domain(self):
        return Positives()

    def natural(self, params):
        return jnp.stack([-params["precision"] / 2])

    def log_partition(self, natural):
        return -jnp.log(-2 * natural[0]) / 2

    def log_base(self, x):
        return jnp.full_like(x, np.log(2 / np.pi) / 2)

    def sample_prior(self, key):
        return {"precision": self.precision.sample(key)}

    def log_prior(self, params):
        return self.precision.log_density(params["precision"])

    def sample_params(self, key, params, sums, num_records):
        return {"precision": self.precision.sample_posterior(key, num_records / 2, sums[0] / 2)}

    def is_possible(self, sums, num_records):
        return sums[0] > 0


class WithRecords(HalfNormal):
    def sample_noise(self, key, num_records):
        return {self.column: jr.normal(key, (num_records,))}

    def record(self, params, noise):
        return {self.column: jnp.abs(noise[self.column]) / jnp.sqrt(params["precision"])}

    def noise(self, params, record, fresh):
        size = record[self.column] * jnp.sqrt(params["precision"])
        return {self.column: jnp.where(fresh[self.column] < 0, -size, size)}


@pytest.mark.slow
def test_a_family_of_ones_own_agrees_with_its_records():
    found = na.compare(errors_release(), WithRecords("x", na.GammaPrior(4.0, 3.0)), **QUIET)
    assert found.largest_difference < 0.1


class Unnormalised(HalfNormal):
    def log_base(self, x):
        return jnp.zeros_like(x)


class WrongPartition(HalfNormal):
    def log_partition(self, natural):
        return -jnp.log(-2 * natural[0])

    def log_density(self, params, x):
        return HalfNormal(self.column, self.precision).log_density(params, x)


def errors_release(num_records=100):
    statistic = na.Clamped("x", 0.0, 2.0, ("x^2",))
    return na.Release(
        [0.6 * num_records], statistic, na.Laplace(4.0), neighbours="replace",
        num_records=num_records,
    )  # fmt: skip


@pytest.mark.slow
def test_a_family_of_ones_own_needs_no_records():
    prior = na.GammaPrior(4.0, 3.0)
    draws = na.fit(errors_release(), HalfNormal("x", prior), draws=4000, **QUIET)
    assert draws.attrs["method"] == "statistic_gibbs"
    assert draws.attrs["method_reason"] == "the model cannot draw records"
    with pytest.raises(ValueError, match="needs HalfNormal to have sample_noise and record"):
        na.fit(errors_release(), HalfNormal("x", prior), method="record_augmentation", **QUIET)


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (Unnormalised, "must have the total probability 1 over its domain, got"),
        (WrongPartition, "log_partition.* must be the mean of its features"),
    ],
)
def test_a_family_whose_parts_do_not_belong_together_is_refused(family, message):
    with pytest.raises(ValueError, match=message):
        na.fit(errors_release(), family("x", na.GammaPrior(4.0, 3.0)), **SUMS)


def test_compare_runs_both_on_the_release():
    found = na.compare(count_release(40.0, scale=5.0), MODEL, **QUIET)
    assert found.how == "both on the release"
    assert found.num_records == 100
    assert found.largest_difference < 0.1
    assert "difference_in_sd" in str(found)


@pytest.mark.slow
def test_compare_of_exact_methods_runs_both(monkeypatch):
    asked = QUIET | {"draws": 500}
    with pytest.raises(ValueError, match="methods must be distinct"):
        na.compare(count_release(40.0), MODEL, methods=["auto", "interweaving"], **asked)
    monkeypatch.setattr(comparing, "exact_run_is_long", lambda *args, **options: True)
    methods = ["interweaving", "record_augmentation"]
    found = na.compare(count_release(4000.0, 10_000), MODEL, methods=methods, **asked)
    assert found.num_records == 1000
    assert 0 < abs(found.rows["probability"]["difference_in_errors"]) < 6


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_the_exact_law_of_a_count_covers_what_a_strong_prior_makes_likely(scale):
    """The prior pulls harder than Laplace noise of this scale holds."""
    n, a = 10**9, 1e6
    release = count_release(4e8 if scale > 1 else 4.0, n if scale > 1 else 10, scale)
    model = na.BetaBernoulli("x", a, a) if scale > 1 else na.BetaBernoulli("x", 1, 1)
    found = comparing._count_moments(release, model, release.num_records)
    if scale > 1:
        assert found.mean["probability"] == pytest.approx(0.49988, abs=1e-4)
        return
    counts = np.arange(11)
    weight = np.exp(-np.abs(counts - 4.0))  # the prior predictive is uniform
    mean = np.sum(weight * (1 + counts) / 12) / np.sum(weight)
    assert found.mean["probability"] == pytest.approx(mean, rel=1e-12)


def test_compare_takes_the_exact_law_of_a_count_where_n_is_large():
    release = count_release(4e8, 10**9, 3e4)
    found = na.compare(release, MODEL, **QUIET)
    assert found.how == "on the release, against the exact law of its sum"
    assert found.largest_difference < 0.1
    plain = stats.beta(10 + 4e8, 10 + 6e8).std()
    assert found.rows["probability"]["sd"] > 1.5 * plain, "it has the noise"


@pytest.mark.slow
def test_compare_takes_fewer_records_where_no_law_is_known(monkeypatch):
    monkeypatch.setattr(comparing, "MAX_SMALLER", 2000)
    statistic = na.Clamped("x", 0.0, 2.0)
    release = na.Release(
        [2.5e8], statistic, na.Laplace(2e4), neighbours="replace", num_records=10**9
    )
    found = na.compare(release, na.Exponential("x", na.GammaPrior(8.0, 2.0)), **QUIET)
    assert found.how == (
        "both on a release of 2000 records, its noise scaled with their square root; beside so few "
        "the prior weighs 5e+05 times more"
    )
    assert found.largest_difference < 0.1


class Rounded(na.Count):
    """A statistic of a real column that says nothing of where it is smooth."""

    @property
    def columns(self):
        return {self.column: na.Real()}

    def __call__(self, record):
        return jnp.asarray(record[self.column] > 0, float)[None]


BAD = {
    "no family": (
        lambda: na.fit(
            na.Release(
                [1.0, 2.0, 3.0, 4.0], na.ClassTables("c", 2, {"f": 2}), na.Laplace(1.0),
                neighbours="replace", num_records=10,
            ),
            na.NaiveBayes("c", 2, {"f": 2}, 1.0, 1.0),
            **SUMS,
        ),
        "'statistic_gibbs' needs an ExponentialFamily, got NaiveBayes",
    ),
    "another column": (
        lambda: na.fit(count_release(4.0), na.BetaBernoulli("y"), **SUMS),
        "model must have the column 'x' that Count reads",
    ),
    "another kind": (
        lambda: na.fit(count_release(4.0), na.Poisson("x", na.GammaPrior(1, 1)), **SUMS),
        "column 'x' must mean the same to both",
    ),
    "discrete noise": (
        lambda: na.fit(count_release(4.0, mechanism=na.DiscreteLaplace), MODEL, **SUMS),
        "needs Laplace or Gaussian noise, got DiscreteLaplace",
    ),
    "no bounds": (
        lambda: na.fit(
            na.Release(
                [1.0], na.FunctionStatistic(lambda record: jnp.tanh(record["x"])[None], ["t"]),
                na.Laplace(1.0), neighbours="replace", num_records=10,
            ),
            na.Normal("x", na.NormalPrior(0, 1), 1.0),
            **SUMS,
        ),
        "needs a statistic of the column 'x' alone",
    ),
    "not smooth": (
        lambda: na.fit(
            na.Release(
                [1.0], Rounded("x"), na.Laplace(1.0), neighbours="replace", num_records=10
            ),
            na.Normal("x", na.NormalPrior(0, 1), 1.0),
            **SUMS,
        ),
        "needs a statistic with bounds, such as Clamped or Redacted, got Rounded",
    ),
    "reversed bounds": (lambda: na.Redacted("x", 2.0, 1.0), "bounds of x"),
    "records to keep": (
        lambda: na.fit(count_release(4.0), MODEL, keep_records=2, **SUMS),
        "keep_records must be 0",
    ),
    "a proposal": (
        lambda: na.fit(count_release(4.0), MODEL, proposal=na.RandomWalk({"x": 1.0}), **SUMS),
        "takes no proposal and no params_step",
    ),
    "one method": (
        lambda: na.compare(count_release(4.0), MODEL, methods=["auto"], **QUIET),
        "methods must be two, got 1",
    ),
    "unknown method": (
        lambda: na.compare(count_release(4.0), MODEL, methods=["auto", "vi"], **QUIET),
        "method must be one of",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


DEVIATES = "poisson-redacted"
# Off by 0.037 and 0.045: at effective sizes of 10,000, whose error is 0.014, chance would decide.
CLOSE = ("geometric-redacted", "exponential-redacted")


def fitted(release, model, method, effective):
    """So effective: a short fit says how many draws that takes."""
    short, chains = 500, 8
    fit = functools.partial(na.fit, release, model, method=method, chains=chains, **QUIET)
    share = min(na.summarize(fit(draws=short))["ess_bulk"].min() / (short * chains), 1.0)
    return na.summarize(fit(draws=int(1.25 * effective / share / chains)))


def differences(model, statistic, epsilon=1.0, effective=10_000):
    """Largest differences of mean, and of sd, in posterior sds, at n = 100."""
    release = release_from_prior(model, statistic, epsilon, 100)
    exact, found = (
        fitted(release, model, method, effective) for method in ("interweaving", "statistic_gibbs")
    )
    assert min(exact["ess_bulk"].min(), found["ess_bulk"].min()) > 10_000
    of_means = np.max(np.abs(found["mean"] - exact["mean"]) / exact["sd"])
    return of_means, np.max(np.abs(found["sd"] / exact["sd"] - 1))


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in FAMILIES if case != DEVIATES])
def test_agrees_with_record_augmentation(case):
    effective = 40_000 if case in CLOSE else 10_000
    assert max(differences(*FAMILIES[case], effective=effective)) < 0.05


@pytest.mark.slow
def test_a_deviation_that_is_known_and_its_cause():
    """Of 100 whole numbers a few lie outside, and how many of them is skewed. With bounds that
    leave none out, and noise of the same scale, both methods agree.
    """
    model, statistic = FAMILIES[DEVIATES]
    of_means, of_sds = differences(model, statistic)
    assert 0.05 < of_means < 0.1
    assert of_sds < 0.05
    of_all = na.Redacted("x", statistic.lower, 10 * statistic.upper)
    assert max(differences(model, of_all, epsilon=10.0)) < 0.05


# [BS18, Section 4], with bounds fixed before any rate is drawn.
CALIBRATED = ("binomial", "multinomial", "exponential")


def of_one(name):
    """One worker compiles the chains of a model."""
    return pytest.mark.xdist_group(f"sums, {name}")


CELLS = [
    pytest.param(name, num_records, epsilon, marks=of_one(name))
    for name in CALIBRATED
    for num_records in (10, 100, 1000)
    for epsilon in (0.01, 0.1, 1.0)
]
LEVEL = 1e-3 / len(CELLS)
NUM_SETS, MAX_OFF = 10_000, 0.03  # of the sd of normal scores from 1
MAX_CONTRACTION = 0.95  # above it, no evidence: the posterior is the prior, and any method passes
# Three counts of ten records are far from normal: intervals are some percent too narrow.
FEW = ("multinomial", 10, 0.01)


def calibration_of_fits(factor=1.0):
    """At n = 100 and epsilon = 0.2 of fits, as a user runs them."""
    problem, rng = problems.PROBLEMS["binomial"], np.random.default_rng(17)
    simulated = problem.simulate(rng, 1000, 100)
    noisy = problems.add_noise(rng, simulated, 0.2)
    releases = problems.as_releases(simulated, noisy, 100, factor)
    drawn = problems.draws_of(problem, releases, "statistic_gibbs", 17)[..., 0]
    return diagnostics.uniformity(diagnostics.ranks(drawn, simulated.truth, rng))


def test_fits_are_calibrated():
    assert calibration_of_fits().p > LEVEL
    assert calibration_of_fits(factor=0.3).p < LEVEL, "the control"


@pytest.mark.slow
@of_one("binomial")
def test_control_starts_alone_are_not_calibrated(monkeypatch):
    """They are weighed by the release, which must not be what passes in place of the sweeps: a
    hundred draws of the prior have few where a sharp posterior is.
    """
    monkeypatch.setattr(problems, "sweeps_to_forget", lambda *_: 0)
    assert problems.calibration_cell("binomial", 1000, 0.1, NUM_SETS, seed=7).ours.p < LEVEL


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_records", "epsilon"), CELLS)
def test_is_calibrated(name, num_records, epsilon):
    """With chains of the kernel itself. Naive is not, where noise matters. A release is no evidence
    where its noise, ``1 / epsilon``, is larger than n, and is where it is much smaller;
    between, ``every_size`` of the experiment shows it.
    """
    cell = problems.calibration_cell(name, num_records, epsilon, NUM_SETS, seed=7)
    if num_records * epsilon <= 1:
        assert cell.contraction > MAX_CONTRACTION
    if num_records * epsilon >= 100:
        assert cell.contraction < MAX_CONTRACTION
    if (name, num_records, epsilon) == FEW:
        assert 1 < cell.ours.sd < 1.06
    else:
        assert cell.ours.p > LEVEL
        assert abs(cell.ours.sd - 1) < MAX_OFF
    if epsilon < 1:
        assert cell.naive.p < LEVEL, "the control"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.xdist_group(f"sums, {name}")) for name in CALIBRATED],
)
def test_control_noise_a_fifth_larger_is_not_calibrated(name):
    """Where the noise is a good part of what is not known, and the release says something."""
    cell = problems.calibration_cell(name, 1000, 0.1, NUM_SETS, seed=7, factor=1.2)
    assert cell.contraction < MAX_CONTRACTION
    assert cell.ours.p < LEVEL
