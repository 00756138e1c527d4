# SPDX-License-Identifier: Apache-2.0
"""build/bin/suite with stages that only write a record: what it makes of one, and of none."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SUITE = ROOT / "build" / "bin" / "suite"
SECONDS = 120
ROW = "basicnet/stage0_single_gpu/world:1/precision:fp32"
STUB = """#!{python}
import json, sys, time
flags = sys.argv[1:]
if "--version" in flags:
    sys.exit(0)
path = flags[flags.index("--metrics") + 1]
{before}
result = dict(record="result", recipe="basicnet", precision="fp32", device="cpu", steps=220,
              accuracy=98.5, correct=9850, seen=10000, eval_loss=0.05, train_loss=0.1,
              train_seconds=11.0, total_seconds=12.5, warm_up_seconds=1.0,
              samples_per_second=1280.0, peak_rss_bytes=5e8, weights_sha256="ab" * 32,
              first_step_at=time.monotonic())
result |= {changed!r}
with open(path, "w") as file:
    print(json.dumps(dict(record="run", batch_size=64, lr=1e-3,
                          world_size=result.pop("world_size", 1))), file=file)
    print(json.dumps({{name: value for name, value in result.items() if value != "left out"}}),
          file=file)
"""


class Suite(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        (self.folder / "bin").mkdir()
        self.out = self.folder / "out.json"

    def stage(self, before: str = "", **changed: object) -> None:
        path = self.folder / "bin" / "stage0_single_gpu"
        path.write_text(STUB.format(python=sys.executable, before=before, changed=changed))
        path.chmod(0o755)

    def command(self, row: str, *more: str) -> list[str]:
        tier = "bench" if row.startswith("slice") else "short"  # which measures no peak
        return [str(SUITE), "--tier", tier, "--folder", str(self.folder / "runs"), "--bin",
                str(self.folder / "bin"), f"--benchmark_filter=^{row}/threads:[0-9]+/iterations",
                f"--benchmark_out={self.out}", "--cpus", "2", "--slice-repetitions", "2", *more]

    def run_suite(self, row: str, code: int = 0, *more: str) -> str:
        done = subprocess.run(self.command(row, *more), capture_output=True, text=True,
                              timeout=SECONDS, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        return done.stderr

    def rows(self) -> list[dict[str, Any]]:
        found = json.loads(self.out.read_text())["benchmarks"]
        return [row for row in found if row["run_type"] == "iteration"]

    def expect_failure(self, reason: str) -> str:
        said = self.run_suite(f"full/{ROW}", 1)
        self.assertIn("error: 1 runs failed; see the table", said)
        [row] = self.rows()
        self.assertTrue(row["error_occurred"])
        self.assertEqual(row["error_message"], reason)
        self.assertIn(f"  failed: {reason}; output: {self.folder}/runs/full_", said)
        return said

    def test_a_slice_is_the_steps_after_the_warm_up(self) -> None:
        self.stage()
        said = self.run_suite(f"slice/{ROW}")
        name = "stage0_single_gpu     basicnet  1 x 2  fp32"
        self.assertEqual(said.splitlines(), [f"[1/2] {name}  10.00 s for 200 steps  about 10 s left",
                                             f"[2/2] {name}  10.00 s for 200 steps"])
        rows = self.rows()
        self.assertEqual(len(rows), 2)
        for row in rows:
            self.assertEqual((row["real_time"], row["time_unit"]), (10.0, "s"))
            self.assertEqual(row["samples_per_second"], 1280.0)  # 200 of 220 steps in 10 s
            self.assertEqual((row["batch_size"], row["lr"]), (64, 1e-3))
            self.assertGreater(row["startup_seconds"], 0.0)
            self.assertLess(row["startup_seconds"], 20.0)
            self.assertEqual(row["label"], f"weights_sha256={'ab' * 32} device=cpu")
        context = json.loads(self.out.read_text())["context"]
        peak = float(context["peak_gflops"])
        floor = 12_800 * 71_565_312 / (peak * 1e9)  # images x operations each
        self.assertAlmostEqual(rows[0]["percent_of_floor"], 100 * floor / 10, delta=0.1 * floor)
        for name in ("commit", "compiler", "flags", "cpu", "isa", "kernel", "versions", "variables",
                     "python_versions", "data_sha256", "peak_gflops_1", "peak_gflops_bf16"):
            self.assertTrue(context[name], name)
        self.assertIn("--benchmark_filter", context["argv"])

    def test_a_whole_run_lasts_from_its_start_to_its_end(self) -> None:
        self.stage(before="time.sleep(0.5)")
        self.run_suite(f"full/{ROW}")
        [row] = self.rows()
        self.assertGreater(row["real_time"], 0.5)
        self.assertLess(row["real_time"], 12.0)  # and not what the record says
        self.assertEqual((row["total_seconds"], row["seen"], row["user_lines"]),
                         (12.5, 10_000, row["user_lines"]))
        self.assertGreater(row["user_lines"], 30)

    def test_without_a_name_the_results_are_in_the_folder_and_it_says_so(self) -> None:
        self.stage()
        command = [word for word in self.command(f"full/{ROW}")
                   if not word.startswith("--benchmark_out")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
        self.out = self.folder / "runs" / "results.json"
        self.assertIn(f"the results are in {self.out}\n", done.stderr)
        self.assertEqual(len(self.rows()), 1)

    def test_no_floor_on_a_gpu(self) -> None:
        self.stage(device="cuda:0")
        self.run_suite(f"slice/{ROW}")
        self.assertNotIn("percent_of_floor", self.rows()[0])

    def test_a_record_that_lacks_a_number_is_a_failure(self) -> None:
        self.stage(first_step_at="left out")
        self.expect_failure("its record has no first_step_at")
        self.stage(first_step_at=None)
        self.expect_failure("its record has no first_step_at")

    def test_a_record_of_another_row_is_a_failure(self) -> None:
        for changed in ({"recipe": "convnet"}, {"precision": "bf16"}, {"world_size": 2}):
            self.stage(**changed)
            self.expect_failure("its record belongs to another row")

    def test_a_program_that_the_machine_cannot_run_is_no_failure(self) -> None:
        self.stage(before="print('error: no compiler', file=sys.stderr); sys.exit(77)")
        said = self.run_suite(f"full/{ROW}")
        [row] = self.rows()
        reason = "not run: exit code 77; last line: error: no compiler"
        self.assertEqual((row["error_occurred"], row["error_message"]), (True, reason))
        self.assertIn(f"  {reason}\n", said)

    def test_a_program_that_fails_is_told_in_its_words_and_they_are_kept(self) -> None:
        self.stage(before="print('error: no data', file=sys.stderr); sys.exit(3)")
        self.expect_failure("exit code 3; last line: error: no data")
        [kept] = (self.folder / "runs").glob("full_*.stderr")
        self.assertEqual(kept.read_text(), "error: no data\n")

    def test_a_program_that_is_not_there_is_named(self) -> None:
        self.expect_failure(f"{self.folder}/bin/stage0_single_gpu: No such file or directory")

    def test_two_cannot_share_a_folder(self) -> None:
        ready = self.folder / "ready"
        self.stage(before=f"open({str(ready)!r}, 'w').close(); time.sleep(60)")
        first = subprocess.Popen(self.command(f"full/{ROW}"), stderr=subprocess.DEVNULL)
        self.addCleanup(first.wait)
        self.addCleanup(first.terminate)
        deadline = time.monotonic() + SECONDS
        while not ready.exists() and time.monotonic() < deadline:
            self.assertIsNone(first.poll())
        said = self.run_suite(f"full/{ROW}", 2)
        self.assertIn("another suite writes there", said)

    def test_ends_with_its_stage_when_asked_to(self) -> None:
        started = self.folder / "pid"
        self.stage(before=f"import os\nwith open({str(started)!r}, 'w') as file: "
                          "print(os.getpid(), file=file)\ntime.sleep(60)")
        suite = subprocess.Popen(self.command(f"full/{ROW}"), stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + SECONDS
        text = ""
        while not text.endswith("\n") and time.monotonic() < deadline:
            text = started.read_text() if started.exists() else ""
        suite.send_signal(signal.SIGTERM)
        self.assertEqual(suite.wait(SECONDS), -signal.SIGTERM)
        with self.assertRaises(ProcessLookupError):
            os.kill(int(text), 0)

    def test_wrong_flags_are_told(self) -> None:
        for flags, reason in (
            (["--tier", "long"], "--tier: expected one of short, bench, whole, got 'long'"),
            (["--benchmark_lits"], "suite --help lists them"),
            (["--cpus", "0"], "--cpus"),
            (["--benchmark_filter=none", f"--benchmark_out={self.out}"], "--benchmark_list_tests"),
        ):
            done = subprocess.run([str(SUITE), "--folder", str(self.folder / "runs"), *flags],
                                  capture_output=True, text=True, timeout=SECONDS, check=False)
            self.assertEqual(done.returncode, 2, (flags, done.stderr))
            self.assertIn(reason, done.stderr)

    def test_a_filter_without_a_row_leaves_the_results_alone(self) -> None:
        old = self.folder / "runs/results.json"
        old.parent.mkdir()
        old.write_text("old")
        done = subprocess.run([str(SUITE), "--tier", "short", "--folder", str(old.parent),
                               "--benchmark_filter=none"], capture_output=True, timeout=SECONDS,
                              check=False)
        self.assertEqual((done.returncode, old.read_text()), (2, "old"))

    def test_help_has_both_kinds_of_flags(self) -> None:
        done = subprocess.run([str(SUITE), "--help"], capture_output=True, text=True,
                              timeout=SECONDS, check=True)
        self.assertIn("--slice-repetitions", done.stdout)
        self.assertIn("--benchmark_filter", done.stdout)


if __name__ == "__main__":
    unittest.main()
