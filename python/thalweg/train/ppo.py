"""PPO, discrete and Gaussian: a baseline, on the reward that ADPG climbs.

After "Proximal Policy Optimization Algorithms" (Schulman et al., 2017): clipped objective,
generalised advantage estimates, several passes over each set of rollouts in minibatches. Its critic
cannot see the other flows in one flow's observation, and drawn actions keep flows from settling.
Whether it learns to send at all depends on the scale of the error (docs/measurements/adpg.md, "What
the baselines learned").
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
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

#: Columns of the curves.
COLUMNS = ("objective", "moved", "reward")


@dataclass(frozen=True)
class Algorithm:
    """Settings of PPO itself, for any reward."""

    learning_rate: float = flag(2.5e-4, "of Adam")
    gamma: float = flag(0.99, "discount per decision")
    gae_lambda: float = flag(0.95, "decay of the generalised advantage estimate")
    clip: float = flag(0.2, "how far a probability may move, as a ratio, before it counts no more")
    passes: int = flag(4, "passes over each set of rollouts")
    minibatch: int = flag(2048, "decisions of a gradient step; at most half of a set is used so")
    value_weight: float = flag(0.5, "weight of the critic's squared error")
    entropy_weight: float = flag(0.01, "weight of the entropy")
    gradient_norm: float = flag(0.5, "bound of the gradient's norm")


@dataclass(frozen=True)
class Settings(Algorithm, ErrorSettings):
    """Settings of a run."""

    output: str = flag("runs/ppo", "directory of the checkpoint and the curves")


def new_policy(settings: Settings) -> ActorCritic:
    """An untrained policy and its critic."""
    key = jax.random.key(settings.seed)
    return ActorCritic(settings.feature_set().size, settings.hidden, settings.law, key)


#: The agent that acts by a policy.
agent = Settings.agent


def estimate(
    rollouts: Rollouts, gamma: float, gae_lambda: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Advantages and returns, [keys, capacity]; they count where ``rollouts.mask(1)`` does. The
    last decision of each row only gives its value, for the return beyond the row."""
    value, reward = rollouts["value"], outcomes(rollouts["reward"])
    goes_on = 1 - outcomes(rollouts["done"])
    counts = rollouts.mask(drop_last=1)
    delta = np.where(counts, reward + gamma * outcomes(value) * goes_on - value, 0)
    advantage = np.zeros_like(value)
    running = np.zeros(len(value), np.float32)
    for t in range(value.shape[1] - 1, -1, -1):
        running = delta[:, t] + gamma * gae_lambda * goes_on[:, t] * running * counts[:, t]
        advantage[:, t] = running
    return advantage, advantage + value


def loss(policy: ActorCritic, batch: dict[str, Array], settings: Algorithm) -> tuple[Array, Array]:
    """The clipped objective, and how far the policy has moved (an estimate of its KL divergence).

    ``batch`` holds n decisions: observation, action, log_prob, advantage, target (of the critic).
    """
    outputs = policy.actor(batch["observation"])
    log_prob = policy.law.log_prob(outputs, policy.log_std, batch["action"])
    difference = log_prob - batch["log_prob"]
    ratio = jnp.exp(difference)
    advantage = batch["advantage"]
    gain = jnp.minimum(
        ratio * advantage, jnp.clip(ratio, 1 - settings.clip, 1 + settings.clip) * advantage
    ).mean()
    entropy = policy.law.entropy(outputs, policy.log_std).mean()
    miss = 0.5 * ((policy.value(batch["observation"]) - batch["target"]) ** 2).mean()
    total = settings.value_weight * miss - gain - settings.entropy_weight * entropy
    return total, (ratio - 1 - difference).mean()


def optimiser(settings: Algorithm) -> optax.GradientTransformation:
    """Adam on a gradient of bounded norm."""
    return optax.chain(
        optax.clip_by_global_norm(settings.gradient_norm),
        optax.adam(settings.learning_rate, eps=1e-5),
    )


@eqx.filter_jit
def _step(
    settings: Algorithm,
    policy: ActorCritic,
    state: optax.OptState,
    batch: dict[str, Traced],
) -> tuple[ActorCritic, optax.OptState, Array, Array]:
    (value, moved), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(
        policy, batch, settings
    )
    change, state = optimiser(settings).update(gradient, state, eqx.filter(policy, eqx.is_array))
    return eqx.apply_updates(policy, change), state, value, moved


def learn(
    settings: Algorithm,
    policy: ActorCritic,
    state: optax.OptState,
    rollouts: Rollouts,
    seed: tuple[int, ...],
) -> tuple[ActorCritic, optax.OptState, dict[str, float]]:
    """One set of rollouts, ``settings.passes`` times; ``seed`` orders the minibatches."""
    advantage, target = estimate(rollouts, settings.gamma, settings.gae_lambda)
    counts = rollouts.mask(drop_last=1)
    flat = {
        "observation": rollouts["observation"][counts],
        "action": rollouts["action"][counts],
        "log_prob": rollouts["log_prob"][counts],
        "target": target[counts],
        "advantage": advantage[counts],
    }
    flat["advantage"] = (flat["advantage"] - flat["advantage"].mean()) / (
        flat["advantage"].std() + 1e-8
    )
    rng = np.random.default_rng(seed)
    total = len(flat["target"])
    # Of one size, because each size is compiled; the rest is left to other passes, by chance.
    size = min(settings.minibatch, 1 << max((total // 2).bit_length() - 1, 0))
    values, moves = [], []
    for _ in range(settings.passes):
        order = rng.permutation(total)
        for start in range(0, total - size + 1, size):
            chosen = order[start : start + size]
            batch = {name: array[chosen] for name, array in flat.items()}
            policy, state, value, moved = _step(settings, policy, state, batch)
            values.append(value)
            moves.append(moved)
    row = {
        "objective": float(np.mean(values)),
        "moved": float(np.mean(moves)),
        "reward": float(outcomes(rollouts["reward"])[counts].mean()),
    }
    return policy, state, row


def train(settings: Settings, make: MakeBatch | None = None) -> ActorCritic:
    """Trains: see :class:`thalweg.train.run.Run`. ``make``: simulations instead of those that
    ``settings.scenarios`` names."""
    make = make or maker(settings.scenarios, settings.duration_s)
    pool = LocalPool(make, functools.partial(agent, settings), settings.rollout)
    untrained, optimise = new_policy(settings), optimiser(settings)
    with Run(
        "ppo", settings, untrained, optimise, pool, COLUMNS, "reward", may_fall_silent=True
    ) as run:
        for rollouts in run:
            run.step(*learn(settings, run.policy, run.state, rollouts, run.seed))
    return run.policy


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    return command_line(Settings, train, arguments, __doc__)


if __name__ == "__main__":
    sys.exit(main())
