"""Scenarios by name: what a training run simulates."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thalweg.train.environment import Batch, MakeBatch
from thalweg.train.fluid import Bottleneck, FluidBatch


def maker(names: Sequence[str], duration_s: float) -> MakeBatch:
    """Makes batches in which the scenarios take turns: simulation i runs scenario
    ``names[i % len(names)]``.

    A name is ``fluid:N``, N flows at one bottleneck of the fluid model for ``duration_s``, or the
    path of a scenario file of the packet simulator, which says itself how long it runs. All are of
    one kind. Raises ValueError for a name that is neither, ModuleNotFoundError where the packet
    simulator is not built.
    """
    if not names:
        raise ValueError("scenarios: none named; expected at least one, such as fluid:2")
    fluid = [name.startswith("fluid:") for name in names]
    if all(fluid):
        bottlenecks = []
        for name in names:
            flows = name.removeprefix("fluid:")
            if not flows.isdecimal() or int(flows) < 1:
                raise ValueError(f"scenarios: {name!r}: expected fluid:N with N at least 1")
            bottlenecks.append(
                Bottleneck(int(flows), duration_s=duration_s, warm_up_s=duration_s / 2)
            )
        return functools.partial(_fluid, tuple(bottlenecks))
    if any(fluid):
        raise ValueError(f"scenarios: {', '.join(names)}: files and the fluid model cannot mix")
    for name in names:
        if not Path(name).is_file():
            raise ValueError(f"scenarios: {name!r} is neither fluid:N nor a file")
    return functools.partial(_packets, tuple(names))


def _fluid(bottlenecks: tuple[Bottleneck, ...], seeds: NDArray[np.int64]) -> Batch:
    chosen = [bottlenecks[i % len(bottlenecks)] for i in range(len(seeds))]
    return FluidBatch(chosen, seeds.tolist())


def _packets(names: tuple[str, ...], seeds: NDArray[np.int64]) -> Batch:
    from thalweg.train.packets import PacketBatch  # compiled; the fluid model needs none

    return PacketBatch([names[i % len(names)] for i in range(len(seeds))], seeds.tolist())


def column(name: str) -> str:
    """A scenario's name as part of a column's name in the curves."""
    return Path(name).stem if "/" in name or name.endswith(".toml") else name.replace(":", "_")


def seeds(seed: int, purpose: int, number: int, count: int) -> NDArray[np.int64]:
    """Seeds of the simulations of one episode (purpose 0) or evaluation (purpose 1)."""
    words = np.random.SeedSequence([seed, purpose, number]).generate_state(count, np.uint64)
    return (words >> np.uint64(1)).astype(np.int64)
