"""Blocks and segments: sums, bounds, and the block size that is chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from noiseaware.samplers import layout


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
