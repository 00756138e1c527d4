# SPDX-License-Identifier: Apache-2.0
"""Exercises: each solution passes, each skeleton is not written yet, each mistake has its message.

A submission that hangs, forks, crashes or prints without end gets its last line, and nothing of it
is left.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from exercises import exercise  # noqa: E402
from tests.support.programs import BIN, FULL, PYTHON, ROOT, Launched, Result  # noqa: E402

EXERCISES = exercise.all_exercises()
HOSTILE = Path(__file__).with_name("hostile.cpp").read_text(encoding="utf-8")
# What each hostile submission shows, and the last line.
ENDS = {
    "hangs": ("got:      the code still ran", "not solved; hint"),
    "forks": ("wrong  training", "processes that it left: "),
    "returns-twice": ("a process that the code forked returned", "not solved"),
    "exits": ("exit() or _exit() ends the process", "not solved; hint"),
    "crashes": ("signal 11 (Segmentation fault)", "not solved; hint"),
    "prints": ("more than 4096 bytes of output", "stopped, because it printed more than 16 MiB"),
}


def grade(name: str, author: str, *library: Path) -> Result:
    done = subprocess.run([BIN / "exercises", name, author, *library], capture_output=True, text=True,
                          timeout=60, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


class Submissions(unittest.TestCase):
    def test_each_solution_passes_and_each_skeleton_is_not_written_yet(self) -> None:
        for one in EXERCISES:
            with self.subTest(one.name):
                solved = grade(one.name, "solution")
                self.assertEqual((solved.code, solved.stderr), (0, ""), solved.stdout)
                skeleton = grade(one.name, "skeleton")
                self.assertEqual((skeleton.code, skeleton.stderr), (1, ""), skeleton.stdout)
                repair = "NotWrittenYet" not in one.skeleton()
                self.assertIn("usually:" if repair else "not written yet", skeleton.lines[-1])

    @unittest.skipUnless(FULL, "compiles the mistakes of all exercises, with LADDER_FULL")
    def test_each_mistake_fails_with_its_own_message(self) -> None:
        library = exercise.BUILD / "exercises" / "libexercise_mistakes.so"
        for one in EXERCISES:
            mistakes = list(one.mistakes())
            self.assertGreaterEqual(len(mistakes), 5, one.name)
            for mistake in mistakes:
                with self.subTest(f"{one.name}: {mistake.name}"):
                    wrong = grade(one.name, mistake.name, library)
                    self.assertEqual((wrong.code, wrong.stderr), (1, ""), wrong.stdout)
                    self.assertIn(mistake.shows, wrong.lines[-1], wrong.stdout)


class Files(unittest.TestCase):
    def test_a_task_has_at_most_250_words_three_hints_and_a_lesson_that_leads_to_it(self) -> None:
        self.assertEqual(len({one.number for one in EXERCISES}), len(EXERCISES))
        for one in EXERCISES:
            with self.subTest(one.name):
                self.assertLessEqual(len(one.text.split()), 250 + len(one.refused) + 20)
                self.assertEqual(len(one.hints), 3)
                lesson = (one.folder / one.head(r"\[Lesson: .+?\]\((.+?)\)")).read_text("utf-8")
                [line] = re.findall(r"\[to write\].*", lesson)
                self.assertRegex(line, rf"`(\./run exercise )?{one.number}`")
                self.assertTrue(all((ROOT / name).is_file() for name in one.library))
                solution = re.findall(r"// solution\n(.*?)// end\n", one.solution, re.DOTALL)
                lines = sum(exercise.code_lines(text) for text in solution)
                self.assertTrue(3 <= lines <= 60, lines)


class Command(unittest.TestCase):
    """./run exercise, with a folder of its own for the learner's files."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.work = Path(folder.name)
        self.file = self.work / "4-sampler" / "sampler.cpp"

    def command(self, *arguments: str, hostile: str = "") -> Launched:
        return Launched(PYTHON, ROOT / "exercises" / "exercise.py", *arguments,
                        environment={"LADDER_EXERCISES": self.work, "LADDER_HOSTILE": hostile})

    def run_command(self, *arguments: str) -> Result:
        with self.command(*arguments) as started:
            return started.finish(60)

    def test_a_learner_starts_reads_hints_and_solves(self) -> None:
        self.assertRegex(self.run_command().stdout, r" 4  sampler +stage 2 +not started +15 min")
        self.assertEqual(self.run_command("4", "--check").code, 2)
        begun = self.run_command("4")
        self.assertIn("training_part", begun.stdout)
        self.assertRegex(self.run_command().stdout, r" 4  sampler +stage 2 +open")
        shown = [self.run_command("4", "--hint").lines[0] for _ in range(4)]
        self.assertEqual(shown, ["hint 1 of 3:", "hint 2 of 3:", "hint 3 of 3:", "hint 3 of 3:"])
        [one] = [one for one in EXERCISES if one.name == "sampler"]
        self.file.write_text(one.plain_solution().replace("return part;", "return part", 1))
        broken = self.run_command("sampler", "--check")
        self.assertIn("error: expected ‘;’", broken.stdout)
        self.assertIn("does not compile", broken.lines[-1])
        self.file.write_text(one.plain_solution() + "\nusing ladder::DistributedSampler;\n")
        self.assertIn("it uses DistributedSampler", self.run_command("4", "--check").lines[-1])
        self.file.write_text(one.plain_solution() + "\n// not DistributedSampler\n")
        solved = self.run_command("4", "--check")
        self.assertEqual((solved.code, solved.lines[-1]), (0, "exercise 4 (sampler): solved"))
        self.assertRegex(self.run_command().stdout, r" 4  sampler +stage 2 +solved")
        self.assertEqual(self.run_command("4-sampler", "--solution").stdout[:10], "--- yours\n")

    def test_an_unknown_exercise_is_refused_with_the_list(self) -> None:
        wrong = self.run_command("99")
        self.assertEqual((wrong.code, wrong.stdout), (2, ""))
        self.assertIn("no exercise '99'; the exercises are: ", wrong.stderr)

    def test_a_submission_that_does_harm_gets_its_last_line_and_leaves_nothing(self) -> None:
        os.makedirs(self.file.parent)
        self.file.write_text(HOSTILE, encoding="utf-8")
        library, errors = exercise.compiled(self.file)
        self.assertEqual(errors, "")
        for what, (shown, last) in ENDS.items():
            with self.subTest(what), self.command("4", "--check", hostile=what) as started:
                done = started.finish(60)  # and expects that nothing is left
                self.assertEqual(done.code, 1, done.stdout)
                self.assertIn(shown, done.stdout)
                self.assertIn(last, done.lines[-1])
                self.assertLess(len(done.stdout), 10_000)


if __name__ == "__main__":
    unittest.main()
