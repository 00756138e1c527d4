# SPDX-License-Identifier: Apache-2.0
"""The page of stage 6 says how many lines each stage asks of its user; here they are counted."""
from __future__ import annotations

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(stage\d+_\w+)` \| (\d+) \| (\d+) \|", re.MULTILINE)


def is_code(line: str) -> bool:
    """Neither blank nor a comment, an #include or a // #region."""
    return bool(line.strip()) and not line.lstrip().startswith(("//", "#"))


def counted(program: Path) -> tuple[str, int, int]:
    lines = program.read_text(encoding="utf-8").splitlines()
    return program.parent.name, len(lines), sum(map(is_code, lines))


class UserLines(unittest.TestCase):
    def test_the_table_says_what_the_programs_have(self) -> None:
        page = (ROOT / "docs/stages/6-trainer.md").read_text(encoding="utf-8")
        shown = [(stage, int(lines), int(code)) for stage, lines, code in ROW.findall(page)]
        programs = sorted(ROOT.glob("stage*/main.cpp"))
        self.assertEqual(shown, [counted(program) for program in programs])

    def test_stage_6_is_the_shortest(self) -> None:
        counts = [counted(program)[1:] for program in sorted(ROOT.glob("stage*/main.cpp"))]
        self.assertEqual(min(counts), counts[-1])
        self.assertLessEqual(counts[-1][0], 60)


if __name__ == "__main__":
    unittest.main()
