"""Flags in docs/reference/training.md are those of the programs."""

import dataclasses
from pathlib import Path

from thalweg.features import FEATURES
from thalweg.train.adpg import Settings

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "training.md").read_text()


def test_every_flag_is_in_the_documentation_with_its_default():
    for field in dataclasses.fields(Settings):
        name = "--" + field.name.replace("_", "-")
        lines = [line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |")]
        assert len(lines) == 1, f"{name}: {len(lines)} rows in docs/reference/training.md"
        default = lines[0].split("|")[2].strip()
        if isinstance(field.default, bool):
            assert default == ("on" if field.default else "off"), name
        elif field.default is None:
            assert default == "none", name
        elif isinstance(field.default, tuple):
            assert default == f"`{','.join(map(str, field.default))}`", name
        else:
            assert default == f"`{field.default}`", name


def test_every_feature_is_in_the_documentation():
    for name in FEATURES:
        assert f"| `{name}` |" in TEXT
