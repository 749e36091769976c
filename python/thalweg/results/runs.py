# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs of the ``thalweg`` command, and their store: a directory each, with a stamp of all inputs:
the command, the program's build, the kernel, and the files that the command and its scenario name.
An interrupted call goes on where it stopped; a run whose inputs have changed is repeated."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thalweg import files, progress
from thalweg.results.figures import Result
from thalweg.results.lists import GridCell, Run

#: Exit codes that come with results: all is well, and an expectation was not met.
GOOD = (0, 5)

#: Time for a run to clean up, seconds.
PATIENCE_S = 60

#: Version of the results that are read.
FORMAT = 1

#: Seeds of a simulation.
SEEDS = "8"

#: Directory of scenarios with a seed, which a command makes.
SEEDED = "lab-results/seeds"

#: Backends on which the machine's own kernel is measured; "" is that of ``lab timers``.
OWN_KERNEL = ("", "host", "link", "auto")

#: Backends on which a kernel that is a process is measured.
KERNEL_IN_PROCESS = ("uml", "virtual", "auto")

#: Directories of system programs, which PATH may lack (``thalweg_units::program::find_program``).
SYSTEM_DIRECTORIES = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")


@dataclass(frozen=True)
class Order:
    """One run. ``name``: its directory. ``words``: of the command, without ``--out``. ``inputs``:
    content of the files that its result depends on. ``backend``: of the laboratory. ``before``: what
    a shell does first, which makes the scenarios, one for each result. ``stack``: whether one of the
    ends is a stack."""

    name: str
    words: tuple[str, ...]
    inputs: str = ""
    backend: str = ""
    before: str = ""
    stack: bool = False

    @property
    def scenario_at(self) -> int | None:
        """The index of the scenario among the words; None: runs of timers have none."""
        return {"run": 1, "sim": 2}.get(self.words[0])

    @property
    def command(self) -> str:
        """For readers, in bash."""
        return self.before + " ".join(("thalweg-lab", *self.words))


def laboratory(folder: Path, run: Run | GridCell, modes: Sequence[str]) -> Order:
    """A run of ``thalweg-lab run``; its scenario lies in the folder. Raises OSError."""
    scenario = Path(os.path.normpath(folder / run.scenario))
    words = ["run", str(scenario), "--backend", run.backend]
    words += ["--connections", str(run.connections)]
    for mode in modes:
        words += ["--mode", mode]
    name = "-".join([scenario.stem, run.backend, *modes]).replace(":", "-")
    text = _content(scenario)
    texts = list(_scenario_texts(text))
    inputs = text + _named_files(scenario.parent, texts)
    return Order(name, tuple(words), inputs, run.backend, stack="stack" in texts)


def of_seeds(folder: Path, run: Run, modes: Sequence[str], seeds: int) -> Order:
    """The same with each of the seeds from 1 on, in one boot. Raises OSError, and ValueError for a
    scenario without `[path]` or with a seed of its own."""
    one = laboratory(folder, run, modes)
    scenario = Path(one.words[1])
    text = _content(scenario)
    if not re.search(r"(?m)^\[path\]$", text) or re.search(r"(?m)^seed\b", text):
        raise ValueError(f"{scenario}: expected a table [path] without a seed")
    copies = f"{SEEDED}/{scenario.stem}"
    edit = f'sed "s/^\\[path\\]$/&\\nseed = $seed/" {scenario} >{copies}-$seed.toml'
    before = f"mkdir -p {SEEDED}; for seed in {{1..{seeds}}}; do {edit}; done; "
    words = (*one.words[:1], f"{copies}-{{1..{seeds}}}.toml", *one.words[2:])
    return Order(f"{one.name}-seeds-{seeds}", words, one.inputs, one.backend, before, one.stack)


def _scenario_texts(scenario: str) -> Iterator[str]:
    """All values of a scenario that are texts. ``thalweg-lab run`` reports its faults."""

    def texts_within(value: Any) -> Iterator[str]:
        match value:
            case str():
                yield value
            case dict():
                yield from texts_within(list(value.values()))
            case list():
                for one in value:
                    yield from texts_within(one)

    try:
        content = tomllib.loads(scenario)
    except tomllib.TOMLDecodeError:
        return
    yield from texts_within(content)


def _named_files(folder: Path, texts: Iterable[str]) -> str:
    """Digests of the files that a scenario names, whatever the key: policies, congestion controls,
    traces of a path's rate."""
    named = [os.path.join(folder, text) for text in texts]
    return "".join(f"{_digest(Path(one))}\n" for one in named if os.path.isfile(one))


