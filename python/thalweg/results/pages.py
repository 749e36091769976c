# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Pages as Markdown: a section for each table, with its commands beneath."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thalweg.results import lists, markdown, runs
from thalweg.results.figures import (
    FIGURES,
    Result,
    Round,
    Spread,
    flows,
    goodputs,
    interval,
    median,
    rounds,
    spread,
    spread_over,
    statistic,
)
from thalweg.results.markdown import NOTHING
from thalweg.results.pictures import Line, Panel, panels
from thalweg.results.runs import Order, Runs, homeless

if TYPE_CHECKING:
    from thalweg.results.controllers.judged import Judged

NOT_RUN = "not run"
MISSED = "**missed**"

#: Tables of the simulator alone, which runs in Python.
SIMULATOR = (lists.Controllers, lists.Passed, lists.Traces, lists.Curves)

#: Modes in a table of kind "seeds".
MODES = ("baseline", "classic", "thalweg")

#: The same quantity in the words of laboratory and simulator: heading, figure of one, field of a run
#: of the other, and the factor from its unit to that of the page.
SIMULATED = (
    ("SU %", "utilisation", ("utilisation_percent",), 1.0),
    ("FR %", "fairness", ("fairness_percent",), 1.0),
    ("queue delay, ms", "queue-delay-median", ("queue_latency", "mean_us"), 1e-3),
)

#: Points at which distributions of timers are shown, us.
LATE_US = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


def orders(page: lists.Page, folder: Path) -> list[Order]:
    """All runs of a page. Raises OSError for a scenario that is not there."""
    return [order for table in page.table for order in _orders(table, folder)]


def _orders(table: lists.Table, folder: Path) -> Iterator[Order]:
    if isinstance(table, SIMULATOR):
        return
    for row in table.row:
        match row:
            case lists.SeedsRow():
                assert isinstance(table, lists.Seeds)
                yield runs.of_seeds(folder, row.run, MODES, table.seeds)
            case lists.KernelsRow():
                yield runs.laboratory(folder, row.native, [row.mode])
                yield runs.laboratory(folder, row.userspace, [row.mode])
            case lists.GridRow():
                for cell in row.cell:
                    yield runs.laboratory(folder, cell, [cell.mode])
            case lists.ComparedRow():
                assert isinstance(table, lists.Compared)
                yield runs.laboratory(folder, row.run, row.modes or table.modes)
            case lists.SimulatedRow():
                yield runs.laboratory(folder, row.run, row.modes)
                yield runs.simulation(folder, row.scenario, row.cc)
            case lists.TimersRow():
                yield runs.timers(row.options)


def is_simulated(page: lists.Page) -> bool:
    """Whether tables of it are of the simulator alone."""
    return any(isinstance(table, SIMULATOR) for table in page.table)


def render(
    page: lists.Page, folder: Path, made: Runs, judged: Judged | None = None
) -> tuple[str, dict[str, bytes]]:
    """A page of results, and its pictures by their files' names. ``judged``: where the page
    :func:`is_simulated`."""
    kernels: dict[str, None] = {}
    pictures: dict[str, bytes] = {}
    sections = []
    for table in page.table:
        of = list(_orders(table, folder))
        results = iter([made.of(order) for order in of])
        for order in of:
            kernels.update(dict.fromkeys(_kernels(order, made)))
        blocks = [f"## {table.title}"]
        if table.source is not None:
            blocks.append(f"Published: {table.source}.")
        blocks += [table.note.strip(), "\n".join(_body(table, results, judged, pictures))]
        blocks.append("\n".join(made.lines(of)))
        sections.append("\n" + "\n\n".join(filter(None, blocks)) + "\n")
    text = f"# {page.title}\n\n{page.introduction.strip()}\n"
    if kernels:
        text += "\nKernels:\n\n" + "".join(f"- {kernel}\n" for kernel in kernels)
    return text + "".join(sections), pictures


