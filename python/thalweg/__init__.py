# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Thalweg in Python: the datacenter simulator, environments, training, model files."""

import sys
from types import TracebackType

__version__ = "0.1.0"

#: The extra that brings a package; "" where it always comes.
_EXTRAS = {
    "equinox": "train",
    "gymnasium": "environments",
    "jax": "train",
    "matplotlib": "results",
    "numpy": "",
    "optax": "train",
    "pettingzoo": "environments",
    "pyarrow": "sweep",
    "ray": "ray",
    "safetensors": "",
    "scipy": "train",
    "sklearn": "distil",
    "tqdm": "train",
}


def _one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Names the missing package and the extra that brings it, instead of a traceback."""
    package = (getattr(error, "name", None) or "").split(".")[0]
    if isinstance(error, ModuleNotFoundError) and package in _EXTRAS:
        extra = f"[{_EXTRAS[package]}]" if _EXTRAS[package] else ""
        line = f'the package {package} is missing: pip install "thalweg{extra}"'
    elif isinstance(error, ImportError) and package in ("", "thalweg"):
        line = str(error)
    else:
        sys.__excepthook__(kind, error, trace)
        return
    print(f"error: {line}", file=sys.stderr)


# Only while `python -m` looks for one of this package's programs, not where another program imports
# it.
if sys.argv[:1] == ["-m"]:
    sys.excepthook = _one_line
