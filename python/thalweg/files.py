# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Files that appear whole or not at all; checks before reading and writing."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def check(path: Path, most: int = 16 << 20) -> None:
    """Raises OSError that names ``path`` unless it is a regular file of at most ``most`` bytes: a
    pipe may wait for ever, and a device never ends."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "expected a regular file", str(path))
    if found.st_size > most:
        raise OSError(errno.EFBIG, f"expected at most {most} bytes", str(path))


def check_output(path: Path) -> None:
    """Raises OSError that names ``path`` unless :func:`replace` can probably write it: a file, or
    none, in a directory that is there."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "expected a regular file", str(path))
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, "cannot write in its directory", str(path))


def replace(path: Path, content: bytes) -> None:
    """Writes or replaces a file in one step: readers find the old or the new content, even if the
    process is killed.

    Raises OSError that names ``path``; the old file then stays and no draft is left, since that
    would fill a full disk.
    """
    # A draft per process: of two that write the same file at once the later one wins, whole.
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        # Unbuffered: closing the file after a failure writes nothing.
        with open(draft, "wb", buffering=0) as file:
            rest = memoryview(content)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        os.replace(draft, path)
        # The name must survive a loss of power, too.
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        draft.unlink(missing_ok=True)
