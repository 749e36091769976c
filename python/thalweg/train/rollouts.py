"""Rollouts of flows whose decisions come interleaved.

Each flow has its own row, found by its key, and grows by its own decisions only. Rows differ in
length, because flows with a shorter round-trip time decide more often; what is computed from them
uses :meth:`Rollouts.mask`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Rollouts:
    """Rows of decisions, one row a flow.

    keys: flows.
    capacity: decisions that a row holds.
    fields: what is kept of a decision: name, and the shape of one entry (() for a number); all
        float32.
    """

    def __init__(self, keys: int, capacity: int, fields: Mapping[str, tuple[int, ...]]) -> None:
        self.capacity = capacity
        self.length = np.zeros(keys, np.int64)
        self._data = {
            name: np.zeros((keys, capacity, *shape), np.float32) for name, shape in fields.items()
        }

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """All rows of a field, [keys, capacity, ...]; zero beyond each row's length."""
        return self._data[name]

    def append(self, key: NDArray[np.integer], **values: ArrayLike) -> None:
        """One decision for each of the flows ``key``, each at most once; every field.

        Raises IndexError if a row is full.
        """
        if values.keys() != self._data.keys():
            raise KeyError(f"given {sorted(values)}, expected {sorted(self._data)}")
        at = self.length[key]
        for name, value in values.items():
            self._data[name][key, at] = value
        self.length[key] += 1

    def room(self) -> bool:
        """Whether every row can take another decision."""
        return bool(self.length.max(initial=0) < self.capacity)

    def decisions(self) -> int:
        """Decisions in all rows."""
        return int(self.length.sum())

    def mask(self, drop_last: int = 0) -> NDArray[np.bool_]:
        """Which entries count, [keys, capacity]; the last ``drop_last`` of each row do not."""
        return np.arange(self.capacity) < (self.length - drop_last)[:, None]

    def clear(self) -> None:
        """Empties all rows."""
        self.length[:] = 0
        for array in self._data.values():
            array[:] = 0


def outcomes(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """What followed each decision: entry t is what the flow saw at its decision t + 1, and the
    last is 0. ``values`` is [keys, capacity]; use the mask without each row's last entry."""
    after = np.zeros_like(values)
    after[:, :-1] = values[:, 1:]
    return after
