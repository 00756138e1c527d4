# SPDX-License-Identifier: Apache-2.0
"""tools/docs_walk.py on small pages made here; and that no command of the real pages is lost."""
from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import docs_walk  # noqa: E402

TYPED = re.compile(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\./run|\./test|build/bin/\w|scripts/\w|tools/\w"
                   r"|\.venv/bin/\w|mpirun |srun |torchrun |python3 |grep )")


# In the place of the tool: says where it is, and what it finds there.
STAND_IN = """from pathlib import Path
print(Path.cwd(), Path("page").read_text(), Path(".venv/bin/tool").read_text())
"""


def call(*arguments: str) -> tuple[int, str, str]:
    """Exit code, and what the tool prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = docs_walk.main(arguments)
    return code, out.getvalue(), err.getvalue()


def page(text: str) -> str:
    """A page; its fences are written as ~~~, and its program as PRINT."""
    return "# A page\n\n" + text.replace("~~~", "```").replace("PRINT ", "tools/print ")


class Walk(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name).resolve()
        self.write("tools/print", "#!/bin/sh\nprintf '%b\\n' \"$@\"\n")
        (self.root / "tools/print").chmod(0o755)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def walk(self, text: str, *flags: str) -> tuple[int, list[str]]:
        """Exit code, and what is said of the commands, without seconds and without the table."""
        self.write("README.md", page(text))
        code, out, err = call("--root", str(self.root), *flags)
        self.assertEqual(err, "")
        return code, [re.sub(r" +(ok|FAILED|not run) +\d+\.\d s  ", r" \1 ", line)
                      for line in out.partition("\n\n")[0].splitlines()]

    def expect(self, text: str, *said: str) -> None:
        code = 1 if any(" FAILED" in line for line in said) else 0
        self.assertEqual(self.walk(text), (code, list(said)))

    def expect_same(self, shown: str, *printed: str) -> None:
        code, said = self.walk(f"~~~\n$ PRINT {shlex.join(printed)}\n{shown}\n~~~\n")
        self.assertEqual((code, said[1:]), (0, []))

    def expect_other(self, shown: str, printed: str, expected: str, got: str) -> None:
        code, said = self.walk(f"~~~\n$ PRINT {shlex.join(printed.splitlines())}\n{shown}\n~~~\n")
        self.assertEqual((code, said[1:]), (1, [f"  expected: {expected}", f"  got:      {got}"]))

    def test_commands_are_typed_in_their_order_without_what_describes_them(self) -> None:
        self.expect("~~~\nPRINT a >one   writes a file\ngrep a one # and reads it\n~~~\n\n"
                    "~~~cpp\nPRINT b\n~~~\n\n~~~text\none\n  two\n~~~\n\n"
                    "<!-- help: a -->\n\n~~~\nusage: a\n~~~\n",
                    "README.md:4 ok tools/print a >one", "README.md:5 ok grep a one")

    def test_the_pages_in_the_order_of_the_stages(self) -> None:
        for name in ("docs/traps.md", "docs/stages/1-b.md", "docs/stages/0-a.md"):
            self.write(name, page("~~~\nPRINT x\n~~~\n"))
        self.expect("", *(f"docs/{name}.md:4 ok tools/print x"
                          for name in ("stages/0-a", "stages/1-b", "traps")))

    def test_a_command_that_fails(self) -> None:
        self.expect("~~~\nPRINT a; exit 3\n~~~\n", "README.md:4 FAILED tools/print a; exit 3",
                    "  exit code 3, expected 0; it printed last:", "    a")

    def test_a_command_that_is_said_to_fail(self) -> None:
        self.expect("With exit code 3:\n\n~~~\n$ PRINT a; exit 3\na\n~~~\n",
                    "README.md:6 ok tools/print a; exit 3")
        self.expect("With exit code 3:\n\n~~~\n$ PRINT a\na\n~~~\n",
                    "README.md:6 FAILED tools/print a",
                    "  exit code 0, expected 3; it printed last:", "    a")

    def test_one_word(self) -> None:
        self.expect_same("one\ntwo", "one", "two")
        self.expect_other("one\ntwo", "one\ntoo", "two", "too")
        self.expect_other("one\ntwo", "one", "two", "nothing more")
        self.expect_other("one", "one\ntwo", "nothing more", "two")

    def test_what_is_left_out(self) -> None:
        self.expect_same("one\n...\nfour\n...", "one", "two", "three", "four", "five")
        self.expect_same("one\n...\ntwo", "one", "two")
        self.expect_same("one ... three", "one and two and three")
        self.expect_other("one\n...\nthree\nfour\n...", "one\ntwo\nthree\nfive", "four", "five")
        self.expect_other("one\n...\nthree", "one\ntwo\nthree\nfour", "three", "four")

    def test_times_machines_and_places_differ(self) -> None:
        self.expect_same("epoch 1/1 94/938  loss 0.2380  1672 samples/s  eta 0:32",
                         "epoch 1/1 94/938  loss 0.2380  88 samples/s  eta 9:59")
        self.expect_same("time elapsed: 38.44 seconds", "time elapsed: 1.5 seconds")
        self.expect_same("2 threads (2 usable CPUs), store 127.0.0.1:42637 (pid: 7)",
                         "16 threads (32 usable CPUs), store 127.0.0.1:5 (pid: 4711)")
        self.expect_same("in a/b on 2025-01-01, {'eval_runtime': '2.464'}",
                         f"in {self.root}/a/b on 2026-12-31, {{'eval_runtime': '12.1'}}")

    def test_the_table_of_run(self) -> None:
        row = "stage4_ddp_amp  {} x 1  bf16  {:7}  98.44 [98.18, {}]  10000     yes  {:7}    98"
        shown = row.format(2, 21.4, 98.66, 716)
        self.expect_same(shown, row.format(4, 121.4, 98.86, 1016))
        for old, new in ((" yes", "  no"), ("10000", " 9999"), ("    98", "    99"),
                         ("bf16", "fp32")):
            self.expect_other(shown, shown.replace(old, new), shown, shown.replace(old, new))

    def test_what_was_learned_may_differ_a_little(self) -> None:
        for shown, got in (("Accuracy: 98.54", "Accuracy: 98.11"), ("loss 0.2380", "loss 0.1999"),
                           ("    1   0.8493  0.92", "    1   0.8611  0.91")):
            self.expect_same(shown, got)
        for shown, got in (("Accuracy: 98.54", "Accuracy: 97.91"), ("loss 0.2380", "loss 0.3981"),
                           ("    1   0.8493  0.92", "    1   0.8493  0.72"),
                           ("rate 0.1", "rate 0.11")):
            self.expect_other(shown, got, shown, got)

    def test_digests_differ_but_those_that_are_equal_stay_so(self) -> None:
        one, two, three = "0123456789abcdef", "a123456789abcdef", "b123456789abcdef"
        self.expect_same(f"{one} {one} {two}", f"{three} {three} {one}")
        self.expect_other(f"{one} {one}", f"{two} {three}", f"{one} {one}", f"{two} {three}")

    def test_a_line_that_was_redrawn_counts_as_it_was_last(self) -> None:
        self.expect_same("epoch 2\nend", "epoch 1\\repoch 2", "end")

    def test_output_in_a_block_of_its_own(self) -> None:
        text = "~~~\nPRINT a b c d\n~~~\n\n<!-- output -->\n\n~~~\nb\n{}\n~~~\n"
        self.expect(text.format("c"), "README.md:4 ok tools/print a b c d")
        self.expect(text.format("x"), "README.md:4 FAILED tools/print a b c d", "  expected: x",
                    "  got:      c")

    def test_what_cannot_be_run(self) -> None:
        self.expect("<!-- not run: needs a GPU -->\n\n~~~\nPRINT a >one\n~~~\n",
                    "README.md:6 not run tools/print a >one  (needs a GPU)")
        self.assertFalse((self.root / "one").exists())

    def test_a_file_that_the_page_shows(self) -> None:
        self.expect("~~~\n$ grep . a.yaml\nlr: 1\nepochs: 2\n~~~\n\n<!-- file: a.yaml -->\n\n"
                    "~~~yaml\nlr: 1\nepochs: 2\n~~~\n", "README.md:4 ok grep . a.yaml")

    def test_a_file_of_a_later_page_is_not_there_yet(self) -> None:
        self.write("docs/traps.md", page("<!-- file: b.yaml -->\n\n~~~yaml\nlr: 1\n~~~\n\n"
                                         "~~~\n$ tools/print *.yaml\nb.yaml\n~~~\n"))
        self.expect("~~~\n$ tools/print *.yaml\n*.yaml\n~~~\n",
                    "README.md:4 ok tools/print *.yaml", "docs/traps.md:10 ok tools/print *.yaml")

    def test_a_deadline_ends_a_command_and_what_it_started(self) -> None:
        start = time.monotonic()
        code, said = self.walk("~~~\n$ (sleep 0.4; PRINT >late) & PRINT a; sleep 60\n~~~\n",
                               "--deadline", "0.2")
        self.assertEqual((code, said[1:]),
                         (1, ["  not done within 0.2 s; it printed last:", "    a"]))
        time.sleep(0.4)
        self.assertFalse((self.root / "late").exists())
        code, said = self.walk("<!-- deadline: 0.1 -->\n\n~~~\n$ sleep 60\n~~~\n")
        self.assertEqual((code, said[1:]), (1, ["  not done within 0.1 s; it printed last:"]))
        self.assertLess(time.monotonic() - start, 10)

    def test_a_command_that_is_killed_where_the_page_says(self) -> None:
        self.expect("~~~\n$ PRINT a b; sleep 60\n...\nb\nKilled\n$ PRINT c\nc\n~~~\n",
                    "README.md:4 ok tools/print a b; sleep 60", "README.md:8 ok tools/print c")

    def test_pages_that_cannot_be_walked(self) -> None:
        for text, says in (
                ("~~~\nPRINT a\nb\n~~~\n", "README.md:4: commands and other lines in one block"),
                ("~~~\nother a\n~~~\n", "README.md:4: not a known command"),
                ("~~~bash\nother a\n~~~\n", "README.md:4: not a known command"),
                ("<!-- output -->\n\n~~~\na\n~~~\n",
                 "README.md:5: output, but of which command?"),
                ("<!-- not run -->\n\n~~~\nPRINT a\n~~~\n",
                 "<!-- not run -->: see tools/docs_walk.py"),
                ("Nothing to type.\n", "no command was found")):
            self.write("README.md", page(text))
            code, _, err = call("--root", str(self.root))
            self.assertEqual(code, 2)
            self.assertIn(says, err)


class Pages(unittest.TestCase):
    def test_every_line_that_looks_like_a_command_is_one(self) -> None:
        code, out, err = call("--list")
        self.assertEqual((code, err), (0, ""))
        listed = [":".join(line.split(":")[:2]) for line in out.splitlines()]
        pages = [ROOT / "README.md", *sorted((ROOT / "docs/stages").glob("*.md")),
                 ROOT / "docs/traps.md"]
        self.assertEqual(listed, [
            f"{path.relative_to(ROOT)}:{number}" for path in pages for number, line in
            enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if TYPED.match(line)])
        self.assertGreater(len(listed), 100)


class Tier(unittest.TestCase):
    """./test --docs, in a checkout with stand-ins."""

    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name).resolve() / "checkout"
        (self.root / "tools").mkdir(parents=True)
        shutil.copy(ROOT / "test", self.root)
        for name, text in (("tools/setup.sh", "#!/bin/sh\n"), ("page", "committed\n"),
                           (".gitignore", "/.venv/\n"), ("tools/docs_walk.py", STAND_IN)):
            (self.root / name).write_text(text, encoding="utf-8")
        (self.root / "tools/setup.sh").chmod(0o755)
        for arguments in (("init", "-q"), ("add", "."),
                          ("-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "a")):
            subprocess.run(["git", *arguments], cwd=self.root, check=True, timeout=60)
        (self.root / ".venv/bin").mkdir(parents=True)
        self.tool = self.root / ".venv/bin/tool"
        self.tool.write_text(f"#!{self.root}/.venv/bin/python\n", encoding="utf-8")

    def test_walks_a_clone_of_what_is_committed(self) -> None:
        (self.root / "page").write_text("edited\n", encoding="utf-8")
        done = subprocess.run(["./test", "--docs"], cwd=self.root, check=False, text=True,
                              timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)
        found = re.search(r"^(/\S+) (\w+)\n (#!\S+)$", done.stdout, re.MULTILINE)
        clone, text, tool = found.groups()
        self.assertEqual((text, tool), ("committed", f"#!{clone}/.venv/bin/python"))
        self.assertIn("changes that are not committed are not tested", done.stdout)
        self.assertFalse(Path(clone).exists())
        self.assertIn(f"#!{self.root}/", self.tool.read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
