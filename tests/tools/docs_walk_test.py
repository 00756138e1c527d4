# SPDX-License-Identifier: Apache-2.0
"""tools/docs_walk.py on small pages made here; and that no command of the real pages is lost."""
from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import docs_walk
import pytest

from tests.support.files import write
from tests.support.in_process import Start
from tests.support.programs import ROOT

TYPED = re.compile(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\./run|\./test|build/bin/\w|scripts/\w|tools/\w"
                   r"|\.venv/bin/\w|mpirun |srun |torchrun |python3 |grep )")

ROW = ("stage4_ddp_amp  2 x 1  bf16     21.4   2.9 x  98.44 [98.18, 98.66]  10000     yes      716"
       "    98")
ONE, TWO, THREE = "0123456789abcdef", "a123456789abcdef", "b123456789abcdef"
# What a page shows, and what is printed.
SAME = [
    ("one\ntwo", "one\ntwo"),
    ("one\n...\nfour\n...", "one\ntwo\nthree\nfour\nfive"),
    ("one\n...\ntwo", "one\ntwo"),
    ("...\ntwo\nthree", "one\ntwo\ntwo\nthree"),
    ("one ... three", "one and two and three"),
    ("epoch 1/1 94/938  loss 0.2380  1672 samples/s  eta 0:32",
     "epoch 1/1 94/938  loss 0.2380  88 samples/s  eta 9:59"),
    ("time elapsed: 38.44 seconds", "time elapsed: 1.5 seconds"),
    ("2 threads (2 usable CPUs), store 127.0.0.1:42637 (pid: 7)",
     "16 threads (32 usable CPUs), store 127.0.0.1:5 (pid: 4711)"),
    ("in /tmp/a on 2025-01-01, {'eval_runtime': '2.464'}",
     "in /tmp/b on 2026-12-31, {'eval_runtime': '12.1'}"),
    (ROW, ROW.replace("2 x", "4 x").replace("    21.4", "   121.4").replace("98.66", "98.86")
     .replace("  716", " 1016").replace("2.9 x", "    –")),
    ("Stage 0 trains 4.0 times as fast as python_tuned, a Python program tuned for speed.",
     "Stage 0 trains 2.9 times as fast as python_tuned, a Python program tuned for speed."),
    ("Two processes of stage 2, one thread each, train 1.81 times (basicnet) as fast as",
     "Two processes of stage 2, one thread each, train 1.72 times (basicnet) as fast as"),
    ("Accuracy: 98.54", "Accuracy: 98.11"),
    ("loss 0.2380", "loss 0.1999"),
    ("    1   0.8493  0.92", "    1   0.8611  0.91"),
    (f"{ONE} {ONE} {TWO}", f"{THREE} {THREE} {ONE}"),
]
# The same, and the two lines that differ.
OTHER = [
    ("one\ntwo", "one\ntoo", "two", "too"),
    ("one\ntwo", "one", "two", None),
    ("one", "one\ntwo", None, "two"),
    ("one\n...\nthree\nfour\n...", "one\ntwo\nthree\nfive", "four", "five"),
    ("one\n...\nthree", "one\ntwo\nthree\nfour", None, "four"),
    *((one, other, one, other) for one, other in (
        *((ROW, ROW.replace(old, new)) for old, new in (
            (" yes", "  no"), ("10000", " 9999"), ("    98", "    99"), ("bf16", "fp32"))),
        ("Accuracy: 98.54", "Accuracy: 97.91"),
        ("loss 0.2380", "loss 0.3981"),
        ("    1   0.8493  0.92", "    1   0.8493  0.72"),
        ("rate 0.1", "rate 0.11"),
        (f"{ONE} {ONE}", f"{TWO} {THREE}"))),
]
# Pages, with ~~~ for fences and PRINT for a program that prints its arguments; and their lines.
WALKS = [
    ("~~~\nPRINT a >one   writes a file\ngrep a one # and reads it\n~~~\n\n~~~cpp\nPRINT b\n~~~\n\n"
     "~~~text\none\n  two\n~~~\n\n<!-- [[[cog help_text(\"a\") ]]] -->\n\n~~~\nusage: a\n~~~\n",
     "README.md:2 ok tools/print a >one", "README.md:3 ok grep a one"),
    ("~~~\nPRINT a; exit 3\n~~~\n", "README.md:2 FAILED tools/print a; exit 3",
     "  exit code 3, expected 0; it printed last:", "    a"),
    ("With exit code 3:\n\n~~~\n$ PRINT a; exit 3\na\n~~~\n",
     "README.md:4 ok tools/print a; exit 3"),
    ("With exit code 3:\n\n~~~\n$ PRINT a\na\n~~~\n", "README.md:4 FAILED tools/print a",
     "  exit code 0, expected 3; it printed last:", "    a"),
    ("~~~\n$ PRINT 'epoch 1\\repoch 2' end\nepoch 2\nend\n~~~\n",
     "README.md:2 ok tools/print 'epoch 1\\repoch 2' end"),
    *((f"~~~\nPRINT a b c d\n~~~\n\n<!-- output -->\n\n~~~\nb\n{shown}\n~~~\n", *lines)
      for shown, *lines in (
          ("c", "README.md:2 ok tools/print a b c d"),
          ("x", "README.md:2 FAILED tools/print a b c d", "  expected: x", "  got:      c"))),
    ("<!-- not run: needs a GPU -->\n\n~~~\nPRINT a; exit 3\n~~~\n",
     "README.md:4 not run tools/print a; exit 3  (needs a GPU)"),
    ("~~~\n$ grep . a.yaml\nlr: 1\nepochs: 2\n~~~\n\n<!-- file: a.yaml -->\n\n"
     "~~~yaml\nlr: 1\nepochs: 2\n~~~\n", "README.md:2 ok grep . a.yaml"),
    ("~~~\n$ PRINT a b; sleep 60\n...\nb\nKilled\n$ PRINT c\nc\n~~~\n",
     "README.md:2 ok tools/print a b; sleep 60", "README.md:6 ok tools/print c"),
]
REFUSED = [
    ("~~~\nPRINT a\nb\n~~~\n", "README.md:2: commands and other lines in one block"),
    ("~~~\nother a\n~~~\n", "README.md:2: not a known command"),
    ("~~~bash\nother a\n~~~\n", "README.md:2: not a known command"),
    ("<!-- output -->\n\n~~~\na\n~~~\n", "README.md:3: output, but of which command?"),
    ("<!-- not run -->\n\n~~~\nPRINT a\n~~~\n", "<!-- not run -->: see tools/docs_walk.py"),
    ("Nothing to type.\n", "no command was found"),
]


