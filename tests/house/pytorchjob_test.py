# SPDX-License-Identifier: Apache-2.0
"""scripts/pytorchjob.yaml against the rules of a PyTorchJob, version 1, of the Kubeflow Training
Operator: the fields that its definition lists, and what its check refuses. No cluster is asked."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

try:
    import yaml
except ImportError:  # CTest runs this file with the Python of .venv too, which has it
    yaml = None

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "scripts" / "pytorchjob.yaml"
ABSENT = object()

Fields = dict[str, Any]

JOB = {"apiVersion", "kind", "metadata", "spec"}
SPEC = {"elasticPolicy", "nprocPerNode", "pytorchReplicaSpecs", "runPolicy"}
RUN_POLICY = {"activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "managedBy",
              "schedulingPolicy", "suspend", "ttlSecondsAfterFinished"}
REPLICA = {"replicas", "restartPolicy", "template"}
CONTAINER = {"args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle",
             "livenessProbe", "name", "ports", "readinessProbe", "resizePolicy", "resources",
             "restartPolicy", "securityContext", "startupProbe", "stdin", "stdinOnce",
             "terminationMessagePath", "terminationMessagePolicy", "tty", "volumeDevices",
             "volumeMounts", "workingDir"}
CLEAN_POD_POLICIES = {"All", "None", "Running"}
RESTART_POLICIES = {"Always", "ExitCode", "Never", "OnFailure"}
WHOLE_NUMBERS = ("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished")

# Services are named after the job, so a digit or a dot in front is refused.
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LONGEST_LABEL = 63


def read_manifest() -> Fields:
    return yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))


def is_count(value: Any, minimum: int) -> bool:
    return type(value) is int and value >= minimum  # True is an int to isinstance


def unknown_fields(where: str, value: Fields, known: set[str]) -> list[str]:
    return [f"{where}: no field {name}" for name in value if name not in known]


def container_problems(where: str, container: Fields) -> list[str]:
    found = unknown_fields(where, container, CONTAINER)
    if not container.get("image"):
        found.append(f"{where}: no image")
    words = container.get("command", []) + container.get("args", [])
    return found + [f"{where}: {word!r} is no string" for word in words
                    if not isinstance(word, str)]


def replica_problems(kind: str, replica: Fields) -> list[str]:
    where = f"pytorchReplicaSpecs.{kind}"
    found = unknown_fields(where, replica, REPLICA)
    if replica.get("restartPolicy", "OnFailure") not in RESTART_POLICIES:
        found.append(f"{where}.restartPolicy: none of {sorted(RESTART_POLICIES)}")
    if not is_count(replica.get("replicas", 1), 1):
        found.append(f"{where}.replicas: no whole number of at least 1")
    if kind == "Master" and replica.get("replicas", 1) != 1:
        found.append(f"{where}.replicas: a job has one master")
    containers = replica.get("template", {}).get("spec", {}).get("containers", [])
    if "pytorch" not in [container.get("name") for container in containers]:
        found.append(f"{where}: no container named pytorch")
    for container in containers:
        found += container_problems(f"{where}.{container.get('name')}", container)
    return found


def run_policy_problems(policy: Fields) -> list[str]:
    found = unknown_fields("runPolicy", policy, RUN_POLICY)
    if policy.get("cleanPodPolicy", "None") not in CLEAN_POD_POLICIES:
        found.append(f"runPolicy.cleanPodPolicy: none of {sorted(CLEAN_POD_POLICIES)}")
    return found + [f"runPolicy.{name}: no whole number" for name in WHOLE_NUMBERS
                    if name in policy and not is_count(policy[name], 0)]


def spec_problems(spec: Fields) -> list[str]:
    found = unknown_fields("spec", spec, SPEC) + run_policy_problems(spec.get("runPolicy", {}))
    replicas = spec.get("pytorchReplicaSpecs", {})
    # Without a master the operator sets neither RANK nor MASTER_ADDR.
    if "Master" not in replicas:
        found.append("pytorchReplicaSpecs: no Master")
    for kind in replicas:
        if kind not in ("Master", "Worker"):
            found.append(f"pytorchReplicaSpecs: {kind} is neither Master nor Worker")
        found += replica_problems(kind, replicas[kind])
    if not isinstance(spec.get("nprocPerNode", "auto"), str):
        found.append("nprocPerNode: no string")
    return found


def name_problems(name: str, workers: Any) -> list[str]:
    if not DNS_LABEL.fullmatch(name):
        return [f"metadata.name: {name!r} is no DNS label that begins with a letter"]
    longest = max(f"{name}-master-0", f"{name}-worker-{workers}", key=len)
    return [f"metadata.name: {longest} is too long"] if len(longest) > LONGEST_LABEL else []


def problems(job: Fields) -> list[str]:
    found = unknown_fields("the job", job, JOB)
    if job.get("apiVersion") != "kubeflow.org/v1":
        found.append("apiVersion: not kubeflow.org/v1")
    if job.get("kind") != "PyTorchJob":
        found.append("kind: not PyTorchJob")
    spec = job.get("spec", {})
    worker = spec.get("pytorchReplicaSpecs", {}).get("Worker", {})
    found += name_problems(job.get("metadata", {}).get("name", ""), worker.get("replicas", 1))
    return found + spec_problems(spec)


def changed(job: Fields, path: tuple[str | int, ...], value: Any) -> Fields:
    """A copy of the job with another value at the path, or none if it is ABSENT."""
    copied = copy.deepcopy(job)
    place: Any = copied
    for step in path[:-1]:
        place = place[step]
    if value is ABSENT:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copied


REPLICAS = ("spec", "pytorchReplicaSpecs")
FIRST = (*REPLICAS, "Master", "template", "spec", "containers", 0)

# One mistake each, and a part of the only problem that must be found.
MISTAKES = [
    (("apiVersion",), "kubeflow.org/v2", "apiVersion: not"),
    (("apiVersion",), ABSENT, "apiVersion: not"),
    (("kind",), "PytorchJob", "kind: not"),
    (("replicas",), 2, "the job: no field replicas"),
    (("metadata", "name"), ABSENT, "is no DNS label"),
    (("metadata", "name"), "2ladder", "is no DNS label"),
    (("metadata", "name"), "my_ladder", "is no DNS label"),
    (("metadata", "name"), "l" * 55, "is too long"),
    (("spec", "restartPolicy"), "Never", "spec: no field restartPolicy"),
    (("spec", "nprocPerNode"), 2, "nprocPerNode: no string"),
    (("spec", "runPolicy", "cleanPodPolicy"), "Completed", "cleanPodPolicy: none of"),
    (("spec", "runPolicy", "backoffLimit"), "3", "backoffLimit: no whole number"),
    (("spec", "runPolicy", "backofflimit"), 3, "runPolicy: no field backofflimit"),
    (REPLICAS, {}, "no Master"),
    ((*REPLICAS, "Master"), ABSENT, "no Master"),
    ((*REPLICAS, "Master", "replicas"), 2, "a job has one master"),
    ((*REPLICAS, "Worker", "replicas"), "2", "Worker.replicas: no whole number"),
    ((*REPLICAS, "Worker", "replicas"), 0, "Worker.replicas: no whole number"),
    ((*REPLICAS, "Worker", "restartPolicy"), "Sometimes", "Worker.restartPolicy: none of"),
    ((*REPLICAS, "Worker", "restartpolicy"), "Never", "Worker: no field restartpolicy"),
    ((*REPLICAS, "Worker", "template"), ABSENT, "Worker: no container named pytorch"),
    ((*FIRST, "name"), "trainer", "Master: no container named pytorch"),
    ((*FIRST, "image"), ABSENT, "Master.pytorch: no image"),
    ((*FIRST, "cmd"), ["ls"], "Master.pytorch: no field cmd"),
    ((*FIRST, "args"), ["--timeout", 300], "Master.pytorch: 300 is no string"),
]


@unittest.skipIf(yaml is None, "skipped: this Python has no PyYAML; that of .venv has")
class PyTorchJobTest(unittest.TestCase):
    def setUp(self) -> None:
        self.job = read_manifest()
        self.replicas: Fields = self.job["spec"]["pytorchReplicaSpecs"]
        self.container: Fields = self.replicas["Master"]["template"]["spec"]["containers"][0]


class Schema(PyTorchJobTest):
    def test_the_manifest_keeps_the_rules(self) -> None:
        self.assertEqual(problems(self.job), [])

    def test_each_mistake_is_found_and_nothing_else(self) -> None:
        for path, value, text in MISTAKES:
            with self.subTest(text):
                found = problems(changed(self.job, path, value))
                self.assertEqual(len(found), 1, found)
                self.assertIn(text, found[0])

    def test_a_third_kind_of_replica_is_found(self) -> None:
        path = (*REPLICAS, "Launcher")
        found = problems(changed(self.job, path, self.replicas["Worker"]))
        self.assertEqual(found, ["pytorchReplicaSpecs: Launcher is neither Master nor Worker"])


class Ranks(PyTorchJobTest):
    def test_all_ranks_run_the_same(self) -> None:
        self.assertEqual(self.replicas["Master"]["template"], self.replicas["Worker"]["template"])

    def test_a_pod_is_a_rank(self) -> None:
        """A number of processes would be a factor of WORLD_SIZE; the elastic variables are
        torchrun's."""
        self.assertNotIn("nprocPerNode", self.job["spec"])
        self.assertNotIn("elasticPolicy", self.job["spec"])

    def test_the_program_and_its_flags_exist(self) -> None:
        program, *words = re.search(r"^exec build/bin/(.*)$", self.container["command"][-1],
                                    re.MULTILINE).group(1).split()
        self.assertTrue((ROOT / program / "main.cpp").is_file(), program)
        sources = "".join(path.read_text(encoding="utf-8")
                          for path in sorted((ROOT / "mnist").glob("*.cpp")))
        flags = [word for word in words if word.startswith("--")]
        self.assertEqual([flag for flag in flags if f'"{flag}"' not in sources], [])


