# SPDX-License-Identifier: Apache-2.0
"""build/bin/suite with stages that only write metrics: the row for them, and without them."""
from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest import approx
from tests.support.files import write
from tests.support.programs import BIN, Launched, Result, poll_until, run

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
run = dict(record="run", batch_size=64, lr=1e-3, world_size=result.pop("world_size", 1))
with open(path, "w") as file:
    for record in (run, result):
        print(json.dumps({{name: value for name, value in record.items() if value != "left out"}}),
              file=file)
"""


class Suite:
    """The suite in a folder, with a stage 0 made here."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out, self.runs = folder, folder / "out.json", folder / "runs"
        self.stage()

    def stage(self, before: str = "", **changed: object) -> None:
        write(self.folder / "bin/stage0_single_gpu", executable=True,
              text=STUB.format(python=sys.executable, before=before, changed=changed))

    def flags(self, row: str, tier: str = "") -> list[object]:
        usual = "bench" if row.startswith("slice") else "short"  # which measures no peak
        repetitions = [] if tier else ["--slice-repetitions", 2]
        return ["--tier", tier or usual, *repetitions, "--folder", self.runs, "--bin",
                self.folder / "bin", f"--benchmark_filter=^{row}/threads:[0-9]+/iterations",
                "--cpus", 2]

    def run(self, row: str, tier: str = "", code: int = 0) -> Result:
        done = run("suite", *self.flags(row, tier), f"--benchmark_out={self.out}")
        assert (done.code, done.stdout) == (code, ""), done.stderr
        return done

    def rows(self) -> list[dict[str, Any]]:
        return [row for row in json.loads(self.out.read_text())["benchmarks"]
                if row["run_type"] == "iteration"]


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def test_a_slice_is_the_steps_after_the_warm_up(suite: Suite) -> None:
    name = "stage0_single_gpu     basicnet  1 x 2  fp32"
    assert suite.run(f"slice/{ROW}").errors == [
        f"[1/2] {name}  10.00 s for 200 steps  about 10 s left",
        f"[2/2] {name}  10.00 s for 200 steps"]
    rows = suite.rows()
    assert len(rows) == 2
    for row in rows:
        assert (row["real_time"], row["time_unit"]) == (10.0, "s")
        assert row["samples_per_second"] == 1280.0  # 200 of 220 steps in 10 s
        assert (row["batch_size"], row["lr"]) == (64, 1e-3)
        assert 0.0 < row["startup_seconds"] < 20.0
        assert row["label"] == f"weights_sha256={'ab' * 32} device=cpu"
    context = json.loads(suite.out.read_text())["context"]
    floor = 12_800 * 71_565_312 / (float(context["peak_gflops"]) * 1e9)  # images x operations each
    assert rows[0]["percent_of_floor"] == approx(100 * floor / 10, abs=0.1 * floor)
    for name in ("commit", "compiler", "flags", "cpu", "isa", "kernel", "versions", "variables",
                 "python_versions", "data_sha256", "peak_gflops_1", "peak_gflops_bf16"):
        assert context[name], name
    assert "--benchmark_filter" in context["argv"]


def test_the_quick_tier_shows_thirty_steps_as_two_hundred_three_times(suite: Suite) -> None:
    suite.stage(steps=50, train_seconds=3.5, warm_up_seconds=0.5, device="cuda:0",
                samples_per_second=50 * 64 / 3.5)
    suite.run(f"slice/{ROW}", "quick")
    assert [row["real_time"] for row in suite.rows()] == [20.0] * 3  # 0.1 s each
    assert {row["samples_per_second"] for row in suite.rows()} == {640.0}
    assert "percent_of_floor" not in suite.rows()[0]  # there is none on a GPU


def test_a_whole_run_lasts_from_its_start_to_its_end(suite: Suite) -> None:
    suite.stage(before="time.sleep(0.5)")
    done = run("suite", *suite.flags(f"full/{ROW}"))
    suite.out = suite.runs / "results.json"  # without a name they are in the folder
    assert f"the results are in {suite.out}\n" in done.stderr
    [row] = suite.rows()
    assert 0.5 < row["real_time"] < 12.0  # and not what the record says
    assert (row["total_seconds"], row["seen"]) == (12.5, 10_000)
    assert row["user_lines"] > 30


ANOTHER_ROW = "its record belongs to another row"


@pytest.mark.parametrize("changed, code, reason", [
    ({"first_step_at": "left out"}, 1, "its record has no first_step_at"),
    ({"first_step_at": None}, 1, "its record has no first_step_at"),
    ({"recipe": "convnet"}, 1, ANOTHER_ROW), ({"precision": "bf16"}, 1, ANOTHER_ROW),
    ({"world_size": 2}, 1, ANOTHER_ROW),
    ({"before": "sys.exit('error: no data')"}, 1, "exit code 1; last line: error: no data"),
    ({"before": r"sys.stderr.buffer.write(b'\x1b[31merror: caf\xe9\n'); sys.exit(1)"}, 1,
     "exit code 1; last line:  [31merror: caf\N{REPLACEMENT CHARACTER}"),
    # A program that the machine cannot run has not failed.
    ({"before": "sys.exit(77)"}, 0, "not run: exit code 77; no output")])
def test_a_row_without_numbers_has_a_reason(suite: Suite, changed, code, reason) -> None:
    suite.stage(**changed)
    said = suite.run(f"full/{ROW}", code=code).stderr
    [row] = suite.rows()
    assert (row["error_occurred"], row["error_message"]) == (True, reason)
    if code:
        assert "error: 1 runs failed; see the table" in said
        assert f"  failed: {reason}; output: {suite.runs}/full_" in said
        assert len(list(suite.runs.glob("full_*.stderr"))) == 1
    else:
        assert f"  {reason}\n" in said


def test_a_row_that_the_machine_cannot_run_is_tried_once(suite: Suite) -> None:
    tried = suite.folder / "tried"
    suite.stage(before=f"open({str(tried)!r}, 'a').write('once ')\nsys.exit(77)")
    suite.run(f"slice/{ROW}")
    assert [row["error_message"] for row in suite.rows()] == 2 * ["not run: exit code 77; no output"]
    assert tried.read_text() == "once "


def test_two_cannot_share_a_folder_and_one_ends_with_its_stage(suite: Suite) -> None:
    started = suite.folder / "started"
    suite.stage(before=f"open({str(started)!r}, 'w').close()\ntime.sleep(600)")
    with Launched(BIN / "suite", *suite.flags(f"full/{ROW}")) as first:
        assert poll_until(started.exists, 60)
        assert "another suite writes there" in suite.run(f"full/{ROW}", code=2).stderr
        first.process.send_signal(signal.SIGTERM)
        assert first.finish(60).code == -signal.SIGTERM  # and no process is left


@pytest.mark.parametrize("flags, code, text", [
    (["--tier", "long"], 2, "--tier: expected one of short, quick, bench, whole, got 'long'"),
    (["--benchmark_lits"], 2, "suite --help lists them"), (["--cpus", "0"], 2, "--cpus"),
    (["--benchmark_filter=none"], 2, "--benchmark_list_tests"),
    (["--benchmark_filter=["], 2, "--benchmark_filter: expected a regular expression, got '['"),
    (["--help"], 0, "--slice-repetitions"), (["--help"], 0, "--benchmark_filter")])
def test_wrong_flags_are_named_and_leave_the_results_alone(suite: Suite, flags, code, text) -> None:
    results = write(suite.runs / "results.json", "old")
    done = run("suite", "--folder", suite.runs, *flags)
    assert done.code == code and text in (done.stderr if code else done.stdout)
    assert results.read_text() == "old"
