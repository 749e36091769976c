"""What the stochastic baselines share: settings, and how an algorithm is put together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax

from thalweg.features import FeatureSet, Signal
from thalweg.train import loop, scenarios
from thalweg.train.collect import Collector, LocalPool
from thalweg.train.environment import MakeBatch
from thalweg.train.flags import flag
from thalweg.train.stochastic import (
    MULTIPLIERS,
    ActorCritic,
    Discrete,
    FeatureEncoder,
    Gaussian,
    Stochastic,
)


@dataclass(frozen=True)
class Settings:
    """What a run depends on, whatever is seen and rewarded."""

    output: str = flag("runs/baseline", "directory of the checkpoint and the curves")
    seed: int = flag(1, "seed of networks and simulations")
    scenarios: tuple[str, ...] = flag(
        ("fluid:2", "fluid:4", "fluid:8"), "scenario files, or fluid:N for N flows of the model"
    )
    copies: int = flag(32, "simulations of each scenario side by side")
    duration_s: float = flag(10e-3, "simulated time of an episode of the fluid model, seconds")
    hidden: tuple[int, ...] = flag((32, 16), "widths of the hidden layers")
    updates: int = flag(200, "sets of rollouts")
    rollout: int = flag(128, "decisions per flow in a set, on average")
    quiet: bool = flag(False, "no progress line")

    def __post_init__(self) -> None:
        for name in ("copies", "updates", "rollout"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"hidden is {self.hidden}; expected widths of at least 1")


@dataclass(frozen=True)
class ErrorSettings(Settings):
    """Of one that sees the features of the deterministic controller, and gets the reward that it
    climbs."""

    actions: str = flag("discrete", "discrete (six multipliers) or gaussian")
    target: float = flag(0.033, "signal of which the reward is the distance")
    offset: float = flag(1.4, "inflation of the round-trip time that counts as none")
    scale: float | None = flag(None, "factor of the error; as ADPG's if not given")
    features: tuple[str, ...] = flag(("action", "error"), "features of a decision, in order")
    history: int = flag(2, "decisions that an observation spans")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.actions not in ("discrete", "gaussian"):
            raise ValueError(f"actions is {self.actions!r}; expected discrete or gaussian")
        self.feature_set()

    @property
    def law(self) -> Discrete | Gaussian:
        """How actions are drawn."""
        return Discrete(len(MULTIPLIERS)) if self.actions == "discrete" else Gaussian(1)

    def feature_set(self) -> FeatureSet:
        """The observation's features."""
        signal = Signal(self.target, self.offset, self.scale)
        return FeatureSet(self.features, self.history, signal)

    def policy(self, critic: bool) -> ActorCritic:
        """An untrained policy."""
        key = jax.random.key(self.seed)
        return ActorCritic(self.feature_set().size, self.hidden, self.law, key, critic)

    def agent(self, explore: bool = True) -> Stochastic:
        """What acts by such a policy; without ``explore`` it takes the likeliest."""
        return Stochastic(FeatureEncoder(self.feature_set(), self.law), self.law, explore)


@dataclass(frozen=True)
class Algorithm:
    """A baseline, as its file puts it together."""

    #: As checkpoints name it.
    name: str
    settings: type
    #: An untrained policy.
    policy: Callable[[Any], ActorCritic]
    #: What acts by a policy, by chance or (False) by the likeliest actions.
    agent: Callable[[Any, bool], Stochastic]
    optimiser: Callable[[Any], optax.GradientTransformation]
    #: Settings, then as :data:`thalweg.train.loop.Learn`.
    learn: Callable[..., tuple[ActorCritic, optax.OptState, dict[str, float]]]
    #: Of the row that ``learn`` makes.
    columns: tuple[str, ...]

    def collector(
        self, settings: Any, make: MakeBatch | None = None, explore: bool = True
    ) -> Collector:
        """A collector of a run's rollouts. ``make``: simulations other than those that
        ``settings.scenarios`` names."""
        if make is None:
            make = scenarios.maker(settings.scenarios, settings.duration_s)
        return Collector(make, self.agent(settings, explore), settings.rollout)

    def train(self, settings: Any, make: MakeBatch | None = None) -> ActorCritic:
        """Trains on flows: see :func:`thalweg.train.loop.train`."""
        return loop.train(
            self.name,
            settings,
            self.policy(settings),
            self.optimiser(settings),
            LocalPool(functools.partial(self.collector, settings, make)),
            functools.partial(self.learn, settings),
            self.columns,
            shown="reward",
            may_fall_silent=True,
        )

    def main(self, about: str | None, arguments: Sequence[str] | None = None) -> int:
        """The command line."""
        return loop.main(self.settings, self.train, arguments, about)
