# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The manifests of packaging/kubernetes against the published schemas of Kubernetes."""

import subprocess
import sys
from pathlib import Path

import pytest

MANIFESTS = Path(__file__).parents[2] / "packaging" / "kubernetes"
MANIFEST = MANIFESTS / "thalweg.yaml"


# The package has the schemas of all versions: 108 MB.
@pytest.mark.slow
def test_the_manifests_are_what_kubernetes_reads(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    pip = [tmp_path / "env" / "bin" / "pip", "install", "--quiet"]
    subprocess.run([*pip, "kubernetes-validate>=1.37"], check=True)

    def validate(manifest: Path, version: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [tmp_path / "env" / "bin" / "kubernetes-validate", "--strict", "-k", version, manifest],
            capture_output=True,
            text=True,
            check=False,
        )

    for version in ["1.30", "1.34", "1.37"]:
        for manifest in [MANIFEST, MANIFESTS / "remove.yaml"]:
            outcome = validate(manifest, version)
            assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    # The field that came with 1.30, and a misspelt one.
    assert validate(MANIFEST, "1.29").returncode != 0
    misspelt = tmp_path / "misspelt.yaml"
    misspelt.write_text(MANIFEST.read_text().replace("hostPID", "hostPid"))
    assert validate(misspelt, "1.37").returncode != 0
