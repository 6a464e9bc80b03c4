"""Chains on the records themselves, under differential privacy: every step has a cost."""

from noiseaware.private_mcmc.barker import Barker as Barker
from noiseaware.private_mcmc.batches import FixedBatches as FixedBatches
from noiseaware.private_mcmc.batches import PoissonBatches as PoissonBatches
from noiseaware.private_mcmc.guided_walk import GuidedPenalty as GuidedPenalty
from noiseaware.private_mcmc.hamiltonian import HamiltonianPenalty as HamiltonianPenalty
from noiseaware.private_mcmc.langevin import Langevin as Langevin
from noiseaware.private_mcmc.one_component import OneComponentPenalty as OneComponentPenalty
from noiseaware.private_mcmc.penalty import Penalty as Penalty
from noiseaware.private_mcmc.private_sampler import PrivateSampler as PrivateSampler
