"""Common to the baselines (REINFORCE, PPO, Aurora): a policy that draws its actions, and the agent
that acts by it on flows.

Rollouts hold for decision t ``observation``, ``action``, ``log_prob`` (of the action, when it was
drawn) and ``value`` (0 without a critic). ``reward`` and ``done`` are measured *at* decision t, so
they belong to action t - 1. Flows are never done, only cut off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from thalweg.features import STEP, Floats, Observer, multiplier
from thalweg.train.environment import Decisions
from thalweg.train.networks import Dense, padded
from thalweg.train.settings import FeatureSettings, flag

#: Factors of the rate of the published discrete controllers.
MULTIPLIERS = np.array([0.8, 0.95, 1.0, 1.05, 1.1, 1.2], np.float32)


@dataclass(frozen=True)
class Discrete:
    """One of ``count`` choices, by softmax. An action is [n, 1] and holds the choice's number."""

    count: int

    @property
    def outputs(self) -> int:
        return self.count

    @property
    def width(self) -> int:
        """Numbers in an action."""
        return 1

    @property
    def noise_width(self) -> int:
        """Uniform random numbers that a draw needs."""
        return self.count

    def draw(self, logits: Array, log_std: Array, uniform: Array) -> Array:
        # The Gumbel trick: the largest of logits plus Gumbel noise is distributed by softmax.
        return jnp.argmax(logits - jnp.log(-jnp.log(uniform)), -1, keepdims=True).astype(float)

    def log_prob(self, logits: Array, log_std: Array, action: Array) -> Array:
        choice = action.astype(int)
        return jnp.take_along_axis(jax.nn.log_softmax(logits), choice, -1)[..., 0]

    def entropy(self, logits: Array, log_std: Array) -> Array:
        log_p = jax.nn.log_softmax(logits)
        return -(jnp.exp(log_p) * log_p).sum(-1)

    def likeliest(self, logits: Array) -> Array:
        return jnp.argmax(logits, -1, keepdims=True).astype(float)


@dataclass(frozen=True)
class Gaussian:
    """A normal distribution per number of the action; its width is learned, and the same for
    every observation. Actions are not bounded here."""

    width: int

    @property
    def outputs(self) -> int:
        return self.width

    @property
    def noise_width(self) -> int:
        return self.width

    def draw(self, mean: Array, log_std: Array, uniform: Array) -> Array:
        return mean + jnp.exp(log_std) * jax.scipy.special.ndtri(uniform)

    def log_prob(self, mean: Array, log_std: Array, action: Array) -> Array:
        z = (action - mean) / jnp.exp(log_std)
        return (-0.5 * z**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)).sum(-1)

    def entropy(self, mean: Array, log_std: Array) -> Array:
        each = log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e)
        return jnp.broadcast_to(each.sum(), mean.shape[:-1])

    def likeliest(self, mean: Array) -> Array:
        return mean


class ActorCritic(eqx.Module):
    """A stochastic policy and, unless ``critic`` is None, an estimate of the return."""

    actor: Dense
    critic: Dense | None
    log_std: Array  # [width]; not used by Discrete
    law: Discrete | Gaussian = eqx.field(static=True)

    def __init__(
        self,
        size: int,
        hidden: tuple[int, ...],
        law: Discrete | Gaussian,
        key: Array,
        critic: bool = True,
        log_std: float = 0.0,
    ) -> None:
        first, second = jax.random.split(key)
        self.law = law
        self.actor = Dense((size, *hidden, law.outputs), first, last_gain=0.01)
        self.critic = Dense((size, *hidden, 1), second, last_gain=1.0) if critic else None
        self.log_std = jnp.full(law.width, log_std)

    def value(self, observation: Array) -> Array:
        """[..., size] to [...]."""
        if self.critic is None:
            return jnp.zeros(observation.shape[:-1])
        return self.critic(observation)[..., 0]


@functools.cache
def _compiled(structure: jax.tree_util.PyTreeDef) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Functions that draw actions and that take the likeliest, for policies of one structure, given
    their arrays."""

    def draw(leaves: list[Array], observation: Array, uniform: Array) -> tuple[Array, Array, Array]:
        policy = jax.tree.unflatten(structure, leaves)
        outputs = policy.actor(observation)
        action = policy.law.draw(outputs, policy.log_std, uniform)
        log_prob = policy.law.log_prob(outputs, policy.log_std, action)
        return action, log_prob, policy.value(observation)

    def likeliest(leaves: list[Array], observation: Array) -> Array:
        policy = jax.tree.unflatten(structure, leaves)
        return policy.law.likeliest(policy.actor(observation))

    return jax.jit(draw), jax.jit(likeliest)


class Sampler:
    """Draws actions for batches of any size."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def load(self, policy: ActorCritic) -> None:
        """Acts by this policy from now on."""
        self._leaves, structure = jax.tree.flatten(policy)
        self._draw, self._likeliest = _compiled(structure)
        self._law = policy.law

    def draw(self, observation: Floats) -> tuple[Floats, Floats, Floats]:
        """Actions [n, width], their log-probabilities [n] and values [n]."""
        n = len(observation)
        full = _pad(observation)
        # Away from 0 and 1, at which the inverse distribution functions are infinite.
        uniform = self._rng.uniform(1e-6, 1 - 1e-6, (n, self._law.noise_width))
        action, log_prob, value = self._draw(
            self._leaves, full, _pad(uniform.astype(np.float32), 0.5)
        )
        return np.asarray(action)[:n], np.asarray(log_prob)[:n], np.asarray(value)[:n]

    def likeliest(self, observation: Floats) -> Floats:
        """The most likely actions [n, width]: how a trained policy is used."""
        return np.asarray(self._likeliest(self._leaves, _pad(observation)))[: len(observation)]


