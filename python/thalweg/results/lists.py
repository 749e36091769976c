# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Lists of tables: what a page shows, and what is run for it."""

from __future__ import annotations

import dataclasses
import difflib
import reprlib
import tomllib
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thalweg import files
from thalweg.results.figures import FIGURES


class ListError(ValueError):
    """A list of tables that is none. The message names the file and the key."""


@dataclass(frozen=True)
class Run:
    """A run of the laboratory; its scenario lies beside the list."""

    scenario: str
    backend: str
    connections: int


@dataclass(frozen=True, kw_only=True)
class Head:
    """What stands above a table. ``source``: what was published; None where nothing was."""

    kind: str
    title: str
    note: str
    source: str | None = None


@dataclass(frozen=True)
class PublishedTuned:
    """Goodput in Mbit/s, and how many of the tuned connections had the most frequent arm."""

    share: str
    baseline: float | None = None
    tuned: float | None = None


@dataclass(frozen=True)
class TunedRow:
    """A condition under a system default and under learning agents."""

    condition: str
    published: PublishedTuned
    run: Run


@dataclass(frozen=True, kw_only=True)
class Tuned(Head):
    """A system default against learning agents."""

    row: tuple[TunedRow, ...]


@dataclass(frozen=True)
class PublishedKernels:
    """Goodput in Mbit/s."""

    native: float
    userspace: float


@dataclass(frozen=True)
class KernelsRow:
    """A condition on the machine's kernel and on one in a process."""

    condition: str
    mode: str
    native: Run
    userspace: Run
    published: PublishedKernels | None = None


@dataclass(frozen=True, kw_only=True)
class Kernels(Head):
    """The machine's own kernel against one in a process. ``cpu``: processor time, too."""

    row: tuple[KernelsRow, ...]
    cpu: bool = False


@dataclass(frozen=True)
class GridCell:
    """A run of one mode."""

    mode: str
    scenario: str
    backend: str
    connections: int


@dataclass(frozen=True)
class GridRow:
    """A condition, and a run for each column."""

    condition: str
    cell: tuple[GridCell, ...]


@dataclass(frozen=True, kw_only=True)
class Grid(Head):
    """Goodputs, a condition a row, a column each for what varies."""

    columns: tuple[str, ...]
    row: tuple[GridRow, ...]


@dataclass(frozen=True)
class Column:
    """A figure of :data:`thalweg.results.figures.FIGURES`, of the flows of ``class_`` only if that
    is given. ``digits`` behind the point: as the unit has them, unless given. ``drawn``: whether
    the picture has it."""

    name: str
    figure: str
    class_: str | None = None
    digits: int | None = None
    drawn: bool = True


@dataclass(frozen=True)
class Target:
    """What one hopes for: a figure of a mode in a row, in the table's unit, or its ratio to that
    of another mode."""

    condition: str
    mode: str
    figure: str
    relative_to: str | None = None
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class ComparedRow:
    """What varies, and the run. ``modes``: those of this row, unless the table's."""

    condition: str
    run: Run
    modes: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Compared(Head):
    """Figures of each mode over what varies (``across``), with targets and a picture if asked
    for. ``names``: of modes, for readers; otherwise that of the arm."""

    across: str
    modes: tuple[str, ...]
    column: tuple[Column, ...]
    row: tuple[ComparedRow, ...]
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    picture: str | None = None
    target: tuple[Target, ...] = ()


@dataclass(frozen=True)
class SimulatedRow:
    """A mode of a run of the laboratory beside a controller of the simulator, ``cc``. ``modes``:
    all that the run has, so that one run serves several rows."""

    condition: str
    mode: str
    run: Run
    modes: tuple[str, ...]
    scenario: str
    cc: str


@dataclass(frozen=True, kw_only=True)
class Simulated(Head):
    """The laboratory beside the packet simulator."""

    row: tuple[SimulatedRow, ...]


