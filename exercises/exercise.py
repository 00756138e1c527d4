#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exercises to write: lists them, copies a skeleton, grades a file.

    ./run exercise                 list: number, name, lesson, state, minutes
    ./run exercise N               copy the skeleton, print the task
    ./run exercise N --check       compile and grade your file
    ./run exercise N --hint        the next of three hints
    ./run exercise N --solution    your file against the solution

An exercise is a folder of exercises/ with a task.md; docs/additions.md describes its files.
"""
from __future__ import annotations

import argparse
import ctypes
import difflib
import json
import math
import os
import random
import re
import resource
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "exercises"
WORK = Path(os.environ.get("LADDER_EXERCISES", HERE / "work")).absolute()
BUILD = Path(os.environ.get("LADDER_BUILD", ROOT / "build"))
SECONDS = 120  # of a whole check; a property has a deadline of its own
MOST_BYTES = 16 << 20  # that a submission may print
TOLERANCE = 1e-4  # of its results, which other orders of a sum change
SHOWN_BYTES = 4096  # of these on the screen


class Mistake(NamedTuple):
    name: str
    shows: str  # a part of what the learner reads; "" of another right answer
    source: str


def code_lines(text: str) -> int:
    """Lines with code."""
    return sum(bool(line.strip()) for line in without_comments(text).splitlines())


def without_comments(text: str) -> str:
    """C++ without comments and texts; lines stay lines."""
    token = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
    return token.sub(lambda match: "\n" * match[0].count("\n"), text)


@dataclass(frozen=True)
class Exercise:
    """A folder. The head of task.md: number, name, lesson, minutes, library, what is not allowed."""

    folder: Path
    task: str = field(repr=False)

    @classmethod
    def read(cls, folder: Path) -> Exercise:
        return cls(folder, (folder / "task.md").read_text(encoding="utf-8"))

    def head(self, pattern: str) -> str:
        match = re.search(pattern, self.task, re.MULTILINE)
        assert match, f"{self.folder}/task.md has no {pattern}"
        return match[1]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def number(self) -> int:
        return int(self.head(r"^# (\d+)\. "))

    @property
    def title(self) -> str:
        return self.head(r"^# \d+\. (.+)$")

    @property
    def lesson(self) -> str:
        return self.head(r"\[Lesson: (.+?)\]")

    @property
    def minutes(self) -> int:
        return int(self.head(r"(\d+) minutes"))

    def _names(self, label: str) -> list[str]:
        """The names in backquotes behind `label:` in the second paragraph."""
        paragraph = re.split(r"\n\n+", self.task)[1].replace("\n", " ")
        match = re.search(rf"{label}:([^·]*)", paragraph)
        return re.findall(r"`([^`]+)`", match[1]) if match else []

    @property
    def library(self) -> list[str]:
        """The sources of the library that do the same."""
        return self._names("library")

    @property
    def refused(self) -> list[str]:
        """Names that a submission may not use."""
        return self._names("not allowed")

    @property
    def text(self) -> str:
        """The task without licence line."""
        return self.task.partition("-->\n")[2].strip()

    @property
    def solution(self) -> str:
        return (self.folder / "solution.cpp").read_text(encoding="utf-8")

    @property
    def hints(self) -> list[str]:
        text = (self.folder / "hints.md").read_text(encoding="utf-8")
        return [part.partition("\n")[2].strip() for part in re.split(r"^## ", text, flags=re.M)[1:]]

    @property
    def work(self) -> Path:
        """The learner's file."""
        return WORK / f"{self.number}-{self.name}" / f"{self.name}.cpp"

    def skeleton(self) -> str:
        """The solution without the lines between its marks. Lines `// stub: CODE` replace them."""
        def hole(match: re.Match[str]) -> str:
            indent = match[1]
            stub = [line[1] for line in re.finditer(r"^ *// stub: ?(.*)$\n", match[2], re.M)]
            if stub and any(stub):  # a program with its mistake
                return "".join(f"{indent}{line}".rstrip() + "\n" for line in stub)
            return f"{indent}// Write this.\n" + ("" if stub else f"{indent}throw NotWrittenYet();\n")
        return re.sub(r"^( *)// solution\n(.*?)^ *// end\n", hole, self.solution,
                      flags=re.MULTILINE | re.DOTALL)

    def plain_solution(self) -> str:
        return re.sub(r"^ *// (?:solution|end|stub:.*)\n", "", self.solution, flags=re.MULTILINE)

    def mistakes(self) -> Iterator[Mistake]:
        text = (self.folder / "mistakes.txt").read_text(encoding="utf-8")
        for block in re.split(r"\n(?=mistake |right )", text)[1:]:
            lines = block.rstrip().splitlines()
            name = lines.pop(0).partition(" ")[2].strip()
            is_wrong = block.startswith("mistake ")
            shows = lines.pop(0).partition(" ")[2].strip() if is_wrong else ""
            yield Mistake(name, shows, edited(self.plain_solution(), lines,
                                              f"{self.folder.name}: {name}"))


