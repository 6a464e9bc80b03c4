"""A mechanism of which only the density is known."""

from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import numpy as np

from noiseaware.mechanisms.mechanism import Mechanism
from noiseaware.tracing import Fresh


class FunctionMechanism(Mechanism):
    """``log_density(released, total)`` is ``log g(s, T(x))`` for the vectors s and T(x);
    ``simulate(key, total)``, if given, draws s. It is for analysts: it cannot publish, and what it
    cost is not known.
    """

    log_density_function: Callable = eqx.field(static=True)
    simulate_function: Callable | None = eqx.field(static=True)

    norm: ClassVar[int] = 1
    is_discrete: ClassVar[bool] = False

    def __init__(self, log_density: Callable, simulate: Callable | None = None):
        self.log_density_function = Fresh(log_density)
        self.simulate_function = simulate and Fresh(simulate)

    def __repr__(self) -> str:
        return f"FunctionMechanism({self.log_density_function!r})"

    def spread(self):
        return np.asarray(np.nan)

    def with_spread(self, spread):
        raise NotImplementedError("a FunctionMechanism has no scale.")

    @property
    def can_simulate(self):
        return self.simulate_function is not None

    def simulate(self, key, total):
        if self.simulate_function is None:
            raise ValueError("FunctionMechanism was given no simulate.")
        return self.simulate_function(key, total)

    def privatize(self, total):
        raise ValueError("FunctionMechanism cannot publish: it knows a density, not a guarantee.")

    def log_density(self, released, total):
        return self.log_density_function(released, total)

    def cost(self, sensitivity, neighbours):
        return None
