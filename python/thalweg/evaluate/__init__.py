# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rate controllers judged: the published tables, ours beside them.

``python -m thalweg.evaluate TABLE... --model FILE``; ``docs/guide/evaluation.md`` describes it.
"""

from thalweg.evaluate.cells import Cell, Contender, Store
from thalweg.evaluate.published import dominates, load, undominated
from thalweg.evaluate.tables import Entry, Job, Measured

__all__ = [
    "Cell",
    "Contender",
    "Entry",
    "Job",
    "Measured",
    "Store",
    "dominates",
    "load",
    "undominated",
]
