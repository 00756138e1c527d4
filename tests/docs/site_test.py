# SPDX-License-Identifier: Apache-2.0
"""tools/docs_site.py: the site builds without broken links, and pages look as they should."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import docs_site
import pytest

from tests.support.files import write
from tests.support.in_process import Start
from tests.support.programs import ROOT

try:
    docs_site.find_zensical()
except OSError as error:
    pytest.skip(str(error), allow_module_level=True)

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
SECOND_PAGE = "# Page\n\n## A section: / two\n"


@pytest.fixture
def build(start: Start) -> Callable[..., Path]:
    """Builds the site of a folder, and returns its pages. Fails with the output."""
    def run(root: Path, folder: Path) -> Path:
        code, out, err = start(docs_site, "--root", root, "--folder", folder)
        assert code == 0, out + err
        return folder / "html"

    return run


def fetched(html: Path) -> Iterator[str]:
    """What a browser would fetch from elsewhere."""
    for path in html.rglob("*.html"):
        for tag, address in re.findall(r'<(\w+)[^>]*? (?:src|href|data)="((?:[a-z]+:)?//[^"]*)"',
                                       path.read_text(encoding="utf-8")):
            if tag != "a":
                yield f"{path.relative_to(html)}: {address}"


def test_the_site_needs_no_network_next_leads_through_it_and_search_finds_pages_alone(
        build: Callable[..., Path], tmp_path: Path) -> None:
    html = build(ROOT, tmp_path.resolve())
    assert list(fetched(html)) == []
    wanted = [re.sub(r"\.md$", ".html", name.replace("README.md", "index.md"))
              for name in docs_site.names_of(ROOT)]
    page, found = html / "index.html", []
    while page and page not in found:
        found.append(page)
        match = re.search(r'<link rel="next" href="([^"]+)"', page.read_text(encoding="utf-8"))
        page = match and (page.parent / match[1]).resolve()
    assert [path.relative_to(html).as_posix() for path in found] == wanted
    items = json.loads((html / "search.json").read_text(encoding="utf-8"))["items"]
    locations = {item["location"].partition("#")[0] for item in items}
    assert "docs/stages/6-trainer.html" in locations
    assert [name for name in locations if ".cpp" in name or ".py" in name] == []


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project of two pages."""
    text = (ROOT / docs_site.CONFIGURATION).read_text(encoding="utf-8")
    start, end = text.index("nav = ["), text.index("\n[project.theme]")
    write(tmp_path / docs_site.CONFIGURATION,
          text[:start] + 'nav = ["README.md", "docs/page.md"]\n' + text[end:])
    write(tmp_path / "README.md", PAGE)
    write(tmp_path / "docs/page.md", SECOND_PAGE)
    write(tmp_path / "code.cpp", "int a;\n")
    for folder in ("folder", "tools"):
        (tmp_path / folder).mkdir(exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("link, problem", [
    ("[a](../missing.md)", "page does not exist"),
    ("[a](../README.md#gone)", "anchor does not exist")])
def test_a_broken_link_or_anchor_fails(build: Callable[..., Path], root: Path, link: str,
                                       problem: str) -> None:
    write(root / "docs/page.md", f"{SECOND_PAGE}\n{link}\n")
    with pytest.raises(AssertionError, match=problem):
        build(root, root / "build-site")


def test_a_page(build: Callable[..., Path], root: Path) -> None:
    text = (build(root, root / "build-site") / "index.html").read_text(encoding="utf-8")
    article = re.sub(r"\s+", " ", re.split("</?article", text)[1])
    for wanted in (r'href="code.cpp.html">the code<', "</a>, a folder and <a",
                   r'href="docs/page.html#a-section--two"',
                   r"<li>one, 3 <ul> <li>two, of <code>&lt;!-- code --&gt;</code></li>",
                   r'tabbed-labels"><label[^>]*>Python</label><label[^>]*>C\+\+</label>',
                   r"// a &lt;!-- comment --&gt;",
                   r'<details id="details-of-it"> ?<summary>Details of <code>it</code><',
                   r"\[text\]\(nowhere.md\)", r'</details> <h3 id="after">',
                   r'<details id="sources">'):
        assert re.search(wanted, article), wanted
    for unwanted in ("cog", "SPDX", "value a", "collapse"):
        assert unwanted not in article
