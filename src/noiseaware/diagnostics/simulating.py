"""Releases of data sets that nobody has: params, records and noise, all drawn, each by a number."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from noiseaware.fitting import check_match, known_columns
from noiseaware.mechanisms import Mechanism
from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.release import Release
from noiseaware.statistics import Statistic

OF_DATA = 2**32 - 5  # folded into the seed: data are drawn apart from fits
MAX_BATCH, MAX_AT_ONCE = 256, 2_000_000  # data sets drawn side by side, and their records


class Simulated(NamedTuple):
    """Params, sums before noise and after it, each with a leading axis of data sets; and the log
    density of the noise.
    """

    params: Params
    totals: Any
    values: Any
    log_density: Any


class Source(NamedTuple):
    """Where data sets come from. ``params`` are those of all of them, or none: drawn from the
    prior.
    """

    model: Model
    statistic: Statistic
    mechanism: Mechanism
    num_records: int
    known: Mapping[str, Any] | None = None  # as the caller gave them
    params: Mapping[str, Any] | None = None

    def check(self) -> None:
        check_match(self.statistic, self.model)
        for name, column in known_columns(self.model, self.known).items():
            if len(column) != self.num_records:
                raise ValueError(
                    f"known must have {self.num_records} rows, num_records, got {len(column)} of "
                    f"{name!r}."
                )
        if self.statistic.reads_release or not self.mechanism.can_simulate:
            raise ValueError(
                "statistic and mechanism must be ones that can be simulated: a contribution that "
                "reads the release cannot."
            )
        if not self.model.has_records:
            raise ValueError(f"model must draw records, got {type(self.model).__name__}.")

    def simulate(self, seed: int, numbers: Sequence[int] | np.ndarray) -> Simulated:
        """Of these numbers; what a number gives does not depend on the others."""
        with jax.enable_x64(True):
            root = jr.fold_in(jr.key(seed), OF_DATA)
            keys = jax.vmap(lambda i: jr.fold_in(root, i))(np.asarray(numbers, np.uint32))
            columns = known_columns(self.model, self.known)
            known = {name: jnp.asarray(column) for name, column in columns.items()}
            fixed = self.params and {
                name: jnp.asarray(value, float) for name, value in self.params.items()
            }
            found = _simulate(
                keys, self.model, self.statistic, self.mechanism, known, fixed, self.num_records
            )
            return jax.tree.map(np.asarray, found)

    def releases(self, values: np.ndarray) -> list[Release]:
        return [
            Release(
                each, self.statistic, self.mechanism, neighbours="replace",
                num_records=self.num_records, noise="simulated",
            )
            for each in values
        ]  # fmt: skip


@eqx.filter_jit
def _simulate(keys, model, statistic, mechanism, known, params, num_records: int) -> Simulated:
    def one(key):
        key_params, key_records, key_noise = jr.split(key, 3)
        drawn = model.sample_prior(key_params) if params is None else params
        records = model.sample_records(key_records, drawn, num_records, known)
        total = jnp.sum(jax.vmap(statistic)(records), axis=0)
        values = mechanism.simulate(key_noise, total)
        return Simulated(drawn, total, values, mechanism.log_density(values, total))

    size = min(MAX_BATCH, max(1, MAX_AT_ONCE // num_records))
    return jax.lax.map(one, keys, batch_size=size)
