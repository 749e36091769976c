# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A Ray cluster, joined for as long as it is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def joined(address: str | None = None) -> Iterator[Any]:
    """Ray, joined to a cluster for the duration of the context; a cluster that was joined before
    stays joined.

    address: as of :func:`ray.init`: "local" is a fresh one of this machine alone, None the one
        that Ray finds (RAY_ADDRESS), else a fresh one. Raises ModuleNotFoundError without Ray,
        ConnectionError without a cluster.
    """
    import ray

    if ray.is_initialized():
        yield ray
        return
    try:
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        # Where a part of a fresh cluster does not start, Ray raises a plain Exception.
        except Exception as why:
            text = f"no Ray cluster at {address or 'RAY_ADDRESS or here'}: {why}"
            raise ConnectionError(text) from why
        yield ray
    finally:
        ray.shutdown()