def _kernels(order: Order, made: Runs) -> Iterator[str]:
    result = made.of(order) if order.backend else None
    if result is not None:
        environment = result["environment"]
        yield homeless(f"{order.backend}: {environment['kernel']}")
        if "stack" in environment:
            yield homeless(f"in a process: {environment['stack']}")


def _body(
    table: lists.Table,
    results: Iterator[Result | None],
    judged: Judged | None,
    pictures: dict[str, bytes],
) -> Iterable[str]:
    """The lines of a table, of the results of :func:`_orders` or the simulator's."""
    match table:
        case lists.Seeds():
            return _of_seeds(table, results)
        case lists.Kernels():
            return _of_kernels(table, results)
        case lists.Grid():
            return _grid(table, results)
        case lists.Compared():
            return _compared(table, results, pictures)
        case lists.Simulated():
            return _simulated(table, results)
        case lists.Timers():
            return _timers(table, results, pictures)
        case _:
            assert judged is not None
            return judged.lines(table, pictures)


def _of_seeds(table: lists.Seeds, results: Iterator[Result | None]) -> Iterator[str]:
    yield f"Medians of {table.seeds} seeds (least to greatest).\n"
    figures = ["default", "classic", "thalweg", "classic, last half", "thalweg, last half"]
    ratios = ["last half / default's", "thalweg / classic", "the same, last half"]
    yield from markdown.header(["condition", *figures, *ratios])
    half = "median-last-half"
    for row in table.row:
        result = next(results)
        if result is None:
            yield markdown.row([row.condition, *[NOT_RUN] * len([*figures, *ratios])])
            continue
        each = [result | {"scenarios": [one]} for one in result["scenarios"]]

        def of(mode: str, key: str = "median", each: Sequence[Result] = each) -> list[float]:
            found = [statistic(one, mode, key) for one in each]
            return [0.0 if value is None else value / 1e6 for value in found]

        default, ours = of("baseline"), of("thalweg", half)
        shown = [default, of("classic"), of("thalweg"), of("classic", half), ours]
        cells = [_range(one) for one in shown]
        # The same rounds of both.
        compared = [(ours, of("baseline", half)), (of("thalweg"), of("classic"))]
        compared += [(ours, of("classic", half))]
        cells += [_worst(*both) for both in compared]
        yield markdown.row([row.condition, *cells])


def _range(values: Sequence[float]) -> str:
    """Median, least and greatest."""
    return f"{_mbits(median(values))} ({_mbits(min(values))}–{_mbits(max(values))})"


def _worst(ours: Sequence[float], base: Sequence[float]) -> str:
    """The ratio of each seed: the median, and the least with its seed."""
    ratios = [one / other if other else 0.0 for one, other in zip(ours, base, strict=True)]
    least = min(ratios)
    return f"{median(ratios):.2f} ×; worst {least:.2f} (seed {ratios.index(least) + 1})"


def _of_kernels(table: lists.Kernels, results: Iterator[Result | None]) -> Iterator[str]:
    header = ["condition", "published: native", "in a process", "ratio"]
    header += ["ours: native", "in a process", "ratio"]
    if table.cpu:
        header += ["s of processor a gigabit: native", "in a process", "of that its kernel"]
    yield from markdown.header(header)
    for row in table.row:
        native, userspace = next(results), next(results)
        told = row.published
        before = (told.native, told.userspace) if told else (None, None)
        cells = [_mbits(before[0]), _mbits(before[1]), _ratio(before[1], before[0])]
        ours = [goodputs(one, row.mode) if one else [] for one in (native, userspace)]
        cells += [
            _shown(native, row.mode),
            _shown(userspace, row.mode),
            _own_ratio(ours[1], ours[0]),
        ]
        if table.cpu:
            cells += [
                _processor(native, row.mode, "machine_s"),
                _processor(userspace, row.mode, "machine_s"),
                _processor(userspace, row.mode, "stack_s"),
            ]
        yield markdown.row([row.condition, *cells])


def _grid(table: lists.Grid, results: Iterator[Result | None]) -> Iterator[str]:
    yield from markdown.header(["condition", *table.columns])
    for row in table.row:
        yield markdown.row(
            [row.condition, *(_shown(next(results), cell.mode) for cell in row.cell)]
        )


