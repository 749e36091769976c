"""REINFORCE: a baseline, on the reward that ADPG climbs.

After "Simple statistical gradient-following algorithms for connectionist reinforcement learning"
(Williams, 1992): the probability of each action moves with the discounted sum of the rewards that
followed it, less a baseline. There is no critic: the baseline of decision t is the mean over all
rollouts at their decision t, so it also allows for the fewer rewards ahead of later decisions.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from thalweg.train.environment import MakeBatch, maker
from thalweg.train.networks import Traced
from thalweg.train.rollouts import LocalPool, Rollouts, outcomes
from thalweg.train.run import Run, command_line
from thalweg.train.settings import flag
from thalweg.train.stochastic import ActorCritic, ErrorSettings


@dataclass(frozen=True)
class Settings(ErrorSettings):
    """Settings of a run."""

    output: str = flag("runs/reinforce", "directory of the checkpoint and the curves")
    updates: int = flag(400, "gradient steps")
    learning_rate: float = flag(1e-3, "of Adam")
    gamma: float = flag(0.99, "discount per decision")
    entropy_weight: float = flag(0.01, "weight of the entropy")


def new_policy(settings: Settings) -> ActorCritic:
    """An untrained policy, without a critic."""
    key = jax.random.key(settings.seed)
    size = settings.feature_set().size
    return ActorCritic(size, settings.hidden, settings.law, key, critic=False)


#: The agent that acts by a policy.
agent = Settings.agent


def returns(rollouts: Rollouts, gamma: float) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Discounted sums of the rewards after each action, up to the end of its episode or row, and
    which of them count. In a row with ended episodes, decisions after the last end are left out,
    because the return of an unfinished episode is unknown."""
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


def optimiser(settings: Settings) -> optax.GradientTransformation:
    """Adam."""
    return optax.adam(settings.learning_rate)


@eqx.filter_jit
def _step(
    settings: Settings,
    policy: ActorCritic,
    state: optax.OptState,
    batch: dict[str, Traced],
    weight: Traced,
) -> tuple[ActorCritic, optax.OptState, Array]:
    value, gradient = eqx.filter_value_and_grad(loss)(
        policy, batch, weight, settings.entropy_weight
    )
    change, state = optimiser(settings).update(gradient, state, eqx.filter(policy, eqx.is_array))
    return eqx.apply_updates(policy, change), state, value


def learn(
    settings: Settings, policy: ActorCritic, state: optax.OptState, rollouts: Rollouts
) -> tuple[ActorCritic, optax.OptState, dict[str, float]]:
    """One gradient step, and its row of the curves."""
    total, counts = returns(rollouts, settings.gamma)
    here = counts.sum(0)
    baseline = (total * counts).sum(0) / np.maximum(here, 1)
    advantage = np.where(counts, total - baseline, 0)
    spread = np.sqrt((advantage**2).sum() / max(counts.sum(), 1))
    weight = (advantage / (spread + 1e-8)).astype(np.float32)
    batch = {
        "observation": rollouts["observation"],
        "action": rollouts["action"],
        "counts": counts.astype(np.float32),
    }
    policy, state, value = _step(settings, policy, state, batch, weight)
    reward = outcomes(rollouts["reward"])[rollouts.mask(drop_last=1)].mean()
    return policy, state, {"objective": float(value), "reward": float(reward)}


def train(settings: Settings, make: MakeBatch | None = None) -> ActorCritic:
    """Trains: see :class:`thalweg.train.run.Run`. ``make``: simulations instead of those that
    ``settings.scenarios`` names."""
    make = make or maker(settings.scenarios, settings.duration_s)
    pool = LocalPool(make, functools.partial(agent, settings), settings.rollout)
    untrained, optimise = new_policy(settings), optimiser(settings)
    columns = ("objective", "reward")
    with Run(
        "reinforce", settings, untrained, optimise, pool, columns, "reward", may_fall_silent=True
    ) as run:
        for rollouts in run:
            run.step(*learn(settings, run.policy, run.state, rollouts))
    return run.policy


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    return command_line(Settings, train, arguments, __doc__)


if __name__ == "__main__":
    sys.exit(main())
