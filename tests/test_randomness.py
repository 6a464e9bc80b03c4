"""Our generators have the laws that they claim, along a key's draws and across keys."""

import functools
import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

from noiseaware import randomness

NUM_DRAWS = 400_000
SMALLEST_P = 1e-5
LAWS = {"uniform": stats.uniform, "exponential": stats.expon, "normal": stats.norm}


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def along_one_key(draw):
    return np.asarray(draw(jr.key(0), (NUM_DRAWS,)))


def across_split_keys(draw):
    return np.asarray(jax.vmap(draw)(jr.split(jr.key(0), NUM_DRAWS)))


def across_own_split_keys(draw):
    return np.asarray(jax.vmap(draw)(randomness.split(jr.key(0), NUM_DRAWS)))


def across_numbers_folded_in(draw):
    numbers = jnp.arange(NUM_DRAWS)
    return np.asarray(jax.vmap(lambda number: draw(randomness.fold_in(jr.key(0), number)))(numbers))


def along_a_line_of_keys(draw):
    """Every key from the one before: as a chain of steps that hand their key on."""

    def hand_on(key, _):
        key, own = randomness.split(key)
        return key, draw(own)

    return np.asarray(jax.lax.scan(hand_on, jr.key(0), length=NUM_DRAWS)[1])


def across_seeds(draw):
    """Keys of seeds 0, 1, 2 and so on: they differ in their low bits alone."""
    return np.asarray(jax.vmap(lambda seed: draw(jr.key(seed)))(jnp.arange(NUM_DRAWS)))


def score(uniforms: np.ndarray) -> float:
    """The smallest p of: one draw uniform; two neighbours; two that are half of all draws apart."""
    pairs = np.stack([uniforms[:-1], uniforms[1:]]) * 16
    counts = np.bincount((pairs.astype(int).T @ [16, 1]), minlength=256)
    far = uniforms.reshape(2, -1) * 16  # the two of a Box-Muller pair
    far_counts = np.bincount((far.astype(int).T @ [16, 1]), minlength=256)
    return min(
        stats.kstest(uniforms, "uniform").pvalue,
        stats.chisquare(counts).pvalue,
        stats.chisquare(far_counts).pvalue,
    )


