# SPDX-License-Identifier: Apache-2.0
"""Exercises: each solution passes, each skeleton is not written yet, each mistake has its message.

A submission that hangs, forks, crashes or prints without end gets its last line, and nothing of it
is left.
"""
from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from exercises import exercise
from tests.support.files import write
from tests.support.programs import (BIN, FULL, PYTHON, ROOT, Launched, Result, launch,
                                    poll_until, require_refused)

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
# Ways in which a wrong submission ends or changes the grader, and the last line: none is solved.
ENDED = "it ended the grader before the last property"
FORGED = "its results are not those of the solution"
SUCCESSES = {
    "constructor:exit": ENDED, "constructor:_exit": ENDED, "constructor:quick_exit": ENDED,
    "constructor:exec": ENDED, "constructor:report": FORGED, "constructor:kill": "by SIGKILL",
    "destructor:_exit": ENDED, "destructor:exec": ENDED, "atexit:_exit": ENDED,
    "atexit:exec": ENDED, "atexit:report": FORGED, "thread:_exit": ENDED, "thread:exec": ENDED,
    "expects-nothing": FORGED}


def grade(name: str, author: str, *library: Path) -> Result:
    done = subprocess.run([BIN / "exercises", name, author, *library], capture_output=True, text=True,
                          timeout=60, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


each = pytest.mark.parametrize("one", EXERCISES, ids=lambda one: one.name)


@each
def test_the_solution_passes_and_the_skeleton_is_not_written_yet(one: exercise.Exercise) -> None:
    solved = grade(one.name, "solution")
    assert (solved.code, solved.stderr) == (0, ""), solved.stdout
    magnitudes = exercise.numbers(solved.lines[-1].encode())[1::2]
    assert len(magnitudes) == solved.stdout.count("ok     ") and all(magnitudes), solved.stdout
    skeleton = grade(one.name, "skeleton")
    assert (skeleton.code, skeleton.stderr) == (1, ""), skeleton.stdout
    repair = "NotWrittenYet" not in one.skeleton()
    assert ("usually:" if repair else "not written yet") in skeleton.lines[-1]


@pytest.mark.skipif(not FULL, reason="compiles the mistakes of all exercises, with LADDER_FULL")
@each
def test_each_mistake_fails_with_its_own_message(one: exercise.Exercise) -> None:
    mistakes = list(one.mistakes())
    assert len(mistakes) >= 5
    for mistake in mistakes:
        wrong = grade(one.name, mistake.name,
                      exercise.BUILD / "exercises" / "libexercise_mistakes.so")
        assert (wrong.code, wrong.stderr) == (1 if mistake.shows else 0, ""), (mistake.name,
                                                                               wrong.stdout)
        assert mistake.shows in wrong.lines[-1], (mistake.name, wrong.stdout)


@each
def test_a_task_has_at_most_250_words_three_hints_and_a_lesson_that_leads_to_it(
        one: exercise.Exercise) -> None:
    assert [other.number for other in EXERCISES].count(one.number) == 1
    assert len(one.text.split()) <= 250 + len(one.refused) + 20
    assert len(one.hints) == 3
    lesson = (one.folder / one.head(r"\[Lesson: .+?\]\((.+?)\)")).read_text("utf-8")
    [line] = re.findall(r"\[to write\].*", lesson)
    assert re.search(rf"`(\./run exercise )?{one.number}`", line)
    assert all((ROOT / name).is_file() for name in one.library)
    solution = re.findall(r"// solution\n(.*?)// end\n", one.solution, re.DOTALL)
    assert 3 <= sum(exercise.code_lines(text) for text in solution) <= 60


@pytest.fixture(name="command")
def run_exercise(tmp_path: Path) -> Callable[..., Result]:
    """./run exercise, with a folder of its own for the learner's files."""
    def command(*arguments: str, hostile: str = "", folder: object = tmp_path) -> Result:
        return launch(PYTHON, ROOT / "exercises" / "exercise.py", *arguments, seconds=60,
                      environment={"LADDER_EXERCISES": folder, "LADDER_HOSTILE": hostile})

    return command


def test_a_learner_starts_reads_hints_and_solves(tmp_path: Path,
                                                 command: Callable[..., Result]) -> None:
    def require_state(state: str) -> None:
        assert re.search(rf" 4  sampler +stage 2 +{state}", command().stdout)

    file = tmp_path / "4-sampler" / "sampler.cpp"
    require_state(r"not started +15 min")
    assert command("4", "--check").code == 2
    assert "training_part" in command("4").stdout
    require_state("open")
    assert [command("4", "--hint").lines[0] for _ in range(4)] == [
        "hint 1 of 3:", "hint 2 of 3:", "hint 3 of 3:", "hint 3 of 3:"]
    [one] = [one for one in EXERCISES if one.name == "sampler"]
    file.write_text(one.plain_solution().replace("return part;", "return part", 1))
    broken = command("sampler", "--check")
    assert "error: expected ‘;’" in broken.stdout
    assert "does not compile" in broken.lines[-1]
    file.write_text(one.plain_solution() + "\nusing ladder::DistributedSampler;\n")
    assert "it uses DistributedSampler" in command("4", "--check").lines[-1]
    (tmp_path / "progress.json").write_text('{"sampler": {"hints": "x"}, "ring": 3}')
    assert command().code == 0 and command("4", "--hint").lines[0] == "hint 1 of 3:"
    file.write_bytes(one.plain_solution().encode() + b"// caf\xe9\n")
    assert "caf\N{REPLACEMENT CHARACTER}" in command("4", "--solution").stdout
    file.write_text(one.plain_solution() + "\n// not DistributedSampler\n")
    solved = command("4", "--check")
    assert (solved.code, solved.lines[-1]) == (
        0, "exercise 4 (sampler): solved; next: ./run exercise 5, launch: start ranks, pass on the "
        "first failure, and resume")
    assert re.search(r"time .*: yours .* ms, the library's .* ms\n       (yours|about equal)",
                     solved.stdout)
    require_state("solved")
    assert command("4-sampler", "--solution").stdout.startswith("--- yours\n")


def test_a_damaged_work_folder_costs_one_line_at_most(tmp_path: Path,
                                                     command: Callable[..., Result]) -> None:
    file = tmp_path / "4-sampler" / "sampler.cpp"
    file.parent.mkdir()
    os.mkfifo(file)
    for action in ("--check", "--solution"):
        require_refused(command("4", action), 2, "expected a regular file", f"hint: mv {file} ")
    progress = tmp_path / "progress.json"
    for text in ("[" * 100_000, '{"sampler": {"hints": -9}}', "\udcff"):
        progress.write_text(text, encoding="utf-8", errors="surrogateescape")
        assert command("4", "--hint").lines[0] == "hint 1 of 3:"
    progress.write_text('{"loop": {"solved": 1}', encoding="utf-8")
    shown = command("4", "--hint")
    assert shown.errors == [f"exercise: progress.json is damaged: moved to {progress}.old"]
    assert Path(f"{progress}.old").read_text(encoding="utf-8") == '{"loop": {"solved": 1}'
    progress.unlink()
    os.mkfifo(progress)
    assert command("4", "--hint").lines[0] == "hint 1 of 3:"
    require_refused(command("4", folder="/dev/null"), 2, "hint: LADDER_EXERCISES=FOLDER")


def test_an_unknown_exercise_is_refused_with_the_list(command: Callable[..., Result]) -> None:
    wrong = command("99")
    assert (wrong.code, wrong.stdout) == (2, "")
    assert "no exercise '99'; the exercises are: " in wrong.stderr
    for action in ("--check", "--hint", "--solution"):
        alone = command(action)
        assert (alone.code, alone.stdout) == (2, "")
        assert alone.errors[-1].endswith("expected an exercise; hint: ./run exercise 4 --check")


def test_a_submission_that_does_harm_gets_its_last_line_and_leaves_nothing(
        tmp_path: Path, command: Callable[..., Result]) -> None:
    file = write(tmp_path / "4-sampler" / "sampler.cpp", HOSTILE)
    _, errors = exercise.compiled(file)
    assert errors == ""
    for what, (shown, last) in ENDS.items():
        done = command("4", "--check", hostile=what)  # and nothing is left
        assert done.code == 1 and shown in done.stdout and last in done.lines[-1], (what, done)
        assert len(done.stdout) < 10_000


def test_nothing_in_the_submission_can_say_solved(tmp_path: Path,
                                                  command: Callable[..., Result]) -> None:
    write(tmp_path / "4-sampler" / "sampler.cpp", HOSTILE)
    for what, last in SUCCESSES.items():
        done = command("4", "--check", hostile=what)  # and nothing is left
        assert done.code == 1 and "not solved" in done.lines[-1] and last in done.lines[-1], (
            what, done)
    assert not (tmp_path / "progress.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_all_that_a_check_started(tmp_path: Path, number: int) -> None:
    write(tmp_path / "4-sampler" / "sampler.cpp", HOSTILE)
    environment = {"LADDER_EXERCISES": tmp_path, "LADDER_HOSTILE": "forks-hangs"}
    with Launched(PYTHON, ROOT / "exercises" / "exercise.py", "4", "--check",
                  environment=environment) as check:
        poll_until(lambda: len(check.processes()) > 10, 60)  # it forks ten
        check.process.send_signal(number)
        check.finish(20)  # and nothing is left