def differing(shown: str, got: str) -> tuple[str | None, ...] | None:
    both = (shown.splitlines(), got.splitlines())
    found = docs_walk.difference(*map(docs_walk.comparable, both))
    return found and tuple(None if number is None else lines[number]
                           for lines, number in zip(both, found))


@pytest.mark.parametrize("shown, got", SAME)
def test_equal_but_for_what_differs_between_runs_and_machines(shown: str, got: str) -> None:
    assert differing(shown, got) is None


@pytest.mark.parametrize("shown, got, line, other", OTHER)
def test_other_output(shown: str, got: str, line: str | None, other: str | None) -> None:
    assert differing(shown, got) == (line, other)


Walk = Callable[..., tuple[int, list[str], str]]


@pytest.fixture(name="walk")
def walk_fixture(tmp_path: Path, start: Start) -> Walk:
    """Exit code, the lines about the commands without seconds and the table, and errors."""
    def walk(text: str, *names: str) -> tuple[int, list[str], str]:
        for name in names or ("README.md",):
            write(tmp_path / name, text.replace("~~~", "```").replace("PRINT ", "tools/print "))
        write(tmp_path / "tools/print", "#!/bin/sh\nprintf '%b\\n' \"$@\"\n", executable=True)
        code, out, err = start(docs_walk, "--root", tmp_path)
        return code, [re.sub(r" +(ok|FAILED|not run) +\d+\.\d s  ", r" \1 ", line)
                      for line in out.partition("\n\n")[0].splitlines()], err

    return walk


@pytest.mark.parametrize("page", WALKS)
def test_commands_are_run_and_compared(walk: Walk, page: tuple[str, ...]) -> None:
    text, *lines = page
    assert walk(text) == (int("FAILED" in lines[0]), lines, "")


def test_the_pages_in_the_order_of_the_stages(walk: Walk) -> None:
    names = ("docs/stages/0-a.md", "docs/stages/1-b.md", "docs/traps.md")
    assert walk("~~~\nPRINT x\n~~~\n", *names[::-1])[1] == [
        f"{name}:2 ok tools/print x" for name in names]


def test_a_deadline_ends_a_command_and_what_it_started(walk: Walk, tmp_path: Path) -> None:
    code, lines, _ = walk("<!-- deadline: 0.1 -->\n\n"
                          "~~~\n$ (sleep 0.3; PRINT >late) & PRINT a; sleep 60\n~~~\n")
    assert (code, lines[1:]) == (1, ["  not done within 0.1 s; it printed last:", "    a"])
    time.sleep(0.4)
    assert not (tmp_path / "late").exists()


@pytest.mark.parametrize("text, message", REFUSED)
def test_pages_that_cannot_be_walked(walk: Walk, text: str, message: str) -> None:
    code, _, err = walk(text)
    assert code == 2 and message in err


def test_every_line_that_looks_like_a_command_is_one(output: Callable[..., str]) -> None:
    lines = output(docs_walk, "--list").splitlines()
    listed = [":".join(line.split(":")[:2]) for line in lines]
    assert listed == [
        f"{page.name}:{number}" for page in docs_walk.pages_of(ROOT, docs_walk.PAGES)
        for number, line in enumerate(page.lines, 1) if TYPED.match(line)]
    assert len(listed) > 100
