#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the pages in their order, and compares the output with the pages.

    tools/docs_walk.py [--root DIR] [--page PAGE ...]
    tools/docs_walk.py --list    shows what would be typed, and types nothing

A fenced block without a language (or of sh, bash, console) is typed, line by line, as by a newcomer
at the project's root: each line is a command that this tool knows, or the block is marked, or it is
refused. Other text has the language text, and the output of cog is not typed. A command ends before
two blanks or a #: what follows describes it. In a block with lines that begin with `$ `, those are
typed, and the lines below each are its whole output; `...` matches any lines, or any text within
one. A command must end with 0, or with N if the line above its block has "exit code N". Where
`Killed` is shown last, the command is killed when it has printed the line before.

A line above a block has what cannot be seen:

    <!-- not run: REASON -->    needs what not every machine has
    <!-- output -->             a part of what the command before it prints; so is a <!-- record
                                FILE --short -->, the table of ./run
    <!-- file: NAME -->         is written into NAME before the first command of its page
    <!-- deadline: SECONDS -->  this block needs another deadline than 900 s

Exit code: 0 all went as shown, 1 some did not, 2 a page cannot be read.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from page import GAP, Block, Page, pages_of

PAGES = ("README.md", "docs/stages/*.md", "docs/reference/*.md", "docs/traps.md",
         "docs/same-weights.md", "docs/notebook.md")
SHELL = ("", "sh", "bash", "console")
DEADLINE = 900.0
COLUMNS = ("ok", "FAILED", "not run", "s")
KILLED = "Killed"  # the shell's word, and its exit code
AFTER_KILL = 128 + signal.SIGKILL
MARKER = re.compile(r"<!-- (not run|output|file|deadline)(?:: (.+))? -->")
RECORD = re.compile(r"<!-- record \S+(?: \S+)* --short -->")
PROMPT = "$ "
COMMAND = re.compile(r"(?:[A-Z]\w*=\S+ )+\S|\./(?:run|test)\b"
                     r"|(?:build/bin|tools|scripts|\.venv/bin)/\w"
                     r"|(?:python3|torchrun|mpirun|srun|accelerate launch|grep) ")
COMMENT = re.compile(r"\s{2,}|\s#")

