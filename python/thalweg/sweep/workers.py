# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Workers that run cells: processes of this machine, or Ray."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

from thalweg import cluster, progress
from thalweg.sweep.cells import Cell, Row, Store

#: Cells with their rows or errors.
Finished = Generator[tuple[Cell, Row | Exception], None, None]


def simulate(
    store: Store, cells: Sequence[Cell], jobs: int, address: str | None
) -> Generator[str, None, None]:
    """Runs the cells that the store lacks, here or, with an ``address`` ("": as Ray finds it), on a
    cluster. Stores the rows, prints the time left, and yields failures in words."""
    missing = store.missing(cells)
    begin = time.monotonic()
    # Time left is estimated by simulated time, which is known and differs most.
    total, past = sum(cell.scenario.duration_s for cell in missing), 0.0
    with contextlib.closing(
        local(missing, jobs) if address is None else ray(missing, address or None)
    ) as finished:
        for number, (cell, result) in enumerate(finished, 1):
            past += cell.scenario.duration_s
            line = f"[{number}/{len(missing)}] {cell}"
            if isinstance(result, Exception):
                print(f"{line}: failed: {result}", file=sys.stderr)
                yield f"{cell}: {result}"
                continue
            store.add(cell, result)
            left = progress.words((time.monotonic() - begin) * (total - past) / past)
            print(f"{line}; about {left} left", file=sys.stderr, flush=True)


def local(cells: Sequence[Cell], jobs: int) -> Finished:
    """Runs cells in so many processes, and yields them as they finish, each with its row or
    error."""
    if not cells:
        return
    # Spawned, not forked: workers inherit no threads of the caller.
    executor = concurrent.futures.ProcessPoolExecutor(
        min(jobs, len(cells)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_end_with,
        initargs=(os.getpid(),),
    )
    try:
        futures = {executor.submit(cell.run): cell for cell in cells}
        for future in concurrent.futures.as_completed(futures):
            error = future.exception()
            if isinstance(error, Exception):
                yield futures[future], error
            else:
                yield futures[future], future.result()
    finally:
        # Running cells are stopped, too; the next sweep runs them again.
        for process in list((executor._processes or {}).values()):
            process.terminate()
        executor.shutdown(wait=True, cancel_futures=True)


def _end_with(parent: int) -> None:
    """Ends a worker with its parent, even if that is killed."""
    # The parent handles an interruption by the user.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def ray(cells: Sequence[Cell], address: str | None) -> Finished:
    """Runs cells on a Ray cluster, one processor each, and yields them as they finish. Cells travel
    with their models.

    address: as of :func:`thalweg.cluster.joined`; raises its errors.
    """
    if not cells:
        return
    with cluster.joined(address) as ray:
        run = ray.remote(num_cpus=1)(type(cells[0]).run)
        # Enough to keep all processors busy; a growing cluster is given more.
        ahead = 2 * int(ray.cluster_resources().get("CPU", 1)) + 16
        waiting = deque(cells)
        running: dict[Any, Cell] = {}
        while waiting or running:
            while waiting and len(running) < ahead:
                cell = waiting.popleft()
                running[run.remote(cell)] = cell
            [done], _ = ray.wait(list(running), num_returns=1)
            cell = running.pop(done)
            try:
                yield cell, ray.get(done)
            except ray.exceptions.RayError as why:
                yield cell, why