def _content(file: Path) -> str:
    """The text of a file without its line for editors, which changes no result."""
    return re.sub("\\A#:schema .*\n", "", file.read_text())


def _digest(file: Path) -> str:
    """Digest of a file's content, computed once a process and again only if the file changes.
    Raises OSError."""
    found = file.stat()
    return _digest_once(file, found.st_ino, found.st_size, found.st_mtime_ns)


@functools.cache
def _digest_once(file: Path, *_version: int) -> str:
    with open(file, "rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()[:16]


def simulation(folder: Path, scenario: str, cc: str) -> Order:
    """A run of ``thalweg-lab sim run``; the scenario lies in the folder. Raises OSError."""
    file = Path(os.path.normpath(folder / scenario))
    words = ("sim", "run", str(file), "--cc", cc, "--seeds", SEEDS)
    name = f"sim-{file.stem}-{re.sub('[^A-Za-z0-9]', '-', cc)}"
    model = re.search("[:,]model=([^,]*)", cc)
    return Order(name, words, _content(file) + (_digest(Path(model[1])) if model else ""))


def timers(options: Sequence[str]) -> Order:
    """A run of ``thalweg-lab timers``."""
    words = ("timers", *options)
    return Order("-".join(words).replace("--", "-"), words, stack="--stack" in options)


def _kernels_in_process() -> Iterator[Path]:
    """Programs of user-mode Linux that a run may take: the package's, and those that the laboratory
    has built."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *SYSTEM_DIRECTORIES])
    if packaged := shutil.which("linux.uml", path=path):
        yield Path(packaged)
    environment = os.environ.get
    caches = [environment("XDG_CACHE_HOME", ""), os.path.join(environment("HOME", ""), ".cache")]
    cache = next(filter(os.path.isabs, caches), "/var/cache")
    yield from sorted(Path(cache, "thalweg").glob("*/linux"))


class Runs:
    """Results by order, made where they are not there."""

    def __init__(self, cache: Path, binary: str) -> None:
        self.cache, self.binary = cache, binary
        #: Why runs could not be made, by the names of orders.
        self.failures: dict[str, str] = {}

    def _build_digest(self) -> str:
        """Digests of the program, and of the agent beside it. Raises OSError."""
        program = Path(shutil.which(self.binary) or self.binary)
        agent = program.with_name("thalweg")
        return " ".join(_digest(one) for one in (program, agent) if one == program or one.is_file())

    def _kernel_identity(self, order: Order) -> str:
        """The kernel that a run is of, as far as it is known beforehand. The simulator needs none.
        Raises OSError."""
        if order.words[0] == "sim":
            return "none"
        if order.backend == "qemu":
            return self._newest_stock
        own = [platform.release(), platform.version()] if order.backend in OWN_KERNEL else []
        in_process = order.stack or order.backend in KERNEL_IN_PROCESS
        programs = _kernels_in_process() if in_process else ()
        return " ".join(own + [_digest(one) for one in programs])

    @functools.cached_property
    def _newest_stock(self) -> str:
        """The kernel that backend qemu takes, the newest usable one that the program lists: its
        release, and a digest of its image. Raises OSError."""
        listed = subprocess.run(
            [self.binary, "kernels", "list", "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        try:
            usable = [one for one in json.loads(listed.stdout) if one["fault"] is None]
        except (ValueError, TypeError, KeyError):
            # A run says what is wrong.
            usable = []
        if not usable:
            return "unknown"
        return f"{usable[-1]['name']} {_digest(Path(usable[-1]['image']))}"

    def _stamp(self, order: Order) -> bytes:
        build, kernel = self._build_digest(), self._kernel_identity(order)
        lines = [order.command, f"build {build}", f"kernel {kernel}", order.inputs]
        return "\n".join(lines).encode()

    def has(self, order: Order) -> bool:
        """Whether there is a result of just this run."""
        directory = self.cache / order.name
        stamp = directory / "stamp"
        there = stamp.is_file() and (directory / "results.json").is_file()
        return there and stamp.read_bytes() == self._stamp(order)

    def make(self, orders: Iterable[Order]) -> None:
        """Runs what is missing; :attr:`failures` tells what could not be made. Raises OSError."""
        missing = [order for order in dict.fromkeys(orders) if not self.has(order)]
        begin = time.monotonic()
        for done, order in enumerate(missing):
            each = (time.monotonic() - begin) / max(done, 1)
            left = f"; about {progress.words(each * (len(missing) - done))} left" if done else ""
            line = f"[{done + 1}/{len(missing)}] {order.command}{left}"
            print(line, file=sys.stderr, flush=True)
            self._run(order)

    def _run(self, order: Order) -> None:
        directory = self.cache / order.name
        # Of the program that is run, which may be built anew meanwhile.
        stamp = self._stamp(order)
        if directory.exists():
            shutil.rmtree(directory)
        command = [self.binary, *order.words, "--out", str(directory)]
        if order.before:
            # Only a shell makes the scenarios and finds them.
            thalweg, out = shlex.quote(self.binary), shlex.quote(str(directory))
            words = f"{order.before}exec {thalweg} {' '.join(order.words)} --out {out}"
            command = ["bash", "-e", "-c", words]
        # A group of its own: an interruption is passed on once, and awaited.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            process_group=0,
            preexec_fn=_end_with_parent,
        )
        try:
            _, said = process.communicate()
        except BaseException:
            process.terminate()
            try:
                process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            raise
        if process.returncode in GOOD:
            if order.before:
                _merge(directory)
            files.replace(directory / "stamp", stamp)
            return
        last = (said.strip().splitlines() or [""])[-1].strip()
        kind = "exit status" if process.returncode > 0 else "signal"
        why = f"{last} ({kind}: {abs(process.returncode)})"
        self.failures[order.name] = homeless(why)

    def of(self, order: Order) -> Result | None:
        """A result; None where it could not be made. Raises ValueError for one that is damaged."""
        if order.name in self.failures:
            return None
        file = self.cache / order.name / "results.json"
        try:
            found = json.loads(file.read_bytes())
        except ValueError as why:
            raise ValueError(f"{file}: {why}; remove it and run again") from why
        result: Result = found if isinstance(found, dict) else {}
        # Results of `thalweg-lab timers` have no schema.
        if order.scenario_at is not None and (format_ := result.get("format")) != FORMAT:
            raise ValueError(f"{file}: expected results of format {FORMAT}, found {format_!r}")
        return result

    def lines(self, orders: Iterable[Order]) -> list[str]:
        """The page's lines for runs: those of a command that differ in the scenario alone have one."""
        failed, alike = [], dict[tuple[str, ...], list[Order]]()
        for order in dict.fromkeys(orders):
            why = self.failures.get(order.name)
            if why is not None:
                failed.append(f"- `{order.command}`: not run: {why}")
                continue
            at = None if order.before else order.scenario_at
            key = (order.command,) if at is None else (*order.words[:at], *order.words[at + 1 :])
            alike.setdefault(key, []).append(order)
        return [f"- `{_command(of)}`" for of in alike.values()] + failed


def _command(orders: Sequence[Order]) -> str:
    """The command, for readers, of runs that differ in the scenario alone."""
    first = orders[0]
    if len(orders) == 1:
        return first.command
    at = first.scenario_at
    assert at is not None
    each = " ".join(("thalweg-lab", *first.words[:at], "$scenario", *first.words[at + 1 :]))
    return f"for scenario in {_braces([one.words[at] for one in orders])}; do {each}; done"


def _braces(paths: Sequence[str]) -> str:
    """Paths of files as one word, which bash expands."""
    files = [Path(path) for path in paths]
    if len({(file.parent, file.suffix) for file in files}) > 1:
        return " ".join(paths)
    stems = ",".join(file.stem for file in files)
    return f"{files[0].parent}/{{{stems}}}{files[0].suffix}"


def _merge(directory: Path) -> None:
    """Makes one document of those of several scenarios, in their order. All have one name: the
    laboratory appends .2, .3 … to it."""

    def place(document: Path) -> int:
        return int(document.parent.suffix.removeprefix(".") or 1)

    documents = sorted(directory.glob("*/results.json"), key=place)
    found = [json.loads(document.read_bytes()) for document in documents]
    merged = found[0] | {"scenarios": [one for each in found for one in each["scenarios"]]}
    files.replace(directory / "results.json", json.dumps(merged).encode())


def homeless(text: str) -> str:
    """The text with `~/` for the home directory, which is another on each reader's machine."""
    home = os.environ.get("HOME", "").rstrip("/")
    return text.replace(f"{home}/", "~/") if home else text


def _end_with_parent() -> None:
    """Ends a run with its parent, even if that is killed."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
