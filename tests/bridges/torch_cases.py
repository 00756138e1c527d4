# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of PyTorch's own distributed_test.py, which is in the wheel, on one backend.

    .venv/bin/pip install --target FOLDER expecttest ./bridges/torch_distributed ...
    PYTHONPATH=FOLDER .venv/bin/python tests/bridges/torch_cases.py ladder|gloo RESULT.json

Three ranks, each a fork. What the file states of Gloo it states of ladder, as if it were written for
that, but not that the profiler has an event "gloo:all_reduce". Writes {CASE: "passed" | "skipped: WHY" | "failed: WHY"}. A quarter of an hour per backend.
"""
from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import re
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

SOURCE = "torch.testing._internal.distributed.distributed_test"
MODULE = "cases_of_the_backend"
SECONDS = 60  # of a case; a hang fails


def cases(backend: str, folder: Path) -> Any:
    """Its module for this backend, as a file, which pickle finds again."""
    text = Path(importlib.util.find_spec(SOURCE).origin).read_text(encoding="utf-8")
    text = re.sub(r"\bdist\.Backend\.GLOO\b|\"gloo\"", f'"{backend}"', text)
    if backend != "gloo":  # no event "gloo:all_reduce" for the profiler
        text = re.sub(r"^(\w*PROFILING_SUPPORTED_BACKENDS =) \[", r"\1 [] and [", text, flags=re.M)
    from torch.testing._internal.common_distributed import DistTestCases
    for backends in DistTestCases.backend_feature.values():
        if "gloo" in backends:
            backends.add(backend)
    (folder / f"{MODULE}.py").write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    return importlib.import_module(MODULE)


class Outcomes(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def keep(self, case: unittest.TestCase, outcome: str) -> None:
        self.found[case.id().rsplit(".", 1)[1]] = outcome
        print(case.id().rsplit(".", 1)[1], outcome[:200], flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.keep(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.keep(test, f"skipped: {reason}")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        errors = re.findall(r"^\w*(?:Error|Exception): .*", str(err[1]), re.MULTILINE)
        self.keep(test, f"failed: {(errors or str(err[1]).splitlines() or [repr(err[1])])[-1]}")

    addError = addFailure


def main(backend: str, path: Path) -> None:
    os.environ |= {"BACKEND": backend, "WORLD_SIZE": "3", "OMP_NUM_THREADS": "1",
                   "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(SECONDS)}
    sys.argv[1:] = []  # which common_utils reads
    if backend == "ladder":
        import ladder_distributed  # noqa: F401
    with tempfile.TemporaryDirectory() as folder:
        source = cases(backend, Path(folder))

        class Cases(source.TestDistBackend, source.DistributedTest._DistTestBase):
            def setUp(self) -> None:
                super().setUp()
                self._start_processes(multiprocessing.get_context("fork").Process)

        outcomes = Outcomes()
        unittest.defaultTestLoader.loadTestsFromTestCase(Cases).run(outcomes)
    path.write_text(json.dumps(outcomes.found, indent=1), encoding="utf-8")
    print(Counter(outcome.split(":")[0] for outcome in outcomes.found.values()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
