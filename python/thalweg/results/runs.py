# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs of the ``thalweg`` command, and their store: a directory each, with a stamp of all inputs.
An interrupted call goes on where it stopped; a run whose inputs have changed is repeated."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Order:
    """One run. ``name``: its directory. ``words``: of the command, without ``--out``. ``inputs``:
    content of the files that its result depends on. ``backend``: of the laboratory. ``before``: what
    a shell does first, which makes the scenarios, one for each result."""

    name: str
    words: tuple[str, ...]
    inputs: str = ""
    backend: str = ""
    before: str = ""

    @property
    def command(self) -> str:
        """For readers, in bash."""
        return self.before + " ".join(("thalweg", *self.words))


def laboratory(folder: Path, run: Run | GridCell, modes: Sequence[str]) -> Order:
    """A run of ``thalweg lab run``; its scenario lies in the folder. Raises OSError."""
    scenario = Path(os.path.normpath(folder / run.scenario))
    words = ["lab", "run", str(scenario), "--backend", run.backend]
    words += ["--connections", str(run.connections)]
    for mode in modes:
        words += ["--mode", mode]
    name = "-".join([scenario.stem, run.backend, *modes]).replace(":", "-")
    text = _content(scenario)
    return Order(name, tuple(words), text + _beside(scenario.parent, text), run.backend)


def of_seeds(folder: Path, run: Run, modes: Sequence[str], seeds: int) -> Order:
    """The same with each of the seeds from 1 on, in one boot. Raises OSError, and ValueError for a
    scenario without `[path]` or with a seed of its own."""
    one = laboratory(folder, run, modes)
    scenario = Path(one.words[2])
    text = _content(scenario)
    if not re.search(r"(?m)^\[path\]$", text) or re.search(r"(?m)^seed\b", text):
        raise ValueError(f"{scenario}: expected a table [path] without a seed")
    copies = f"{SEEDED}/{scenario.stem}"
    edit = f'sed "s/^\\[path\\]$/&\\nseed = $seed/" {scenario} >{copies}-$seed.toml'
    before = f"mkdir -p {SEEDED}; for seed in {{1..{seeds}}}; do {edit}; done; "
    words = (*one.words[:2], f"{copies}-{{1..{seeds}}}.toml", *one.words[3:])
    return Order(f"{one.name}-seeds-{seeds}", words, one.inputs, one.backend, before)


def _beside(folder: Path, scenario: str) -> str:
    """Files that a scenario names: the texts of policies, digests of congestion controls. ``lab
    run`` reports its faults."""
    try:
        content = tomllib.loads(scenario)
    except tomllib.TOMLDecodeError:
        return ""
    policies = [folder / one["file"] for one in content.get("policy", []) if "file" in one]
    loads = [one.get("load", "") for one in content.get("arm", [])]
    # A word without '/' and '.' is a congestion control of Thalweg itself.
    arms = [folder / load for load in loads if re.search("[/.]", load)]
    texts = [_content(one) for one in policies if one.is_file()]
    return "".join(texts + [_digest(one) for one in arms if one.is_file()])


def _content(file: Path) -> str:
    """The text of a file without its line for editors, which changes no result."""
    return re.sub("\\A#:schema .*\n", "", file.read_text())


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def simulation(folder: Path, scenario: str, cc: str) -> Order:
    """A run of ``thalweg sim run``; the scenario lies in the folder. Raises OSError."""
    file = Path(os.path.normpath(folder / scenario))
    words = ("sim", "run", str(file), "--cc", cc, "--seeds", SEEDS)
    name = f"sim-{file.stem}-{re.sub('[^A-Za-z0-9]', '-', cc)}"
    model = re.search("[:,]model=([^,]*)", cc)
    return Order(name, words, _content(file) + (_digest(Path(model[1])) if model else ""))


def timers(options: Sequence[str]) -> Order:
    """A run of ``thalweg lab timers``."""
    words = ("lab", "timers", *options)
    return Order("-".join(words[1:]).replace("--", "-"), words)


class Runs:
    """Results by order, made where they are not there."""

    def __init__(self, cache: Path, binary: str) -> None:
        self.cache, self.binary = cache, binary
        #: Why runs could not be made, by the names of orders.
        self.failures: dict[str, str] = {}

    @functools.cached_property
    def version(self) -> str:
        """Version of the program. Raises OSError and CalledProcessError."""
        said = subprocess.run(
            [self.binary, "--version"], capture_output=True, text=True, check=True
        )
        return said.stdout.split()[-1]

    def _stamp(self, order: Order) -> bytes:
        return f"{self.version} {order.command}\n{order.inputs}".encode()

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
            files.replace(directory / "stamp", self._stamp(order))
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
        # Results of `lab timers` have no schema.
        if order.words[1] == "run" and (format_ := result.get("format")) != FORMAT:
            raise ValueError(f"{file}: expected results of format {FORMAT}, found {format_!r}")
        return result

    def line(self, order: Order) -> str:
        """The page's line for the run."""
        why = self.failures.get(order.name)
        return f"- `{order.command}`" + (f": not run: {why}" if why is not None else "")


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
