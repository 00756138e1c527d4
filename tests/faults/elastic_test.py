# SPDX-License-Identifier: Apache-2.0
"""One run of elastic.py: the number of ranks goes from 4 to 2 and back to 4."""
from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.faults.elastic import run_elastic  # noqa: E402


class Elastic(unittest.TestCase):
    def test_a_run_goes_on_with_fewer_ranks_and_then_with_more(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ladder-elastic-") as folder:
            worlds, result = run_elastic(0, Path(folder))
        self.assertEqual([world for world in worlds if world == 4], [4, 4])
        self.assertIn(2, worlds)
        self.assertEqual(result["world_size"], 4)
        self.assertEqual((result["steps"], result["seen"]), (1000, 500))
        self.assertGreater(result["accuracy"], 90)


if __name__ == "__main__":
    unittest.main()
