"""Training of learned rate controllers: one file per algorithm.

Each runs as a module, for example ``python -m thalweg.train.adpg --help``; ``docs/guide/training.md``
says what to do with them.

Trained weights do not depend on the processor: see :data:`PINNED`.
"""

import os
from importlib import metadata

#: Versions of jaxlib whose flags are known; each has its own weights
#: (``python/tests/test_train_weights.py``).
KNOWN = ("0.10.",)


def _pinned() -> tuple[str, ...]:
    try:
        known = metadata.version("jaxlib").startswith(KNOWN)
    except metadata.PackageNotFoundError:
        known = False
    if not known:
        return ()
    return (
        "--xla_cpu_max_isa=AVX",
        "--xla_cpu_enable_platform_dependent_math=false",
        "--xla_cpu_experimental_ynn_fusion_type=",
        "--xla_cpu_multi_thread_eigen=false",
    )


#: Flags of XLA by which sums are rounded and ordered alike on every x86-64: only instructions that
#: all processors of jaxlib have, hence no fused multiply-add; functions computed by the same steps
#: everywhere; no kernels of YNNPACK, which chooses them by the processor; one thread. They hold
#: where this package is imported before jax is first used. Empty for unknown versions of jaxlib,
#: which fail at flags that they lack.
PINNED = _pinned()

# The environment's flags come last and take precedence.
os.environ["XLA_FLAGS"] = " ".join([*PINNED, os.environ.get("XLA_FLAGS", "")]).strip()
