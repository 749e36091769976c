"""Links of the written pages lead somewhere; the block that makes a model and the example run."""

import re
import runpy
import signal
from pathlib import Path

import pytest
from thalweg import model
from thalweg.results.__main__ import main

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("models/*.md")])
FENCE = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Of headings as GitHub forms them, and of `<a id="…">`."""
    text = prose(page)
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        # A second heading of the same words has a number.
        count = sum(1 for other in found if re.fullmatch(rf"{re.escape(name)}(-\d+)?", other))
        found.add(f"{name}-{count}" if count else name)
    return found


def faults(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" in link:
            continue
        if not target.exists():
            found.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target):
            found.append(f"{link}: no such heading")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    assert faults(page) == []


#: Words that all pages may have, and the README. Who adds a page takes one out.
BUDGET, README_BUDGET = 45_000, 700


def test_pages_keep_to_their_budget():
    words = {
        page: len(page.read_text().split()) for page in [*PAGES, *ROOT.glob("examples/**/*.md")]
    }
    assert sum(words.values()) <= BUDGET
    assert words[ROOT / "README.md"] <= README_BUDGET


def test_what_leads_nowhere_is_found(tmp_path):
    (tmp_path / "other.md").write_text('# A `b` c\n\n<a id="d"></a>\n\n```\n# no heading\n```\n')
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#a-b-c) [b](other.md#d) [c](#x) [d](no.md) [e](other.md#no-heading)\n"
        "```\n[f](gone.md)\n```\n[g](https://example.org/x#y)\n"
    )
    assert faults(page) == [
        "#x: no such heading",
        "no.md: no such file",
        "other.md#no-heading: no such heading",
    ]


def test_the_block_of_the_page_on_models_makes_one(tmp_path, monkeypatch):
    page = (ROOT / "docs/reference/model.md").read_text()
    block = page.split("## Making one")[1].split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/reference/model.md", "exec"), {})
    assert model.read("mine.safetensors").policy.quantised is not None


@pytest.mark.slow
def test_the_blocks_of_the_page_on_python_run(monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/python.md").read_text(), re.S)
    assert len(blocks) >= 4
    monkeypatch.chdir(ROOT)
    for block in blocks:
        exec(compile(block, "docs/guide/python.md", "exec"), {})


def test_the_list_of_the_examples_makes_its_page(tmp_path, monkeypatch):
    # Only a process of its own is to have another handler.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    words = ["--tables", str(ROOT / "examples/tables.toml"), "--cache", str(tmp_path / "cache")]
    assert main([*words, "--out", str(tmp_path / "page.md"), "--duration", "0.0005"]) == 0
    page = (tmp_path / "page.md").read_text()
    assert "| 1024 | adpg-plus |" in page and "| 1024 | SWIFT | " in page


def test_the_controller_of_the_examples_fills_the_link(capsys):
    runpy.run_path(str(ROOT / "examples/controller.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for line in lines:
        utilisation, fairness, queueing = (
            float(it) for it in re.findall(r"(\d+\.\d) (?:%|us)", line)
        )
        assert utilisation > 90 and fairness > 80 and queueing < 12, line
