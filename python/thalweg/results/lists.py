# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Lists of tables: the content of a page, and the runs that it needs."""

from __future__ import annotations

import dataclasses
import difflib
import reprlib
import tomllib
import types
import typing
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thalweg import files
from thalweg.model import INFERENCES
from thalweg.results.controllers import published
from thalweg.results.figures import FIGURES


class ListError(ValueError):
    """An invalid list of tables. The message names the file and the key."""


@dataclass(frozen=True)
class Run:
    """A run of the laboratory; its scenario lies beside the list."""

    scenario: str
    backend: str
    connections: int


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head of a table. ``source``: the publication; None where there is none."""

    kind: str
    title: str
    note: str
    source: str | None = None


@dataclass(frozen=True)
class SeedsRow:
    """A condition under a system default and under learning agents."""

    condition: str
    run: Run


@dataclass(frozen=True, kw_only=True)
class Seeds(Head):
    """A system default against learning agents with seeds 1 to ``seeds``: medians, ranges, and the
    worst seed."""

    seeds: int
    row: tuple[SeedsRow, ...]


@dataclass(frozen=True)
class PublishedKernels:
    """Published goodput in Mbit/s."""

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
    """Goodputs: a row for each condition, a column for each mode or setting."""

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
    """A target: bounds of a mode's figure in a row, in the table's unit, or of its ratio to another
    mode's."""

    condition: str
    mode: str
    figure: str
    relative_to: str | None = None
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class ComparedRow:
    """A value of the varied quantity, and its run. ``modes``: instead of the table's."""

    condition: str
    run: Run
    modes: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Compared(Head):
    """Figures of each mode over a varied quantity (``across``), with targets and a picture if asked
    for. ``names``: of modes, for readers, instead of the arm's."""

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
    """A condition, and its options of ``thalweg-lab timers``."""

    condition: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Timers(Head):
    """Lateness of timers, with a picture of the distributions."""

    row: tuple[TimersRow, ...]
    picture: str


@dataclass(frozen=True)
class Beside:
    """Which of ``ours``, by its label, stands beside a published ``row``."""

    row: str
    ours: str


@dataclass(frozen=True, kw_only=True)
class Controllers(Head):
    """Rate controllers in the simulator, a block of lines for each size of a scenario.

    ``scenario``: a path in which ``{size}`` stands for the size. ``published``: a table of
    :data:`thalweg.results.controllers.published.FIGURES`, which also says what sizes count
    (``across``), which ``figures`` there are and, unless given, which ``sizes``. Judged are

    - ``models``: model files, or patterns of their names; ``inferences``: each in each of these,
      where it has them all; ``targets``: each network at its target times each of these;
    - ``trained``: checkpoints of baselines;
    - ``cc``: controllers of the simulator.

    ``initial``: first rate of flows of models and baselines, a share of the line rate.
    ``duration_s``: simulated time instead of the scenarios', the warm-up in proportion.
    ``beside``: what of ours stands beside published rows that no controller of the simulator has.
    ``elsewhere``: published rows that another page shows.
    """

    note: str = ""
    scenario: str
    published: str | None = None
    across: str | None = None
    figures: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    inferences: tuple[str, ...] = ()
    targets: tuple[float, ...] = ()
    trained: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()
    # Thousands of flows that begin at the line rate lose nearly all their probes, and can hardly
    # decide.
    initial: float = 0.001
    seeds: int = 8
    duration_s: float | None = None
    beside: tuple[Beside, ...] = ()
    elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Passed(Head):
    """Who passes at every size, of the page's tables with these ``published`` figures."""

    published: tuple[str, ...]


@dataclass(frozen=True)
class TracesRow:
    """A scenario of the simulator for so many seconds, a sample every ``every_us``."""

    condition: str
    scenario: str
    duration_s: float
    every_us: float


@dataclass(frozen=True, kw_only=True)
class Traces(Head):
    """A picture of a model's rates and queues over time, a column for each row."""

    note: str = ""
    picture: str
    model: str
    inference: str | None = None
    initial: float = Controllers.initial
    row: tuple[TracesRow, ...]


@dataclass(frozen=True, kw_only=True)
class Curves(Head):
    """A picture of a training run, of the ``csv`` that it wrote."""

    note: str = ""
    picture: str
    csv: str


Table = (
    Seeds | Kernels | Grid | Compared | Simulated | Timers | Controllers | Passed | Traces | Curves
)