def edited(source: str, edit: list[str], where: str) -> str:
    """`source` after an edit: lines to remove (-), each followed by those in their place (+)."""
    lines = source.splitlines()
    edit = [line for line in edit if line.strip() and not line.startswith("#")]
    while edit:
        old = take(edit, "-")
        new = take(edit, "+")
        assert old, f"{where}: expected a line that begins with -, got {edit[:1] or new[:1]}"
        words = [line.split() for line in lines]
        wanted = [line.split() for line in old]
        found = [i for i in range(len(lines)) if words[i:i + len(old)] == wanted]
        assert len(found) == 1, f"{where}: expected {old} once in solution.cpp, got {len(found)} times"
        lines[found[0]:found[0] + len(old)] = new
    return "\n".join(lines) + "\n"


def take(edit: list[str], sign: str) -> list[str]:
    taken = []
    while edit and edit[0].startswith(sign):
        taken.append(edit.pop(0)[2:])
    return taken


def all_exercises() -> list[Exercise]:
    return sorted((Exercise.read(path.parent) for path in HERE.glob("*/task.md")),
                  key=lambda exercise: exercise.number)


# --- sources for CMake -------------------------------------------------------------------------


def united(submissions: list[tuple[str, str, str]]) -> str:
    """One source with many submissions: (name of a namespace, author, text)."""
    includes: dict[str, None] = {}
    bodies = []
    for space, author, text in submissions:
        lines = text.splitlines()
        includes.update(dict.fromkeys(line for line in lines if line.startswith("#include")))
        body = "\n".join("" if line.startswith("#include") else line for line in lines)
        bodies.append(f"namespace {space} {{\n"
                      f'const ladder::exercises::Author author("{author}");\n'
                      f'#line 1 "{space}"\n{body}\n}}  // namespace {space}\n')
    return "\n".join([*includes, "", *bodies])


def generate(folder: Path, what: str) -> None:
    """Writes solutions.cpp and skeletons.cpp, or mistakes_NAME.cpp of each exercise."""
    sources: dict[str, str] = {}
    for exercise in all_exercises():
        identifier = exercise.name.replace("-", "_")
        if what == "mistakes":
            sources[f"mistakes_{exercise.name}.cpp"] = united(
                [(f"{identifier}_{mistake.name.replace('-', '_')}", mistake.name, mistake.source)
                 for mistake in exercise.mistakes()])
    if what == "answers":
        for author in ("solution", "skeleton"):
            sources[f"{author}s.cpp"] = united(
                [(f"{exercise.name.replace('-', '_')}_{author}", author,
                  exercise.skeleton() if author == "skeleton" else exercise.plain_solution())
                 for exercise in all_exercises()])
    for name, text in sources.items():
        (folder / name).write_text(text, encoding="utf-8")


# --- progress ----------------------------------------------------------------------------------