def _compared(
    table: lists.Compared, results: Iterator[Result | None], pictures: dict[str, bytes]
) -> Iterator[str]:
    yield "Medians of rounds [least to greatest].\n"
    if table.picture is not None:
        yield f"![{table.title}]({table.picture})\n"
    yield from markdown.header([table.across, "", *(column.name for column in table.column)])
    found: list[Sequence[Round] | None] = []
    for row in table.row:
        result = next(results)
        of = None if result is None else rounds(result)
        found.append(of)
        for mode in row.modes or table.modes:
            cells = [_column(column, mode, of) for column in table.column]
            yield markdown.row([row.condition, _name(table, mode), *cells])
    conditions = [row.condition for row in table.row]
    if table.target:
        yield "\n" + "\n".join(markdown.header(["target", "measured", ""]))
        by_condition = dict(zip(reversed(conditions), reversed(found)))
        for target in table.target:
            yield _target(table, target, by_condition[target.condition])
    if table.picture is not None:
        shown = [
            Panel(
                column.name,
                [Line(_name(table, mode), _points(column, mode, found)) for mode in table.modes],
            )
            for column in table.column
            if column.drawn
        ]
        pictures[table.picture] = panels(table.title, table.across, conditions, shown).encode()


def _name(table: lists.Compared, mode: str) -> str:
    return table.names.get(mode, mode.removeprefix("fixed:"))


def _column(column: lists.Column, mode: str, of: Sequence[Round] | None) -> str:
    if of is None:
        return NOT_RUN
    one = spread(of, mode, column.figure, column.class_)
    digits = FIGURES[column.figure].shown[1] if column.digits is None else column.digits
    return NOTHING if one is None else one.text(digits)


def _points(
    column: lists.Column, mode: str, found: Sequence[Sequence[Round] | None]
) -> list[tuple[int, tuple[float, float, float]]]:
    spreads = [spread(of or [], mode, column.figure, column.class_) for of in found]
    return [
        (place, (one.least, one.median, one.greatest)) for place, one in enumerate(spreads) if one
    ]


def _target(table: lists.Compared, target: lists.Target, of: Sequence[Round] | None) -> str:
    figure = FIGURES[target.figure]
    own, digits, unit = spread(of or [], target.mode, target.figure), figure.shown[1], ""
    value = own.median if own else None
    if target.relative_to is not None:
        other, digits = spread(of or [], target.relative_to, target.figure), 2
        unit = f" × that of {_name(table, target.relative_to)}"
        value = value / other.median if value is not None and other and other.median else None
    words = f"{target.condition}, {_name(table, target.mode)}: {figure.words}"
    for bound, word in ((target.at_least, "at least"), (target.at_most, "at most")):
        words += f" {word} {bound:g}{unit}" if bound is not None else ""
    if value is None:
        # A mode that ran and measured nothing reaches no target.
        dead = own is None and any(target.mode in each.modes for each in of or [])
        return markdown.row([words, NOTHING, MISSED if dead else NOT_RUN])
    low = target.at_least is None or value >= target.at_least
    met = low and (target.at_most is None or value <= target.at_most)
    coverage = own.coverage if own else ""
    # A round that measured nothing did worst. Harm also lacks rounds whose reference moved nothing.
    met = met and (not coverage or target.figure == "harm")
    return markdown.row([words, f"{value:.{digits}f}{coverage}", "met" if met else MISSED])


def _simulated(table: lists.Simulated, results: Iterator[Result | None]) -> Iterator[str]:
    yield f"Medians of Linux's rounds and of the simulator's {runs.SEEDS} seeds [least to greatest].\n"
    header = ["flows", ""]
    for head, *_ in SIMULATED:
        header += [f"{head}: Linux", "simulator", "difference"]
    yield from markdown.header(header)
    for row in table.row:
        linux, simulated = next(results), next(results)
        of = [] if linux is None else rounds(linux)
        cells = []
        for _, figure, field, factor in SIMULATED:
            digits = FIGURES[figure].shown[1]
            ours = spread(of, row.mode, figure)
            theirs = _over_seeds(simulated, field, factor)
            cells += [
                NOTHING if ours is None else ours.text(digits),
                NOTHING if theirs is None else theirs.text(digits),
                NOTHING
                if ours is None or theirs is None
                else f"{ours.median - theirs.median:+.{digits}f}",
            ]
        yield markdown.row([row.condition, row.mode.removeprefix("fixed:"), *cells])


