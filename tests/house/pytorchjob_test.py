# SPDX-License-Identifier: Apache-2.0
"""scripts/pytorchjob.yaml: what the operator (Kubeflow Training Operator, version 1) refuses in a
PyTorchJob, and what a pod runs. No cluster is asked."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

try:
    import yaml
except ImportError:  # that of .venv has it
    yaml = None

ROOT = Path(__file__).resolve().parents[2]
RECORD = '#!/usr/bin/env bash\nprintf "%s\\n" "${0##*/} $*" >>calls\n'
# Resolves the name at the third request.
GETENT = RECORD + "(($(grep -c getent calls) >= 3))\n"


@unittest.skipIf(yaml is None, "skipped: this Python has no PyYAML; that of .venv has")
class PyTorchJob(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        text = (ROOT / "scripts/pytorchjob.yaml").read_text(encoding="utf-8")
        self.job: dict[str, Any] = yaml.safe_load(text)
        self.replicas = self.job["spec"]["pytorchReplicaSpecs"]
        [self.container] = self.replicas["Master"]["template"]["spec"]["containers"]

    def test_the_fields_that_the_operator_checks(self) -> None:
        self.assertEqual((self.job["apiVersion"], self.job["kind"]),
                         ("kubeflow.org/v1", "PyTorchJob"))
        self.assertRegex(self.job["metadata"]["name"], r"^[a-z][-a-z0-9]{0,40}$")  # of services too
        self.assertLessEqual(set(self.job["spec"]["runPolicy"]), {
            "activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "schedulingPolicy",
            "suspend", "ttlSecondsAfterFinished"})
        self.assertIn(self.job["spec"]["runPolicy"]["cleanPodPolicy"], ("All", "None", "Running"))
        self.assertEqual(set(self.replicas), {"Master", "Worker"})
        self.assertEqual(self.replicas["Master"]["replicas"], 1)  # without: no RANK, no MASTER_ADDR
        for replica in self.replicas.values():
            self.assertEqual(set(replica), {"replicas", "restartPolicy", "template"})
            self.assertIn(replica["restartPolicy"], ("Always", "ExitCode", "Never", "OnFailure"))
        self.assertEqual(self.container["name"], "pytorch")
        self.assertTrue(all(isinstance(word, str) for word in self.container["command"]))

    def test_a_pod_is_a_rank_and_all_run_the_same(self) -> None:
        """nprocPerNode would be a factor of WORLD_SIZE; the elastic variables are torchrun's."""
        self.assertEqual(set(self.job["spec"]), {"runPolicy", "pytorchReplicaSpecs"})
        self.assertEqual(self.replicas["Master"]["template"], self.replicas["Worker"]["template"])

    def test_the_program_and_its_flags_exist(self) -> None:
        program, *words = re.search(r"^exec build/bin/(.*)$", self.container["command"][-1],
                                    re.MULTILINE).group(1).split()
        self.assertTrue((ROOT / program / "main.cpp").is_file(), program)
        sources = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("mnist/*.cpp"))
        for flag in (word for word in words if word.startswith("--")):
            self.assertIn(f'"{flag}"', sources)

    def calls(self, **stubs: str) -> list[str]:
        """What the command of a pod starts, one line per call."""
        programs = {"stage3_ddp_torchrun": RECORD, "getent": GETENT, "sleep": "#!/bin/sh\n"} | stubs
        for name, text in programs.items():
            path = self.folder / "build/bin" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755)
        subprocess.run(self.container["command"], cwd=self.folder, check=True, timeout=30,
                       env={"PATH": f"{self.folder / 'build/bin'}:/usr/bin:/bin",
                            "MASTER_ADDR": "ladder-master-0"},
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return (self.folder / "calls").read_text(encoding="utf-8").splitlines()

    def test_waits_for_the_name_of_rank_0(self) -> None:
        self.assertEqual(self.calls(), ["getent hosts ladder-master-0"] * 3
                         + ["stage3_ddp_torchrun --timeout 300"])

    def test_starts_after_a_minute_without_it_to_show_what_is_wrong(self) -> None:
        waiting, program = self.calls(timeout=RECORD + "exit 124\n")
        self.assertTrue(waiting.startswith("timeout 60 bash -c until getent hosts"), waiting)
        self.assertEqual(program, "stage3_ddp_torchrun --timeout 300")


if __name__ == "__main__":
    if yaml is None:
        sys.exit("no PyYAML here; hint: .venv/bin/python tests/house/pytorchjob_test.py")
    unittest.main()
