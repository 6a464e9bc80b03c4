"""The models of the thesis, their data, and their posteriors in closed form [R21, Chapter 5].

- ``Banana``: ``u ~ N(0, prior_variance I)``, ``theta = (u_1, u_2 - a u_1^2, u_3, ...)``, a record
  ``x ~ N(u, covariance)``. Given records u is normal, so theta is a banana [R21, Theorem 12]; with
  ``a = 0`` a normal.
- ``Circle``: ``log f(r | x, y) = -a (x^2 + y^2 - r^2)^2``, not normalised, flat prior. Given
  records the squared radius is normal with mean ``mean r_i^2`` and variance ``1 / (2 a n)``, cut at
  0, and the angle uniform: ``dx dy`` is half of ``d(radius^2) d(angle)``.
"""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from scipy import stats

import noiseaware as na
from noiseaware.models.model import Model, numbered_axes


class Banana(Model):
    """``covariance`` is a matrix, or a vector of variances."""

    dims: int = eqx.field(static=True)
    is_diagonal: bool = eqx.field(static=True)
    curvature: np.ndarray
    prior_variance: np.ndarray
    cholesky: np.ndarray
    whitening: np.ndarray

    def __init__(self, curvature: float, covariance, prior_variance: float = 1000.0):
        covariance = np.asarray(covariance, float)
        self.dims, self.is_diagonal = len(covariance), covariance.ndim == 1
        self.curvature = np.asarray(curvature, float)
        self.prior_variance = np.asarray(prior_variance, float)
        self.cholesky = np.linalg.cholesky(np.diag(covariance) if self.is_diagonal else covariance)
        self.whitening = np.linalg.inv(self.cholesky)

    @property
    def columns(self):
        return {name: na.Real() for name in self._names}

    @property
    def _names(self):
        return [f"x{index + 1}" for index in range(self.dims)]

    @property
    def supports(self):
        return {"theta": na.RealLine()}

    @property
    def labels(self):
        return numbered_axes({"theta": (self.dims,)})

    def straight(self, theta):
        """theta -> u, of unit Jacobian."""
        return theta.at[1].add(self.curvature * theta[0] ** 2)

    def bent(self, u):
        return u.at[1].add(-self.curvature * u[0] ** 2)

    def sample_prior(self, key):
        return {"theta": self.bent(jnp.sqrt(self.prior_variance) * jr.normal(key, (self.dims,)))}

    def log_prior(self, params):
        return -jnp.sum(self.straight(params["theta"]) ** 2) / (2 * self.prior_variance)

    def log_record(self, params, record):
        """But for a constant. Entry by entry, so that a pass over columns is all it takes."""
        u = self.straight(params["theta"])
        residuals = [record[name] - u[index] for index, name in enumerate(self._names)]
        squares = []
        for row in range(self.dims):
            entries = [row] if self.is_diagonal else range(row + 1)
            squares.append(
                sum(self.whitening[row, entry] * residuals[entry] for entry in entries) ** 2
            )
        return -sum(squares) / 2

    def sample_records(self, key, params, num_records, known=None):
        noise = jr.normal(key, (num_records, self.dims)) @ self.cholesky.T
        rows = self.straight(params["theta"]) + noise
        return {name: rows[:, index] for index, name in enumerate(self._names)}

    def posterior(self, rng, records, num_draws: int, temperature: float = 1.0) -> np.ndarray:
        """Draws of theta [draw, d] given records."""
        means = np.array([np.mean(records[name]) for name in self._names])
        num_records = temperature * len(records["x1"])
        of_records = num_records * self.whitening.T @ self.whitening
        covariance = np.linalg.inv(of_records + np.eye(self.dims) / self.prior_variance)
        u = rng.multivariate_normal(covariance @ of_records @ means, covariance, num_draws)
        u[:, 1] -= self.curvature * u[:, 0] ** 2
        return u


