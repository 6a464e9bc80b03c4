"""How pilots and chains reach the records: a sampler's queries, with the run's noise."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from noiseaware.models import Model
from noiseaware.models.model import Params
from noiseaware.models.support import unconstrain
from noiseaware.private_mcmc.host_noise import Source, check_stddev
from noiseaware.private_mcmc.private_sampler import PrivateSampler
from noiseaware.private_mcmc.queries import MAX_RECORDS, Queries, Target, num_bits, sensitivity
from noiseaware.schema import Neighbours


@dataclasses.dataclass(frozen=True)
class Access:
    """How pilots and chains reach the records: with the noise of this source, or of the seed where
    the run is a simulated one. ``columns`` are the records as the model codes them.
    """

    records: Any
    columns: Any
    num_records: int
    neighbours: Neighbours
    model: Model
    source: Source
    seed: int | None

    def queries(self, sampler: PrivateSampler, like: Params, temperature: float) -> Queries:
        dims = unconstrain(self.model.supports, like)[0].size
        scale = sampler.scale
        if scale.shape not in ((), (dims,), (dims, dims)):
            raise ValueError(
                f"scale must be one number or one for each of {dims} unconstrained params, or a "
                f"triangle of them, got shape {scale.shape}."
            )
        units = scale if scale.ndim == 2 else np.diag(np.broadcast_to(scale, dims))
        # Under add_remove the number of records is secret, and sets nothing.
        is_public = self.neighbours is Neighbours.REPLACE
        most = self.num_records if is_public else MAX_RECORDS[self.neighbours]
        of_one = sensitivity(self.neighbours)
        bits = num_bits(most, of_one * max(sampler.multipliers))
        check_stddev(sampler.smallest_noise(of_one * 2.0**bits))
        return Queries(
            Target(self.model, like, jnp.asarray(units), jnp.asarray(temperature)),
            self.columns,
            bits=bits,
            sensitivity=of_one,
            is_study=self.seed is not None,
        )
