# SPDX-License-Identifier: Apache-2.0
"""Trainings of stage 5 that are stopped and go on, and what their checkpoints hold."""
from __future__ import annotations

import hashlib
import json
import random
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.programs import BIN, Launched, Result, launch, poll_until
from tests.support.ways import STAGE5, Run, Way, spawned, train


def checkpoints_in(project: Path) -> list[Path]:
    """Those that can be seen, the oldest first."""
    return sorted((project / "checkpoints").glob("checkpoint_*"),
                  key=lambda path: int(path.name.removeprefix("checkpoint_")))


def hidden_in(project: Path) -> list[str]:
    return [path.name for path in (project / "checkpoints").glob(".*")]


def manifest_of(checkpoint: Path) -> dict[str, dict[str, Any]]:
    files = json.loads((checkpoint / "manifest.json").read_text())["files"]
    assert isinstance(files, dict)
    return files


def require_whole(checkpoint: Path) -> None:
    """Every file is as long, and has the hash, that the manifest says; and no other is there."""
    manifest = manifest_of(checkpoint)
    assert {path.name for path in checkpoint.iterdir()} == {*manifest, "manifest.json"}, checkpoint
    for name, said in manifest.items():
        content = (checkpoint / name).read_bytes()
        found = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert found == said, (checkpoint / name, found, said)


def require_all_whole(project: Path) -> None:
    """Of all that can be seen, and of where `latest` leads."""
    for checkpoint in checkpoints_in(project):
        require_whole(checkpoint)
    latest = project / "checkpoints" / "latest"
    if latest.is_symlink():
        require_whole(latest.resolve(strict=True))


@dataclass(frozen=True)
class Training:
    """A training that writes checkpoints, as flags; each attempt has a folder of its own."""

    world: int
    flags: tuple[object, ...]
    saving: tuple[object, ...] = ("--checkpointing-steps", 3)

    def uninterrupted(self, parent: Path) -> Run:
        """Without checkpoints: that they are written must not be seen in the weights either."""
        return train(spawned(self.world, program=STAGE5), *self.flags, parent=parent)

    def attempt(self, parent: Path) -> Attempt:
        return Attempt(self, Path(tempfile.mkdtemp(dir=parent)))


@dataclass(frozen=True)
class Attempt:
    """A training that is under way in `folder`, with a stop or several."""

    training: Training
    folder: Path

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def command(self) -> tuple[object, ...]:
        way = spawned(self.training.world, program=STAGE5)
        return (*way.command, *self.training.flags, *self.training.saving,
                "--project-dir", self.project)

    def stop(self, step: int, number: int, chance: random.Random) -> Result:
        """Sends the signal soon after step `step` of rank 0: SIGKILL to a random process, the
        launcher or a rank; another to the launcher, as a terminal or a scheduler does."""
        metrics = self.folder / f"stopped.{number}.{step}.jsonl"
        marks = metrics.with_suffix(".rank0.jsonl")

        def is_done() -> bool:
            return marks.exists() and marks.read_bytes().count(b"\n") >= step

        with Launched(*self.command, "--metrics", metrics, "--fingerprint", 1,
                      cwd=self.folder) as started:
            poll_until(lambda: is_done() or started.process.poll() is not None, 120, 0.002)
            if number != signal.SIGKILL:
                started.process.send_signal(number)
            elif victims := started.processes():
                chance.choice(victims).send(number)
            return started.finish(60)

    def run(self) -> Result:
        return launch(*self.command, cwd=self.folder)

    def resumed(self) -> Run:
        """Goes on to the end, from the last checkpoint. Fails unless that ends well."""
        return train(Way(self.command), "--resume", parent=self.folder)


def steps_trained(run: Run) -> int:
    """Batches that this process has trained, without those before a resume."""
    return sum(record["steps"] for record in run.records if record["record"] == "epoch")


def require_same_end(resumed: Run, expected: Run) -> None:
    """Went on from somewhere, and ended where the uninterrupted run did."""
    assert "resumed from " in resumed.done.stderr, resumed.done.stderr
    assert steps_trained(resumed) < steps_trained(expected), "it began anew"
    for field in ("weights_sha256", "steps", "correct", "seen", "eval_loss"):
        ours, theirs = resumed.result[field], expected.result[field]
        assert ours == theirs, f"{field}: {ours} after a resume, {theirs} without a stop"


def faulty_disk(at: int = 0, error: int = 0, part: str = "/project/checkpoints/",
                milliseconds: int = 0) -> dict[str, object]:
    """Variables with which the call number `at` on a path with this part fails; see its source."""
    return {"LD_PRELOAD": BIN / "libfaulty_disk.so", "FAULTY_DISK_FOLDER": part,
            "FAULTY_DISK_AT": at, "FAULTY_DISK_ERRNO": error, "FAULTY_DISK_SLEEP": milliseconds}
