# SPDX-License-Identifier: Apache-2.0
"""The Accelerator changes three lines of a training loop, and the page of stage 5 shows them."""
from __future__ import annotations

import difflib
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def loop(stage: str) -> list[str]:
    """The body of train_epoch, a line each."""
    text = (ROOT / stage / "main.cpp").read_text(encoding="utf-8")
    body = re.search(r"^void train_epoch\(.*?\) \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    assert body is not None, stage
    return [line.strip() for line in body[1].splitlines()]


class ThreeLines(unittest.TestCase):
    def test_the_loop_of_stage_5_is_that_of_stage_0_but_for_these_lines(self) -> None:
        changes = [line for line in difflib.ndiff(loop("stage0_single_gpu"),
                                                  loop("stage5_accelerator"))
                   if line[0] in "+-"]
        self.assertEqual(sorted(changes), sorted([
            # No device in the loop.
            "- for (const Batch& cpu_batch : loader) {",
            "- const Batch batch = cpu_batch.to(device);",
            "+ for (const Batch& batch : loader) {",
            # The tutorial's line.
            "- loss.backward();",
            "+ accelerator.backward(loss);",
            # Accumulation, reported to the monitor, and checkpoints.
            "+ const auto accumulation = accelerator.accumulate(model);",
            "- monitor.step(batch, loss);",
            "+ monitor.step(batch, loss, accelerator.sync_gradients());",
            "+ if (monitor.every(options.checkpointing_steps)) accelerator.save_state();",
        ]))

    def test_the_page_adds_three_lines(self) -> None:
        page = (ROOT / "docs/stages/5-accelerator.md").read_text(encoding="utf-8")
        section = page.split("### The three lines")[1]
        shown = re.search(r"^```diff\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        assert shown is not None
        added = [line[1:].strip() for line in shown[1].splitlines() if line.startswith("+")]
        statements = " ".join(added).split(";")
        self.assertEqual([one.split("(")[0].split("=")[-1].strip() for one in statements if one],
                         ["Accelerator accelerator", "accelerator.prepare",
                          "accelerator.backward"])


if __name__ == "__main__":
    unittest.main()
