# SPDX-License-Identifier: Apache-2.0
"""./run in a folder where suite, table and report are short programs of this test."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.files import write
from tests.support.programs import ROOT, shown_on_terminal

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
        self.environment = os.environ | {"PATH": f"{root}/bin:{os.environ['PATH']}"}

    def start(self, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.root / "run", *flags], check=False, capture_output=True,
                              text=True, env=self.environment | variables, timeout=60)

    def run(self, *flags: str) -> tuple[int, list[str]]:
        """Exit code and lines, without those about progress."""
        done = self.start(*flags)
        return done.returncode, [line for line in done.stdout.splitlines()
                                 if not line.startswith("run: ") and "warning" not in line]

    def on_terminal(self, code: int = 0) -> str:
        """The output of ./run."""
        return shown_on_terminal("env", f"PATH={self.environment['PATH']}", "bash", "-c",
                                 f'"$0"; (($? == {code}))', self.root / "run", stdout=True)

    def targets(self) -> str:
        return (self.root / "targets").read_text().strip()


@pytest.fixture(name="checkout")
def checkout_fixture(tmp_path: Path) -> Checkout:
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
    lines = checkout.start().stdout.splitlines()
    steps = [line for line in lines if line.startswith("run: build, step ")]
    assert [int(line.split()[3]) for line in steps] == [1, *range(4, 41, 4)]
    assert all(re.search(r" of 40, about \d min left$", line) for line in steps)
    assert "a.cpp:1: warning: unused" in lines
    # Each part is followed by its time, and the last line has all.
    parts = [re.sub(r"\d+", "N", line) for line in lines
             if re.match(r"run: .* \d+ s\b", line) and "left" not in line]
    assert parts == ["run: packages N s", "run: build N s; programs are in build/bin",
                     "run: packages N s, build N s, training N s; N s in all"]
    assert re.sub(r"\d+", "N", lines[-1]) == parts[-1]


def test_progress_on_a_terminal_is_one_line_that_is_redrawn(checkout: Checkout) -> None:
    output = checkout.on_terminal()
    steps = re.findall(r"run: build, step \d+ of 40, about \d min left\x1b\[K(.)", output)
    assert steps == ["\r"] * 40
    assert "\r\x1b[Ka.cpp:1: warning: unused\r\n" in output


def test_packages_count_down_and_end_it_if_they_cannot_be_installed(checkout: Checkout) -> None:
    (checkout.root / "tools/setup.sh").write_text("#!/bin/bash\nsleep 1.5\necho no >&2\nexit 3\n")
    assert re.fullmatch(r"run: packages, about \d min left\x1b\[K\rno\r\n", checkout.on_terminal(3))
    assert not (checkout.root / "targets").exists()


@pytest.mark.parametrize("flag, number, message", [
    ("", "1", "no stage ''; the stages are: stage0"),
    ("stage9", "1", "no stage 'stage9'; the stages are: stage0"),
    *(("stage3_ddp_torchrun", number, f"NPROC_PER_NODE: expected a number >= 1, got '{number}'; "
       "hint: unset NPROC_PER_NODE\n") for number in ("x", "0", "-1", ""))])
def test_refused(checkout: Checkout, flag: str, number: str, message: str) -> None:
    done = checkout.start(flag, NPROC_PER_NODE=number)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"run: {message}") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("flags, code", [
    ([], 1), (["bench"], 1), (["whole"], 1), (["stage3_ddp_torchrun"], 1),
    (["bench", "--help"], 0), (["stage3_ddp_torchrun", "--help"], 0), (["stage0_single_gpu"], 0)])
def test_a_localhost_that_does_not_resolve_is_reported_before_the_build(
        checkout: Checkout, flags: list[str], code: int) -> None:
    write(checkout.root / "bin/getent", "#!/bin/sh\nexit 2\n", executable=True)
    done = checkout.start(*flags)
    assert done.returncode == code
    assert ("localhost does not resolve" in done.stderr) == bool(code)
    assert (checkout.root / "targets").exists() != bool(code)


HTML = "-o ROOT/runs/{}.html"
LINKS = "--links ROOT/runs/links.json "


@pytest.mark.parametrize("flags, code, lines, targets", [
    ([], 0, ["table.py whole --tier short --short",
             f"report.py whole --tier short {HTML.format('short')}"], "stages suite"),
    (["bench"], 0, ["table.py whole --tier bench --short",
                    f"report.py whole --tier bench {LINKS}{HTML.format('bench')}"],
     "stages suite libtorch_usual"),
    (["bench", "--quick"], 0, ["table.py whole --tier quick --short",
                               f"report.py whole --tier quick {HTML.format('quick')}"],
     "stages suite"),
    # The page of a long tier shows the other one and the links.
    (["whole"], 0, [
        "table.py whole --tier whole ROOT/runs/bench.json --short",
        f"report.py whole --tier whole ROOT/runs/bench.json {LINKS}{HTML.format('whole')}"],
     "stages suite libtorch_usual"),
    # Runs that failed are shown and make the exit code.
    (["bench", "--fails"], 1, ["table.py whole --tier bench --short",
                               f"report.py whole --tier bench {LINKS}{HTML.format('bench')}"],
     "stages suite libtorch_usual"),
    # Flags that are refused or answered leave the last results alone.
    (["bench", "--bad"], 2, [], "stages suite libtorch_usual"),
    (["bench", "--help"], 0, ["flags"], "stages suite libtorch_usual")])
def test_a_comparison(checkout: Checkout, flags: list[str], code: int, lines: list[str],
                      targets: str) -> None:
    (checkout.root / "runs/links.json").write_text("{}\n")
    found = checkout.run(*flags)
    if len(lines) == 2:  # stored with one repetition per line
        assert found[1].pop(0).startswith("record.py whole --tier")
    assert found == (code, [line.replace("ROOT", str(checkout.root)) for line in lines])
    assert checkout.targets() == targets
    measured = flags[:1] == ["bench"] and len(lines) == 2 and "--quick" not in flags
    assert checkout.old.read_text() == ("whole --tier bench\n" if measured else "old\n")
    left = {path.name for path in checkout.old.parent.iterdir()}
    own = {"short", "quick", "whole"}
    assert left - own - {f"{tier}.json" for tier in own} == {
        "bench.json", "links.json",
        *(["bench"] if flags[:1] == ["bench"] and "--quick" not in flags else [])}


def test_a_cable_that_failed_is_shown_and_makes_the_exit_code(checkout: Checkout) -> None:
    write(checkout.root / "bin/python3",
          '#!/bin/bash\n[[ $1 == */links.py ]] && echo {} > "$3"; exit 1\n', executable=True)
    code, lines = checkout.run("links")
    page = f"--links {checkout.root}/runs/links.json -o {checkout.root}/runs/bench.html"
    assert (code, lines[-3:]) == (1, ["table.py {} --links", "table.py old --short",
                                      f"report.py old {page}"])


def test_ctrl_c_keeps_the_part_and_shows_how_to_read_it(checkout: Checkout) -> None:
    with subprocess.Popen([checkout.root / "run", "bench", "--hangs"], text=True,
                          stdout=subprocess.PIPE, env=checkout.environment,
                          start_new_session=True) as process:
        assert process.stdout is not None
        while (line := process.stdout.readline()) != "begun\n":
            assert line, "it ended"
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=30) == 130
    [part] = checkout.old.parent.glob("bench.??????")
    assert part.read_text() == "part\n"
    assert rest == ("run: stopped; for the results so far: .venv/bin/python "
                    f"bench/report/report.py runs/{part.name}\n")
    assert checkout.old.read_text() == "old\n"
