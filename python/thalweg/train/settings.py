"""Settings of training runs: a dataclass, as command line flags and as JSON beside what was trained.

Those that several algorithms share are here; each algorithm adds its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from thalweg.features import FeatureSet, Signal

T = TypeVar("T")


def flag(default: Any, text: str) -> Any:
    """A field of a settings dataclass: its default, its effect and its unit."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Settings:
    """Settings of every run. All but ``output`` and ``quiet`` change the result."""

    output: str = flag("runs/unnamed", "directory of the checkpoint and the curves")
    seed: int = flag(1, "seed of networks and simulations")
    scenarios: tuple[str, ...] = flag(
        ("fluid:2", "fluid:4", "fluid:8"), "scenario files, or fluid:N for N flows of the model"
    )
    copies: int = flag(32, "simulations of each scenario side by side")
    duration_s: float = flag(10e-3, "simulated time of an episode of the fluid model, seconds")
    hidden: tuple[int, ...] = flag((32, 16), "widths of the hidden layers")
    updates: int = flag(200, "sets of rollouts")
    rollout: int = flag(128, "decisions per flow in a set, on average")
    begin_with: str | None = flag(None, "checkpoint whose policy a new run begins with")
    quiet: bool = flag(False, "no progress line")

    def __post_init__(self) -> None:
        for name in ("copies", "updates", "rollout"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"hidden is {self.hidden}; expected widths of at least 1")


@dataclass(frozen=True)
class FeatureSettings(Settings):
    """Settings of algorithms that see the features of :mod:`thalweg.features` and seek their
    target."""

    target: float = flag(0.033, "signal that the controller holds; more means throughput, latency")
    offset: float = flag(1.4, "inflation of the round-trip time that counts as none")
    scale: float | None = flag(None, "factor of the error before its limit; None: 0.2 / target")
    features: tuple[str, ...] = flag(("action", "error"), "features of a decision, in order")
    history: int = flag(2, "decisions that an observation spans")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.feature_set()

    def feature_set(self) -> FeatureSet:
        """The observation's features. Raises ValueError for settings that make none."""
        signal = Signal(self.target, self.offset, self.scale)
        return FeatureSet(self.features, self.history, signal)


def parse(settings: type[T], arguments: Sequence[str] | None, description: str) -> T:
    """The settings as the command line gives them; ``--help`` lists them all.

    Fields are int, float, str, bool (``--x`` or ``--no-x``), a tuple of one of these (comma
    separated), or such with None.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    kinds = typing.get_type_hints(settings)
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        kind = kinds[field.name]
        if isinstance(kind, types.UnionType):
            kind = next(one for one in typing.get_args(kind) if one is not types.NoneType)
        reader: dict[str, Any] = {"type": _listed(kind) if typing.get_origin(kind) else kind}
        if kind is bool:
            reader = {"action": argparse.BooleanOptionalAction}
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, default=field.default, help=field.metadata["help"], **reader)
    try:
        return settings(**vars(parser.parse_args(arguments)))
    except ValueError as error:  # a dataclass that checks itself
        parser.error(str(error))


def _listed(kind: Any) -> Any:
    """Reads a tuple, comma separated."""
    element = typing.get_args(kind)[0]

    def read(text: str) -> tuple[Any, ...]:
        return tuple(element(part.strip()) for part in text.split(",") if part.strip())

    read.__name__ = f"list of {element.__name__}"
    return read


def as_json(settings: Any) -> dict[str, Any]:
    """The settings as JSON."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(settings).items()
    }
