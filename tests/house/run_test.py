# SPDX-License-Identifier: Apache-2.0
"""./run in a folder where suite, table and report are short programs of this test."""

from __future__ import annotations

import os
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
STUBS = {
    "tools/setup.sh": "#!/bin/bash\n",
    "tools/configure.sh": "#!/bin/bash\n",
    "build/bin/suite": SUITE,
    ".venv/bin/python": '#!/bin/bash\necho "$(basename "$1")" "$(cat "$2")" "${@:3}"\n',
    "bin/cmake": "#!/bin/bash\n",
}


class Compare(unittest.TestCase):
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
                                 if not line.startswith("run: programs are")]

    def expect_kept(self) -> None:
        self.assertEqual(self.old.read_text(), "old\n")
        self.assertEqual(sorted(path.name for path in self.old.parent.iterdir()),
                         ["bench", "bench.json"])

    def test_what_was_measured_takes_the_place_of_the_last_one(self) -> None:
        html = f"-o {self.root}/runs/bench.html"
        self.assertEqual(self.run_it("bench"), (0, ["table.py whole --tier bench --short",
                                                    f"report.py whole --tier bench {html}"]))
        self.assertEqual(self.old.read_text(), "whole --tier bench\n")

    def test_without_a_word_it_is_the_short_one(self) -> None:
        self.assertEqual(self.run_it()[0], 0)
        self.assertEqual((self.root / "runs/short.json").read_text(), "whole --tier short\n")

    def test_runs_that_failed_are_shown_and_make_the_exit_code(self) -> None:
        code, lines = self.run_it("bench", "--fails")
        self.assertEqual((code, len(lines)), (1, 2))
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
        self.assertEqual(rest, "run: stopped; for the results so far: python3 "
                               f"bench/report/report.py runs/{part.name}\n")
        self.assertEqual(self.old.read_text(), "old\n")


if __name__ == "__main__":
    unittest.main()
