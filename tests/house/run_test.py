# SPDX-License-Identifier: Apache-2.0
"""./run in a folder where suite, table and report are short programs of this test."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITE = """#!/bin/bash
for word; do
  [[ $word == --benchmark_out=* ]] && out=${word#*=}
  [[ $word == --help ]] && { echo flags; exit 0; }
  [[ $word == --bad ]] && { echo 'error: flags' >&2; exit 2; }
  [[ $word == --fails ]] && code=1
  [[ $word == --hangs ]] && { echo part > "$out"; echo begun; exec sleep 60; }
done
echo "whole $1 $2" > "$out"
exit ${code:-0}
"""
# Notes what is built; its steps are those of ninja, whose NINJA_STATUS comes before each.
CMAKE = """#!/bin/bash
[[ $1 == --build ]] || exit 0
echo "${@:5}" >> targets
for step in {1..40}; do
  status=${NINJA_STATUS/\\%f/$step}
  echo "${status/\\%t/40}Building $step.o"
done
echo 'a.cpp:1: warning: unused'
[[ ! -e breaks ]] || { echo 'FAILED: b.o'; exit 1; }
"""
STUBS = {
    "tools/setup.sh": "#!/bin/bash\n",
    "tools/configure.sh": "#!/bin/bash\n",
    "build/bin/suite": SUITE,
    ".venv/bin/python": '#!/bin/bash\necho "$(basename "$1")" "$(cat "$2")" "${@:3}"\n',
    "bin/cmake": CMAKE,
    "build/bin/stage0_single_gpu": '#!/bin/bash\necho stage0 "$@"\n',
}


class RunTest(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name).resolve()
        shutil.copy(ROOT / "run", self.root / "run")
        for name, text in STUBS.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        self.old = self.root / "runs/bench.json"
        self.old.parent.mkdir()
        self.old.write_text("old\n")
        self.environment = os.environ | {"PATH": f"{self.root}/bin:{os.environ['PATH']}"}

    def run_it(self, *flags: str) -> tuple[int, list[str]]:
        done = subprocess.run([self.root / "run", *flags], check=False, capture_output=True,
                              text=True, env=self.environment, timeout=60)
        return done.returncode, [line for line in done.stdout.splitlines()
                                 if not line.startswith("run: ") and "warning" not in line]


class Build(RunTest):
    def built(self) -> str:
        return (self.root / "targets").read_text().strip()

    def test_a_stage_is_built_alone(self) -> None:
        self.assertEqual(self.run_it("stage0_single_gpu", "--help"), (0, ["stage0 --help"]))
        self.assertEqual(self.built(), "stage0_single_gpu")

    def test_a_comparison_builds_stages_and_suite(self) -> None:
        self.run_it()
        self.run_it("bench")
        self.assertEqual(self.built(), "stages suite\nstages suite libtorch_usual")

    def test_a_build_that_fails_shows_its_errors_and_trains_nothing(self) -> None:
        (self.root / "breaks").touch()
        self.assertEqual(self.run_it("stage0_single_gpu"), (1, ["FAILED: b.o"]))


class Progress(RunTest):
    def output(self, code: int = 0) -> str:
        """Of ./run on a terminal."""
        leader, terminal = pty.openpty()
        with subprocess.Popen([self.root / "run"], stdout=terminal, stderr=terminal,
                              env=self.environment) as process:
            os.close(terminal)
            parts = []
            with os.fdopen(leader, "rb") as stream:
                try:
                    while part := stream.read1():
                        parts.append(part)
                except OSError:  # the other end is closed
                    pass
            self.assertEqual(process.wait(timeout=60), code)
        return b"".join(parts).decode()

    def test_in_a_file_it_is_a_line_for_each_tenth_of_the_build(self) -> None:
        done = subprocess.run([self.root / "run"], check=True, capture_output=True, text=True,
                              env=self.environment, timeout=60)
        lines = done.stdout.splitlines()
        steps = [line for line in lines if line.startswith("run: build, step ")]
        self.assertEqual([int(line.split()[3]) for line in steps], [1, *range(4, 41, 4)])
        for line in steps:
            self.assertRegex(line, r" of 40, about \d min left$")
        self.assertIn("a.cpp:1: warning: unused", lines)

    def test_on_a_terminal_it_is_one_line_that_is_redrawn(self) -> None:
        output = self.output()
        steps = re.findall(r"run: build, step \d+ of 40, about \d min left\x1b\[K(.)", output)
        self.assertEqual(steps, ["\r"] * 40)
        self.assertIn("\r\x1b[Ka.cpp:1: warning: unused\r\n", output)

    def test_packages_count_down_and_end_it_if_they_cannot_be_installed(self) -> None:
        (self.root / "tools/setup.sh").write_text("#!/bin/bash\nsleep 1.5\necho no >&2\nexit 3\n")
        self.assertRegex(self.output(3), r"^run: packages, about \d min left\x1b\[K\rno\r\n$")
        self.assertFalse((self.root / "targets").exists())

    def test_each_part_is_followed_by_its_time_and_the_last_line_has_all(self) -> None:
        done = subprocess.run([self.root / "run"], check=True, capture_output=True, text=True,
                              env=self.environment, timeout=60)
        parts = [line for line in done.stdout.splitlines() if re.match(r"run: .* \d+ s\b", line)
                 and "left" not in line]
        self.assertEqual([re.sub(r"\d+", "N", line) for line in parts], [
            "run: packages N s", "run: build N s; programs are in build/bin",
            "run: packages N s, build N s, training N s; N s in all"])
        self.assertEqual(done.stdout.splitlines()[-1], parts[-1])


class Launch(RunTest):
    def test_a_number_of_processes_that_is_none(self) -> None:
        for number in ("x", "0", "-1", ""):
            done = subprocess.run([self.root / "run", "stage3_ddp_torchrun"], timeout=60,
                                  check=False, capture_output=True, text=True,
                                  env=self.environment | {"NPROC_PER_NODE": number})
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertEqual(done.stderr, "run: NPROC_PER_NODE: expected a number >= 1, got "
                                          f"'{number}'; hint: unset NPROC_PER_NODE\n")


class Compare(RunTest):
    def expect_kept(self) -> None:
        self.assertEqual(self.old.read_text(), "old\n")
        self.assertEqual(sorted(path.name for path in self.old.parent.iterdir()),
                         ["bench", "bench.json"])

    def test_what_was_measured_takes_the_place_of_the_last_one(self) -> None:
        html = f"-o {self.root}/runs/bench.html"
        code, [stored, *shown] = self.run_it("bench")
        self.assertEqual((code, stored), (0, "record.py whole --tier bench"))
        self.assertEqual(shown, ["table.py whole --tier bench --short",
                                 f"report.py whole --tier bench {html}"])
        self.assertEqual(self.old.read_text(), "whole --tier bench\n")

    def test_the_page_of_a_long_tier_shows_the_other_one_and_the_links(self) -> None:
        (self.root / "runs/links.json").write_text("{}\n")
        results = f"whole --tier whole {self.root}/runs/bench.json"
        links = f"--links {self.root}/runs/links.json -o {self.root}/runs/whole.html"
        code, lines = self.run_it("whole")
        self.assertEqual((code, lines[1:]), (0, [f"table.py {results} --short",
                                                 f"report.py {results} {links}"]))
        targets = (self.root / "targets").read_text().split()
        self.assertEqual(targets, ["stages", "suite", "libtorch_usual"])

    def test_a_cable_that_failed_is_shown_and_makes_the_exit_code(self) -> None:
        python = self.root / "bin/python3"
        python.write_text('#!/bin/bash\n[[ $1 == */links.py ]] && echo {} > "$3"; exit 1\n')
        python.chmod(0o755)
        code, lines = self.run_it("links")
        page = f"--links {self.root}/runs/links.json -o {self.root}/runs/bench.html"
        self.assertEqual((code, lines[-3:]), (1, ["table.py {} --links", "table.py old --short",
                                                  f"report.py old {page}"]))

    def test_without_a_word_it_is_the_short_one(self) -> None:
        self.assertEqual(self.run_it()[0], 0)
        self.assertEqual((self.root / "runs/short.json").read_text(), "whole --tier short\n")

    def test_runs_that_failed_are_shown_and_make_the_exit_code(self) -> None:
        code, lines = self.run_it("bench", "--fails")
        self.assertEqual((code, len(lines)), (1, 3))
        self.assertEqual(self.old.read_text(), "whole --tier bench\n")

    def test_flags_that_are_refused_or_answered_leave_the_last_one_alone(self) -> None:
        self.assertEqual(self.run_it("bench", "--bad"), (2, []))
        self.expect_kept()
        self.assertEqual(self.run_it("bench", "--help"), (0, ["flags"]))
        self.expect_kept()

    def test_ctrl_c_keeps_the_part_and_says_how_to_read_it(self) -> None:
        with subprocess.Popen([self.root / "run", "bench", "--hangs"], text=True,
                              stdout=subprocess.PIPE, env=self.environment,
                              start_new_session=True) as process:
            assert process.stdout is not None
            while (line := process.stdout.readline()) != "begun\n":
                self.assertNotEqual(line, "", "it ended")
            os.killpg(process.pid, signal.SIGINT)
            rest = process.stdout.read()
            self.assertEqual(process.wait(timeout=30), 130)
        [part] = self.old.parent.glob("bench.??????")
        self.assertEqual(part.read_text(), "part\n")
        self.assertEqual(rest, "run: stopped; for the results so far: "
                               f".venv/bin/python bench/report/report.py runs/{part.name}\n")
        self.assertEqual(self.old.read_text(), "old\n")


if __name__ == "__main__":
    unittest.main()
