# SPDX-License-Identifier: Apache-2.0
"""tools/docs_site.py: links of the built site lead somewhere, and pages look as they should."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tempfile
import unittest
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import docs_site  # noqa: E402

try:
    docs_site.find_zensical()
    MISSING = ""
except docs_site.SiteError as error:
    MISSING = str(error)
HOLDER = tempfile.TemporaryDirectory()
ADDRESSES = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src",
             "iframe": "src", "object": "data"}

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

<!-- quote: code.cpp -->

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

[missing](missing.md)

## The diff
"""


class Links(HTMLParser):
    """Of one file of HTML: the addresses that it names, and the names that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.addresses: list[tuple[str, str]] = []
        self.names: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.names.update(filter(None, (values.get("id"), values.get("name"))))
        if address := values.get(ADDRESSES.get(tag, "")):
            self.addresses.append((tag, address))


def dead_links(html: Path) -> Iterator[str]:
    """Addresses without a file or an anchor, and parts that a browser would fetch elsewhere."""
    pages = {path.resolve(): Links(path) for path in sorted(html.rglob("*.html"))}
    for path, links in pages.items():
        for tag, address in links.addresses:
            place = f"{path.relative_to(html.resolve())}: {address}"
            if re.match(r"[a-z]+:|//", address):
                if tag != "a":
                    yield f"{place} is not part of the site"
                continue
            file, _, name = address.partition("#")
            target = (path.parent / unquote(file)).resolve() if file else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{place} has no file"
            elif name and unquote(name) not in pages[target].names | {"__skip"}:
                yield f"{place} has no anchor"


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

    def test_no_link_is_dead(self) -> None:
        self.assertEqual(list(dead_links(self.html)), [])

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
        self.assertEqual([name for name in found if name.startswith("source/")], [])


@unittest.skipIf(MISSING, MISSING)
class OnePage(unittest.TestCase):
    def test_a_page(self) -> None:
        root = Path(HOLDER.name) / "root"
        (root / "docs").mkdir(parents=True)
        (root / "folder").mkdir()
        (root / "README.md").write_text(PAGE, encoding="utf-8")
        (root / "docs/page.md").write_text("# Page\n\n## A section: / two\n", encoding="utf-8")
        (root / "code.cpp").write_text("int a;\n", encoding="utf-8")
        html = build(root, Path(HOLDER.name) / "page")
        text = (html / "index.html").read_text(encoding="utf-8")
        article = re.sub(r"\s+", " ", re.split("</?article", text)[1])
        for wanted in (r'href="source/code.cpp.html">the code<', "</a>, a folder and <a",
                       r'href="docs/page.html#a-section--two"',
                       r"<li>one, 3 <ul> <li>two, of <code>&lt;!-- code --&gt;</code></li>",
                       r'tabbed-labels"><label[^>]*>Python</label><label[^>]*>C\+\+</label>',
                       r"// a &lt;!-- comment --&gt;",
                       r'<details id="details-of-it"> ?<summary>Details of <code>it</code><',
                       r"\[text\]\(nowhere.md\)", r'</details> <h3 id="after">',
                       r'<details id="sources">', r'<h2 id="the-diff-1">'):
            self.assertRegex(article, wanted)
        for unwanted in ("quote: code", "SPDX", "value a", "collapse"):
            self.assertNotIn(unwanted, article)
        self.assertEqual(list(dead_links(html)), ["index.html: missing.html has no file"])


class Checker(unittest.TestCase):
    def test_dead_links_are_found(self) -> None:
        html = Path(HOLDER.name) / "html"
        html.mkdir()
        (html / "a.html").write_text('<p id="p"></p><a href="#p">1</a><a href="b.html#q">2</a>'
                                     '<img src="c.svg"><a href="https://example.org">3</a>'
                                     '<script src="https://example.org/d.js"></script>'
                                     '<a href="#r">4</a>', encoding="utf-8")
        (html / "b.html").write_text('<p id="q"></p><a href="a.html">1</a>', encoding="utf-8")
        self.assertEqual(list(dead_links(html)),
                         ["a.html: c.svg has no file",
                          "a.html: https://example.org/d.js is not part of the site",
                          "a.html: #r has no anchor"])


def tearDownModule() -> None:
    HOLDER.cleanup()


if __name__ == "__main__":
    unittest.main()
