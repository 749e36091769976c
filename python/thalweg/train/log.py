"""What a training run tells while it goes on: a CSV of its curves, and a progress line."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Mapping
from pathlib import Path

from tqdm import tqdm

from thalweg import files


class Curves:
    """Rows of named numbers in a CSV file, the same columns in each; the first is ``update``.

    Going on from a checkpoint, rows that came after it are removed first: the run writes them
    again. Each row is on disk when :meth:`add` returns, as far as the kernel is concerned.
    """

    def __init__(self, path: Path, columns: tuple[str, ...], after_update: int) -> None:
        self._columns = ("update", *columns)
        kept: list[list[str]] = []
        if after_update > 0 and path.exists():
            with open(path, newline="") as file:
                rows = csv.reader(file)
                found = tuple(next(rows, ()))
                if found != self._columns:
                    raise ValueError(f"{path}:1: columns {found}, expected {self._columns}")
                kept = [
                    row
                    for row in rows
                    # A row that the end of the process cut short is shorter.
                    if len(row) == len(self._columns) and int(row[0]) <= after_update
                ]
        text = io.StringIO(newline="")
        csv.writer(text).writerows([self._columns, *kept])
        files.replace(path, text.getvalue().encode())
        self._path = path
        self._file = open(path, "a", newline="")  # noqa: SIM115 (until close)
        self._writer = csv.writer(self._file)

    def add(self, update: int, values: Mapping[str, float]) -> None:
        """One row; a column without a value stays empty. Raises OSError that names the file."""
        try:
            self._writer.writerow(
                [update] + [f"{values[c]:.6g}" if c in values else "" for c in self._columns[1:]]
            )
            self._file.flush()
        except OSError as error:
            # Closing it tries once more, and would say so instead.
            with contextlib.suppress(OSError):
                self._file.close()
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Curves:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def progress(total: int, done: int, quiet: bool) -> tqdm:
    """A progress line with the time that is left, on the error output; silent if asked."""
    return tqdm(total=total, initial=done, unit="update", disable=quiet, dynamic_ncols=True)
