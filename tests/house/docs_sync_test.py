# SPDX-License-Identifier: Apache-2.0
"""tools/docs_sync.py on a small tree made here, each time with one thing wrong."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "docs_sync.py"

PROGRAM = """#include <cstdio>
int main() {
  // #region loop
  for (int i = 0; i < 3; ++i) {
    std::puts("again");
  }
  // #endregion loop
}
"""
PAGE = """# A page

See [the other one](docs/stages/one.md#run-it), [this](#a-part), [elsewhere](https://a.org).

## A part

<!-- snippet: main.cpp#loop -->

```cpp
for (int i = 0; i < 3; ++i) {
  std::puts("again");
}
```

<!-- quote: main.cpp -->

```cpp
int main() {
  ...
    std::puts(...
}
```
"""
GROWN = """  const auto a = 1;
  // Two, three and four.
  const auto b = 2;

  const auto c = 3;
  const auto d = 4;
"""
STAGE = "# One\n\n## What changes\n\n## Why\n\n## The diff\n\n## Run it\n\n" \
        "## What you should see\n\n## Under the hood\n\n## Traps\n\n## Sources\n"
TREE = {"main.cpp": PROGRAM, "README.md": PAGE, "docs/stages/one.md": STAGE}
IN_ITS_ORDER = "quote it unchanged, in its order, with ... for omitted lines"


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

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text(encoding="utf-8")
        assert old in text, (name, old)
        self.write(name, text.replace(old, new, 1))

    def run_tool(self, *flags: str) -> tuple[int, list[str]]:
        done = subprocess.run([sys.executable, TOOL, "--root", self.root, *flags], check=False,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout.splitlines()

    def expect(self, *violations: str) -> None:
        code, lines = self.run_tool()
        self.assertEqual(lines, [*violations, f"docs_sync: {len(violations)} violations"])
        self.assertEqual(code, 1 if violations else 0)

    def test_a_true_page(self) -> None:
        self.expect()

    def test_a_changed_region_is_found_and_mended(self) -> None:
        self.edit("main.cpp", '"again"', '"once more"')
        cure = "run tools/docs_sync.py --update"
        self.expect(f"README.md:11: differs from main.cpp#loop; {cure}")
        self.assertEqual(self.run_tool("--update"),
                         (0, ["README.md: written", "docs_sync: 0 violations"]))
        self.assertIn('  std::puts("once more");\n', (self.root / "README.md").read_text())
        self.assertEqual(self.run_tool("--update"), (0, ["docs_sync: 0 violations"]))

    def test_an_edited_snippet(self) -> None:
        self.edit("README.md", "i < 3", "i < 4")
        self.expect("README.md:10: differs from main.cpp#loop; run tools/docs_sync.py --update")

    def test_a_snippet_that_lost_its_last_line(self) -> None:
        self.edit("README.md", "}\n```", "```")
        self.expect("README.md:12: differs from main.cpp#loop; run tools/docs_sync.py --update")

    def test_a_region_without_an_end(self) -> None:
        self.edit("main.cpp", "  // #endregion loop\n", "")
        self.expect("README.md:7: main.cpp has no one region loop: mark it by `#region loop` and "
                    "`#endregion loop`")

    def test_a_file_that_is_gone(self) -> None:
        (self.root / "main.cpp").unlink()
        gone = "main.cpp: No such file or directory; name a file from the project's root"
        self.expect(f"README.md:7: {gone}", f"README.md:15: {gone}")

    def test_a_quoted_line_that_changed(self) -> None:
        self.edit("README.md", "std::puts(...", "std::printf(...")
        self.expect("README.md:20: main.cpp has no such line here: 'std::printf(...'; "
                    + IN_ITS_ORDER)

    def test_quoted_lines_in_another_order(self) -> None:
        self.edit("README.md", "int main() {\n  ...\n    std::puts(...",
                  "    std::puts(...\nint main() {")
        self.expect("README.md:19: main.cpp has no such line here: 'int main() {'; "
                    + IN_ITS_ORDER)

    def quote(self, file: str, text: str, language: str = "cpp") -> None:
        """A page with this block and no other."""
        self.write("README.md", f"# A page\n\n<!-- quote: {file} -->\n\n```{language}\n{text}```\n")

    def test_a_quote_that_lost_a_line_in_its_middle(self) -> None:
        self.write("grown.cpp", GROWN)
        lines = GROWN.replace("\n\n", "\n").splitlines(keepends=True)
        self.quote("grown.cpp", "".join(lines))
        self.expect()
        for number, following in enumerate(lines[2:], start=1):
            self.quote("grown.cpp", "".join(lines[:number] + lines[number + 1:]))
            self.expect(f"README.md:{number + 6}: grown.cpp has no such line here: "
                        f"'{following.strip()}'; {IN_ITS_ORDER}")

    def test_what_a_quote_may_leave_out(self) -> None:
        self.write("grown.cpp", GROWN)
        for gap in ("  ...\n", "\n", "  // ...\n"):
            self.quote("grown.cpp", f"  const auto a = 1;\n{gap}  const auto d = 4;\n")
            self.expect()
        self.quote("grown.cpp", "  const auto a...\n  const auto d = 4;\n")
        self.expect()
        self.quote("grown.cpp", "  const auto d = 4;\n  ...\n  const auto a = 1;\n")
        self.expect("README.md:8: grown.cpp has no such line here: 'const auto a = 1;'; "
                    + IN_ITS_ORDER)

    def test_a_diff_of_which_the_file_has_the_new_side(self) -> None:
        self.write("grown.cpp", GROWN)
        self.quote("grown.cpp", "+  const auto b = 2;\n-  old(c);\n   const auto c = 3;\n", "diff")
        self.expect()
        self.quote("grown.cpp", "+  const auto b = 2;\n-  old(c);\n   const auto d = 4;\n", "diff")
        self.expect("README.md:8: grown.cpp has no such line here: 'const auto d = 4;'; "
                    + IN_ITS_ORDER)

    def test_code_of_no_file(self) -> None:
        for language, held in (("cpp", False), ("diff", False), ("yaml", True), ("", True)):
            self.write("README.md", f"# A page\n\nSo:\n\n```{language}\na = 1\n```\n")
            self.expect(*() if held else (
                "README.md:5: nothing holds this block to the code; put it into a file that is "
                "compiled, and that file's name above",))

    def test_a_snippet_of_a_whole_file(self) -> None:
        whole = PROGRAM.replace("  // #region loop\n", "").replace("  // #endregion loop\n", "")
        page = f"# A page\n\n<!-- snippet: main.cpp -->\n\n```cpp\n{whole}```\n"
        self.write("README.md", page)
        self.expect()
        self.write("README.md", page.replace("}\n}\n```", "}\n```"))
        self.expect("README.md:11: differs from main.cpp; run tools/docs_sync.py --update")

    def test_tests_that_are_named(self) -> None:
        self.write("tests/core/one_test.cpp", "TEST(One, Works) {}\n"
                   "TEST_F(Other,\n       IsLong) {}\n")
        self.write("tests/core/two_test.py", "class Two(TestCase):\n    def test_it(self): pass\n")
        self.write("tests/CMakeLists.txt", "house_test(shell COMMAND x)\n"
                   "add_test(NAME a.b COMMAND x)\nprogram_test(faults faults_test.py)\n")
        one, two = "tests/core/one_test.cpp", "tests/core/two_test.py"
        link, added = f"[one]({one})", "tests/CMakeLists.txt adds no test"
        for text in (f"`One.Works` and `Other.IsLong` in `{one}`", f"`test_it` in `{two}`",
                     f"`One.Works` in `{one}`, `test_it` in `{two}`", f"{link}: `Works`, `IsLong`",
                     f"[`two_test`]({two}): `Two`", "`a.b` and `Batch`",
                     "test `house.shell`, tests `a.b`, test `faults`"):
            self.write("README.md", f"# A page\n\n| {text} | here |\n")
            self.expect()
        for text, wrong in (
                (f"`One.Worked` in `{one}`", f"no test One.Worked in {one}; mend it"),
                (f"`Other.Works` in `{one}`", f"no test Other.Works in {one}; mend it"),
                (f"`test_i` in `{two}`", f"no test test_i in {two}; mend it"),
                ("`One.Works`", "no test One.Works in a file that is named beside it; mend it"),
                (f"{link}: `Work`", f"no test Work in {one}; mend it"),
                (f"`test_it` in `{two}` | `One.Works` in `{two}`",
                 f"no test One.Works in {two}; mend it"),
                ("`test_it` in `tests/three_test.py`", "tests/three_test.py: No such file or "
                 "directory; name a file from the project's root"),
                ("test `house.shel`", f"{added} house.shel; mend the name"),
                ("test `a.c`", f"{added} a.c; mend the name")):
            self.write("README.md", f"# A page\n\n| {text} | here |\n")
            self.expect(f"README.md:3: {wrong}")

    def test_cells_that_quote_a_stage(self) -> None:
        self.write("stage3_x/main.cpp", "void run() {\n  wrap(\n      model, group);\n"
                   "  close();\n}\n")
        table = "# A page\n\n| item | {} |\n| --- | --- |\n| `any` | {} |\n"
        for heading in ("line of stage 3", "in stage 3"):
            for cell in ("`run`: `wrap(model, …);`", "`wrap(...); close();`", "none in stage 4"):
                self.write("README.md", table.format(heading, cell))
                self.expect()
            self.write("README.md", table.format(heading, "`wrap(models, …)`"))
            self.expect("README.md:5: stage 3 has no 'wrap(models, …)'; quote it unchanged")
        self.write("README.md", table.format("against [stage 3](main.cpp)", "`other`"))
        self.expect()
        self.write("README.md", table.format("line of stage 4", "`run`"))
        self.expect("README.md:5: stage 4 has no 'run'; quote it unchanged")

    def test_long_lines_and_a_long_first_page(self) -> None:
        row, block = f"| {'x' * 120} |\n", f"```\n{'x' * 121}\n```\n"
        self.write("README.md", f"# A page\n\n{'x' * 120}\n\n{row}{block}")
        self.expect()
        self.write("README.md", f"# A page\n\n{'x' * 121}\n")
        self.expect("README.md:3: 121 characters, a line has at most 120; break it")
        self.write("README.md", "# A page\n" + "\n" * 199)
        self.expect()
        self.write("README.md", "# A page\n" + "\n" * 200)
        self.expect("README.md:201: 201 lines, the first page has at most 200; move something into "
                    "docs/")

    def test_check_is_the_default_by_name(self) -> None:
        self.assertEqual(self.run_tool("--check"), self.run_tool())
        done = subprocess.run([sys.executable, TOOL, "--check", "--update"], check=False,
                              capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 2)

    def test_links(self) -> None:
        self.edit("README.md", "docs/stages/one.md#run-it", "docs/stages/two.md")
        self.expect("README.md:3: the link to docs/stages/two.md leads nowhere; mend or remove it")

    def test_anchors(self) -> None:
        self.edit("docs/stages/one.md", "## Sources", "## Sources and [links](../../README.md)")
        self.edit("README.md", "(#a-part)", "(docs/stages/one.md#sources)")
        self.expect("README.md:3: docs/stages/one.md has no heading #sources; it has one, run-it, "
                    "sources-and-links, the-diff, traps, under-the-hood, what-changes, "
                    "what-you-should-see, why")

    def test_what_stands_in_a_block_is_no_link_and_no_heading(self) -> None:
        self.edit("README.md", "## A part", "```\n## Not a part\n[x](nowhere.md)\n```\n\n## A part")
        self.expect()

    def test_a_stage_without_a_section(self) -> None:
        self.edit("docs/stages/one.md", "## Why\n\n", "")
        self.expect("docs/stages/one.md:1: has no section '## Why'; add it, as the other stages "
                    "have it")

    def test_sections_in_another_order(self) -> None:
        self.edit("docs/stages/one.md", "## Why\n\n## The diff\n\n", "## The diff\n\n## Why\n\n")
        self.expect("docs/stages/one.md:1: '## The diff' stands before '## Why'; the order is What "
                    "changes, Why, The diff, Run it, What you should see, Under the hood, Traps")

    def test_help_is_compared_where_the_program_is_built(self) -> None:
        block = "\n<!-- help: tool -->\n\n```\nflags of old\n```\n"
        self.write("README.md", PAGE + block)
        self.expect()
        self.write("build/bin/tool", f"#!/bin/sh\necho 'flags in {self.root}/data'\n")
        (self.root / "build/bin/tool").chmod(0o755)
        self.expect("README.md:27: differs from tool; run tools/docs_sync.py --update")
        self.assertEqual(self.run_tool("--update")[0], 0)
        self.assertTrue((self.root / "README.md").read_text().endswith("```\nflags in data\n```\n"))

    def test_the_glossary_names_what_the_headers_have(self) -> None:
        self.write("ladder/data/batch.h", "struct Batch { int images; };\n")
        row = "| Python | here | header |\n| --- | --- | --- |\n| `x` | `{}`, of `--flag` | {} |\n"
        self.write("docs/glossary.md", row.format("Batch", "`ladder/data/batch.h`"))
        self.expect()
        self.write("docs/glossary.md", row.format("Bach", "`ladder/data/batch.h`"))
        self.expect("docs/glossary.md:3: Bach does not stand in ladder/data/batch.h; mend the name "
                    "or its header")
        self.write("docs/glossary.md", row.format("Batch", "`ladder/data/gone.h`"))
        gone = "ladder/data/gone.h: No such file or directory; name a file from the project's root"
        self.expect(f"docs/glossary.md:3: {gone}", "docs/glossary.md:3: Batch does not stand in "
                    "ladder/data/gone.h; mend the name or its header")

    def test_a_root_without_pages(self) -> None:
        for name in ("README.md", "docs/stages/one.md"):
            (self.root / name).unlink()
        self.expect(".: no page was found; is --root the project's root?")


if __name__ == "__main__":
    unittest.main()
