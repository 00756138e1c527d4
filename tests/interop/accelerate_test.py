# SPDX-License-Identifier: Apache-2.0
"""Stage 5 beside Python: started by the real `accelerate launch`, and its checkpoints read."""
from __future__ import annotations

import json
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import free_port, launch, temporary_folder  # noqa: E402
from tests.support.resume import checkpoints_in, manifest_of, require_whole  # noqa: E402
from tests.support.twins import PEERS  # noqa: E402
from tests.support.ways import (ACCELERATE, CONFIG, STAGE5, Run, Way,  # noqa: E402
                                ignore_accelerate_configuration, require_equal_weights, small,
                                spawned, train)

sys.path.insert(0, str(PEERS))
from common import BasicNet  # noqa: E402

FOLDER = temporary_folder("accelerate")
ignore_accelerate_configuration(FOLDER)

FLAGS = small(recipe="convnet", epochs=1, limit_train=97, limit_test=50)


def accelerate_launch(config: Path, *flags: object) -> Way:
    """Its own port would be the same for all that run at once."""
    return Way((ACCELERATE, "launch", "--no_python", "--config_file", config, *flags, STAGE5))


def changed(**entries: str) -> Path:
    """The configuration with other values. Without quotes, Python takes NO for false."""
    path = Path(tempfile.mkdtemp(dir=FOLDER)) / "my_config.yaml"
    lines = [line.split(": ", 1) for line in CONFIG.read_text().splitlines()]
    path.write_text("".join(f"{key}: {entries.get(key, value)}\n" for key, value in lines))
    return path


class Launched(unittest.TestCase):
    """With the file that `accelerate config` wrote."""

    @classmethod
    def setUpClass(cls) -> None:
        """Two launchers at a time. One that fails does so in its test."""
        two = accelerate_launch(CONFIG, "--main_process_port", free_port())
        one = accelerate_launch(changed(distributed_type="'NO'", num_processes="1",
                                        mixed_precision="'no'", use_cpu="true"), "--debug")
        one.environment["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = 3  # it has no flag for that
        several_cpus = accelerate_launch(changed(distributed_type="MULTI_CPU"),
                                         "--main_process_port", free_port())
        pool = ThreadPoolExecutor(2)
        cls.addClassCleanup(pool.shutdown)
        cls.two = pool.submit(train, two, *FLAGS, parent=FOLDER)
        cls.one = pool.submit(train, one, *FLAGS, parent=FOLDER)
        cls.several_cpus = pool.submit(launch, *several_cpus.command, *FLAGS, cwd=FOLDER)

    def expect_equal(self, a: Run, b: Run) -> None:
        require_equal_weights(a, b)
        for field in ("world_size", "precision", "steps", "seen", "correct"):
            self.assertEqual(a.result[field], b.result[field], field)

    def test_two_processes_in_bf16(self) -> None:
        run = self.two.result()
        self.assertEqual((run.result["world_size"], run.result["precision"]), (2, "bf16"))
        self.assertIn("by accelerate (", run.header["launch"])
        self.expect_equal(run, train(spawned(program=STAGE5), *FLAGS, "--mixed-precision", "bf16",
                                     parent=FOLDER))

    def test_one_process_that_accumulates_and_checks(self) -> None:
        run = self.one.result()
        self.assertEqual((run.result["world_size"], run.result["steps"]), (1, 2))
        self.expect_equal(run, train(spawned(1, program=STAGE5), *FLAGS, "--debug",
                                     "--gradient-accumulation-steps", 3, parent=FOLDER))

    def test_it_starts_one_process_for_several_cpus(self) -> None:
        """Which would train alone, on all images; so that is refused, with a command that works."""
        done = self.several_cpus.result()
        self.assertEqual((done.code, done.stdout), (1, ""), done.stderr)
        errors = [line for line in done.errors if line.startswith("error: ")]
        self.assertEqual(len(errors), 1, done.stderr)
        self.assertIn("accelerate launch: started one process", errors[0])
        self.assertIn("hint: accelerate launch --multi_gpu", errors[0])


class Checkpoint(unittest.TestCase):
    """Python reads all of it, with the packages that people use."""

    @classmethod
    def setUpClass(cls) -> None:
        """A training on two processes, whose last checkpoint is after its last step."""
        project = Path(tempfile.mkdtemp(dir=FOLDER))
        cls.run_of_two = train(
            spawned(program=STAGE5), *small(limit_train=97, limit_test=50, batch_size=32),
            "--project-dir", project, "--checkpointing-steps", 2, parent=FOLDER)
        cls.checkpoint = checkpoints_in(project)[-1]

    def test_the_weights_fit_the_twin(self) -> None:
        model = BasicNet()
        keys = model.load_state_dict(load_file(self.checkpoint / "model.safetensors"), strict=True)
        self.assertEqual((keys.missing_keys, keys.unexpected_keys), ([], []))
        for name, tensor in load_file(self.run_of_two.weights).items():
            self.assertTrue(torch.equal(model.state_dict()[name], tensor), name)

    def test_the_state_of_the_optimizer_goes_by_the_names_of_the_weights(self) -> None:
        model = BasicNet()
        path = self.checkpoint / "optimizer.safetensors"
        state = load_file(path)
        expected = {f"{name}.{kind}" for name, _ in model.named_parameters()
                    for kind in ("exp_avg", "exp_avg_sq", "step")}
        self.assertEqual(set(state), expected)
        for name, parameter in model.named_parameters():
            self.assertEqual(state[f"{name}.exp_avg"].shape, parameter.shape)
            self.assertGreaterEqual(state[f"{name}.exp_avg_sq"].min().item(), 0)
            self.assertEqual(state[f"{name}.step"].item(), 4)
        with safe_open(path, framework="pt") as file:
            groups = json.loads(file.metadata()["groups"])
        self.assertEqual([group["params"] for group in groups],
                         [[name for name, _ in model.named_parameters()]])
        self.assertEqual((groups[0]["lr"], groups[0]["betas"]), (1e-3, [0.9, 0.999]))

    def test_the_random_generators_of_both_ranks(self) -> None:
        before = torch.get_rng_state()
        self.addCleanup(torch.set_rng_state, before)
        for rank in range(2):
            state = load_file(self.checkpoint / f"random_states_{rank}.safetensors")["cpu"]
            torch.set_rng_state(state)
            self.assertTrue(torch.equal(torch.get_rng_state(), state))
        self.assertFalse(torch.equal(before, state))
        torch.rand(3)

    def test_places_and_numbers_are_json_and_all_hashes_agree(self) -> None:
        def read(name: str) -> Any:
            return json.loads((self.checkpoint / name).read_text())

        place = read("sampler.json")
        self.assertRegex(place.pop("order"), "^[0-9a-f]{64}$")
        self.assertEqual(place, {"epoch": 0, "batch": 4, "batches": 4,
                                 "data": "MNIST train, 60000 images"})
        self.assertEqual(read("sampler_1.json"), {"epoch": 0, "batch": 0, "batches": 1, "order": "",
                                                  "data": "MNIST test, 10000 images"})
        self.assertEqual(read("scheduler.json"),
                         {"base_lrs": [1e-3], "last_epoch": 0, "last_lr": [1e-3]})
        numbers = read("custom_checkpoint_0.json")
        self.assertEqual((numbers["steps"], numbers["samples"]), (4, 97))
        self.assertEqual(self.run_of_two.result["steps"], 4)
        require_whole(self.checkpoint)
        self.assertEqual(len(manifest_of(self.checkpoint)), 8)


if __name__ == "__main__":
    unittest.main()
