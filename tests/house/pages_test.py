# SPDX-License-Identifier: Apache-2.0
"""tools/docs_sync.py on a small tree made here, each time with other pages."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import docs_sync  # noqa: E402

PROGRAM = """#include <cstdio>
int main() {
  // #region loop
  for (int i = 0; i < 3; ++i) {
    std::puts("again");
  }
  // #endregion loop

  const auto c = 3;
  const auto d = 4;
}
"""
WHOLE = PROGRAM.replace("  // #region loop\n", "").replace("  // #endregion loop\n", "")
LOOP = 'for (int i = 0; i < 3; ++i) {\n  std::puts("again");\n}\n'
SECTIONS = "The idea, In numbers, The diff, Run it, Break it, Exercises"
TREE = {
    "main.cpp": PROGRAM,
    "docs/stages/one.md": "".join(f"## {one}\n\n" for one in [*SECTIONS.split(", "), "More"]),
    "stage3_x/main.cpp": "void run() {\n  wrap(\n      model, group);\n  close();\n}\n",
    "ladder/data/batch.h": "struct Batch { int images; };\n",
    "tests/core/one_test.cpp": "TEST(One, Works) {}\nTEST_F(Other,\n       IsLong) {}\n",
    "tests/core/two_test.py": "class Two(TestCase):\n    def test_it(self): pass\n",
    "tests/CMakeLists.txt": "house_test(shell COMMAND x)\nadd_test(NAME a.b COMMAND x)\n"
                            "program_test(faults faults_test.py)\n",
}
CURE = "; run tools/docs_sync.py --update"
GONE = "No such file or directory; name a file from the project's root"


def block(source: str, text: str, language: str = "cpp") -> str:
    return f"<!-- {source} -->\n\n```{language}\n{text}```\n"


def no_line(number: int, line: str) -> str:
    return (f"README.md:{number}: main.cpp has no such line here: '{line}'; quote it unchanged, in "
            "its order, with ... for omitted lines")


def cells(heading: str, cell: str) -> str:
    return f"| item | {heading} |\n| --- | --- |\n| `any` | {cell} |\n"


ONE, TWO = "tests/core/one_test.cpp", "tests/core/two_test.py"
QUOTED = '  for (int i = 0; i < 3; ++i) {\n    std::puts("again");\n  }\n  const auto c = 3;\n'
# A README.md, and the violation, if any.
PAGES = [
    (block("snippet: main.cpp#loop", LOOP), None),
    (block("snippet: main.cpp#loop", LOOP.replace("3", "4")),
     f"README.md:4: differs from main.cpp#loop{CURE}"),
    (block("snippet: main.cpp#loop", LOOP[:-2]), f"README.md:6: differs from main.cpp#loop{CURE}"),
    (block("snippet: main.cpp", WHOLE), None),
    (block("snippet: main.cpp", WHOLE[:-2]), f"README.md:12: differs from main.cpp{CURE}"),
    (block("snippet: main.cpp#end", ""), "README.md:1: main.cpp has no one region end: mark it by "
     "`#region end` and `#endregion end`"),
    (block("snippet: other.cpp", ""), f"README.md:1: other.cpp: {GONE}"),
    (block("quote: other.cpp", ""), f"README.md:1: other.cpp: {GONE}"),
    # Quotes: consecutive lines, but for gaps that are marked.
    (block("quote: main.cpp", QUOTED.replace("  const", "  // #endregion loop\n  const")), None),
    (block("quote: main.cpp", QUOTED), no_line(7, "const auto c = 3;")),
    *((block("quote: main.cpp", f"int main() {{\n{gap}\n  const auto d = 4;\n"), None)
      for gap in ("  ...", "", "  // ...")),
    (block("quote: main.cpp", "int main() {\n  ...\n    std::puts(...\n  const auto d...\n"), None),
    (block("quote: main.cpp", "int main() {\n  ...\n  std::printf(...\n"),
     no_line(6, "std::printf(...")),
    (block("quote: main.cpp", "  const auto c = 3;\n  ...\nint main() {\n"),
     no_line(6, "int main() {")),
    (block("quote: main.cpp", "+  const auto c = 3;\n-  old(c);\n   const auto d = 4;\n", "diff"),
     None),
    (block("quote: main.cpp", "+  const auto c = 3;\n-  old(c);\n   const auto e = 4;\n", "diff"),
     no_line(6, "const auto e = 4;")),
    # Code of no file.
    *((block("by hand", "a = 1\n", language), "README.md:3: nothing holds this block to the code; "
       "put it into a file that is compiled, and that file's name above")
      for language in ("cpp", "diff")),
    *((block("by hand", "a = 1\n", language), None) for language in ("yaml", "")),
    # Links and anchors.
    ("## A part\n\n[a](docs/stages/one.md#run-it), [b](#a-part), [c](https://a.org)\n", None),
    ("[a](docs/stages/two.md)\n",
     "README.md:1: the link to docs/stages/two.md leads nowhere; mend or remove it"),
    ("## Some [links](main.cpp)\n\n[b](#some)\n",
     "README.md:3: this page has no heading #some; it has some-links"),
    ("```\n## No part\n[x](nowhere.md)\n```\n[x](#no-part)\n",
     "README.md:5: this page has no heading #no-part; it has "),
    # Tests that are named.
    *((f"| {text} | here |\n", None) for text in (
        f"`One.Works` and `Other.IsLong` in `{ONE}`", f"`test_it` in `{TWO}`",
        f"`One.Works` in `{ONE}`, `test_it` in `{TWO}`", f"[one]({ONE}): `Works`, `IsLong`",
        f"[`two_test`]({TWO}): `Two`", "`a.b` and `Batch`",
        "test `house.shell`, tests `a.b`, test `faults`")),
    *((f"| {text} |\n", f"README.md:1: {wrong}") for text, wrong in (
        (f"`One.Worked` in `{ONE}`", f"no test One.Worked in {ONE}; mend it"),
        (f"`Other.Works` in `{ONE}`", f"no test Other.Works in {ONE}; mend it"),
        (f"`test_i` in `{TWO}`", f"no test test_i in {TWO}; mend it"),
        ("`One.Works`", "no test One.Works in a file that is named beside it; mend it"),
        (f"[one]({ONE}): `Work`", f"no test Work in {ONE}; mend it"),
        (f"`test_it` in `{TWO}` | `One.Works` in `{TWO}`", f"no test One.Works in {TWO}; mend it"),
        ("`test_it` in `tests/three_test.py`", f"tests/three_test.py: {GONE}"),
        ("test `house.shel`", "tests/CMakeLists.txt adds no test house.shel; mend the name"))),
    # Cells that quote a stage.
    *((cells(heading, cell), None) for heading in ("line of stage 3", "in stage 3")
      for cell in ("`run`: `wrap(model, …);`", "`wrap(...); close();`", "none in stage 4")),
    (cells("in stage 3", "`wrap(models, …)`"),
     "README.md:3: stage 3 has no 'wrap(models, …)'; quote it unchanged"),
    (cells("in stage 3", "`run`") + "\n" + cells("against [stage 3](main.cpp)", "`other`"), None),
    (f"{'x' * 120}\n\n| {'x' * 120} |\n\n```\n{'x' * 121}\n```\n", None),
    (f"{'x' * 121}\n", "README.md:1: 121 characters, a line has at most 120; break it"),
]


class DocsSync(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name)
        for name, text in TREE.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run_tool(self, *flags: str) -> tuple[int, list[str]]:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = docs_sync.main(["--root", str(self.root), *flags])
        return code, output.getvalue().splitlines()

    def expect(self, *violations: str) -> None:
        self.assertEqual(self.run_tool(), (1 if violations else 0, [
            *violations, f"docs_sync: {len(violations)} violations"]))

    def test_pages_with_one_violation_at_most(self) -> None:
        for page, violation in PAGES:
            with self.subTest(page):
                self.write("README.md", page)
                self.expect(*[violation] if violation else [])

    def test_an_update_writes_snippets_and_help_texts(self) -> None:
        help_text = block("help: tool", "flags of old\n", "")
        page = block("snippet: main.cpp#loop", LOOP) + help_text
        self.write("README.md", page)
        self.expect()  # not built yet
        self.write("build/bin/tool", f"#!/bin/sh\necho 'flags in {self.root}/data'\n")
        (self.root / "build/bin/tool").chmod(0o755)
        self.write("main.cpp", PROGRAM.replace("again", "once more"))
        self.expect(f"README.md:5: differs from main.cpp#loop{CURE}",
                    f"README.md:11: differs from tool{CURE}")
        self.assertEqual(self.run_tool("--update"),
                         (0, ["README.md: written", "docs_sync: 0 violations"]))
        self.assertEqual((self.root / "README.md").read_text(encoding="utf-8"),
                         page.replace("again", "once more").replace("of old", "in data"))
        self.assertEqual(self.run_tool("--update"), (0, ["docs_sync: 0 violations"]))

    def test_the_sections_of_a_stage_and_their_order(self) -> None:
        page = TREE["docs/stages/one.md"]
        for old, new, found in (
                ("## Run it\n", "", SECTIONS.replace(" Run it,", "")),
                ("## The diff\n\n## Run it\n", "## Run it\n\n## The diff\n",
                 SECTIONS.replace("The diff, Run it", "Run it, The diff"))):
            self.write("docs/stages/one.md", page.replace(old, new))
            self.expect(f"docs/stages/one.md:1: has the sections {found}; expected {SECTIONS}, in "
                        "this order, as the other stages")

    def test_the_words_of_a_lesson(self) -> None:
        page = TREE["docs/stages/one.md"]
        words = len(page.split())
        self.write("docs/stages/one.md", page + "word\n" * (1000 - words))
        self.expect()
        self.write("docs/stages/one.md", page + "word\n" * (1001 - words))
        self.expect("docs/stages/one.md:1: 1001 words, a lesson has at most 1000; move details to "
                    "docs/reference/")

    def test_the_glossary_names_what_the_headers_have(self) -> None:
        row = "| Python | here | header |\n| --- | --- | --- |\n| `x` | `{}`, of `--flag` | {} |\n"
        for name, header, *violations in (
                ("Batch", "batch"),
                ("Bach", "batch", "Bach does not stand in ladder/data/batch.h; mend the name or "
                                  "its header"),
                ("Batch", "gone", f"ladder/data/gone.h: {GONE}", "Batch does not stand in "
                 "ladder/data/gone.h; mend the name or its header")):
            self.write("docs/glossary.md", row.format(name, f"`ladder/data/{header}.h`"))
            self.expect(*(f"docs/glossary.md:3: {violation}" for violation in violations))

    def test_a_root_without_pages(self) -> None:
        (self.root / "docs/stages/one.md").unlink()
        self.expect(".: no page was found; is --root the project's root?")


if __name__ == "__main__":
    unittest.main()
