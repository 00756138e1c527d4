# SPDX-License-Identifier: Apache-2.0
"""The flags and the output of the GPU checks: a line per check, a table, and report.md.

tools/gpu_check.sh starts pytest without its own terminal output.
"""
from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from gpu_checks_test import Check, Record  # noqa: E402
from gpu_report import MemoryWatch, Outcome, machine, table, write_report  # noqa: E402
from trainings import Setup  # noqa: E402

VERDICTS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("GPU checks")
    group.addoption("--bin", type=Path, required=True)
    group.addoption("--out", type=Path, required=True)
    group.addoption("--device", choices=["cuda", "cpu"], required=True)
    group.addoption("--gpus", type=int, default=0)
    group.addoption("--limit-train", type=int)
    group.addoption("--limit-test", type=int)
    group.addoption("--deadline", type=int, default=300)
    group.addoption("--command", default="tools/gpu_check.sh", help="for the report")


def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    few = (640, 500) if option.device == "cpu" else (0, 0)
    limits = [number if given is None else given
              for given, number in zip((option.limit_train, option.limit_test), few)]
    config.stash[Setup.key] = Setup(option.bin.resolve(), option.out.resolve(), option.device,
                                    option.gpus, *limits, option.deadline)
    config.pluginmanager.register(Output(config.stash[Setup.key], option.command))


@pytest.fixture(name="records", scope="session")
def records_fixture() -> dict[str, Record]:
    return {}


@pytest.fixture(name="check")
def check_fixture(request: pytest.FixtureRequest, records: dict[str, Record],
                  record_property: Any) -> Iterator[Check]:
    check = Check(request.config.stash[Setup.key], records)
    record_property("check", check)
    yield check


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """A check fails by the problems that it found."""
    yield
    check = pyfuncitem.funcargs.get("check")
    if check and check.wrong:
        pytest.fail(", ".join(check.wrong), pytrace=False)


def stop(number: int, _: object) -> None:
    """Ends the program that runs, even one that subprocess has just started."""
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(child), signal.SIGTERM)
    pytest.exit("stopped", 128 + number)


class Output:
    """In place of pytest's own."""

    def __init__(self, setup: Setup, command: str) -> None:
        self.setup = setup
        self.command = command
        self.outcomes: list[Outcome] = []
        self.started = time.monotonic()
        self.memory = MemoryWatch()

    def pytest_sessionstart(self) -> None:
        out = self.setup.out
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        os.environ["OMP_NUM_THREADS"] = "1"  # what torchrun would set, with five lines of warning
        if not self.setup.cuda:
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        for folder in ("suite", "resume"):
            shutil.rmtree(out / folder, ignore_errors=True)
        out.mkdir(parents=True, exist_ok=True)
        for pattern in ("*.jsonl", "*.log", "bench.json", "report.md"):
            for old in out.glob(pattern):
                old.unlink()
        (out / "machine.txt").write_text(machine(self.setup.bin), encoding="utf-8")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [one for one in items if one.name != "test_two_gpus" or self.setup.gpus < 2]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            print(report.longreprtext, file=sys.stderr)

    def pytest_runtest_setup(self) -> None:
        self.memory.begin()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of the call, or of a fault of this program before or after it."""
        if report.when != "call" and report.passed:
            return
        _, _, case = report.nodeid.rpartition("test_")
        check = dict(report.user_properties).get("check")
        why = report.longreprtext
        if report.skipped:
            why = report.longrepr[2].removeprefix("Skipped: ")
        outcome = Outcome(VERDICTS[report.outcome], case.partition("[")[2].rstrip("]") or case,
                          ", ".join(filter(None, [why, *(check.seen if check else [])])),
                          report.duration, check.record if check else {},
                          self.memory.seen() if report.outcome != "skipped" else "")
        self.outcomes.append(outcome)
        print(f"{outcome.verdict:7}  {outcome.name:15}  {outcome.seen}  {outcome.seconds:.1f} s",
              flush=True)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self.memory.close()
        if self.outcomes and exitstatus in (0, 1):
            report = write_report(self.outcomes, self.setup.out, self.command,
                                  time.monotonic() - self.started)
            print(f"\n{table(self.outcomes)}\nrecords and logs: {self.setup.out}\n"
                  f"all in one file, to attach to a report: {report}")
