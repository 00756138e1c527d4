# SPDX-License-Identifier: Apache-2.0
"""tools/docs_site.py: the site builds without broken links, and pages look as they should."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import docs_site  # noqa: E402

try:
    docs_site.find_zensical()
    MISSING = ""
except docs_site.SiteError as error:
    MISSING = str(error)
HOLDER = tempfile.TemporaryDirectory()
PAGE = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
# Start

A list:
- one, <!-- value a --> 3 <!-- end -->
  - two, of `<!-- code -->`

## The diff
See [the
code](code.cpp), [a folder](folder/) and [a section](docs/page.md#a-section--two).

<!-- tabs -->

```python
# tabs
```

<!-- [[[cog quote("code.cpp") ]]] -->

```cpp
// a <!-- comment -->
```

<!-- collapse -->

### Details of `it`

```
[text](nowhere.md)
```

### After

## Sources

## The diff
"""


def fetched(html: Path) -> Iterator[str]:
    """What a browser would fetch from elsewhere."""
    for path in html.rglob("*.html"):
        for tag, address in re.findall(r'<(\w+)[^>]*? (?:src|href|data)="((?:[a-z]+:)?//[^"]*)"',
                                       path.read_text(encoding="utf-8")):
            if tag != "a":
                yield f"{path.relative_to(html)}: {address}"


def build(root: Path, folder: Path) -> Path:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = docs_site.main(["--root", str(root), "--folder", str(folder)])
    if code != 0:
        raise AssertionError(f"docs_site: exit code {code}\n{output.getvalue()}")
    return folder / "html"


@unittest.skipIf(MISSING, MISSING)
class Project(unittest.TestCase):
    html: Path
    maxDiff = None

    @classmethod
    def setUpClass(cls) -> None:
        cls.html = build(ROOT, Path(HOLDER.name).resolve() / "project")

    def test_it_needs_no_network(self) -> None:
        self.assertEqual(list(fetched(self.html)), [])

    def test_next_leads_through_all_pages(self) -> None:
        wanted = [re.sub(r"\.md$", ".html", name.replace("README.md", "index.md"))
                  for name in docs_site.names_of(ROOT)]
        page, found = self.html / "index.html", []
        while page and page not in found:
            found.append(page)
            match = re.search(r'<link rel="next" href="([^"]+)"', page.read_text(encoding="utf-8"))
            page = match and (page.parent / match[1]).resolve()
        self.assertEqual([path.relative_to(self.html).as_posix() for path in found], wanted)

    def test_search_has_the_pages_and_no_sources(self) -> None:
        items = json.loads((self.html / "search.json").read_text(encoding="utf-8"))["items"]
        found = {item["location"].partition("#")[0] for item in items}
        self.assertIn("docs/stages/6-trainer.html", found)
        self.assertEqual([name for name in found if ".cpp" in name or ".py" in name], [])


@unittest.skipIf(MISSING, MISSING)
class OnePage(unittest.TestCase):
    def setUp(self) -> None:
        self.root = Path(HOLDER.name) / self.id()
        for folder in ("docs", "folder", "tools"):
            (self.root / folder).mkdir(parents=True)
        configuration = (ROOT / docs_site.CONFIGURATION).read_text(encoding="utf-8")
        start, end = configuration.index("nav = ["), configuration.index("\n[project.theme]")
        self.write(docs_site.CONFIGURATION, configuration[:start]
                   + 'nav = ["README.md", "docs/page.md"]\n' + configuration[end:])
        self.write("README.md", PAGE)
        self.write("docs/page.md", "# Page\n\n## A section: / two\n")
        self.write("code.cpp", "int a;\n")

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text, encoding="utf-8")

    def build(self) -> Path:
        return build(self.root, self.root / "build-site")

    def test_a_broken_link_or_anchor_fails(self) -> None:
        for text, problem in (("[a](../missing.md)", "page does not exist"),
                              ("[a](../README.md#gone)", "anchor does not exist")):
            self.write("docs/page.md", f"# Page\n\n## A section: / two\n\n{text}\n")
            with self.assertRaisesRegex(AssertionError, problem):
                self.build()

    def test_a_page(self) -> None:
        text = (self.build() / "index.html").read_text(encoding="utf-8")
        article = re.sub(r"\s+", " ", re.split("</?article", text)[1])
        for wanted in (r'href="code.cpp.html">the code<', "</a>, a folder and <a",
                       r'href="docs/page.html#a-section--two"',
                       r"<li>one, 3 <ul> <li>two, of <code>&lt;!-- code --&gt;</code></li>",
                       r'tabbed-labels"><label[^>]*>Python</label><label[^>]*>C\+\+</label>',
                       r"// a &lt;!-- comment --&gt;",
                       r'<details id="details-of-it"> ?<summary>Details of <code>it</code><',
                       r"\[text\]\(nowhere.md\)", r'</details> <h3 id="after">',
                       r'<details id="sources">'):
            self.assertRegex(article, wanted)
        for unwanted in ("cog", "SPDX", "value a", "collapse"):
            self.assertNotIn(unwanted, article)


def tearDownModule() -> None:
    HOLDER.cleanup()


if __name__ == "__main__":
    unittest.main()
