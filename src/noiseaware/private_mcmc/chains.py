"""Private chains from their starts to their last iteration: compiled, or over shards of records.

Noise for a chunk of iterations is drawn on the host and passed in. What an iteration asks of the
records and what it does with the answers is the sampler's; nothing else happens here.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from noiseaware.private_mcmc.host_noise import Source
from noiseaware.private_mcmc.private_sampler import Info, PrivateSampler
from noiseaware.private_mcmc.queries import Queries
from noiseaware.running import Progress

CHUNK_ITERATIONS = 256


class Run(eqx.Module):
    """``positions`` [chain, iteration, d], and what else each iteration left."""

    positions: np.ndarray
    info: Info
    made: int
    begun: int


def run(
    source: Source,
    sampler: PrivateSampler,
    queries: Queries,
    positions: Float[Array, "chains d"],
    iterations: int,
    bar: Progress,
    say: Callable[[int], str] = lambda begun: "private chains",
) -> Run:
    """In chunks, so that progress is seen and an interrupt loses little. ``say`` tells of a run
    that has begun so many iterations.
    """
    chains, dims = positions.shape
    unit = queries.sensitivity * 2.0**queries.bits
    bar.say(say(0))
    bar.expect(iterations, 0)
    init, advance = (
        (_init_over_shards, _advance_over_shards)
        if callable(queries.records)
        else (_init_compiled, _advance_compiled)
    )
    chunks: list[tuple[np.ndarray, Info]] = []
    made = begun = 0
    at_start = ""
    try:
        noise = sampler.draw_start_noise(source, (chains,), dims, unit)
        at_start = " and what the start asked" if jax.tree.leaves(noise) else ""
        states = init(sampler, noise, positions, queries)
        while made < iterations:
            count = min(CHUNK_ITERATIONS, iterations - made)
            noise = sampler.draw_noise(source, (chains, count), dims, unit)
            begun = made + count
            bar.say(say(begun))
            states, chunk = advance(sampler, noise, states, queries, count)
            chunks.append(jax.tree.map(np.asarray, chunk))
            made = begun
            bar.advance(count)
    except KeyboardInterrupt:
        if not chunks:
            charged = f"interrupted: {begun} iterations were begun and are charged{at_start}"
            raise KeyboardInterrupt(charged) from None
    except Exception as error:
        error.add_note(f"{begun} iterations were begun and are charged{at_start}")
        raise
    joined, info = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *chunks)
    return Run(joined, info, made, begun)


@eqx.filter_jit
def _init_compiled(sampler, noise, positions, queries):
    return _for_chains(lambda each: sampler.init(*each, queries), (noise, positions))


def _advance_compiled(sampler, noise, states, queries, count):
    """One compilation for chunks of any length: what is missing in the last one is not run."""
    padding = CHUNK_ITERATIONS - count
    padded = jax.tree.map(
        lambda leaf: np.pad(leaf, [(0, 0), (0, padding)] + [(0, 0)] * (leaf.ndim - 2)), noise
    )
    states, chunk = _loop(sampler, padded, states, queries, np.int64(count))
    return states, jax.tree.map(lambda leaf: leaf[:, :count], chunk)


@eqx.filter_jit
def _loop(sampler, noise, states, queries, count):
    def chain(each):
        noise, state = each

        def advance(index, carry):
            state, chunk = carry
            state, info = sampler.step(_at(noise, index), state, queries)
            new = (state.position, Info(*map(jnp.asarray, info)))
            return state, jax.tree.map(lambda all, one: all.at[index].set(one), chunk, new)

        like = jax.eval_shape(
            lambda: (state.position, sampler.step(_at(noise, 0), state, queries)[1])
        )
        empty = jax.tree.map(
            lambda leaf: jnp.zeros((CHUNK_ITERATIONS, *jnp.shape(leaf)), jnp.result_type(leaf)),
            like,
        )
        return jax.lax.fori_loop(0, count, advance, (state, empty))

    return _for_chains(chain, (noise, states))


def _for_chains(function, inputs):
    """One after the other on a CPU, whose caches then hold what is needed; else side by side."""
    if jax.default_backend() == "cpu":
        return jax.lax.map(function, inputs)
    return jax.vmap(function)(inputs)


def _init_over_shards(sampler, noise, positions, queries):
    chains = range(len(positions))
    return [sampler.init(_at(noise, chain), positions[chain], queries) for chain in chains]


def _advance_over_shards(sampler, noise, states, queries, count):
    chunks = []
    for chain, state in enumerate(states):
        steps = []
        for index in range(count):
            state, info = sampler.step(_at(_at(noise, chain), index), state, queries)
            steps.append((state.position, info))
        states[chain] = state
        chunks.append(jax.tree.map(lambda *leaves: np.stack(leaves), *steps))
    return states, jax.tree.map(lambda *leaves: np.stack(leaves), *chunks)


def _at(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)