def text_of(path: Path) -> str:
    """Of a regular file: a FIFO would wait for its writer."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: expected a regular file; hint: mv {path} {path}.old")
    return path.read_text(encoding="utf-8", errors="replace")


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{path}: {error.strerror}; hint: LADDER_EXERCISES=FOLDER names another "
                      "folder for your files") from None


class Progress:
    """What was solved, and how many hints were shown: exercises/work/progress.json."""

    PATH = WORK / "progress.json"

    def __init__(self) -> None:
        self._entries = {}
        if not self.PATH.exists():
            return
        try:
            found = json.loads(text_of(self.PATH))
            self._entries = {name: dict(entry) for name, entry in found.items()}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            damaged = self.PATH.replace(self.PATH.with_suffix(".json.old"))
            print(f"exercise: {self.PATH.name} is damaged: moved to {damaged}", file=sys.stderr)

    def get(self, exercise: Exercise, key: str) -> int:
        value = self._entries.get(exercise.name, {}).get(key)
        return max(value, 0) if isinstance(value, int) else 0

    def set(self, exercise: Exercise, key: str, value: int) -> None:
        self._entries.setdefault(exercise.name, {})[key] = value
        make_folder(self.PATH.parent)
        temporary = self.PATH.with_suffix(".new")
        temporary.write_text(json.dumps(self._entries, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self.PATH)

    def state(self, exercise: Exercise) -> str:
        if self.get(exercise, "solved"):
            return "solved"
        return "open" if exercise.work.exists() else "not started"


# --- a submission, which may do anything ---------------------------------------------------------


class End(NamedTuple):
    code: int  # as of subprocess: -9 after SIGKILL
    reason: str  # why it was stopped, or ""
    left: int  # processes that it left, now ended
    results: list[float]  # of each property, if the last one was reached


PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def children() -> dict[int, list[int]]:
    """The living processes of this machine by their parent."""
    found: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:  # ended meanwhile
                continue
            if state not in "ZX":
                found.setdefault(int(parent), []).append(int(path.name))
    return found


def descendants() -> list[int]:
    table = children()
    found = list(table.get(os.getpid(), []))
    for pid in found:
        found += table.get(pid, [])
    return found


def end_all_descendants() -> int:
    """Kills what is left below this process until nothing is; returns how many there were."""
    seen: set[int] = set()
    deadline = time.monotonic() + 5
    while (left := descendants()) and time.monotonic() < deadline:
        seen.update(left)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped, they cannot fork meanwhile
            for pid in left:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        time.sleep(0.01)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    return len(seen)


def stop(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def guarded(exercise: Exercise, run: Callable[[], int]) -> int:
    """Calls `run` in a child. All that it starts ends with it and with this process, also where a
    signal ends one of the two; both are the parent of each orphan that the other leaves."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    child = os.fork()
    try:
        if child == 0:
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            return run()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        end_all_descendants()
    if code < 0:
        print(f"exercise {exercise.number} ({exercise.name}): not solved: the check was killed by "
              f"{signal.Signals(-code).name}")
    return code if code >= 0 else 1


