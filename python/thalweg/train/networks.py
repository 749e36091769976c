"""The controllers' networks, and fast answers to batches of decisions.

Sums are written out: linear algebra libraries order them by the processor, and weights would depend
on it.

A deterministic policy maps an observation, and its memory of the flow, to an action u = tanh(...)
in (-1, 1). Both kinds have one interface, so that an algorithm need not know which it trains:
``memory`` (numbers per flow), ``step`` (one decision of n flows), ``sequence`` (whole rollouts).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

#: A NumPy array where a compiled function is called, a JAX array inside of it.
Traced = Any


class Policy(Protocol):
    """A deterministic policy."""

    @property
    def memory(self) -> int:
        """Numbers of memory per flow."""
        ...

    def step(self, observation: Array, state: Array) -> tuple[Array, Array]:
        """[n, size], [n, memory] to u [n] and the new state [n, memory]."""
        ...

    def sequence(self, observations: Array, state: Array) -> Array:
        """[keys, time, size] and the state before it [keys, memory] to u [keys, time]."""
        ...


def orthogonal(key: Array, rows: int, columns: int, gain: float) -> Array:
    """A matrix with orthonormal rows or columns, whichever are fewer, times ``gain``: normal
    numbers, made orthogonal by the steps of Gram and Schmidt."""
    long, short = max(rows, columns), min(rows, columns)
    basis: list[NDArray[np.float64]] = []
    for column in np.asarray(jax.random.normal(key, (long, short)), np.float64).T:
        # The second pass removes the remainder that rounding leaves.
        for other in basis * 2:
            column = column - math.fsum(column * other) * other
        basis.append(column / math.sqrt(math.fsum(column * column)))
    matrix = np.stack(basis, 1 if rows >= columns else 0)
    return jnp.asarray(gain * matrix, jnp.float32)


def product(x: Array, weight: Array) -> Array:
    """[..., in] times the transpose of [out, in]: [..., out]."""
    return (x[..., None, :] * weight).sum(-1)


class Mlp(eqx.Module):
    """Layers without bias, ReLU between them: 4-12-12-1 is the published controller.

    Without bias, an observation of zeros has the action zero: whatever the controller learns, its
    fixed point is at error zero.
    """

    weights: list[Array]  # [out, in] each

    def __init__(self, sizes: tuple[int, ...], key: Array, last_gain: float = 0.1) -> None:
        keys = jax.random.split(key, len(sizes) - 1)
        gains = [2.0**0.5] * (len(sizes) - 2) + [last_gain]
        self.weights = [
            orthogonal(k, o, i, gain) for k, i, o, gain in zip(keys, sizes[:-1], sizes[1:], gains)
        ]

    @property
    def memory(self) -> int:
        return 0

    def __call__(self, observation: Array) -> Array:
        """[..., size] to u [...]."""
        x = observation
        for weight in self.weights[:-1]:
            x = jax.nn.relu(product(x, weight))
        return jnp.tanh(product(x, self.weights[-1])[..., 0])

    def step(self, observation: Array, state: Array) -> tuple[Array, Array]:
        return self(observation), state

    def sequence(self, observations: Array, state: Array) -> Array:
        return self(observations)


class Lstm(eqx.Module):
    """A layer with ReLU, an LSTM, a linear output, all without bias: FC16-LSTM16-1.

    Gates in the order input, forget, candidate, output. The forget gate's argument has the
    constant 1 added, so that an untrained network remembers.
    """

    layer: Array  # [hidden, size]
    gates: Array  # [4 * hidden, 2 * hidden]: of the layer's output, then of the last hidden state
    out: Array  # [hidden]

    def __init__(self, size: int, hidden: int, key: Array, last_gain: float = 0.1) -> None:
        first, second, third = jax.random.split(key, 3)
        self.layer = orthogonal(first, hidden, size, 2.0**0.5)
        self.gates = orthogonal(second, 4 * hidden, 2 * hidden, 1.0)
        self.out = orthogonal(third, 1, hidden, last_gain)[0]

    @property
    def memory(self) -> int:
        return 2 * self.out.shape[0]

    def step(self, observation: Array, state: Array) -> tuple[Array, Array]:
        hidden, cell = jnp.split(state, 2, axis=-1)
        x = jax.nn.relu(product(observation, self.layer))
        gates = product(jnp.concatenate([x, hidden], axis=-1), self.gates)
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        cell = jax.nn.sigmoid(f + 1) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        u = jnp.tanh((hidden * self.out).sum(-1))
        return u, jnp.concatenate([hidden, cell], axis=-1)

    def sequence(self, observations: Array, state: Array) -> Array:
        def one(state: Array, observation: Array) -> tuple[Array, Array]:
            u, state = self.step(observation, state)
            return state, u

        _, u = jax.lax.scan(one, state, observations.swapaxes(0, 1))
        return u.swapaxes(0, 1)


def padded(n: int) -> int:
    """The size that a batch of n is padded to: a power of two, at least 64. Few sizes, because
    each is compiled once."""
    return max(64, 1 << (n - 1).bit_length())


@functools.cache
def _compiled(structure: jax.tree_util.PyTreeDef) -> Callable[..., tuple[Array, Array]]:
    """The step of policies of one structure, given their arrays. Called with plain arrays it
    costs a third of what a call with the policy itself does."""

    def step(leaves: list[Array], observation: Array, state: Array) -> tuple[Array, Array]:
        return jax.tree.unflatten(structure, leaves).step(observation, state)

    return jax.jit(step)


class Acting:
    """A policy at work on many flows, with its memory of each."""

    def __init__(self, policy: Policy, keys: int) -> None:
        self.load(policy)
        self.state = np.zeros((keys, policy.memory), np.float32)

    def load(self, policy: Policy) -> None:
        """Acts by this policy from now on; the memory stays."""
        self._leaves, structure = jax.tree.flatten(policy)
        self._step = _compiled(structure)

    def act(
        self, key: NDArray[np.integer], observation: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Actions u [n] of the flows ``key`` (each at most once) for observations [n, size]."""
        n = len(key)
        rows = padded(n)
        full = np.zeros((rows, observation.shape[1]), np.float32)
        full[:n] = observation
        memory = self.state.shape[1]
        state = np.zeros((rows, memory), np.float32)
        if memory:
            state[:n] = self.state[key]
        u, after = self._step(self._leaves, full, state)
        if memory:
            self.state[key] = np.asarray(after)[:n]
        return np.asarray(u)[:n]


class Dense(eqx.Module):
    """Layers with bias, tanh between them: the networks of the stochastic baselines."""

    weights: list[Array]  # [out, in] each
    biases: list[Array]

    def __init__(self, sizes: tuple[int, ...], key: Array, last_gain: float) -> None:
        keys = jax.random.split(key, len(sizes) - 1)
        gains = [2.0**0.5] * (len(sizes) - 2) + [last_gain]
        self.weights = [
            orthogonal(k, o, i, gain) for k, i, o, gain in zip(keys, sizes[:-1], sizes[1:], gains)
        ]
        self.biases = [jnp.zeros(o) for o in sizes[1:]]

    def __call__(self, x: Array) -> Array:
        """[..., in] to [..., out]."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1]):
            x = jnp.tanh(product(x, weight) + bias)
        return product(x, self.weights[-1]) + self.biases[-1]
