# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``python -m thalweg.results``: pages of runs, and runs that are kept."""

import contextlib
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from thalweg.results import lists, pages, runs
from thalweg.results.__main__ import main
from thalweg.results.controllers import tables
from thalweg.results.figures import interval, quantile, rounds, spread
from thalweg.results.pictures import Line, Panel, _step, panels

CHECKOUT = Path(__file__).parents[2]
SHIPPED = sorted(CHECKOUT.glob("scenarios/*/tables*.toml"))

TABLES = """
title = "A page"
introduction = "Words."

[[table]]
kind = "kernels"
title = "T"
source = "S"
note = "N"
[[table.row]]
condition = "loss"
published = { native = 100, userspace = 250 }
mode = "thalweg"
native = { scenario = "s.toml", backend = "host", connections = 4 }
userspace = { scenario = "s.toml", backend = "uml", connections = 4 }

[[table]]
kind = "grid"
title = "T2"
note = "N"
columns = ["default", "learned"]
[[table.row]]
condition = "anything"
cell = [
    { mode = "baseline", scenario = "s.toml", backend = "uml", connections = 4 },
    { mode = "thalweg", scenario = "s.toml", backend = "uml", connections = 4 },
]
"""


class Bed:
    """A directory with a list, a scenario and a stand-in for the program, which counts its runs."""

    def __init__(self, folder):
        self.folder = folder
        self.write("tables.toml", TABLES)
        self.write("s.toml", 'name = "s"\n')

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def read(self, name):
        return (self.folder / name).read_text()

    def stand_in(self, does):
        self.write(
            "thalweg",
            '#!/bin/sh\ncd "$(dirname "$0")"\n'
            '[ "$1 $2" = "kernels list" ] && { cat kernels.json; exit; }\n'
            "echo x >>calls; for last; do :; done\n" + does,
        )
        (self.folder / "thalweg").chmod(0o755)

    def gives(self, result):
        self.write("result.json", json.dumps(result))
        self.stand_in('mkdir -p "$last" && cp result.json "$last/results.json"\n')

    @property
    def calls(self):
        return len(self.read("calls").split())

    def words(self):
        at = self.folder
        words = ["--tables", at / "tables.toml", "--cache", at / "cache"]
        return [str(word) for word in [*words, "--out", at / "page.md", "--binary", at / "thalweg"]]

    def make(self):
        code = main(self.words())
        return code, self.read("page.md") if (self.folder / "page.md").exists() else ""


@pytest.fixture
def bed(tmp_path, monkeypatch):
    # Only a process of its own is to have another handler.
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return Bed(tmp_path)