class Circle(Model):
    a: np.ndarray

    def __init__(self, a: float):
        self.a = np.asarray(a, float)

    @property
    def columns(self):
        return {"r": na.Real()}

    @property
    def supports(self):
        return {"theta": na.RealLine()}

    @property
    def labels(self):
        return numbered_axes({"theta": (2,)})

    def sample_prior(self, key):
        raise NotImplementedError("Circle has a flat prior, which cannot be drawn from.")

    def log_prior(self, params):
        return jnp.zeros(())

    def log_record(self, params, record):
        return -self.a * (jnp.sum(params["theta"] ** 2) - record["r"] ** 2) ** 2

    def posterior(self, rng, records, num_draws: int, temperature: float = 1.0) -> np.ndarray:
        mean = np.mean(records["r"] ** 2)
        sd = 1 / np.sqrt(2 * self.a * temperature * len(records["r"]))
        squares = stats.truncnorm(-mean / sd, np.inf, mean, sd).rvs(num_draws, random_state=rng)
        angles = rng.uniform(0, 2 * np.pi, num_draws)
        return np.sqrt(squares)[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A row of [R21, Table 6.1] with its samplers, whose multipliers are ``tau sqrt(n)``."""

    model: Model
    num_records: int
    penalty: tuple[float, float, float]  # tau, step size, clip
    guided: tuple[float, float, float]
    hamiltonian: tuple[float, float, int, float, float, float]  # tau_l, tau_g, L, step, clips
    start_stddev: float
    num_tempered: int | None = None
    # tau (here a variance's), step size, clip, batch; of Barker, step size and batch.
    minibatch: dict[str, tuple] = dataclasses.field(default_factory=dict)

    @property
    def temperature(self) -> float:
        return 1.0 if self.num_tempered is None else self.num_tempered / self.num_records

    @property
    def delta(self) -> float:
        return 0.1 / self.num_records

    @property
    def dims(self) -> int:
        return getattr(self.model, "dims", 2)

    @property
    def centre(self) -> np.ndarray:
        """Of the starts: the true params, or a point of the circle's inside."""
        centre = np.zeros(self.dims)
        centre[1] = 1.0 if isinstance(self.model, Circle) else 3.0
        return centre

    def simulate(self, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        if isinstance(self.model, Circle):
            return {"r": rng.normal(3.0, 1.0, self.num_records)}
        u = np.asarray(self.model.straight(jnp.asarray(self.centre)))
        rows = u + rng.standard_normal((self.num_records, self.dims)) @ self.model.cholesky.T
        return {f"x{index + 1}": rows[:, index].copy() for index in range(self.dims)}

    def starts(self, seed: int, count: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return self.centre + self.start_stddev * rng.standard_normal((count, self.dims))

    def samplers(self) -> dict[str, na.PrivateSampler]:
        root = np.sqrt(self.num_records)
        walks = {"penalty": (na.Penalty, self.penalty), "guided": (na.GuidedPenalty, self.guided)}
        samplers: dict[str, na.PrivateSampler] = {
            name: kind(noise_multiplier=tau * root, step_size=step, clip=clip)
            for name, (kind, (tau, step, clip)) in walks.items()
        }
        tau, tau_gradient, num_steps, step, clip, gradient_clip = self.hamiltonian
        samplers["hamiltonian"] = na.HamiltonianPenalty(
            noise_multiplier=tau * root,
            gradient_noise_multiplier=tau_gradient * root,
            num_steps=num_steps,
            step_size=step,
            clip=clip,
            gradient_clip=gradient_clip,
        )
        return samplers

    def batch_samplers(self) -> dict[str, na.PrivateSampler]:
        return {name: self._of_batches(name, *rest) for name, rest in self.minibatch.items()}

    def _of_batches(self, name: str, *settings) -> na.PrivateSampler:
        """Poisson batches in place of the thesis's fixed ones, with noise of twice ``sqrt(tau)`` in
        units of a contribution: as many iterations as the Fourier accountant allows the thesis, and
        about as much noise, with a guarantee.
        """
        batch, rest = settings[-1], settings[:-1]
        if name == "barker":
            asked = na.FixedBatches(num_records=self.num_records, size=batch)
            return na.Barker(step_size=rest[0], batches=asked)
        tau, step, clip = rest
        kind = na.GuidedPenalty if name == "minibatch guided" else na.Penalty
        poisson = na.PoissonBatches(num_records=self.num_records, size=batch)
        return kind(noise_multiplier=2 * np.sqrt(tau), step_size=step, clip=clip, batches=poisson)


def _banana(dims: int, curvature: float) -> Banana:
    return Banana(curvature, [20.0, 2.5, *[1.0] * (dims - 2)])


PROBLEMS = {
    "flat-2": Problem(
        _banana(2, 20.0), 100_000, (0.1, 0.008, 2.0), (0.1, 0.008, 1.8),
        (0.1, 0.4, 10, 0.0005, 2.0, 1.0), 0.02,
        minibatch={
            "minibatch": (0.7, 0.001, 1.0, 1000),
            "minibatch guided": (0.7, 0.001, 1.0, 1000),
            "barker": (0.0008, 1300),
        },
    ),
    "flat-10": Problem(
        _banana(10, 20.0), 200_000, (0.1, 0.0015, 2.0), (0.1, 0.0015, 3.0),
        (0.05, 0.2, 10, 0.00015, 2.5, 3.0), 0.02,
        minibatch={
            "minibatch": (0.6, 0.0001, 3.0, 1000),
            "minibatch guided": (0.5, 0.00032, 2.0, 1000),
            "barker": (0.0008, 2600),
        },
    ),
    "tempered-2": Problem(
        _banana(2, 20.0), 100_000, (0.2, 0.035, 5.0), (0.2, 0.04, 3.5),
        (0.2, 0.6, 10, 0.01, 2.5, 2.0), 0.02, 1000,
        minibatch={
            "minibatch": (1.5, 0.025, 4.0, 1000),
            "minibatch guided": (2.0, 0.04, 4.0, 1000),
            "barker": (0.12, 1300),
        },
    ),
    "tempered-10": Problem(
        _banana(10, 20.0), 200_000, (0.18, 0.02, 3.0), (0.1, 0.04, 3.0),
        (0.08, 0.2, 10, 0.015, 2.5, 3.5), 0.02, 1000,
        minibatch={
            "minibatch": (0.7, 0.02, 2.0, 1200),
            "minibatch guided": (0.8, 0.028, 2.0, 1200),
            "barker": (0.04, 2600),
        },
    ),
    "gauss-30": Problem(
        _banana(30, 0.0), 200_000, (0.06, 0.00084, 3.0), (0.2, 0.00084, 3.0),
        (0.05, 0.1, 5, 0.00025, 2.5, 6.0), 0.02,
    ),
    "narrow-2": Problem(
        _banana(2, 350.0), 150_000, (0.2, 0.0015, 5.5), (0.1, 0.0015, 8.5),
        (0.15, 0.25, 5, 0.00045, 5.0, 2.8), 0.02,
    ),
    "correlated-2": Problem(
        Banana(0.0, [[1.0, 0.999], [0.999, 1.0]], 100.0), 200_000, (0.07, 0.00015, 50.0),
        (0.1, 0.0002, 45.0), (0.05, 0.2, 8, 0.00007, 30.0, 29.0), 0.005,
    ),
    "circle": Problem(
        Circle(1e-5), 100_000, (4.0, 0.2, 0.002), (4.0, 0.3, 0.002),
        (0.6, 1.9, 40, 0.07, 0.001, 0.0015), 0.1,
    ),
}  # fmt: skip
EPSILONS = {
    name: (0.5, 0.75, 1.0) if name == "circle" else (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    for name in PROBLEMS
}
