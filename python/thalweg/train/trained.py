"""Trained policies of REINFORCE, PPO or Aurora, at work in the packet simulator.

Model files hold deterministic networks with ReLU; these policies have others, so they decide from
outside, through :class:`thalweg.sim.Batch`. They take their likeliest actions and draw none.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from thalweg.sim import Batch, Outcome, Scenario
from thalweg.train import aurora, checkpoint, ppo, reinforce
from thalweg.train.rollouts import Diverged
from thalweg.train.stochastic import ActorCritic

#: By the name that checkpoints have.
ALGORITHMS: dict[str, ModuleType] = {"reinforce": reinforce, "ppo": ppo, "aurora": aurora}


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A trained policy. ``kind``: the algorithm, a key of :data:`ALGORITHMS`. ``digest``: of its
    checkpoint. ``initial``: first rate of its flows, a share of the line rate."""

    kind: str
    settings: Any
    policy: ActorCritic
    digest: str
    initial: float

    @classmethod
    def load(cls, path: Path, initial: float) -> Trained:
        """From a checkpoint. Raises CheckpointError."""
        kind = checkpoint.algorithm(path)
        if kind not in ALGORITHMS:
            known = ", ".join(ALGORITHMS)
            raise checkpoint.CheckpointError(f"{path}: of algorithm {kind!r}, expected {known}")
        settings, policy, _ = checkpoint.load(path, kind, ALGORITHMS[kind])
        return cls(kind, settings, policy, hashlib.sha256(path.read_bytes()).hexdigest(), initial)

    @functools.cached_property
    def identity(self) -> str:
        """Different whenever its decisions may be."""
        return f"{self.digest} {self.initial}"

    def run(self, scenario: Scenario, seed: int) -> Outcome:
        """The scenario with all flows under this policy. Raises Diverged for an answer that is not
        finite."""
        batch = Batch(scenario, [seed], self.initial, jobs=1)
        agent = ALGORITHMS[self.kind].agent(self.settings, explore=False)
        agent.reset(batch.flows, 0)
        agent.load(self.policy)
        while (decisions := batch.advance()) is not None:
            multiplier, _ = agent.decide(decisions)
            if not np.isfinite(multiplier).all():
                raise Diverged(f"{self.kind}: answered {multiplier[~np.isfinite(multiplier)][0]}")
            batch.decide(multiplier)
        return batch.result(0)