def result(modes, rounds=None, **more):
    """A document with these connections of modes, and figures of rounds by mode."""
    scenario = {"modes": []}
    for mode, of in modes.items():
        goodputs = [one["goodput_bps"] for one in of]
        summary = {"median": statistics.median(goodputs)}
        summary["median-last-half"] = statistics.median(goodputs[len(goodputs) // 2 :])
        by_round = [
            {"round": number, "statistics": classes.pop("", {}), "classes": classes}
            for number, classes in enumerate((rounds or {}).get(mode, []))
        ]
        entry = {"mode": mode, "connections": of, "summary": {"statistics": summary}}
        scenario["modes"].append(entry | {"by_round": by_round})
    return {"format": 1, "environment": {"kernel": "Linux 0.0"}, "scenarios": [scenario]} | more


def goodputs(*mbits):
    return [{"goodput_bps": one * 1e6, "arm": "bbr" if one > 100 else "cubic"} for one in mbits]


# Pages ------------------------------------------------------------------------------------------


def test_a_page_is_made_of_results_and_made_again_without_runs(bed, capsys):
    bed.gives(
        result({"baseline": goodputs(50, 50, 50, 50), "thalweg": goodputs(50, 200, 200, 300)})
    )
    code, page = bed.make()
    assert code == 0
    assert page.startswith(
        "# A page\n\nWords.\n\nKernels:\n\n- host: Linux 0.0\n- uml: Linux 0.0\n"
    )
    ours = "200 (50–300) | 200 (50–300) | 1.00 × ["
    assert f"| loss | 100 | 250 | 2.50 × | {ours}" in page
    assert "--backend host --connections 4 --mode thalweg`" in page
    heads = "| condition | default | learned |\n|---|---|---|"
    assert f"{heads}\n| anything | 50 (50–50) | 200 (50–300) |" in page
    assert "Published: S.\n" in page and page.count("Published: ") == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("[1/3] thalweg-lab run ") and said[2].endswith(" left")

    assert bed.make() == (0, page) and bed.calls == 3
    bed.write("s.toml", 'name = "other"\n')
    assert bed.make()[0] == 0 and bed.calls == 6


def test_seeds_have_medians_ranges_and_the_worst(bed, monkeypatch):
    monkeypatch.chdir(bed.folder)
    bed.write("s.toml", '[path]\nloss = "5%"\n')
    table = TABLES.split("[[table]]")[0] + (
        '[[table]]\nkind = "seeds"\ntitle = "T"\nnote = "N"\nseeds = 3\n'
        '[[table.row]]\ncondition = "loss"\n'
        'run = { scenario = "s.toml", backend = "qemu", connections = 4 }\n'
    )
    bed.write("tables.toml", table)
    # The laboratory's directories of scenarios with one name; by seed one learner fares worse.
    for seed, mbits in ((1, 200), (2, 100), (3, 400)):
        default, ours = goodputs(*[50] * 4), goodputs(*[mbits] * 4)
        modes = {"baseline": default, "classic": goodputs(*[200] * 4), "thalweg": ours}
        bed.write(f"{seed}.json", json.dumps(result(modes)))
    bed.stand_in(
        'place=; number=1; for file; do case $file in *.toml) seed=$(sed -n "s/^seed = //p" "$file")\n'
        'mkdir -p "$last/s$place"; cp "$seed.json" "$last/s$place/results.json"\n'
        "number=$((number + 1)); place=.$number;; esac; done\n"
    )
    code, page = bed.make()
    assert code == 0, page
    assert "Medians of 3 seeds (least to greatest)." in page
    row = "| loss | 50 (50–50) | 200 (200–200) | 200 (100–400) | 200 (200–200) | 200 (100–400) |"
    half = "1.00 ×; worst 0.50 (seed 2)"
    assert f"{row} 4.00 ×; worst 2.00 (seed 2) | {half} | {half} |" in page
    # The command runs as it stands.
    [command] = re.findall("^- `(.*)`$", page, re.MULTILINE)
    command = command.replace("; thalweg-lab run", "; echo")
    made = subprocess.run(["bash", "-e", "-c", command], capture_output=True, text=True, check=True)
    assert len(made.stdout.split()) == 3 + 10, made.stdout
    copies = sorted(Path("lab-results/seeds").iterdir())
    assert [copy.read_text() for copy in copies] == [
        f'[path]\nseed = {seed}\nloss = "5%"\n' for seed in (1, 2, 3)
    ]
    assert bed.make() == (0, page) and bed.calls == 1
    bed.write("s.toml", 'name = "no path"\n')
    with pytest.raises(ValueError, match="expected a table"):
        runs.of_seeds(bed.folder, lists.Run("s.toml", "qemu", 4), ["baseline"], 3)


def test_commands_that_differ_in_the_scenario_share_a_line(bed):
    stems = ("a-10", "a-100", "a-1")
    for stem in stems:
        bed.write(f"{stem}.toml", "")
    same = [
        runs.laboratory(bed.folder, lists.Run(f"{stem}.toml", "host", 2), ["m"]) for stem in stems
    ]
    other = runs.laboratory(bed.folder, lists.Run("a-1.toml", "host", 3), ["m"])
    alone = [runs.timers(options) for options in ([], ["--stack"])]
    made = runs.Runs(bed.folder / "cache", "thalweg")
    loop, *singles = made.lines([*same, other, *alone, other])
    assert singles == [f"- `{order.command}`" for order in (other, *alone)]
    # Bash makes the commands of the runs of it.
    loop = (
        loop.removeprefix("- `").removesuffix("`").replace("do thalweg-lab", "do echo thalweg-lab")
    )
    said = subprocess.run(["bash", "-e", "-c", loop], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [order.command for order in same]
    made.failures[same[1].name] = "no kernel"
    *_, failed = made.lines(same)
    assert failed == f"- `{same[1].command}`: not run: no kernel"


def test_what_a_scenario_names_is_part_of_the_run(bed):
    figures = {"": {"total": 2e6, "retransmission-share": 0.25}, "rpc-10kb": {"fct-p99": 7e3}}
    of = result({"policy:p": [{"goodput_bps": 2e6}]}, {"policy:p": [figures]})
    of["scenarios"][0]["scenario"] = {"path": {"rate": None}}
    bed.gives(of)
    bed.write(
        "tables.toml",
        """
title = "P"
introduction = "I"
[[table]]
kind = "compared"
title = "T"
note = "N"
across = "X"
picture = "p.svg"
modes = ["policy:p"]
names = { "policy:p" = "with" }
column = [
    { name = "Mbit/s", figure = "total", digits = 0 },
    { name = "streams", figure = "total", class = "stream", drawn = false },
    { name = "again", figure = "retransmission-share", digits = 3 },
    { name = "ms", figure = "fct-p99", class = "rpc-10kb" },
]
[[table.row]]
condition = "4"
run = { scenario = "s.toml", backend = "host", connections = 1 }
""",
    )
    bed.write("p.toml", "cwnd_clamp = 10")
    bed.write("m.safetensors", "1")
    bed.write(
        "s.toml",
        '[[policy]]\nname = "p"\nfile = "p.toml"\n'
        '[[arm]]\nname = "m"\nload = "m.safetensors"\n[[arm]]\nname = "htcp"\nload = "htcp"\n',
    )
    code, page = bed.make()
    assert code == 0 and "\n![T](p.svg)\n" in page
    assert "| X | | Mbit/s | streams | again | ms |\n|---|---|---|---|---|---|\n" in page
    row = "| 4 | with | 2 [2 … 2] | – | 25.000 [25.000 … 25.000] | 7.00 [7.00 … 7.00] |"
    assert row in page
    picture = bed.read("p.svg")
    assert ">with</text>" in picture and ">again</text>" in picture and ">streams<" not in picture
    assert bed.make()[0] == 0 and bed.calls == 1
    for name in ("p.toml", "m.safetensors"):
        before = bed.calls
        bed.write(name, "2")
        assert bed.make()[0] == 0 and bed.calls == before + 1


#: A page of one run, on a backend.
ONE_RUN = """
title = "P"
introduction = "I"
[[table]]
kind = "grid"
title = "T"
note = "N"
columns = ["c"]
[[table.row]]
condition = "x"
cell = [{{ mode = "baseline", scenario = "s.toml", backend = "{backend}", connections = 1 }}]
"""


@pytest.fixture
def one_run(bed):
    """A bed with one run on a backend, made once; to be called again after a change, says whether
    the run was repeated."""

    def is_repeated(backend="host"):
        bed.write("tables.toml", ONE_RUN.format(backend=backend))
        before = bed.calls if (bed.folder / "calls").exists() else 0
        assert bed.make()[0] == 0
        return bed.calls > before

    bed.gives(result({"baseline": goodputs(5)}))
    bed.is_repeated = is_repeated
    return bed


def test_another_build_repeats_runs(one_run):
    assert one_run.is_repeated() and not one_run.is_repeated()
    # Of the same version, and of the same size.
    program = one_run.folder / "thalweg"
    program.write_text(one_run.read("thalweg").replace("echo x", "echo y"))
    assert one_run.is_repeated() and not one_run.is_repeated()
    # Built again, with the same content.
    program.write_bytes(program.read_bytes())
    assert not one_run.is_repeated()


def test_a_build_during_a_run_makes_it_stale(one_run):
    changes = one_run.read("thalweg").replace("mkdir -p", "echo '# built' >>thalweg; mkdir -p")
    one_run.write("thalweg", changes)
    assert one_run.is_repeated() and one_run.is_repeated()


@pytest.mark.parametrize("key", ["[path]\ntrace", "[[host]]\nname = 'h'\n[host.path]\ntrace"])
def test_another_trace_repeats_runs(one_run, key):
    (one_run.folder / "traces").mkdir()
    one_run.write("traces/a.trace", "1\n2\n")
    one_run.write("s.toml", f'name = "s"\n{key} = "traces/a.trace"\n')
    assert one_run.is_repeated() and not one_run.is_repeated()
    one_run.write("traces/a.trace", "1\n3\n")
    assert one_run.is_repeated() and not one_run.is_repeated()


@pytest.mark.parametrize("backend", ["host", "link"])
def test_another_kernel_of_the_machine_repeats_runs(one_run, monkeypatch, backend):
    for which, text in (("release", "6.1.0-9-amd64"), ("version", "#1 SMP Debian 6.1.99-1")):
        monkeypatch.setattr(f"platform.{which}", lambda text=text: text)
        assert one_run.is_repeated(backend) and not one_run.is_repeated(backend)


def test_another_kernel_in_a_process_repeats_runs(one_run, monkeypatch, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))

    def install(text):
        (programs / "linux.uml").write_text(text)
        (programs / "linux.uml").chmod(0o755)

    install("1")
    assert one_run.is_repeated("uml") and not one_run.is_repeated("uml")
    install("2")
    assert one_run.is_repeated("uml") and not one_run.is_repeated("uml")
    # The machine's kernel alone.
    assert one_run.is_repeated("host")
    install("3")
    assert not one_run.is_repeated("host")
    # An end is a stack, on this kernel or one that the laboratory has built.
    one_run.write("s.toml", '[hosts]\nsender = "stack"\n')
    assert one_run.is_repeated("host") and not one_run.is_repeated("host")
    install("4")
    assert one_run.is_repeated("host") and not one_run.is_repeated("host")
    built = tmp_path / "xdg/thalweg/6.1-0"
    built.mkdir(parents=True)
    (built / "linux").write_text("1")
    assert one_run.is_repeated("host") and not one_run.is_repeated("host")


def test_another_kernel_of_a_distribution_repeats_runs(one_run, monkeypatch):
    image = one_run.folder / "vmlinuz"

    def stock(name, **more):
        return {"name": name, "image": str(image), "fault": None} | more

    def install(*stocks):
        one_run.write("kernels.json", json.dumps(stocks))

    image.write_text("1")
    install(stock("6.1"))
    assert one_run.is_repeated("qemu") and not one_run.is_repeated("qemu")
    # Of the same release.
    image.write_text("2")
    assert one_run.is_repeated("qemu") and not one_run.is_repeated("qemu")
    # What is older, or cannot be used, is not taken; nor is the machine's own kernel.
    install(stock("5.10"), stock("6.1"), stock("6.12", fault="no modules"))
    monkeypatch.setattr("platform.release", lambda: "9.9")
    assert not one_run.is_repeated("qemu")
    install(stock("6.1"), stock("6.12"))
    assert one_run.is_repeated("qemu") and not one_run.is_repeated("qemu")


def test_a_stamp_of_before_repeats_the_run(one_run):
    assert one_run.is_repeated()
    [stamp] = (one_run.folder / "cache").glob("*/stamp")
    command, build, kernel, *inputs = stamp.read_text().split("\n")
    assert build.startswith("build ") and kernel.startswith("kernel ")
    stamp.write_text("\n".join([f"0.1.0 {command}", *inputs]))
    assert one_run.is_repeated() and not one_run.is_repeated()


def test_kernels_have_processor_time_and_timers_a_picture(bed, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    connection = {"goodput_bps": 5e8, "arm": "bbr", "cpu": {"machine_s": 2.0, "stack_s": 1.5}}
    timers = {"kernel_us": [1.0, 4.0, 90.0], "program_us": [5.0, 6.0, 7.0]}
    of = result({"fixed:bbr": [connection]}, timers=timers)
    of["environment"]["stack"] = "user-mode Linux 0.1 (/home/somebody/linux)"
    of["scenarios"][0]["scenario"] = {"traffic": {"duration": 4}}
    bed.gives(of)
    bed.write(
        "tables.toml",
        """
title = "P"
introduction = "I"
[[table]]
kind = "kernels"
title = "T"
note = "N"
cpu = true
[[table.row]]
condition = "c"
mode = "fixed:bbr"
native = { scenario = "s.toml", backend = "host", connections = 1 }
userspace = { scenario = "s.toml", backend = "link", connections = 1 }
[[table]]
kind = "timers"
title = "late"
note = "N"
picture = "late.svg"
[[table.row]]
condition = "native"
[[table.row]]
condition = "busy"
options = ["--early", "10"]
""",
    )
    code, page = bed.make()
    assert code == 0
    for line in (
        "| c | – | – | – | 500 (500–500) | 500 (500–500) | 1.00 × [1.00 … 1.00] | 1.000 | 1.000 | 0.750 |",
        "| native | 4.0 | 90 | 90 | 90 | 6.0 | 7.0 | 7.0 | 7.0 |",
        "- in a process: user-mode Linux 0.1 (~/linux)",
        "- `thalweg-lab timers --early 10`",
        "![late](late.svg)",
    ):
        assert line in page.splitlines()
    assert ">busy</text>" in bed.read("late.svg")


def test_the_laboratory_stands_beside_the_simulator_with_targets(bed):
    flow, rounds = {"goodput_bps": 4e6}, {}
    rounds["fixed:a"] = [{"": {"total": 9e6, "fairness": 0.8}}]
    rounds["fixed:b"] = [{"": {"total": 4e6}}]
    of = result({"fixed:a": [flow], "fixed:b": [flow]}, rounds)
    of["environment"]["backend"] = {"name": "link"}
    # 10 Mbit/s, of which 90 % are payload.
    path = {"rate": 10e6, "mtu": 520, "family": "ipv4"}
    seeds = [
        {"utilisation_percent": 95.0 + seed, "queue_latency": {"mean_us": 1500.0}}
        for seed in (-2, 0, 1)
    ]
    of["scenarios"][0] |= {"scenario": {"path": path}, "controllers": [{"runs": seeds}]}
    bed.gives(of)
    run = 'run = { scenario = "s.toml", backend = "link", connections = 1 }'
    bed.write(
        "tables.toml",
        f"""
title = "P"
introduction = "I"
[[table]]
kind = "compared"
title = "T"
note = "N"
across = "flows"
modes = ["fixed:a", "fixed:b"]
column = [{{ name = "SU %", figure = "utilisation" }}]
target = [
    {{ condition = "2", mode = "fixed:a", figure = "utilisation", at_least = 99.5 }},
    {{ condition = "2", mode = "fixed:b", figure = "utilisation", relative_to = "fixed:a", at_least = 0.4, at_most = 0.43 }},
    {{ condition = "2", mode = "fixed:b", figure = "fairness", at_most = 1 }},
    {{ condition = "2", mode = "fixed:c", figure = "fairness", at_most = 1 }},
]
[[table.row]]
condition = "2"
{run}
[[table]]
kind = "simulated"
title = "S"
note = "N"
[[table.row]]
condition = "2"
mode = "fixed:a"
modes = ["fixed:a", "fixed:b"]
{run}
scenario = "../{bed.folder.name}/s.toml"
cc = "swift"
""",
    )
    code, page = bed.make()
    assert code == 0
    for line in (
        "| 2 | a | 100.0 [100.0 … 100.0] |",
        "| 2, a: utilisation at least 99.5 | 100.0 | met |",
        "| 2, b: utilisation at least 0.4 × that of a at most 0.43 × that of a | 0.44 | **missed** |",
        "| 2, b: least goodput over the greatest at most 1 | – | **missed** |",
        "| 2, c: least goodput over the greatest at most 1 | – | not run |",
        "| 2 | a | 100.0 [100.0 … 100.0] | 95.0 [93.0 … 96.0] | +5.0 | "
        "80.0 [80.0 … 80.0] | – | – | – | 1.50 [1.50 … 1.50] | – |",
        # The path is normalised, and one run serves both tables.
        f"- `thalweg-lab sim run {bed.folder}/s.toml --cc swift --seeds 8`",
    ):
        assert line in page.splitlines(), line
    assert bed.calls == 2


def test_what_cannot_be_run_is_said_and_tried_again(bed, monkeypatch, capsys):
    monkeypatch.setenv("HOME", "/home/me/")
    bed.stand_in("echo 'thalweg: no netem in /home/me/kernel' >&2\nexit 3\n")
    for times in (1, 2):
        code, page = bed.make()
        assert code == 1 and bed.calls == 3 * times
        assert "not run: thalweg: no netem in ~/kernel (exit status: 3)\n" in page
        assert "| anything | not run | not run |" in page
        assert "3 runs could not be made; " in capsys.readouterr().err


def test_a_missed_expectation_is_a_result(bed):
    bed.gives(result({"baseline": goodputs(5), "thalweg": goodputs(5)}))
    bed.write("thalweg", bed.read("thalweg") + "exit 5\n")
    assert bed.make()[0] == 0


@pytest.mark.parametrize(
    "text, words",
    [
        ("{", "Expecting property name .*; remove it and run again"),
        ('{"format": 2}', "expected results of format 1, found 2"),
        ("[]", "expected results of format 1, found None"),
    ],
)
def test_a_result_that_is_none_is_named(bed, text, words, capsys):
    bed.stand_in(f'mkdir -p "$last" && echo \'{text}\' >"$last/results.json"\n')
    assert bed.make() == (1, "")
    [line] = [one for one in capsys.readouterr().err.splitlines() if one.startswith("error: ")]
    assert re.search(f"results.json: {words}", line), line


@pytest.mark.parametrize("name", ["page.md", "late.svg"])
def test_what_cannot_be_written_is_told_before_anything_runs(bed, name, capsys):
    bed.stand_in("")
    timers = 'kind = "timers"\ntitle = "T"\nnote = "N"\npicture = "late.svg"\nrow = []\n'
    bed.write("tables.toml", TABLES + "[[table]]\n" + timers)
    (bed.folder / name).mkdir()
    assert main(bed.words()) == 1
    assert f"expected a regular file: '{bed.folder / name}'" in capsys.readouterr().err
    assert not (bed.folder / "calls").exists()


# Interruptions ----------------------------------------------------------------------------------


def alive(process):
    with contextlib.suppress(FileNotFoundError):
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False


def wait_for(what):
    deadline = time.monotonic() + 60
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_the_run_in_progress(tmp_path, sent):
    bed = Bed(tmp_path)
    # A shell acts on a signal when its child has ended.
    bed.stand_in(
        "trap 'echo ended >ended; exit 1' TERM\necho $$ >pid\nwhile sleep 0.05; do :; done\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "thalweg.results", *bed.words()],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT / "python")},
        stderr=subprocess.PIPE,
        text=True,
    )
    pid = tmp_path / "pid"
    run = wait_for(lambda: pid.exists() and pid.read_text().strip())
    process.send_signal(sent)
    _, said = process.communicate(timeout=60)
    if sent == signal.SIGKILL:
        # Its parent is gone.
        wait_for(lambda: not alive(run))
    else:
        assert process.returncode == 130
        assert said.endswith("interrupted; the same command goes on from here\n")
    assert not alive(run) and bed.read("ended") == "ended\n"
    assert not (tmp_path / "page.md").exists()


# Lists ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_shipped_lists_name_what_there_is(path, monkeypatch):
    monkeypatch.chdir(CHECKOUT)
    page, folder = lists.load(path.relative_to(CHECKOUT)), path.relative_to(CHECKOUT).parent
    orders = pages.orders(page, folder)
    # One directory, one run.
    assert len({order.name for order in orders}) == len(set(orders))
    cells = [
        cell
        for table in page.table
        if isinstance(table, lists.Controllers)
        for cell in tables.Job(table, folder).cells()
    ]
    assert len(orders) + len(cells) > 5
    for table in page.table:
        if isinstance(table, lists.Traces):
            assert all(
                (folder / name).is_file()
                for name in [table.model, *(row.scenario for row in table.row)]
            )


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_published_page_begins_as_its_list(path):
    page = lists.load(path)
    [out] = re.findall(r"--out (docs/measurements/\S+\.md)`", page.introduction)
    assert f"--tables {path.relative_to(CHECKOUT)} " in page.introduction
    assert (
        (CHECKOUT / out)
        .read_text()
        .startswith(f"# {page.title}\n\n{page.introduction.strip()}\n\n")
    )


@pytest.mark.parametrize(
    "old, new, words",
    [
        ("connections = 4", 'connections = "x"', r"table\[0\].row\[0\].native.connections: expected a whole number, found 'x'"),
        ("condition = ", "conditon = ", r"table\[0\].row\[0\].conditon: there is no such key; perhaps condition"),
        ('"grid"\n', '"gird"\n', r"table\[1\].kind: expected one of seeds, .*, found 'gird'"),
        ('title = "T2"\n', "", r"table\[1\].title: missing"),
        ("[[table]]", "[[table]", r"Expected '\]\]' .*line 5"),
        ('"default", ', "", r"table\[1\].row\[0\].cell: expected a cell for each of 1 columns, found 2"),
        ("native = 100", "native = true", "published.native: expected a number, found True"),
        ('"s.toml"', '"absent.toml"', "absent.toml"),
    ],
)  # fmt: skip
def test_a_fault_in_a_list_has_a_place(bed, old, new, words, capsys):
    bed.stand_in("")
    assert old in TABLES
    bed.write("tables.toml", TABLES.replace(old, new))
    assert bed.make() == (1, "")
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(words, line), line
    assert line.startswith("error: ")


def test_lists_that_were_damaged_end_in_one_line(tmp_path):
    rng = random.Random(1)
    texts = [path.read_bytes() for path in SHIPPED]
    file = tmp_path / "tables.toml"
    refused = 0
    for _ in range(100):
        text = bytearray(rng.choice(texts))
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(text))
            if rng.random() < 0.5:
                text[place] = rng.randrange(256)
            else:
                del text[place : place + rng.randint(1, 40)]
        file.write_bytes(text)
        try:
            lists.load(file)
        except lists.ListError as why:
            assert str(why).startswith(f"{file}: ") and "\n" not in str(why)
            refused += 1
    assert refused > 20


# Figures ----------------------------------------------------------------------------------------


def of_streams(backend):
    figures = [
        {"": {"total": 90e6, "fairness": 0.5, "queue-delay-median": 2e3}},
        {"": {"total": 80e6, "fairness": 1.0, "queue-delay-median": 4e3, "fct-p99": None}},
        {"": {"fct-p99": 5e4}, "rpc-1mb": {"total": 1e8}},
    ]
    of = result({"fixed:cubic": [{"goodput_bps": 1.0}]}, {"fixed:cubic": figures})
    of["environment"] = {"backend": {"name": backend}}
    path = {"rate": 100_000_000, "mtu": 1500, "family": "ipv4"}
    of["scenarios"][0]["scenario"] = {"name": "s", "path": path}
    return of


def text(document, figure, mode="fixed:cubic", class_=None, digits=1):
    one = spread(rounds(document), mode, figure, class_)
    return one and one.text(digits)


def test_figures_are_of_rounds_in_the_units_of_the_page():
    assert text(of_streams("host"), "fairness") == "75.0 [50.0 … 100.0] (2 of 3 rounds)"
    # 90 and 80 of 100 x 1448/1514 = 95.64 Mbit/s; of 96.53 without Ethernet.
    assert text(of_streams("host"), "utilisation") == "88.9 [83.6 … 94.1] (2 of 3 rounds)"
    assert text(of_streams("link"), "utilisation") == "88.1 [82.9 … 93.2] (2 of 3 rounds)"
    queue = text(of_streams("host"), "queue-delay-median", digits=2)
    assert queue == "3.00 [2.00 … 4.00] (2 of 3 rounds)"
    assert text(of_streams("host"), "total") == "85.0 [80.0 … 90.0] (2 of 3 rounds)"
    assert text(of_streams("host"), "total", mode="fixed:bbr") is None
    # Of a class, in the rounds that have it.
    assert text(of_streams("host"), "total", class_="rpc-1mb", digits=0) == "100 [100 … 100]"
    assert text(of_streams("host"), "total", class_="stream") is None
    # The time of a failed flow is infinite.
    assert text(of_streams("host"), "fct-p99") == "inf [50.0 … inf] (2 of 3 rounds)"
    without_rate = of_streams("host")
    without_rate["scenarios"][0]["scenario"] = {"path": {}}
    assert text(without_rate, "utilisation") is None


def of_competition(rounds_):
    """A document of these figures of rounds, of mode a; mode b skips every round but the first."""
    figures = [{"": one} for one in rounds_]
    flows = [{"goodput_bps": 1.0}]
    of = result({"fixed:a": flows, "fixed:b": flows}, {"fixed:a": figures})
    of["scenarios"][0]["modes"][1]["by_round"] = [
        {"round": 0, "statistics": {"share": 0.5, "jain": 1.0}, "classes": {}}
    ]
    of["environment"] = {"kernel": "Linux 0.0", "backend": {"name": "host"}}
    of["scenarios"][0]["scenario"] = {"name": "s", "path": {}}
    return of


def test_rounds_in_which_nothing_arrived_are_told():
    # Of a dead round there is neither share nor index: an index of 1 would hide it.
    of = of_competition([{"share": 0.5, "jain": 1.0}, {"fct-p99": None}, {}])
    for figure, shown in (("share", "50.0 [50.0 … 50.0]"), ("jain", "1.0 [1.0 … 1.0]")):
        assert text(of, figure, "fixed:a") == f"{shown} (1 of 3 rounds)"
        # A round that a mode skips is none of its.
        assert text(of, figure, "fixed:b") == shown
    # A laboratory that gives such rounds 0.
    of = of_competition([{"jain": 1.0}, {"jain": 0.0}, {"jain": 0.0}])
    assert text(of, "jain", "fixed:a") == "0.0 [0.0 … 1.0]"


def test_a_target_is_missed_if_a_round_measured_nothing(bed):
    figures = [{"jain": 1.0, "harm": 0.1, "queue-delay-median": 1e3}, {"queue-delay-median": 1e3}]
    bed.gives(of_competition(figures))
    bed.write(
        "tables.toml",
        """
title = "P"
introduction = "I"
[[table]]
kind = "compared"
title = "T"
note = "N"
across = "X"
modes = ["fixed:a", "fixed:b"]
column = [{ name = "index", figure = "jain" }]
target = [
    { condition = "2", mode = "fixed:a", figure = "jain", at_least = 0.9 },
    { condition = "2", mode = "fixed:a", figure = "jain", relative_to = "fixed:b", at_least = 0.9 },
    { condition = "2", mode = "fixed:a", figure = "harm", at_most = 0.2 },
    { condition = "2", mode = "fixed:a", figure = "queue-delay-median", at_most = 2 },
]
[[table.row]]
condition = "2"
run = { scenario = "s.toml", backend = "host", connections = 2 }
""",
    )
    code, page = bed.make()
    assert code == 0
    index = "2, a: Jain's fairness index at least 0.9"
    for line in (
        "| 2 | a | 1.000 [1.000 … 1.000] (1 of 2 rounds) |",
        "| 2 | b | 1.000 [1.000 … 1.000] |",
        f"| {index} | 1.000 (1 of 2 rounds) | **missed** |",
        f"| {index} × that of b | 1.00 (1 of 2 rounds) | **missed** |",
        # Harm may lack rounds because of its reference.
        "| 2, a: harm to the incumbents at most 0.2 | 0.100 (1 of 2 rounds) | met |",
        "| 2, a: median queue delay at most 2 | 1.00 | met |",
    ):
        assert line in page.splitlines(), (line, page)


def test_seeds_without_a_figure_are_told():
    seeds = [
        {"utilisation_percent": 90.0, "fairness_percent": 80.0, "queue_latency": {"mean_us": 5e3}},
        # Nothing arrived, so nothing has waited.
        {"utilisation_percent": 0.0, "fairness_percent": 0.0, "queue_latency": {"mean_us": 0.0}},
        {"utilisation_percent": 90.0, "queue_latency": {"mean_us": 7e3}},
    ]
    of = {"scenarios": [{"controllers": [{"runs": seeds}]}]}
    shown = [
        pages._over_seeds(of, field, factor).text(1) for _, _, field, factor in pages.SIMULATED
    ]
    assert shown == [
        "90.0 [0.0 … 90.0]",
        "40.0 [0.0 … 80.0] (2 of 3 seeds)",
        "6.0 [5.0 … 7.0] (2 of 3 seeds)",
    ]


def test_flows_that_brought_nothing_cost_processor_time():
    def of(*goodputs_bps):
        flows = [{"goodput_bps": one, "cpu": {"machine_s": 2.0}} for one in goodputs_bps]
        found = result({"fixed:a": flows})
        found["scenarios"][0]["scenario"] = {"traffic": {"duration": 4}}
        return pages._processor(found, "fixed:a", "machine_s")

    assert of(5e8, 5e8, 0.0) == "1.000"
    assert of(5e8, 0.0, 0.0) == "inf"


def test_a_result_without_figures_of_rounds_is_refused():
    older = of_streams("host")
    del older["scenarios"][0]["modes"][0]["by_round"]
    with pytest.raises(ValueError, match="s: a result without figures of rounds; remove it and"):
        rounds(older)


def test_quantiles_are_those_of_the_laboratory():
    # The worked values of R's quantile(c(1, 2, 3, 4, 10), type = 7).
    values = [10.0, 1.0, 3.0, 2.0, 4.0]
    assert [quantile(values, share) for share in (0, 0.25, 0.5, 0.75, 1)] == [1, 2, 3, 4, 10]
    assert quantile(values, 0.9) == pytest.approx(7.6)
    assert quantile([], 0.5) is None
    assert quantile([1.0, math.inf, math.inf, math.inf], 0.5) == math.inf


def test_intervals_are_those_of_the_laboratory():
    # `thalweg-lab compare` of these goodputs: the same generator, the same draws.
    assert interval([50.0] * 2, [200.0, 300.0]) == (4.0, 6.0)
    a, b = [float(one) for one in range(1, 30)], [float(one) for one in range(5, 40)]
    assert interval(a, b) == pytest.approx((0.95, 2.385))


# Pictures ---------------------------------------------------------------------------------------


def test_steps_are_round_and_at_most_five():
    for greatest, step in [(5.0, 1.0), (957.0, 200.0), (0.03, 0.01), (0.0, 1.0), (51.0, 20.0)]:
        assert _step(greatest) == pytest.approx(step)


def test_points_lie_where_their_values_are():
    line = Line("a < b", [(0, (0.0, 50.0, 100.0)), (1, (100.0, math.inf, math.inf))])
    svg = panels("all", "number", ["1", "2"], [Panel("figure", [line])])
    # Half of 100 is half way between the lower edge of 186 and the upper of 34; the first of two
    # values is a quarter along 358 from 58 on, and infinity at the edge.
    assert 'points="147.5,110.0 326.5,34.0"' in svg
    assert "a &lt; b" in svg and ">100</text>" in svg


def test_a_model_in_a_controller_is_part_of_its_run(tmp_path):
    model, scenario = tmp_path / "m.safetensors", tmp_path / "s.toml"
    model.write_text("1")
    scenario.write_text("")
    cc = f"learned:model={model},inference=int8"
    one = runs.simulation(tmp_path, "s.toml", cc)
    model.write_text("2")
    other = runs.simulation(tmp_path, "s.toml", cc)
    assert one.name == other.name and one.inputs != other.inputs
