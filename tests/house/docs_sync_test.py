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

See [the other one](docs/stages/one.md#run-it), [this](#a-part), and [elsewhere](https://example.org).

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
STAGE = "# One\n\n## What changes\n\n## Why\n\n## The diff\n\n## Run it\n\n" \
        "## What you should see\n\n## Under the hood\n\n## Traps\n\n## Sources\n"
TREE = {"main.cpp": PROGRAM, "README.md": PAGE, "docs/stages/one.md": STAGE}


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
        self.expect("README.md:20: main.cpp has no such line here: 'std::printf(...'; quote it as "
                    "it stands, in its order")

    def test_quoted_lines_in_another_order(self) -> None:
        self.edit("README.md", "int main() {\n  ...\n    std::puts(...",
                  "    std::puts(...\nint main() {")
        self.expect("README.md:19: main.cpp has no such line here: 'int main() {'; quote it as it "
                    "stands, in its order")

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
