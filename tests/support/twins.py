# SPDX-License-Identifier: Apache-2.0
"""Runs a program beside its Python twin of bench/peers and compares what the two leave."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.support.programs import PYTHON, ROOT, SECONDS, Launched, Result, result_record

PEERS = ROOT / "bench" / "peers"
CPP, TWIN = "cpp", "python"  # how their files are named
SAME = ("weights_sha256", "accuracy", "correct", "seen", "steps", "train_loss", "eval_loss")
Command = list[object]


def twin(script: str, *flags: object) -> Command:
    return [PYTHON, PEERS / script, *flags]


class TwinTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ladder-interop-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, name: str, command: Command, flags: Command) -> Launched:
        """Starts a program on one thread; its files are `name` with an ending each."""
        files = ["--metrics", self.folder / f"{name}.jsonl",
                 "--save", self.folder / f"{name}.safetensors"]
        launched = Launched(*command, *flags, "--threads", 1, "--fingerprint", 1, *files)
        self.addCleanup(launched.kill_all)
        return launched

    def finish(self, launched: Launched) -> Result:
        done = launched.finish()
        self.assertEqual(done.code, 0, done.stderr)
        return done

    def run_both(self, cpp: Command, python: Command, flags: Command) -> tuple[Result, Result]:
        """Runs them at the same time. The C++ program draws the numbers that Python draws."""
        device = [] if "--device-ids" in cpp else ["--device", "cpu"]
        started = [self.start(CPP, [*cpp, "--math", "reference", *device], flags),
                   self.start(TWIN, python, flags)]
        ours, theirs = (self.finish(launched) for launched in started)
        return ours, theirs

    def first_difference(self) -> str:
        done = subprocess.run([ROOT / "tools" / "first_difference", CPP, TWIN], cwd=self.folder,
                              capture_output=True, text=True, timeout=SECONDS, check=False)
        return done.stdout + done.stderr

    def results(self) -> tuple[dict[str, Any], dict[str, Any]]:
        ours, theirs = (result_record(self.folder / f"{name}.jsonl") for name in (CPP, TWIN))
        return ours, theirs

    def expect_equal(self, steps: int, seen: int, ranks: int = 1,
                     same: tuple[str, ...] = SAME) -> None:
        """Both took so many steps, each the same on every rank, and ended with the same."""
        ours, theirs = self.results()
        self.assertEqual((ours["steps"], ours["seen"]), (steps, seen))
        for field in same:
            self.assertEqual(ours[field], theirs[field], f"{field}; {self.first_difference()}")
        self.assertIn(f"no difference in {steps * ranks} records of {ranks} rank",
                      self.first_difference())
        self.expect_equal_tensors()

    def expect_equal_tensors(self) -> None:
        ours, theirs = (load_file(self.folder / f"{name}.safetensors") for name in (CPP, TWIN))
        self.assertEqual(sorted(ours), sorted(theirs))
        for name, tensor in theirs.items():
            self.assertTrue(torch.equal(ours[name], tensor), name)