def _over_seeds(result: Result | None, field: Sequence[str], factor: float) -> Spread | None:
    """A figure over the seeds, of the only controller."""
    if result is None:
        return None
    found: list[float | None] = []
    for run in result["scenarios"][0]["controllers"][0]["runs"]:
        value = run
        for name in field:
            value = value.get(name, {})
        # Where nothing arrived, nothing has waited: the document's 0 is no queue delay.
        is_idle = field[0] == "queue_latency" and run["utilisation_percent"] == 0
        found.append(None if value == {} or is_idle else value * factor)
    return spread_over(found, "seeds")


def _timers(
    table: lists.Timers, results: Iterator[Result | None], pictures: dict[str, bytes]
) -> Iterator[str]:
    heads = [f"{whose}: median, µs" for whose in ("the kernel", "a program's sleep")]
    rest = ["90 %", "99 %", "latest"]
    yield from markdown.header(["timers of", heads[0], *rest, heads[1], *rest])
    lines: tuple[list[Line], list[Line]] = ([], [])
    for row in table.row:
        late = (next(results) or {}).get("timers", {})
        both = late.get("kernel_us"), late.get("program_us")
        if not all(both):
            yield markdown.row([row.condition, *[NOT_RUN] * 8])
            continue
        cells = []
        for us, into in zip(both, lines):
            cells += [_late(us[round(part * (len(us) - 1))]) for part in (0.5, 0.9, 0.99, 1.0)]
            # The share that is no later.
            shares = [bisect.bisect_right(us, bound) / len(us) for bound in LATE_US]
            points = [(place, (share,) * 3) for place, share in enumerate(shares)]
            into.append(Line(row.condition, points))
        yield markdown.row([row.condition, *cells])
    yield f"\n![{table.title}]({table.picture})"
    titles = ("timers of the kernel", "sleep of a program")
    shown = [Panel(f"{title}: part that is no later", of) for title, of in zip(titles, lines)]
    values = [f"{bound:g}" for bound in LATE_US]
    pictures[table.picture] = panels(table.title, "µs", values, shown).encode()


def _late(us: float) -> str:
    return f"{us:.1f}" if us < 10 else f"{us:.0f}"


def _mbits(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _shown(result: Result | None, mode: str) -> str:
    """The goodput of a mode's connections, Mbit/s."""
    if result is None:
        return NOT_RUN
    each = [value / 1e6 for value in goodputs(result, mode)]
    return _range(each) if each else NOTHING


def _ratio(value: float | None, base: float | None) -> str:
    return f"{value / base:.2f} ×" if value is not None and base else NOTHING


def _own_ratio(ours: Sequence[float], base: Sequence[float]) -> str:
    """Of two medians, with its interval."""
    point = _ratio(median(ours), median(base))
    if point == NOTHING:
        return point
    low, high = interval(base, ours)
    return f"{point} [{low:.2f} … {high:.2f}]"


def _processor(result: Result | None, mode: str, whose: str) -> str:
    """Seconds of processor time a gigabit received, the median over the connections."""
    if result is None:
        return NOT_RUN
    duration_s = result["scenarios"][0]["scenario"]["traffic"].get("duration") or 0.0
    each = []
    for flow in flows(result, mode):
        gigabits = flow["goodput_bps"] * duration_s / 1e9
        took_s = (flow.get("cpu") or {}).get(whose)
        if took_s is not None and duration_s > 0:
            # What brought nothing was as expensive as can be.
            each.append(took_s / gigabits if gigabits > 0 else math.inf)
    middle = median(each)
    return NOTHING if middle is None else f"{middle:.3f}"