RECORD = '#!/usr/bin/env bash\nprintf "%s\\n" "${0##*/} $*" >>calls\n'
# Knows the name when it is asked for the third time.
GETENT = RECORD + "(($(grep -c getent calls) >= 3))\n"


class Command(PyTorchJobTest):
    def setUp(self) -> None:
        super().setUp()
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.write_program("build/bin/stage3_ddp_torchrun", RECORD)
        self.write_program("stubs/getent", GETENT)
        self.write_program("stubs/sleep", "#!/usr/bin/env bash\n")

    def write_program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def calls(self) -> list[str]:
        """What the command of a pod starts, one line a call."""
        environment = {"PATH": f"{self.folder / 'stubs'}:/usr/bin:/bin",
                       "MASTER_ADDR": "ladder-master-0"}
        done = subprocess.run(self.container["command"], cwd=self.folder, env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return (self.folder / "calls").read_text(encoding="utf-8").splitlines()

    def test_waits_for_the_name_of_rank_0(self) -> None:
        *lookups, program = self.calls()
        self.assertEqual(lookups, ["getent hosts ladder-master-0"] * 3)
        self.assertEqual(program, "stage3_ddp_torchrun --timeout 300")

    def test_starts_after_a_minute_without_it_to_say_what_is_wrong(self) -> None:
        self.write_program("stubs/timeout", RECORD + "exit 124\n")
        waiting, program = self.calls()
        self.assertTrue(waiting.startswith("timeout 60 bash -c until getent hosts"), waiting)
        self.assertEqual(program, "stage3_ddp_torchrun --timeout 300")


if __name__ == "__main__":
    if yaml is None:
        sys.exit("no PyYAML here; hint: .venv/bin/python tests/house/pytorchjob_test.py")
    unittest.main()
