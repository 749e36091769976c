"""Documentation of the trainers: ``--help`` has each flag, docs/reference/model.md each feature."""

import dataclasses
import re
from pathlib import Path

import pytest
from thalweg.features import FEATURES
from thalweg.train.adpg import Settings
from thalweg.train.settings import parse

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "model.md").read_text()


def test_help_has_every_flag_with_its_effect_and_default(capsys):
    with pytest.raises(SystemExit):
        parse(Settings, ["--help"], "Trains.")
    text = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(Settings):
        name, words = field.name.replace("_", "-"), field.metadata["help"]
        default = re.escape(str(field.default))
        entry = rf" --{name},? [^(]*{re.escape(words)} \(default: {default}\)"
        assert words and re.search(entry, text), name


def test_every_feature_is_in_the_documentation():
    for name in FEATURES:
        assert f"| `{name}` |" in TEXT