def supervise(words: list[str], seed: str, most_shown: int = SHOWN_BYTES) -> End:
    """Runs a grader to its end or the deadline, shows what it prints, and ends all it started.

    Orphans become children of this process, so that those in a session of their own are found too.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LADDER_EXERCISE_SEED": seed}
    process = subprocess.Popen([str(BUILD / "bin" / "exercises"), *words], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True, env=environment)
    pipes = Pipes(process, most_shown)
    deadline = time.monotonic() + SECONDS
    reason = ""
    while process.poll() is None and not reason:
        pipes.read(0.1)
        if pipes.printed > MOST_BYTES:
            reason = f"it printed more than {MOST_BYTES >> 20} MiB"
        elif time.monotonic() > deadline:
            reason = f"it did not end within {SECONDS} s"
    if reason:
        process.kill()
        process.wait()
    left = end_all_descendants()
    pipes.read(0)
    return End(process.returncode, reason, 0 if reason else left, pipes.results)


class Pipes:
    """The report on the standard output, and what the submission prints, on the other one."""

    def __init__(self, process: subprocess.Popen[bytes], most_shown: int) -> None:
        self.printed = 0
        self._most_shown = most_shown
        self.results: list[float] = []
        self._line = b""  # of the report, without its end
        self._selector = selectors.DefaultSelector()
        for pipe in (process.stdout, process.stderr):
            assert pipe
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ)
        self._stdout = process.stdout

    def read(self, seconds: float) -> None:
        """Reads what is there; waits `seconds` for it."""
        for key, _ in self._selector.select(seconds):
            data = os.read(key.fd, 1 << 20)
            if not data:
                self._selector.unregister(key.fileobj)
            elif key.fileobj is self._stdout:
                self._read_report(data)
            else:
                self._show(data)

    def _read_report(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            if line.startswith(b"results "):
                self.results = numbers(line)
            else:
                self._show(line + b"\n")
        if len(self._line) > SHOWN_BYTES:
            self._show(self._line)
            self._line = b""

    def _show(self, data: bytes) -> None:
        show(data[:max(0, self._most_shown - self.printed)])
        self.printed += len(data)
        if self.printed - len(data) < self._most_shown <= self.printed:
            show(f"\n... (more than {self._most_shown} bytes of output)\n".encode())


def numbers(line: bytes) -> list[float]:
    try:
        return [float(word) for word in line.split()[1:]]
    except ValueError:
        return []


def equal_results(got: list[float], expected: list[float]) -> bool:
    """Of each property a sum and a magnitude, with which its rounding errors grow."""
    return bool(expected) and len(got) == len(expected) and all(
        math.isclose(one, other, rel_tol=0, abs_tol=TOLERANCE * magnitude)
        for i, (one, other) in enumerate(zip(got, expected))
        for magnitude in [expected[i | 1]])


def show(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


# --- commands ----------------------------------------------------------------------------------


def compiled(source: Path) -> tuple[Path, str]:
    """Compiles a submission as CMake compiles the solutions. Returns the library and errors."""
    target, library = source.with_suffix(".o"), source.with_suffix(".so")
    older = max(source.stat().st_mtime, (BUILD / "bin" / "exercises").stat().st_mtime)
    if library.exists() and library.stat().st_mtime > older:
        return library, ""
    commands = json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8"))
    entry = next(e for e in commands if e["file"].endswith("exercises/solutions.cpp"))
    words = shlex.split(entry["command"])
    for option in ("-MD", "-MT", "-MF"):  # CMake's list of headers
        if option in words:
            at = words.index(option)
            del words[at:at + (1 if option == "-MD" else 2)]
    words = [word for word in words if not word.startswith("-W")]
    words[words.index("-o") + 1] = str(target)
    words[words.index("-c") + 1] = str(source)
    words += ["-Wall", "-Werror=return-type", "-fmax-errors=2", "-fno-diagnostics-show-caret"]
    compiler = next(word for word in words if re.search(r"(\+\+|cc|clang)(-\d+)?$", word)
                    and not word.endswith("ccache"))
    for command in (words, [compiler, "-shared", "-o", str(library), str(target)]):
        done = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True,
                              check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            return library, done.stderr
        print(*done.stderr.splitlines()[:10], sep="\n", end="\n" if done.stderr else "")  # warnings
    return library, ""


def refused_names(exercise: Exercise, text: str) -> list[str]:
    code = without_comments(re.sub(r"^#include.*$", "", text, flags=re.MULTILINE))
    return [name for name in exercise.refused if re.search(rf"\b{re.escape(name)}\b", code)]


def fault(exercise: Exercise, end: End, seed: str) -> str:
    """Why it is not solved, or "". The submission may have ended or forged all that the grader's
    process reports; but only from the inputs of this seed come the results of the solution."""
    left = "" if not end.left else f"; processes that it left: {end.left}, now ended"
    if end.reason:
        return f": stopped, because {end.reason}"
    if end.code < 0:
        return f": killed by {signal.Signals(-end.code).name}{left}"
    if end.code:
        return f"{left}; hint: ./run exercise {exercise.number} --hint"
    if end.left:
        return f"{left}; hint: wait for each process that you start"
    if not end.results:
        return (": it ended the grader before the last property; hint: remove exit(), _exit() and "
                "exec() outside the functions of the task")
    solution = supervise([exercise.name, "results"], seed, most_shown=0)
    if not solution.results:
        return ": the solution was not graded, so there is nothing to compare; hint: check again"
    if not equal_results(end.results, solution.results):
        return ": its results are not those of the solution; hint: call no part of the grader"
    return ""


def check(exercise: Exercise, progress: Progress) -> int:
    path = exercise.work
    if not path.exists():
        print(f"exercise {exercise.number}: not started; hint: ./run exercise {exercise.number}")
        return 2
    text = text_of(path)
    if refused := refused_names(exercise, text):
        print(f"exercise {exercise.number} ({exercise.name}): not solved: it uses "
              f"{', '.join(refused)}, which you are to write; hint: ./run exercise "
              f"{exercise.number} --hint")
        return 1
    library, errors = compiled(path)
    if errors:
        print("\n".join(errors.splitlines()[:30]))
        print(f"exercise {exercise.number} ({exercise.name}): does not compile: "
              f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
        return 1
    seed = str(random.SystemRandom().randrange(1, 1_000_000))
    end = supervise([exercise.name, "yours", str(library)], seed)
    if wrong := fault(exercise, end, seed):
        print(f"exercise {exercise.number} ({exercise.name}): not solved{wrong}")
        return 1
    library_lines = sum(code_lines((ROOT / name).read_text(encoding="utf-8"))
                        for name in exercise.library)
    print(f"lines  yours {code_lines(text)}, the solution {code_lines(exercise.plain_solution())}"
          + (f", the library's {library_lines}" if library_lines else ""))
    print(f"exercise {exercise.number} ({exercise.name}): solved{following(exercise, progress)}")
    progress.set(exercise, "solved", 1)
    return 0


def following(exercise: Exercise, progress: Progress) -> str:
    """The next exercise that is not solved: behind this one, else from the first one on."""
    everything = all_exercises()
    at = everything.index(exercise)
    for one in everything[at + 1:] + everything[:at]:
        if progress.state(one) != "solved":
            return f"; next: ./run exercise {one.number}, {one.title}"
    return "; it was the last one"


def start(exercise: Exercise) -> int:
    path = exercise.work
    if not path.exists():
        make_folder(path.parent)
        path.write_text(exercise.skeleton(), encoding="utf-8")
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    print(f"{exercise.text}\n\nfile:   {shown}\ncheck:  ./run exercise {exercise.number} --check\n"
          f"hint:   ./run exercise {exercise.number} --hint")
    return 0


def hint(exercise: Exercise, progress: Progress) -> int:
    hints = exercise.hints
    shown = min(progress.get(exercise, "hints") + 1, len(hints))
    print(f"hint {shown} of {len(hints)}:\n\n{hints[shown - 1]}")
    progress.set(exercise, "hints", shown)
    return 0


def solution(exercise: Exercise) -> int:
    text = text_of(exercise.work) if exercise.work.exists() else exercise.skeleton()
    sys.stdout.writelines(difflib.unified_diff(
        text.splitlines(keepends=True), exercise.plain_solution().splitlines(keepends=True),
        "yours", "solution"))
    return 0


def table() -> str:
    """The list as a table of exercises/README.md."""
    rows = ["| | exercise | lesson | what to write | minutes |", "| --- | --- | --- | --- | --- |"]
    for one in all_exercises():
        link = one.head(r"\[Lesson: .+?\]\((?:\.\./)?(.+?)\)")
        rows.append(f"| {one.number} | [{one.name}]({one.name}/task.md) | [{one.lesson}]({link}) | "
                    f"{one.title.partition(': ')[2]} | {one.minutes} |")
    return "\n".join(rows)


def show_list(progress: Progress) -> int:
    for exercise in all_exercises():
        print(f"{exercise.number:>2}  {exercise.name:<17} {exercise.lesson:<9} "
              f"{progress.state(exercise):<12} {exercise.minutes:>3} min  "
              f"{exercise.title.partition(': ')[2]}")
    print("\n./run exercise N begins one; exercises/README.md describes them")
    return 0


def chosen(text: str) -> Exercise:
    """By number, by name or by both, as 4, sampler or 4-sampler."""
    for exercise in all_exercises():
        if text in (str(exercise.number), exercise.name, f"{exercise.number}-{exercise.name}"):
            return exercise
    names = ", ".join(f"{exercise.number} {exercise.name}" for exercise in all_exercises())
    print(f"exercise: no exercise '{text}'; the exercises are: {names}", file=sys.stderr)
    raise SystemExit(2)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./run exercise", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exercise", nargs="?", help="number or name")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="compile and grade your file")
    action.add_argument("--hint", action="store_true", help="the next of three hints")
    action.add_argument("--solution", action="store_true", help="your file against the solution")
    action.add_argument("--generate", nargs=2, metavar=("WHAT", "DIR"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.generate:
        generate(Path(options.generate[1]), options.generate[0])
        return 0
    progress = Progress()
    if options.exercise is None:
        if options.check or options.hint or options.solution:
            parser.error("expected an exercise; hint: ./run exercise 4 --check")
        return show_list(progress)
    exercise = chosen(options.exercise)
    if options.check:
        return guarded(exercise, lambda: check(exercise, progress))
    if options.hint:
        return hint(exercise, progress)
    return solution(exercise) if options.solution else start(exercise)


if __name__ == "__main__":
    sys.path.append(str(ROOT / "bench" / "records"))
    from record import run_program
    run_program(main)
