# SPDX-License-Identifier: Apache-2.0
"""./run in a folder where suite, table and report are short programs of this test."""
from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.files import write
from tests.support.programs import ROOT, Launched, Result, launch, shown_on_terminal

PROGRAMS = ROOT / "tests/support/stubs/run"
STUBS = {
    "tools/setup.sh": "#!/bin/bash\n",
    "tools/configure.sh": "#!/bin/bash\n",
    "build/bin/suite": (PROGRAMS / "suite").read_text(),
    ".venv/bin/python": '#!/bin/bash\necho "$(basename "$1")" "$(cat "$2")" "${@:3}"\n',
    "bin/cmake": (PROGRAMS / "cmake").read_text(),
    "build/bin/stage0_single_gpu": (ECHO := '#!/bin/bash\nprintf "<%s>" "$PWD" "$@"\n'),
    "build/bin/pipeline": ECHO,
    "build/bin/stage3_ddp_torchrun": '#!/bin/bash\necho stage3 "$@"\n',
}


class Checkout:
    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copy(ROOT / "run", root / "run")
        for name, text in STUBS.items():
            write(root / name, text, executable=True)
        self.old = write(root / "runs/bench.json", "old\n")
        self.environment = {"PATH": f"{root}/bin:{os.environ['PATH']}"}

    def start(self, *flags: str, **variables: str) -> Result:
        return launch(self.root / "run", *flags, environment=self.environment | variables)

    def run(self, *flags: str) -> tuple[int, list[str]]:
        """Exit code and lines, without those about progress."""
        done = self.start(*flags)
        return done.code, [line for line in done.lines
                           if not line.startswith("run: ") and "warning" not in line]

    def on_terminal(self, code: int = 0) -> str:
        """The output of ./run."""
        return shown_on_terminal("env", f"PATH={self.environment['PATH']}", "bash", "-c",
                                 f'"$0"; (($? == {code}))', self.root / "run", stdout=True)

    def targets(self) -> str:
        return (self.root / "targets").read_text().strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path.resolve())


@pytest.mark.parametrize("program", ["stage0_single_gpu", "pipeline"])
def test_a_stage_is_built_alone_and_gets_its_flags_unchanged(
        checkout: Checkout, program: str) -> None:
    assert checkout.run(program, "--metrics", "a  b.jsonl", "") == (
        0, [f"<{os.getcwd()}><--metrics><a  b.jsonl><>"])
    assert checkout.targets() == program


def test_a_build_that_fails_shows_its_errors_and_trains_nothing(checkout: Checkout) -> None:
    (checkout.root / "breaks").touch()
    assert checkout.run("stage0_single_gpu") == (1, ["FAILED: b.o"])


def test_progress_in_a_file_is_a_line_for_each_tenth_of_the_build(checkout: Checkout) -> None:
    lines = checkout.start().lines
    steps = [line for line in lines if line.startswith("run: build, step ")]
    assert [int(line.split()[3]) for line in steps] == [1, *range(4, 41, 4)]
    assert all(re.search(r" of 40, \d s, about \d min left$", line) for line in steps)
    assert "a.cpp:1: warning: unused" in lines
    # Each part is followed by its time, and the last line has all.
    parts = [re.sub(r"\d+", "N", line) for line in lines
             if re.match(r"run: .* \d+ s\b", line) and "left" not in line]
    assert parts == ["run: packages N s", "run: build N s; programs are in build/bin",
                     "run: packages N s, build N s, training N s; N s in all"]
    assert re.sub(r"\d+", "N", lines[-1]) == parts[-1]


def test_progress_on_a_terminal_is_one_line_that_is_redrawn(checkout: Checkout) -> None:
    output = checkout.on_terminal()
    steps = re.findall(r"run: build, step \d+ of 40, \d s, about \d min left\x1b\[K(.)", output)
    assert steps == ["\r"] * 40
    assert "\r\x1b[Ka.cpp:1: warning: unused\r\n" in output


def test_packages_that_cannot_be_installed_end_it(checkout: Checkout) -> None:
    (checkout.root / ".venv/bin/python").unlink()
    (checkout.root / "tools/setup.sh").write_text("#!/bin/bash\necho no >&2\nexit 3\n")
    done = checkout.start()
    assert (done.code, done.stderr) == (3, "no\n")
    assert re.fullmatch(r"run: first packages; all after them takes about \d min\n", done.stdout)
    assert not (checkout.root / "targets").exists()


def test_a_slow_step_of_the_build_is_redrawn_each_second(checkout: Checkout) -> None:
    write(checkout.root / "bin/cmake", "#!/bin/bash\n[[ $1 == --build ]] || exit 0\n"
          "echo 'step 1/40 Building a.o'; sleep 3\n", executable=True)
    seconds = re.findall(r"build, step 1 of 40, (\d+) s, about \d min", checkout.on_terminal())
    assert len(set(seconds)) > 1


@pytest.mark.parametrize("name, stage", [
    ("stage0", "stage0_single_gpu"), ("pipe", "pipeline"), ("beyond/pipeline/", "pipeline")])
def test_the_beginning_of_a_name_is_enough(checkout: Checkout, name: str, stage: str) -> None:
    assert checkout.run(name, "--a") == (0, [f"<{os.getcwd()}><--a>"])
    assert checkout.targets() == stage


