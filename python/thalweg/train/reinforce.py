"""REINFORCE: a baseline, on the reward that ADPG climbs.

After "Simple statistical gradient-following algorithms for connectionist reinforcement learning"
(Williams, 1992): the probability of each action moves with the discounted sum of the rewards that
followed it, less a baseline. There is no critic: the baseline of decision t is the mean over all
rollouts at their decision t, which also takes out that later decisions have fewer rewards ahead.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import equinox as eqx
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from thalweg.train import baseline
from thalweg.train.baseline import ErrorSettings
from thalweg.train.collect import Collected
from thalweg.train.flags import flag
from thalweg.train.networks import Traced
from thalweg.train.rollouts import outcomes
from thalweg.train.stochastic import ActorCritic


@dataclass(frozen=True)
class Algorithm:
    """How REINFORCE learns, whatever from."""

    learning_rate: float = flag(1e-3, "of Adam")
    gamma: float = flag(0.99, "discount per decision")
    entropy_weight: float = flag(0.01, "weight of the entropy")


@dataclass(frozen=True)
class Settings(Algorithm, ErrorSettings):
    """What a run depends on."""

    output: str = flag("runs/reinforce", "directory of the checkpoint and the curves")
    updates: int = flag(400, "gradient steps")


def returns(rollouts: Collected, gamma: float) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Discounted sums of what followed each action up to the end of its episode or row, and which
    of them count. Where a row has ended episodes, what follows its last end is left out, because
    the return of an unfinished episode is not known."""
    reward, done = outcomes(rollouts["reward"]), outcomes(rollouts["done"])
    counts = rollouts.mask(drop_last=1)
    done = np.where(counts, done, 0)
    finished = np.cumsum(done[:, ::-1], 1)[:, ::-1] > 0
    counts = counts & (finished | ~finished[:, :1])
    total = np.zeros_like(reward)
    running = np.zeros(len(reward), np.float32)
    for t in range(reward.shape[1] - 1, -1, -1):
        running = np.where(counts[:, t], reward[:, t] + gamma * (1 - done[:, t]) * running, 0)
        total[:, t] = running
    return total, counts


def loss(
    policy: ActorCritic, batch: dict[str, Array], weight: Array, entropy_weight: float
) -> Array:
    """Minus the weighted log-probability of the actions; ``weight`` [keys, time] is the advantage,
    0 where nothing counts."""
    outputs = policy.actor(batch["observation"])
    log_prob = policy.law.log_prob(outputs, policy.log_std, batch["action"])
    entropy = policy.law.entropy(outputs, policy.log_std)
    counts = batch["counts"]
    return -(log_prob * weight + entropy_weight * entropy * counts).sum() / counts.sum()


@eqx.filter_jit
def _step(
    policy: ActorCritic,
    state: optax.OptState,
    optimise: optax.GradientTransformation,
    batch: dict[str, Traced],
    weight: Traced,
    entropy_weight: float,
) -> tuple[ActorCritic, optax.OptState, Array]:
    value, gradient = eqx.filter_value_and_grad(loss)(policy, batch, weight, entropy_weight)
    change, state = optimise.update(gradient, state, eqx.filter(policy, eqx.is_array))
    return eqx.apply_updates(policy, change), state, value


def optimiser(settings: Algorithm) -> optax.GradientTransformation:
    """Adam."""
    return optax.adam(settings.learning_rate)


def learn(
    settings: Algorithm,
    policy: ActorCritic,
    state: optax.OptState,
    optimise: optax.GradientTransformation,
    rollouts: Collected,
    seed: tuple[int, ...],
) -> tuple[ActorCritic, optax.OptState, dict[str, float]]:
    """One gradient step. Nothing is random here; ``seed`` is for others."""
    total, counts = returns(rollouts, settings.gamma)
    here = counts.sum(0)
    baseline_ = (total * counts).sum(0) / np.maximum(here, 1)
    advantage = np.where(counts, total - baseline_, 0)
    spread = np.sqrt((advantage**2).sum() / max(counts.sum(), 1))
    weight = (advantage / (spread + 1e-8)).astype(np.float32)
    batch = {
        "observation": rollouts["observation"],
        "action": rollouts["action"],
        "counts": counts.astype(np.float32),
    }
    policy, state, value = _step(policy, state, optimise, batch, weight, settings.entropy_weight)
    reward = outcomes(rollouts["reward"])[rollouts.mask(drop_last=1)].mean()
    return policy, state, {"objective": float(value), "reward": float(reward)}


#: What :mod:`thalweg.train.trained` and the command line know of it.
METHOD = baseline.Algorithm(
    name="reinforce",
    settings=Settings,
    policy=lambda settings: settings.policy(critic=False),
    agent=Settings.agent,
    optimiser=optimiser,
    learn=learn,
    columns=("objective", "reward"),
)


if __name__ == "__main__":
    sys.exit(METHOD.main(__doc__))