# Output that differs between runs or machines, and its placeholder.
VARIES = [(re.compile(pattern), replacement) for pattern, replacement in (
    (r"/tmp/[^\s'\",;)]+", "<temporary>"),
    (r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?", "<date>"),
    (r"\b(localhost|\d+(?:\.\d+){3}):\d+", r"\1:<port>"),
    (r"\bpid:? \d+", "<pid>"),
    (r"(\brank \d+, step) \d+", r"\1 <step>"),  # where a fault met it
    (r"\b\d+ (?:threads?|usable CPUs)\b", "<threads>"),
    (r"(threads before the fork +)\d+", r"\1<threads>"),
    (r"\b\d+ samples/s +eta [\d:]+", "<rate>"),
    (r"('\w+_(?:runtime|per_second)'): '[\d.e+]+'", r"\1: <rate>"),
    (r"\b[\d.]+ (?:s|ms|seconds)\b", "<time>"),
    (r"(\bseconds +)[\d.]+$", r"\1<time>"),
    # The table of ./run: machine, processes and threads, seconds, twin's, interval and memory.
    (r"^[^;]+; \d+ CPUs; GPU [^;]+; commit \w+; load [\d.]+$", "<machine>"),
    (r"\b\d+ x \d+\b", "<world>"),
    (r"^(stage\d_\w+ +<world>  \w+) +[\d.]+ +\S+(?: x)? +([\d.]+) \[[^]]+\]( +\d+ +\w+) +\d+"
     r"( +\d+)$",
     r"\1 accuracy \2\3\4"),
    (r"^(Fastest|Least memory|Two processes of stage 2|Stage 0 trains)\b.*", r"\1"))]
DIGEST = re.compile(r"\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{16,}\b")
# Another CPU rounds otherwise, so what was learned may differ: by 0.1, above 10 (percent) by 0.5.
LEARNED = re.compile(r"((?:loss|accuracy|norm|distance|gradient)(?:\b\d+ |\D)*?)"
                     r"(\d+\.\d+(?:e[-+]\d+)?)", re.IGNORECASE)
NUMBERS = re.compile(r"[\d.\s]+")
DECIMAL = re.compile(r"()(\d+\.\d+)")


class WalkError(Exception):
    """A page that cannot be walked."""


class Command(NamedTuple):
    place: str  # page:line
    text: str
    shown: tuple[str, ...] | None  # None: the page does not show the output
    code: int
    reason: str  # not empty: why it is not run
    deadline: float

    @property
    def killed(self) -> bool:
        return self.shown is not None and len(self.shown) > 1 and self.shown[-1] == KILLED


class Line(NamedTuple):
    text: str
    learned: list[float]


class Done(NamedTuple):
    code: int | None  # None: it was ended at its deadline
    lines: list[str]
    seconds: float


# Pages.


def marker_of(block: Block) -> tuple[str, str]:
    match = MARKER.fullmatch(block.source)
    if match is None:
        return ("output", "") if RECORD.fullmatch(block.source) else ("", "")
    if (match[1] == "output") != (match[2] is None):
        raise WalkError(f"{block.source}: see tools/docs_walk.py --help for how it is written")
    return match[1], match[2] or ""


def parts_of(page: Page, block: Block) -> Iterator[tuple[int, str, tuple[str, ...] | None]]:
    """The commands of a block, if any: line, text, and the output shown below."""
    lines = page.lines[block.begin:block.end]
    typed = [line for line in lines if line.strip()]
    if page.language(block) not in SHELL or block.generated or not typed:
        return
    if typed[0].startswith(PROMPT):
        starts = [number for number, line in enumerate(lines) if line.startswith(PROMPT)]
        for begin, end in zip(starts, [*starts[1:], len(lines)]):
            yield (block.begin + begin, lines[begin].removeprefix(PROMPT).strip(),
                   tuple(lines[begin + 1:end]) or None)
    elif all(COMMAND.match(line.strip()) for line in typed):
        for number, line in enumerate(lines, block.begin):
            if line.strip():
                yield number, COMMENT.split(line.strip())[0], None
    elif COMMAND.match(typed[0].strip()) or any(line.startswith(PROMPT) for line in typed):
        raise WalkError(f"{page.name}:{block.begin + 1}: commands and other lines in one block; "
                        f"divide it, or begin the commands with '{PROMPT}'")
    else:
        raise WalkError(f"{page.name}:{block.begin + 1}: not a known command; add it to "
                        "COMMAND, mark the block above it, or call it ```text")


def commands_of(page: Page) -> list[Command]:
    commands: list[Command] = []
    for block in page.blocks:
        kind, value = marker_of(block)
        if kind == "output":
            if not commands:
                raise WalkError(f"{page.name}:{block.begin}: output, but of which command?")
            lines = page.lines[block.begin:block.end]
            commands[-1] = commands[-1]._replace(shown=(GAP, *lines, GAP))
        if kind in ("output", "file"):
            continue
        code = re.search(r"exit code (\d+)", block.source)
        for number, text, shown in parts_of(page, block):
            command = Command(f"{page.name}:{number + 1}", text, shown, int(code[1]) if code else 0,
                              value if kind == "not run" else "",
                              float(value) if kind == "deadline" else DEADLINE)
            commands.append(command._replace(code=AFTER_KILL) if command.killed else command)
    return commands


def write_files(page: Page) -> None:
    for block in page.blocks:
        kind, name = marker_of(block)
        if kind == "file":
            (page.root / name).write_text("\n".join(page.lines[block.begin:block.end]) + "\n",
                                          encoding="utf-8")


# The output of the page and of the program.


def plain(line: str) -> Line:
    """The line without what varies; digests are left to `comparable`."""
    for pattern, replacement in VARIES:
        line = pattern.sub(replacement, line)
    learned = DECIMAL if NUMBERS.fullmatch(line) else LEARNED
    numbers = [float(match[2]) for match in learned.finditer(line)]
    return Line(learned.sub(r"\1<~>", line).rstrip(), numbers)


def comparable(lines: Sequence[str]) -> list[Line]:
    """Digests are numbered: equal ones stay equal, others stay others."""
    digests: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        return digests.setdefault(match[0], f"<digest {len(digests) + 1}>")

    return [plain(DIGEST.sub(numbered, line)) for line in lines]


def same(shown: Line, got: Line) -> bool:
    pattern = ".*".join(re.escape(part) for part in shown.text.split(GAP))
    return (re.fullmatch(pattern, got.text) is not None
            and all(abs(one - other) <= (0.5 if max(one, other) > 10 else 0.1)
                    for one, other in zip(shown.learned, got.learned)))


def difference(shown: Sequence[Line], got: Sequence[Line]) -> tuple[int | None, int | None] | None:
    """The numbers of the two lines that differ, None behind the last one. None if the output is as
    shown, where `...` matches any lines."""
    places = {0}  # in `got`, each behind lines that match those shown so far
    for number, line in enumerate(shown):
        if line.text == GAP:
            after = set(range(min(places), len(got) + 1))
        else:
            after = {place + 1 for place in places if place < len(got) and same(line, got[place])}
        if not after:
            return number, min(places) if min(places) < len(got) else None
        places = after
    return None if len(got) in places else (None, min(places))


def trimmed(lines: Sequence[str]) -> list[str]:
    """Without blank lines at both ends."""
    return "\n".join(lines).strip("\n").splitlines()


def complaint(command: Command, done: Done) -> list[str]:
    """The differences from the page, as lines; empty if there are none."""
    if done.code != command.code:
        what = (f"not done within {command.deadline:g} s" if done.code is None
                else f"exit code {done.code}, expected {command.code}")
        return [f"  {what}; it printed last:", *(f"    {line}" for line in done.lines[-5:])]
    if command.shown is None:
        return []
    shown = trimmed(command.shown)
    sides = {"expected: ": shown, "got:      ": done.lines}
    found = difference(*map(comparable, sides.values())) or ()
    return [f"  {side}{'nothing more' if number is None else lines[number]}"
            for (side, lines), number in zip(sides.items(), found)]


# Commands.


def environment(root: Path) -> dict[str, str]:
    """That of a newcomer on a machine without a GPU, as the pages have it."""
    chosen = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    chosen |= {"PATH": f"{root}/.venv/bin:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
    if os.geteuid() == 0:  # as --allow-run-as-root of mpirun
        chosen |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return chosen


def lines_of(path: Path, root: Path) -> list[str]:
    """The output; of a line that was redrawn its last state."""
    text = path.read_bytes().decode("utf-8", "replace").replace(f"{root}/", "")
    return trimmed([line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")])


def end(process: subprocess.Popen[bytes], first: signal.Signals) -> None:
    """The group: SIGTERM first lets a launcher end ranks that have groups of their own."""
    for number in dict.fromkeys((first, signal.SIGKILL)):
        try:
            os.killpg(process.pid, number)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def run(root: Path, command: Command) -> Done:
    killed_after = plain(command.shown[-2]) if command.killed else None
    start, late = time.monotonic(), False
    with tempfile.NamedTemporaryFile() as holder:
        output = Path(holder.name)
        process = subprocess.Popen(["bash", "-c", command.text], cwd=root, stdin=subprocess.DEVNULL,
                                   stdout=holder, stderr=subprocess.STDOUT, env=environment(root),
                                   start_new_session=True)
        try:
            while process.poll() is None and not late:
                time.sleep(0.02)
                late = time.monotonic() - start > command.deadline
                if killed_after and any(same(killed_after, plain(line))
                                        for line in lines_of(output, root)):
                    end(process, signal.SIGKILL)
            lines = lines_of(output, root)  # before the last line of a launcher
        finally:
            end(process, signal.SIGTERM)  # what it left behind too
        seconds = time.monotonic() - start
        code = 128 - process.returncode if process.returncode < 0 else process.returncode
    return Done(None if late else code, lines + [KILLED] * (code == AFTER_KILL), seconds)


# The walk.


def walk(root: Path, commands: Sequence[Command]) -> int:
    counts: dict[str, Counter[str]] = defaultdict(Counter)  # of outcomes and seconds, by page
    for command in commands:
        name = command.place.partition(":")[0]
        if name not in counts:
            write_files(Page(root, root / name))
        outcome, seconds, wrong = "not run", 0.0, []
        if not command.reason:
            done = run(root, command)
            seconds, wrong = done.seconds, complaint(command, done)
            outcome = "FAILED" if wrong else "ok"
        print(f"{command.place:30} {outcome:7} {seconds:6.1f} s  {command.text}"
              + f"  ({command.reason})" * bool(command.reason), *wrong, sep="\n", flush=True)
        counts[name].update({outcome: 1, "s": seconds})
    counts["all"] = sum(counts.values(), Counter())
    print(f"\n{'page':30}" + "".join(f"{name:>9}" for name in COLUMNS))
    for page, count in counts.items():
        print(f"{page:30}" + "".join(f"{count[name]:9.0f}" for name in COLUMNS))
    return 1 if counts["all"]["FAILED"] else 0


def show(commands: Sequence[Command]) -> int:
    for command in commands:
        print(f"{command.place}: {command.text}"
              + f"  (not run: {command.reason})" * bool(command.reason))
    return 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1],
                        help="default: this checkout")
    parser.add_argument("--page", action="append", help="default: " + ", ".join(PAGES))
    parser.add_argument("--list", action="store_true", help="show the commands, and type none")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    try:
        commands = [command for page in pages_of(root, options.page or PAGES)
                    for command in commands_of(page)]
        if not commands:
            raise WalkError("no command was found; is --root the project's root?")
        return show(commands) if options.list else walk(root, commands)
    except (OSError, ValueError, WalkError) as error:
        print(f"docs_walk: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
