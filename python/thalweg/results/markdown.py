# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

#: Stands in the place of a figure that is missing.
NOTHING = "–"


def row(cells: Sequence[str]) -> str:
    """A line of a table."""
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def header(cells: Sequence[str]) -> list[str]:
    """The first two lines."""
    return [row(cells), "|" + "---|" * len(cells)]
