# SPDX-License-Identifier: Apache-2.0
"""Two tables of lines: what each stage asks of its user, on the page of stage 6, and what each adds
to the one before it, in README.md. Here they are counted."""
from __future__ import annotations

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import ladder  # noqa: E402

ROW = re.compile(r"^\| `(stage\d+_\w+)` \| (\d+) \| (\d+) \|", re.MULTILINE)
RUNG = re.compile(r"^\| `(stage\d+_\w+)` \| [^|]+ \| ([^|]+) \|", re.MULTILINE)


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

    def test_the_first_page_says_what_each_adds(self) -> None:
        folders, _ = ladder.stage_folders(ROOT)
        stages = [ladder.Stage(ROOT, folder) for folder in folders]
        rungs = [ladder.Rung(old, new) for old, new in zip(stages, stages[1:])]
        wanted = [(stages[0].folder, str(stages[0].length))] + [
            (rung.new.folder, f"[+{rung.count('+')} -{rung.count('-')}](docs/diffs/{rung.file})")
            for rung in rungs]
        page = (ROOT / "README.md").read_text(encoding="utf-8")
        self.assertEqual(RUNG.findall(page.partition("## The rungs")[2]), wanted)

    def test_stage_6_is_the_shortest(self) -> None:
        counts = [counted(program)[1:] for program in sorted(ROOT.glob("stage*/main.cpp"))]
        self.assertEqual(min(counts), counts[-1])
        self.assertLessEqual(counts[-1][0], 60)


if __name__ == "__main__":
    unittest.main()