KINDS: dict[str, type[Table]] = {
    "seeds": Seeds,
    "kernels": Kernels,
    "grid": Grid,
    "compared": Compared,
    "simulated": Simulated,
    "timers": Timers,
    "controllers": Controllers,
    "passed": Passed,
    "traces": Traces,
    "curves": Curves,
}


@dataclass(frozen=True)
class Page:
    """A page: its heading, its introduction and its tables."""

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
            _check(page, table, f"table[{place}]")
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError, ListError) as why:
        raise ListError(f"{path}: {why}") from why
    return page


def shortened(page: Page, duration_s: float) -> Page:
    """The page with so much simulated time in all of its tables of rate controllers."""
    table = tuple(
        dataclasses.replace(one, duration_s=duration_s) if isinstance(one, Controllers) else one
        for one in page.table
    )
    return dataclasses.replace(page, table=table)


def _check(page: Page, table: Table, where: str) -> None:
    match table:
        case Grid():
            _check_grid(table, where)
        case Compared():
            _check_compared(table, where)
        case Controllers():
            _check_controllers(table, where)
        case Seeds():
            _positive(table.seeds, f"{where}.seeds")
        case Passed():
            there = [one.published for one in page.table if isinstance(one, Controllers)]
            for place, name in enumerate(table.published):
                if there.count(name) != 1:
                    words = f"expected one table of {reprlib.repr(name)}, found {there.count(name)}"
                    raise ListError(f"{where}.published[{place}]: {words}")
        case Traces():
            for place, row in enumerate(table.row):
                for key in ("duration_s", "every_us"):
                    _positive(getattr(row, key), f"{where}.row[{place}].{key}")
        case _:
            pass


def _check_grid(table: Grid, where: str) -> None:
    for place, row in enumerate(table.row):
        if len(row.cell) != len(table.columns):
            words = f"expected a cell for each of {len(table.columns)} columns"
            raise ListError(f"{where}.row[{place}].cell: {words}, found {len(row.cell)}")


def _check_compared(table: Compared, where: str) -> None:
    for place, column in enumerate(table.column):
        if column.digits is not None and not 0 <= column.digits <= 9:
            raise ListError(
                f"{where}.column[{place}].digits: expected 0 to 9, found {column.digits}"
            )
    conditions = {row.condition for row in table.row}
    for place, column in enumerate(table.column):
        _known(column.figure, FIGURES, f"{where}.column[{place}].figure")
    for place, target in enumerate(table.target):
        _known(target.figure, FIGURES, f"{where}.target[{place}].figure")
        if target.condition not in conditions:
            at = f"{where}.target[{place}].condition"
            raise ListError(f"{at}: no row has the condition {reprlib.repr(target.condition)}")


def _check_controllers(table: Controllers, where: str) -> None:
    if "{size}" not in table.scenario:
        raise ListError(f"{where}.scenario: expected a path with {{size}} in it")
    rows: Collection[str] = ()
    if table.published is not None:
        _known(table.published, published.load(), f"{where}.published")
        rows = [row.name for row in published.load()[table.published].rows]
    else:
        for key in ("across", "figures", "sizes"):
            if not getattr(table, key):
                raise ListError(f"{where}.{key}: missing; nothing is published")
    for place, figure in enumerate(table.figures):
        _known(figure, published.STATISTICS, f"{where}.figures[{place}]")
    for place, inference in enumerate(table.inferences):
        _known(inference, INFERENCES, f"{where}.inferences[{place}]")
    for place, factor in enumerate(table.targets):
        _positive(factor, f"{where}.targets[{place}]")
    for place, size in enumerate(table.sizes):
        _positive(size, f"{where}.sizes[{place}]")
    for place, beside in enumerate(table.beside):
        _known(beside.row, rows, f"{where}.beside[{place}].row")
    for place, row in enumerate(table.elsewhere):
        _known(row, rows, f"{where}.elsewhere[{place}]")
    _positive(table.initial, f"{where}.initial")
    _positive(table.seeds, f"{where}.seeds")
    if table.duration_s is not None:
        _positive(table.duration_s, f"{where}.duration_s")


def _known(name: str, known: Collection[str], where: str) -> None:
    if name not in known:
        raise ListError(f"{where}: expected one of {', '.join(known)}, found {reprlib.repr(name)}")


def _positive(number: float, where: str) -> None:
    if not 0 < number < 1e6:
        raise ListError(f"{where}: expected a number above 0, found {number}")


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
