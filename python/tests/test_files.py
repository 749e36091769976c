"""Files on a full disk: the message, and the files that stay."""

import contextlib
import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from thalweg import files, model


@contextlib.contextmanager
def room_for(size):
    """No file may grow beyond ``size`` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    files.replace(path, b"first")
    files.replace(path, b"second")
    assert path.read_bytes() == b"second"
    with room_for(4096), pytest.raises(OSError, match="file") as failed:
        files.replace(path, b"x" * 10_000)
    assert failed.value.errno == errno.EFBIG and failed.value.filename == str(path)
    assert path.read_bytes() == b"second" and os.listdir(tmp_path) == ["file"]
    # The draft of a killed process does no harm, even if its number comes again.
    (tmp_path / f".file.{os.getpid()}.draft").write_bytes(b"half")
    files.replace(path, b"third")
    assert path.read_bytes() == b"third" and os.listdir(tmp_path) == ["file"]


def test_only_regular_files_within_the_bound_are_read(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        files.check(path)
    path.write_bytes(b"12345")
    files.check(path, 5)
    with pytest.raises(OSError, match="at most 4 bytes") as failed:
        files.check(path, 4)
    assert failed.value.filename == str(path)
    path.unlink()
    os.mkfifo(path)
    for reader in (files.check, model.read):
        with pytest.raises(OSError, match="expected a regular file") as failed:
            reader(path)
        assert failed.value.filename == str(path)


WRITE = """
import sys
from pathlib import Path
from thalweg import files
for _ in range(200):
    files.replace(Path(sys.argv[1]), sys.argv[2].encode() * 300_000)
"""


def test_of_two_that_write_at_once_neither_mixes_with_the_other(tmp_path):
    path = tmp_path / "file"
    # -c finds the package there.
    root = Path(files.__file__).parents[1]
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE, str(path), letter], cwd=root)
        for letter in "ab"
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        with contextlib.suppress(FileNotFoundError):
            seen.add(path.read_bytes())
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {b"a" * 300_000, b"b" * 300_000}
    assert os.listdir(tmp_path) == ["file"]


def test_curves_name_the_file_that_takes_no_more(tmp_path):
    run = pytest.importorskip("thalweg.train.run")
    path = tmp_path / "curves.csv"
    with pytest.raises(OSError, match="curves.csv"), run.Curves(path, ("a",), 0) as curves:
        curves.add(1, {"a": 1.0})
        with room_for(path.stat().st_size):
            curves.add(2, {"a": 2.0})
    assert path.read_text().split() == ["update,a", "1,1"]


def test_a_store_names_the_file_that_takes_no_more(tmp_path):
    cells = pytest.importorskip("thalweg.sweep.cells")
    from sim_support import many_to_one

    cell = cells.Cell(many_to_one(2), cells.Contender("swift", "swift"), 1)
    other = cells.Cell(cell.scenario, cell.contender, 2)
    path = tmp_path / "cells.jsonl"
    with pytest.raises(OSError, match="cells.jsonl"), cells.Store(path).opened() as store:
        store.add(cell, {"a": 1.0})
        with room_for(path.stat().st_size):
            store.add(other, {"a": 2.0})
    with cells.Store(path).opened() as store:
        assert store.rows == {cell.key: {"a": 1.0}} and store.missing([other]) == [other]