def test_the_list_of_traps_needs_no_build(checkout: Checkout) -> None:
    source = write(checkout.root / "traps/all_traps.cpp", (ROOT / "traps/all_traps.cpp").read_text())
    code, lines = checkout.run("traps", "list")
    assert (code, len(lines)) == (0, source.read_text().count("Trap{"))
    assert lines[1] == ("mean-of-means           stage 0   "
                        "the loop averages the means of batches that differ in size")
    assert not (checkout.root / "targets").exists()


@pytest.mark.parametrize("flag, number, message", [
    ("", "1", "no stage ''; the stages are: stage0"),
    ("stage9", "1", "no stage 'stage9'; the stages are: stage0"),
    ("stage", "1", "no stage 'stage'; the stages are: stage0"),
    *(("stage3_ddp_torchrun", number, f"NPROC_PER_NODE: expected a number from 1 to 9999, got '{number}'")
      for number in ("x", "0", "-1", ""))])
def test_refused(checkout: Checkout, flag: str, number: str, message: str) -> None:
    done = checkout.start(flag, NPROC_PER_NODE=number)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"run: {message}") and len(done.errors) == 1


@pytest.mark.parametrize("flags, code", [
    ([], 1), (["bench"], 1), (["whole"], 1), (["stage3_ddp_torchrun"], 1),
    (["bench", "--help"], 0), (["stage3_ddp_torchrun", "--help"], 0), (["stage0_single_gpu"], 0)])
def test_a_localhost_that_does_not_resolve_is_reported_before_the_build(
        checkout: Checkout, flags: list[str], code: int) -> None:
    write(checkout.root / "bin/getent", "#!/bin/sh\nexit 2\n", executable=True)
    done = checkout.start(*flags)
    assert done.code == code
    assert ("localhost does not resolve" in done.stderr) == bool(code)
    assert (checkout.root / "targets").exists() != bool(code)


LINKS = "--links ROOT/runs/links.json "
SEVEN = " ".join(sorted(path.name for path in ROOT.glob("stage[0-6]_*")))


@pytest.mark.parametrize("flags, code, tier, more, links, targets", [
    ([], 0, "short", "", "", f"{SEVEN} suite"),
    (["bench"], 0, "bench", "", LINKS, "stages suite libtorch_usual"),
    (["bench", "--quick"], 0, "quick", "", "", "stages suite"),
    # The page of a long tier shows the other one and the links.
    (["whole"], 0, "whole", "ROOT/runs/bench.json ", LINKS, "stages suite libtorch_usual"),
    # Runs that failed are shown and make the exit code.
    (["bench", "--fails"], 1, "bench", "", LINKS, "stages suite libtorch_usual")])
def test_a_comparison(checkout: Checkout, flags: list[str], code: int, tier: str, more: str,
                      links: str, targets: str) -> None:
    (checkout.root / "runs/links.json").write_text("{}\n")
    found, (record, *lines) = checkout.run(*flags)
    assert record.startswith("record.py whole --tier")  # stored with one repetition per line
    results = f"whole --tier {tier} {more}"
    assert (found, lines) == (code, [line.replace("ROOT", str(checkout.root)) for line in (
        f"table.py {results}--short", f"report.py {results}{links}-o ROOT/runs/{tier}.html")])
    assert checkout.targets() == targets
    assert checkout.old.read_text() == ("whole --tier bench\n" if tier == "bench" else "old\n")
    left = {path.name for path in checkout.old.parent.iterdir()}
    assert left == {"bench.json", "links.json", tier, f"{tier}.json"}


@pytest.mark.parametrize("flag, found", [("--bad", (2, [])), ("--help", (0, ["flags"]))])
def test_flags_that_are_refused_or_answered_leave_the_last_results_alone(
        checkout: Checkout, flag: str, found: tuple[int, list[str]]) -> None:
    assert checkout.run("bench", flag) == found
    assert checkout.old.read_text() == "old\n"
    assert {path.name for path in checkout.old.parent.iterdir()} == {"bench.json", "bench"}


def test_a_cable_that_failed_is_shown_and_makes_the_exit_code(checkout: Checkout) -> None:
    write(checkout.root / "bin/python3",
          '#!/bin/bash\n[[ $1 == */links.py ]] && echo {} > "$3"; exit 1\n', executable=True)
    code, lines = checkout.run("links")
    page = f"--links {checkout.root}/runs/links.json -o {checkout.root}/runs/bench.html"
    assert (code, lines[-3:]) == (1, ["table.py {} --links", "table.py old --short",
                                      f"report.py old {page}"])


def test_ctrl_c_keeps_the_part_and_shows_how_to_read_it(checkout: Checkout) -> None:
    with Launched(checkout.root / "run", "bench", "--hangs",
                  environment=checkout.environment) as launched:
        launched.stdout.wait_for("^begun$")
        os.killpg(launched.process.pid, signal.SIGINT)
        done = launched.finish(30)
    assert done.code == 130
    [part] = checkout.old.parent.glob("bench.??????")
    assert part.read_text() == "part\n"
    assert done.lines[-1] == ("run: stopped; for the results so far: .venv/bin/python "
                              f"bench/report/report.py runs/{part.name} -o runs/part.html")
    assert checkout.old.read_text() == "old\n"
