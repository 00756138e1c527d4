# SPDX-License-Identifier: Apache-2.0
"""The trial of scripts/torchrun_two_nodes.sh: two real torchruns that meet on this machine."""
from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import TORCHRUN  # noqa: E402
from tests.support.start_scripts import FLAGS, ROOT, StartScripts, free_port  # noqa: E402


class TwoNodesTest(StartScripts):
    def test_the_trial_runs_two_torchruns_here(self) -> None:
        code, output = self.run_script(
            "torchrun_two_nodes.sh", "--local", *FLAGS, TORCHRUN=str(TORCHRUN),
            RDZV_PORT=str(free_port()),
        )
        self.assertEqual(code, 0, output)
        ranks = self.calls("program")
        for name, expected in (("RANK", "0123"), ("LOCAL_RANK", "0101"), ("GROUP_RANK", "0011"),
                               ("WORLD_SIZE", "4444")):
            self.assertEqual(self.column(ranks, name), list(expected), name)
        self.assertEqual([rank["flags"] for rank in ranks], [FLAGS] * 4)

    def test_a_failure_in_the_trial_ends_both(self) -> None:
        code, output = self.run_script(
            "torchrun_two_nodes.sh", "--local", TORCHRUN=str(TORCHRUN), RDZV_PORT=str(free_port()),
            FAILING="3", HANG="yes",
        )
        self.assertNotEqual(code, 0, output)


if __name__ == "__main__":
    unittest.main()
