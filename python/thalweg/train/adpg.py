"""ADPG: a deterministic policy gradient that uses the reward's own derivative.

After "Analytic Deterministic Policy Gradient with Application to Datacenter Congestion Control",
section 6. The reward of a flow is -(target - s)^2 with the signal s of :mod:`thalweg.features`.
Its derivative by the action is 2 (target - s) ds/da, and ds/da is positive: a flow that sends
faster raises both its rate and the queue. Taken as a constant it goes into the learning rate. The
rest needs no value function, no model and no random draws:

    gradient of the mean reward  ~  mean over t of (target - s_t) * gradient of u_t

Where flows were below target, actions are raised; where they were above, lowered. Rollouts are on
policy and per flow. Each action is weighed by the discounted mean of the errors that followed it in
its rollout. A second term keeps a flow's actions alike, so that the policy settles.

Departures from the paper: the loss is written out per flow with the mean over the rest of the
rollout; the smoothness term is added; the error that weighs an action is bounded as the observed
one is, because one overload would outweigh thousands of ordinary decisions.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from thalweg import cluster
from thalweg.features import FeatureSet, Observer, multiplier
from thalweg.train.environment import Decisions, MakeBatch, column, maker, seeds
from thalweg.train.networks import Acting, Lstm, Mlp, Policy, Traced
from thalweg.train.rollouts import Collector, LocalPool, RayPool, Rollouts, outcomes
from thalweg.train.run import Run, command_line
from thalweg.train.settings import FeatureSettings, flag

#: Columns of an evaluation: see :meth:`thalweg.train.environment.Batch.outcome`.
FIGURES = ("su", "fr", "ql_us", "loss")


@dataclass(frozen=True)
class Settings(FeatureSettings):
    """Settings of a run. All but ``output``, ``ray`` and ``quiet`` change the result."""

    output: str = flag("runs/adpg", "directory of the checkpoint and the curves")
    network: str = flag("mlp", "mlp, or lstm (one layer, then an LSTM of the same width)")
    hidden: tuple[int, ...] = flag((12, 12), "widths of the hidden layers; the LSTM's is the first")
    updates: int = flag(400, "gradient steps")
    rollout: int = flag(128, "decisions per flow between gradient steps, on average")
    vary: bool = flag(False, "another network in each simulation; for the sender linux")
    gamma: float = flag(0.99, "discount per decision")
    smoothness: float = flag(1.0, "weight of the term that keeps a flow's actions alike")
    learning_rate: float = flag(1e-2, "of Adam")
    anneal: bool = flag(True, "lower the learning rate linearly to a tenth over the run")
    gradient_clip: float = flag(0.5, "bound of each component of the gradient")
    evaluate_every: int = flag(10, "episodes between evaluations; 0: none")
    workers: int = flag(1, "collectors; the copies are shared out among them")
    ray: bool = flag(False, "run the collectors on a Ray cluster (RAY_ADDRESS, or a local one)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network not in ("mlp", "lstm"):
            raise ValueError(f"network is {self.network!r}; expected mlp or lstm")
        if self.workers < 1:
            raise ValueError(f"workers is {self.workers}; expected at least 1")
        if self.copies % self.workers:
            raise ValueError(f"{self.copies} copies cannot be shared among {self.workers} workers")
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma is {self.gamma}; expected above 0, at most 1")

    def maker(self) -> MakeBatch:
        """Makes the simulations that the settings name."""
        signal = self.feature_set().signal
        return maker(self.scenarios, self.duration_s, signal, self.vary)


def new_policy(settings: Settings) -> Policy:
    """An untrained network."""
    key = jax.random.key(settings.seed)
    size = settings.feature_set().size
    if settings.network == "lstm":
        return Lstm(size, settings.hidden[0], key)
    return Mlp((size, *settings.hidden, 1), key)


class Deterministic:
    """The :class:`thalweg.train.rollouts.Agent` that acts by a policy as it is."""

    def __init__(self, features: FeatureSet) -> None:
        self._features = features
        self.fields: dict[str, tuple[int, ...]] = {"observation": (features.size,), "error": ()}

    def reset(self, keys: int, seed: int) -> None:
        self._keys = keys
        self._observer = Observer(self._features, keys)
        self._acting: Acting | None = None

    def load(self, policy: Policy) -> None:
        if self._acting is None:
            self._acting = Acting(policy, self._keys)
        else:
            self._acting.load(policy)

    def _loaded(self) -> Acting:
        if self._acting is None:
            raise RuntimeError("a policy is needed: load() before memory() and decide()")
        return self._acting

    def memory(self) -> NDArray[np.float32]:
        return self._loaded().state

    def decide(self, decisions: Decisions) -> tuple[NDArray[np.float32], dict[str, Any]]:
        observation, error, _ = self._observer.observe(
            decisions.key,
            decisions.rtt_s,
            decisions.base_rtt_s,
            decisions.rate,
            decisions.probe_lost,
        )
        u = self._loaded().act(decisions.key, observation)
        self._observer.acted(decisions.key, u)
        return multiplier(u), {"observation": observation, "error": error}


def advantages(
    error: NDArray[np.float32], length: NDArray[np.int64], gamma: float
) -> NDArray[np.float32]:
    """G [keys, capacity]: for each action the discounted mean of -error at the decisions that
    followed it in its rollout,

        G_t = 1 / (T - t) * sum over k >= 0 of gamma^k R_{t+k},

    where R_t = -error_{t+1} is the result of action t, and T = length - 1 actions have an outcome.
    Positive means: too fast. 0 beyond T.
    """
    capacity = error.shape[1]
    remaining = (length - 1)[:, None] - np.arange(capacity)
    after = np.where(remaining > 0, -outcomes(error), 0.0).astype(np.float32)
    total = np.zeros_like(after)
    running = np.zeros(len(after), np.float32)
    for t in range(capacity - 1, -1, -1):
        running = after[:, t] + np.float32(gamma) * running
        total[:, t] = running
    return total / np.maximum(remaining, 1)


def loss(
    policy: Policy, observation: Array, memory: Array, g: Array, mask: Array, smoothness: float
) -> Array:
    """The loss of a gradient step: per flow, with T actions u_t,

        1/T sum_t u_t G_t  +  smoothness / T sum_i [ sum_{j>i} (u_i - u_j)^2 / 2 / (T - i) ],

    averaged over the flows. ``observation`` is [keys, time, size], ``memory`` [keys, memory],
    ``g`` and ``mask`` [keys, time]; the mask is 1 for the first T entries of each row.
    """
    u = policy.sequence(observation, memory) * mask
    length = mask.sum(1)
    divisor = jnp.maximum(length, 1)
    push = (u * g).sum(1) / divisor

    # sum_{j>i} (u_i - u_j)^2 = n u_i^2 - 2 u_i sum u_j + sum u_j^2 over the n actions after i.
    def after(x: Array) -> Array:
        return jnp.cumsum(x[:, ::-1], 1)[:, ::-1] - x

    remaining = length[:, None] - jnp.arange(u.shape[1])
    squares = (remaining - 1) * u**2 - 2 * u * after(u) + after(u**2)
    unlike = (mask * squares / 2 / jnp.maximum(remaining, 1)).sum(1) / divisor
    flows = jnp.maximum((length > 0).sum(), 1)
    return (push + smoothness * unlike).sum() / flows


def optimiser(settings: Settings) -> optax.GradientTransformation:
    """Adam on a gradient whose components are bounded."""
    rate = settings.learning_rate
    if settings.anneal:
        rate = optax.linear_schedule(rate, rate / 10, settings.updates)
    return optax.chain(optax.clip(settings.gradient_clip), optax.adam(rate))


@eqx.filter_jit
def _step(
    settings: Settings,
    policy: Policy,
    state: optax.OptState,
    observation: Traced,
    memory: Traced,
    g: Traced,
    mask: Traced,
) -> tuple[Policy, optax.OptState, Array, Array]:
    value, gradient = eqx.filter_value_and_grad(loss)(
        policy, observation, memory, g, mask, settings.smoothness
    )
    norm = optax.tree.norm(gradient)
    change, state = optimiser(settings).update(gradient, state, eqx.filter(policy, eqx.is_array))
    return eqx.apply_updates(policy, change), state, value, norm


def learn(
    settings: Settings, policy: Policy, state: optax.OptState, rollouts: Rollouts
) -> tuple[Policy, optax.OptState, dict[str, float]]:
    """One gradient step, and its row of the curves."""
    error = rollouts["error"]
    g = advantages(error, rollouts.length, settings.gamma)
    mask = rollouts.mask(drop_last=1).astype(np.float32)
    policy, state, value, norm = _step(
        settings, policy, state, rollouts["observation"], rollouts.memory, g, mask
    )
    seen = error[rollouts.mask()]
    row = {
        "objective": float(value),
        "gradient": float(norm),
        "error": float(seen.mean()),
        "error_size": float(np.abs(seen).mean()),
    }
    return policy, state, row


def evaluate(settings: Settings, policy: Policy, number: int, make: MakeBatch) -> dict[str, float]:
    """SU, FR, QL and loss of one simulation of each scenario, by column name."""
    collector = Collector(make, Deterministic(settings.feature_set()), settings.rollout)
    collector.start(seeds(settings.seed, 1, number, len(settings.scenarios)))
    found = zip(settings.scenarios, collector.finish(policy))
    return {f"{figure}_{column(name)}": o[figure] for name, o in found for figure in FIGURES}


def train(settings: Settings, make: MakeBatch | None = None) -> Policy:
    """Trains: see :class:`thalweg.train.run.Run`. ``make``: simulations instead of those that
    ``settings.scenarios`` names."""
    make = make or settings.maker()
    columns = ["objective", "gradient", "error", "error_size"]
    columns += [f"{figure}_{column(name)}" for name in settings.scenarios for figure in FIGURES]
    every = settings.evaluate_every
    with cluster.joined() if settings.ray else contextlib.nullcontext():
        pool = (RayPool if settings.ray else LocalPool)(
            make,
            functools.partial(Deterministic, settings.feature_set()),
            settings.rollout,
            settings.workers,
        )
        untrained, optimise = new_policy(settings), optimiser(settings)
        with Run("adpg", settings, untrained, optimise, pool, columns, "error_size") as run:
            for rollouts in run:
                policy, state, row = learn(settings, run.policy, run.state, rollouts)
                wanted = run.ends and every and (run.last or run.episode % every == 0)
                more = functools.partial(evaluate, settings, policy, run.episode, make)
                run.step(policy, state, row, more if wanted else dict)
    return run.policy


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    return command_line(Settings, train, arguments, __doc__)


if __name__ == "__main__":
    sys.exit(main())
