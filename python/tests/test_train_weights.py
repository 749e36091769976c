# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Training gives the same weights on every x86-64, byte for byte."""

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from safetensors.numpy import load_file

SOURCES = Path(__file__).parents[2]

#: Results of :func:`trained`, by version of jax. A line for another version must be the result both
#: here and on an unlike processor.
WEIGHTS = {"0.10.2": "50845a6c699e47d9d78e57c942925585f9b48082d306b0c5895b5acd4bc22afa"}

#: Makes the C library, numpy and OpenBLAS (in numpy and scipy) take the processor for one without
#: the newest instructions.
ELSEWHERE = {
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 X86_V3",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPROC": "1",
}


#: Trains with the settings of adpg-plus, and quantises. Arguments: directory, scenarios.
RUN = """
import sys
from thalweg.train import adpg, export
directory, scenarios = sys.argv[1:]
flags = "--updates 4 --copies 2 --offset 1.0 --features error,error_change --history 1"
flags += f" --gamma 0.9 --smoothness 0.02 --evaluate-every 0 --quiet --scenarios {scenarios}"
checkpoint = f"{directory}/checkpoint.safetensors"
sys.exit(
    adpg.main(["--output", directory, *flags.split()])
    or export.main([checkpoint, "--name", "model", "--output", directory])
)
"""


def trained(directory: Path, elsewhere: dict[str, str], cpus: set[int]) -> str:
    """The hash of the model of a short run: floats and integers."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    scenarios = [f"scenarios/train/many-to-one-{flows}.toml" for flows in (2, 4, 8)]
    subprocess.run(
        [sys.executable, "-c", RUN, directory, ",".join(scenarios)],
        cwd=SOURCES,
        env=environment | {"PYTHONPATH": "python"} | elsewhere,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )
    tensors = load_file(directory / "model.safetensors")
    assert any(tensor.dtype == "int8" for tensor in tensors.values())
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].tobytes())
    return digest.hexdigest()


@pytest.mark.slow
def test_weights_are_those_of_every_processor(tmp_path):
    if platform.machine() != "x86_64":
        pytest.skip(f"not here: holds on x86-64, this is {platform.machine()}")
    if jax.__version__ not in WEIGHTS:
        pytest.skip(f"not here: weights of jax {jax.__version__} are not recorded")
    cpus = os.sched_getaffinity(0)
    here = trained(tmp_path / "here", {}, cpus)
    elsewhere = trained(tmp_path / "elsewhere", ELSEWHERE, {min(cpus)})
    assert (here, elsewhere) == (WEIGHTS[jax.__version__],) * 2