def _pad(array: Floats, fill: float = 0.0) -> Floats:
    full = np.full((padded(len(array)), array.shape[1]), fill, np.float32)
    full[: len(array)] = array
    return full


def record_fields(size: int, law: Discrete | Gaussian) -> dict[str, tuple[int, ...]]:
    """Fields of a decision in rollouts, with an observation of this size."""
    numbers: dict[str, tuple[int, ...]] = dict.fromkeys(("log_prob", "value", "reward", "done"), ())
    return {"observation": (size,), "action": (law.width,), **numbers}


class Encoder(Protocol):
    """Observations of flows for a stochastic policy, and the meaning of its actions."""

    #: Numbers in an observation.
    size: int

    def reset(self, keys: int) -> None: ...

    def observe(self, decisions: Decisions) -> tuple[Floats, Floats]:
        """Observations [n, size] and rewards [n]."""
        ...

    def answer(self, decisions: Decisions, action: Floats) -> Floats:
        """Multipliers [n] of actions [n, width]."""
        ...


@dataclass(frozen=True)
class ErrorSettings(FeatureSettings):
    """Settings of REINFORCE and PPO, which have the features of the deterministic controller and
    the reward that it climbs."""

    actions: str = flag("discrete", "discrete (six multipliers) or gaussian")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.actions not in ("discrete", "gaussian"):
            raise ValueError(f"actions is {self.actions!r}; expected discrete or gaussian")

    @property
    def law(self) -> Discrete | Gaussian:
        """The distribution of actions."""
        return Discrete(len(MULTIPLIERS)) if self.actions == "discrete" else Gaussian(1)

    def agent(self, explore: bool = True) -> Stochastic:
        """The agent that acts by a policy of such settings; without ``explore`` it takes the
        likeliest action."""
        return Stochastic(Errors(self), self.law, explore)


class Errors:
    """The features of the deterministic controller, and the reward that it climbs: -(error^2),
    with the bounded error; an :class:`Encoder`."""

    def __init__(self, settings: ErrorSettings) -> None:
        self._features, self._law = settings.feature_set(), settings.law
        self.size = self._features.size

    def reset(self, keys: int) -> None:
        self._observer = Observer(self._features, keys)

    def observe(self, decisions: Decisions) -> tuple[Floats, Floats]:
        observation, error, _ = self._observer.observe(
            decisions.key,
            decisions.rtt_s,
            decisions.base_rtt_s,
            decisions.rate,
            decisions.probe_lost,
        )
        return observation, -(error**2)

    def answer(self, decisions: Decisions, action: Floats) -> Floats:
        if isinstance(self._law, Discrete):
            factor = MULTIPLIERS[action[:, 0].astype(int)]
            # The action that has this multiplier.
            u = np.where(factor >= 1, factor - 1, 1 - 1 / factor) / np.float32(STEP)
        else:
            u = np.clip(action[:, 0], -1, 1)
            factor = multiplier(u)
        self._observer.acted(decisions.key, u)
        return factor


class Stochastic:
    """The :class:`thalweg.train.rollouts.Agent` that draws its actions, or, with ``explore``
    off, takes the likeliest."""

    def __init__(self, encoder: Encoder, law: Discrete | Gaussian, explore: bool = True) -> None:
        self._encoder, self._explore = encoder, explore
        self.fields = record_fields(encoder.size, law)

    def reset(self, keys: int, seed: int) -> None:
        self._encoder.reset(keys)
        self._sampler = Sampler(seed)
        self._none = np.zeros((keys, 0), np.float32)

    def load(self, policy: ActorCritic) -> None:
        self._sampler.load(policy)

    def memory(self) -> NDArray[np.float32]:
        return self._none

    def decide(self, decisions: Decisions) -> tuple[NDArray[np.float32], dict[str, Any]]:
        observation, reward = self._encoder.observe(decisions)
        if self._explore:
            action, log_prob, value = self._sampler.draw(observation)
        else:
            action = self._sampler.likeliest(observation)
            log_prob = value = np.zeros(len(action), np.float32)
        return self._encoder.answer(decisions, action), {
            "observation": observation,
            "action": action,
            "log_prob": log_prob,
            "value": value,
            "reward": reward,
            "done": 0.0,
        }