@dataclass(frozen=True)
class TimersRow:
    """A condition, and what ``thalweg lab timers`` is given for it."""

    condition: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Timers(Head):
    """How late timers are, with a picture of the distributions."""

    row: tuple[TimersRow, ...]
    picture: str


Table = Tuned | Kernels | Grid | Compared | Simulated | Timers

KINDS: dict[str, type[Table]] = {
    "tuned": Tuned,
    "kernels": Kernels,
    "grid": Grid,
    "compared": Compared,
    "simulated": Simulated,
    "timers": Timers,
}


@dataclass(frozen=True)
class Page:
    """A page: its heading, what it begins with, and its tables."""

    title: str
    introduction: str
    table: tuple[Table, ...]


def load(path: Path) -> Page:
    """Reads a list. Raises OSError, and ListError for the first fault in it."""
    files.check(path)
    try:
        content = tomllib.loads(path.read_bytes().decode())
        page: Page = _read(Page, content, "")
        for place, table in enumerate(page.table):
            _check(table, f"table[{place}]")
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError, ListError) as why:
        raise ListError(f"{path}: {why}") from why
    return page


def _check(table: Table, where: str) -> None:
    if isinstance(table, Grid):
        for place, row in enumerate(table.row):
            if len(row.cell) != len(table.columns):
                words = f"expected a cell for each of {len(table.columns)} columns"
                raise ListError(f"{where}.row[{place}].cell: {words}, found {len(row.cell)}")
    if not isinstance(table, Compared):
        return
    for place, column in enumerate(table.column):
        if column.digits is not None and not 0 <= column.digits <= 9:
            raise ListError(
                f"{where}.column[{place}].digits: expected 0 to 9, found {column.digits}"
            )
    conditions = {row.condition for row in table.row}
    for name in ("column", "target"):
        for place, one in enumerate(getattr(table, name)):
            if one.figure not in FIGURES:
                known = ", ".join(FIGURES)
                at = f"{where}.{name}[{place}].figure"
                raise ListError(f"{at}: expected one of {known}, found {reprlib.repr(one.figure)}")
            if name == "target" and one.condition not in conditions:
                at = f"{where}.{name}[{place}].condition"
                raise ListError(f"{at}: no row has the condition {reprlib.repr(one.condition)}")


WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _read(kind: Any, value: Any, where: str) -> Any:
    """A value of TOML as a type says: texts, numbers, tuples, dictionaries, dataclasses."""
    if kind == Table:
        name = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in KINDS:
            raise ListError(
                f"{where}.kind: expected one of {', '.join(KINDS)}, found {reprlib.repr(name)}"
            )
        return _table(KINDS[name], value, where)
    if dataclasses.is_dataclass(kind):
        return _table(kind, value, where)
    if isinstance(kind, types.UnionType):
        return _read(typing.get_args(kind)[0], value, where)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ListError(f"{where}: expected a list, found {reprlib.repr(value)}")
        [one, _] = typing.get_args(kind)
        return tuple(_read(one, item, f"{where}[{place}]") for place, item in enumerate(value))
    if typing.get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise ListError(f"{where}: expected a table, found {reprlib.repr(value)}")
        return {key: _read(str, item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ListError(f"{where}: expected {WORDS[kind]}, found {reprlib.repr(value)}")
    return value


def _table(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ListError(f"{where}: expected a table, found {reprlib.repr(value)}")
    hints = typing.get_type_hints(kind)
    # `class` is a word of the language.
    fields = {field.name.rstrip("_"): field for field in dataclasses.fields(kind)}
    begin = f"{where}." if where else ""
    for key in value:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"; perhaps {near[0]}" if near else f"; expected {', '.join(fields)}"
            shown = key if key.isidentifier() else reprlib.repr(key)
            raise ListError(f"{begin}{shown}: there is no such key{hint}")
    found = {}
    for key, field in fields.items():
        if key in value:
            found[field.name] = _read(hints[field.name], value[key], f"{begin}{key}")
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ListError(f"{begin}{key}: missing")
    return kind(**found)
