"""Blocks and segments: sums, bounds, and the block size that is chosen."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import noiseaware as na
from noiseaware.samplers import layout, record_augmentation


@pytest.mark.parametrize("num_records", [1, 2, 7, 8, 9, 10])
@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_segments_cover_every_record_and_sum_each_once(num_records, size):
    records = {"x": np.arange(1, num_records + 1, dtype=float)}
    _, num_segments, length = layout.split(records, size)
    assert length <= size
    assert num_segments * length >= num_records > (num_segments - 1) * length
    with jax.enable_x64(True):
        square = jax.jit(
            lambda begin, end: layout.total_of(
                lambda record: jnp.stack([record["x"], record["x"] ** 2]),
                records, size, begin=begin, end=end,
            )
        )  # fmt: skip
        cut = num_segments // 2
        parts = [square(0, cut), square(cut, num_segments)] if num_segments > 1 else [square(0, 1)]
    expected = [records["x"].sum(), (records["x"] ** 2).sum()]
    assert np.array_equal(np.sum(parts, axis=0), expected)


def test_blocks_grow_with_the_noise_and_with_n_and_stay_within_a_segment():
    def sizes(is_gpu, num_records):
        variances = (1e3, 1e-1, 1e-3, 1e-5, 1e-9)
        return [layout.choose(is_gpu, num_records, 5, 4, v).block_size for v in variances]

    assert sizes(False, 999) == [1] * 5
    for is_gpu in (False, True):
        found = sizes(is_gpu, 10**6)
        assert found == sorted(found)
        assert found[0] < 10
        assert found[-1] <= layout.choose(is_gpu, 10**6, 5, 4, 1e-9).segment_size
    assert sizes(True, 10**6)[2] > sizes(False, 10**6)[2], "a visit costs more on a GPU"


def test_a_cpu_visits_several_blocks_in_a_turn_where_sums_are_many():
    assert [layout.choose(False, 100, sums, 4, 0.1).unroll for sums in (5, 75)] == [1, 4]


@pytest.mark.parametrize("variance", [np.nan, np.inf, 0.0])
def test_a_variance_that_says_nothing_gives_single_records(variance):
    assert layout.choose(False, 10**4, 5, 4, variance).block_size == 1


@pytest.mark.parametrize("num_sums", [1, 2, layout.MANY_SUMS, layout.MANY_SUMS + 1])
@pytest.mark.parametrize("is_cut", [False, True])
def test_sums_are_those_of_contributions_however_many(num_sums, is_cut):
    powers = np.arange(num_sums)
    records = {"x": np.linspace(-1, 1.1, 50)}
    is_counted = np.arange(50) % 3 > 0 if is_cut else None
    with jax.enable_x64(True):
        found = jax.jit(
            lambda records: layout.sum_of(
                lambda record: jnp.stack([record["x"] ** k for k in powers]), records, is_counted
            )
        )(records)
    terms = records["x"][:, None] ** powers
    expected = np.sum(terms if is_counted is None else terms[is_counted], axis=0)
    np.testing.assert_allclose(found, expected, atol=1e-13)


def test_many_sums_are_not_spelled_out_and_whole_numbers_are_counted_as_such():
    records = {"x": np.arange(300) % 200}

    def total(records):
        return layout.sum_of(
            lambda record: jnp.asarray(record["x"] == jnp.arange(200), jnp.int8), records
        )

    assert len(jax.make_jaxpr(total)(records).eqns) < 20
    with jax.enable_x64(True):
        small = layout.sum_of(lambda record: jnp.array([1, record["x"]], jnp.int8), records)
    np.testing.assert_array_equal(small, [300, np.sum(records["x"].astype(np.int8))])


def test_blocks_are_visited_one_chain_after_the_other_where_chains_and_sums_are_few():
    def found(num_sums, num_abreast):
        shape = layout.choose(False, 100, num_sums, 4, 0.1, num_abreast)
        return shape.is_one_by_one

    assert [found(9, 4), found(9, 1), found(9, 16), found(75, 4), found(9, None)] == [
        True, False, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("block_size", [1, 3])
def test_chains_one_by_one_make_the_sweeps_of_chains_side_by_side(block_size):
    model, statistic = (
        na.Normal("x", na.NormalPrior(0, 1), 1.0),
        na.Clamped("x", -2, 2, ("x", "x^2")),
    )
    noise = na.Laplace(2.0)

    def sweeps(is_one_by_one):
        shape = layout.Layout(block_size, segment_size=5, is_one_by_one=is_one_by_one)

        def chain(key, released):
            key_start, key_sweep = jr.split(key)
            params = {"mean": jnp.array(0.5)}
            records = model.sample_records(key_start, params, 13)
            return record_augmentation.sweep_records(
                key_sweep, params, records, model=model, contribution=statistic,
                log_density=lambda total: noise.log_density(released, total), layout=shape,
            )  # fmt: skip

        with jax.enable_x64(True):
            released = jnp.array([3.0, 9.0]) + jnp.arange(4)[:, None]  # another in every chain
            return jax.jit(jax.vmap(chain))(jr.split(jr.key(0), 4), released)

    one_by_one, side_by_side = sweeps(True), sweeps(False)
    for one, other in zip(*map(jax.tree.leaves, (one_by_one, side_by_side)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert 0.2 < np.mean(np.asarray(one_by_one[1].acceptance_rate)) < 0.99
