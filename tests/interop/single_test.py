# SPDX-License-Identifier: Apache-2.0
"""Stage 0 in reference math and its Python twin take the same 60 steps, bit for bit."""
from __future__ import annotations

import sys
import unittest
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import BIN  # noqa: E402
from tests.support.twins import PEERS, TwinTest, twin  # noqa: E402

sys.path.insert(0, str(PEERS))
from common import BasicNet, ConvNet  # noqa: E402

STEPS = 60
SEEN = 500
BATCH = {"basicnet": 64, "convnet": 32}


def flags(recipe: str) -> list[object]:
    return ["--recipe", recipe, "--epochs", 1, "--limit-train", STEPS * BATCH[recipe],
            "--limit-test", SEEN]


class SameAsPython(TwinTest):
    def compare(self, recipe: str) -> None:
        self.run_both([BIN / "stage0_single_gpu"], twin("single.py"), flags(recipe))
        self.expect_equal(STEPS, SEEN)

    def test_basicnet(self) -> None:
        self.compare("basicnet")

    def test_convnet(self) -> None:
        self.compare("convnet")

    def test_python_loads_our_checkpoint_into_its_own_network(self) -> None:
        for recipe, network in (("basicnet", BasicNet), ("convnet", ConvNet)):
            self.finish(self.start("fast", [BIN / "stage0_single_gpu"], flags(recipe)))
            path = self.folder / "fast.safetensors"
            model = network()
            keys = model.load_state_dict(load_file(path), strict=True)
            self.assertEqual((keys.missing_keys, keys.unexpected_keys), ([], []))
            with safe_open(path, framework="pt") as file:
                self.assertEqual(file.metadata(), {"format": "pt"})


if __name__ == "__main__":
    unittest.main()