@pytest.mark.parametrize(
    "drawn",
    [
        along_one_key, across_split_keys, across_own_split_keys, across_numbers_folded_in,
        along_a_line_of_keys, across_seeds,
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_their_law_and_are_independent(name, drawn):
    uniforms = LAWS[name].cdf(drawn(getattr(randomness, name)))
    assert score(uniforms) > SMALLEST_P


def test_keys_differ_from_each_other_and_from_the_numbers_of_their_parent():
    parent = jr.key(7)
    keys = [randomness.split(parent, 1000), jax.vmap(jr.clone)(parent[None])]
    keys += [jax.vmap(lambda number: randomness.fold_in(parent, number))(jnp.arange(1000))]
    words = np.concatenate([np.asarray(jr.key_data(each), np.uint64) for each in keys])
    words = (words[:, 0] << np.uint64(32)) | words[:, 1]
    assert len(np.unique(words)) == 2001
    numbers = np.asarray(randomness._bits(parent, (100_000,)))
    assert not np.isin(words, numbers).any()


def test_only_one_key_is_split_at_a_time():
    with pytest.raises(ValueError, match="single key"):
        randomness.split(jr.split(jr.key(0), 3))


def test_keys_of_other_generators_and_of_float32_are_those_of_jax():
    other = jr.key(3, impl="rbg")
    assert jnp.array_equal(jr.key_data(randomness.split(other)), jr.key_data(jr.split(other)))
    with jax.enable_x64(False):
        key = jr.key(3)
        same = jr.key_data(randomness.fold_in(key, 5)) == jr.key_data(jr.fold_in(key, 5))
    assert jnp.all(same)


def test_a_draw_alone_is_that_of_all():
    key = jr.key(3)
    alone = jax.vmap(lambda place: randomness.uniform_at(key, place))(jnp.arange(50))
    np.testing.assert_array_equal(alone, randomness.uniform(key, (50,)))


def test_score_tells_draws_that_depend_on_each_other():
    golden = np.arange(1, NUM_DRAWS + 1) * (math.sqrt(5) - 1) / 2 % 1
    assert score(golden) < SMALLEST_P


def test_every_bit_of_the_key_and_the_place_changes_half_of_the_bits():
    bits = functools.partial(randomness._bits, shape=(64,))
    data = jr.key_data(jr.key(5))
    at = np.asarray(bits(jr.wrap_key_data(data)))
    for bit in range(64):
        flip = np.zeros(2, np.uint32)
        flip[bit // 32] = 1 << bit % 32
        changed = np.bitwise_count(at ^ np.asarray(bits(jr.wrap_key_data(data ^ flip))))
        assert abs(changed.mean() - 32) < 5 * 4 / 8, f"bit {bit} of the key"
    between_places = np.bitwise_count(at[1:] ^ at[:-1])
    assert abs(between_places.mean() - 32) < 5 * 4 / 8


def test_every_bit_is_as_often_0_as_1():
    bits = np.asarray(randomness._bits(jr.key(6), (100_000,)))
    shares = np.mean((bits[:, None] >> np.arange(64, dtype=np.uint64)) & 1, axis=0)
    assert np.max(np.abs(shares - 0.5)) < 5 * 0.5 / math.sqrt(100_000)


def test_tails_of_the_normal():
    drawn = np.abs(np.asarray(randomness.normal(jr.key(1), (10 * NUM_DRAWS,))))
    for bound in (3.0, 4.0, 4.5):
        expected = 2 * stats.norm.sf(bound) * len(drawn)
        assert abs(np.sum(drawn > bound) - expected) < 5 * math.sqrt(expected)


@pytest.mark.parametrize("shape", [0.03, 0.6, 1.0, 3.5, 400.0])
def test_gammas_follow_their_law_and_are_independent(shape):
    def draw(key, size=()):
        return randomness.log_gamma(key, jnp.full(size, shape))

    for drawn in (along_one_key(draw), across_split_keys(draw)):
        assert score(stats.loggamma(shape).cdf(drawn)) > SMALLEST_P


def test_control_gammas_that_are_never_refused_have_another_law(monkeypatch):
    monkeypatch.setattr(randomness, "exponential", lambda key, shape: jnp.full(shape, 1e9))
    drawn = randomness.log_gamma(jr.key(0), jnp.ones(NUM_DRAWS))
    assert score(stats.loggamma(1.0).cdf(drawn)) < SMALLEST_P


def test_a_gamma_of_no_possible_shape_is_no_number():
    shapes = jnp.array([-1.0, jnp.nan, -0.2, 2.0])
    found = np.asarray(jax.jit(randomness.log_gamma)(jr.key(0), shapes))
    np.testing.assert_array_equal(np.isnan(found), [True, True, True, False])


def test_series_end_below_rounding():
    u = np.concatenate([np.geomspace(2.0**-53, 0.5, 9_999), 1 - np.geomspace(2.0**-53, 0.5, 9_999)])
    assert np.allclose(randomness._log(jnp.asarray(u)), np.log(u), rtol=1e-15, atol=0)
    turn = np.linspace(0, 1, 9_999)
    sine = turn * randomness._polynomial(randomness.SINE, turn**2)
    cosine = randomness._polynomial(randomness.COSINE, turn**2)
    assert np.allclose(sine, np.sin(np.pi / 2 * turn), rtol=0, atol=4e-16)
    assert np.allclose(cosine, np.cos(np.pi / 2 * turn), rtol=0, atol=4e-16)


def test_uniforms_leave_out_both_ends():
    ends = randomness._unit(jnp.array([0, 2**64 - 1], jnp.uint64))
    assert ends[0] == 2.0**-53
    assert ends[1] == 1 - 2.0**-53


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5)])
@pytest.mark.parametrize("name", LAWS)
def test_shapes_and_precisions(name, shape):
    draw = getattr(randomness, name)
    assert draw(jr.key(0), shape).shape == shape
    assert draw(jr.key(0), shape).dtype == jnp.float64
    with jax.enable_x64(False):
        assert draw(jr.key(0), shape).dtype == jnp.float32


def test_keys_of_other_generators_are_taken_whole():
    one, other = (
        jr.wrap_key_data(jnp.array(words, jnp.uint32), impl="rbg")
        for words in ([1, 2, 3, 4], [1, 2, 3, 5])
    )
    assert randomness.uniform(one) != randomness.uniform(other)
