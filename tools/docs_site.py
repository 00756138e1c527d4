#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds a web site from the Markdown pages, with search, tabs and previous/next.

    tools/docs_site.py                  writes build-site/html/index.html
    tools/docs_site.py --folder DIR     writes DIR/html/index.html

The pages themselves do not change. This tool copies the pages that docs_site.toml lists to
DIR/pages, adapts the copies, and runs `zensical build --strict`, which fails if a link or an anchor
is broken. A source file that a page links becomes a page, too; HTML comments are removed. A comment
line on a page can ask for more:

    <!-- tabs -->        the next fenced blocks become tabs, Python | C++
    <!-- collapse -->    the section of the next heading is collapsed; so is each `## Sources`

The site needs no server and no network: open index.html in a browser. Zensical is in
requirements-test.txt: tools/setup.sh test installs it.

Exit code: 0 built, 1 the build failed, 2 zensical or a page is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = "tools/docs_site.toml"
LANGUAGES = {"docs/quick-start.zh.md": "zh-Hans", "docs/quick-start.ko.md": "ko"}
COLLAPSED = "## Sources"  # of every page
COLLAPSE = "<!-- collapse -->"
TAB_TITLES = {"python": "Python", "cpp": "C++", "diff": "C++"}
COPIED = {".html", ".ipynb", ".md", ".svg", ".png"}  # as they are
CODE_LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".cu": "cpp", ".py": "python", ".sh": "bash",
                  ".sbatch": "bash", ".yaml": "yaml", ".json": "json", ".diff": "diff"}
LARGEST_PAGE = 100_000  # bytes of a source file; a larger one is copied as it is

BLOCK = r"^ *(?:`{3,}|~{3,})(\w*)[^\n]*\n.*?^ *(?:`{3,}|~{3,}) *$"
TABS = re.compile(rf"^<!-- tabs -->\n((?:\s*<!--.*?-->|\s*?{BLOCK})+)", re.DOTALL | re.MULTILINE)
TAB = re.compile(BLOCK, re.DOTALL | re.MULTILINE)
# What stays as it is comes first.
TOKEN = re.compile(rf"{BLOCK}|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)|(?P<comment><!--.*?-->)"
                   r"|\[(?P<text>[^\[\]]*)\]\((?P<file>[^()\s#]+)(?P<anchor>#[^()\s]*)?\)",
                   re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"\s*(`{3,}|~{3,})")
CHINESE_BREAK = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef])\n *(?=[\u4e00-\u9fff])")
LIST_ITEM = re.compile(r"(?:[-*+]|\d+[.)]) ")
LIST_START = re.compile(r"(?:[-*+]|1[.)]) ")  # can follow a line of text, as 2. cannot

# A browser starts no worker from a file, but it does from text; the index comes by search.js.
OFFLINE_SEARCH = """\
if (location.protocol === "file:") {{
  const source = {source};
  const Starts = window.Worker;
  window.Worker = class extends Starts {{
    constructor() {{ super(URL.createObjectURL(new Blob([source], {{type: "text/javascript"}}))); }}
  }};
}}
"""


class Site:
    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.pages = folder / "pages"
        self.html = folder / "html"
        self.names = names_of(root)
        self.sources: set[str] = set()  # source files and images that pages link

    def target(self, page: str, match: re.Match[str]) -> str:
        """A link, with .md behind the name of a source file, and the text of one to a folder."""
        address = match["file"]
        name = os.path.relpath((self.root / page).parent / address, self.root)
        path = self.root / name
        if re.match(r"[a-z]+:", address) or name in self.names or not path.exists():
            return match[0]
        if path.is_dir():
            return match["text"]
        self.sources.add(name)
        return f"[{match['text']}]({address}{'.md' * becomes_page(path)}{match['anchor'] or ''})"

    def page(self, name: str) -> str:
        def replaced(match: re.Match[str]) -> str:
            if match["file"]:
                return self.target(name, match)
            return "" if match["comment"] and match[0] != COLLAPSE else match[0]

        text = (self.root / name).read_text(encoding="utf-8")
        text = TOKEN.sub(replaced, TABS.sub(with_tabs, text))
        text = "\n".join(collapsed(list(spaced(text.split("\n"))))) + "\n"
        if language := LANGUAGES.get(name):
            return f'<div lang="{language}" markdown="1">\n\n{CHINESE_BREAK.sub("", text)}\n</div>\n'
        return text

    def write(self, name: str, content: str | bytes) -> None:
        path = self.pages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def prepare(self) -> None:
        for folder in (self.pages, self.html):
            shutil.rmtree(folder, ignore_errors=True)
        for name in self.names:
            self.write(name, self.page(name))
        for name in sorted(self.sources):
            path = self.root / name
            if becomes_page(path):
                self.write(f"{name}.md", source_page(name, path.read_text(encoding="utf-8")))
            else:
                self.write(name, path.read_bytes())
        shutil.copyfile(Path(__file__).with_suffix(".css"), self.pages / "site.css")
        self.write("offline-search.js", "")
        shutil.copyfile(self.root / CONFIGURATION, self.pages.parent / "zensical.toml")

    def finish(self) -> None:
        """Adds what the search needs without a server; removes what only a server needs."""
        for name in ("404.html", "sitemap.xml"):
            (self.html / name).unlink(missing_ok=True)
        index = (self.html / "search.json").read_text(encoding="utf-8")
        (self.html / "search.js").write_text(f"var __index = {index};\n", encoding="utf-8")
        [worker] = self.html.glob("assets/javascripts/workers/search.*.js")
        source = json.dumps(worker.read_text(encoding="utf-8"))
        (self.html / "offline-search.js").write_text(
            OFFLINE_SEARCH.format(source=source), encoding="utf-8")


def names_of(root: Path) -> list[str]:
    """The pages, in the order of the navigation."""
    return re.findall(r'"([^"]+\.md)"', (root / CONFIGURATION).read_text(encoding="utf-8"))


def becomes_page(path: Path) -> bool:
    return path.suffix not in COPIED and path.stat().st_size <= LARGEST_PAGE


def source_page(name: str, text: str) -> str:
    """The search leaves it out."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", text))])
    language = CODE_LANGUAGES.get(Path(name).suffix, "text")
    return (f"---\ntitle: {name}\nsearch:\n  exclude: true\n---\n\n# `{name}`\n\n"
            f"{fence}{language}\n{text.rstrip()}\n{fence}\n")


def with_tabs(match: re.Match[str]) -> str:
    def tab(block: re.Match[str]) -> str:
        lines = "\n".join(f"    {line}" for line in block[0].split("\n"))
        return f'\n=== "{TAB_TITLES[block[1]]}"\n\n{lines}\n'

    return TAB.sub(tab, match[1])


def fenced(lines: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Lines, each with whether it belongs to a fenced block."""
    fence = ""
    for line in lines:
        opened = FENCE.match(line)
        yield line, bool(fence or opened)
        if opened and (not fence or line.strip() == fence):
            fence = "" if fence else opened[1]


def spaced(lines: Sequence[str]) -> Iterator[str]:
    """Python's Markdown wants a blank line before a list or a table, and four blanks to nest."""
    before = ""
    in_list = False
    for line, in_block in fenced(lines):
        depth = len(line) - len(line.lstrip())
        item = (LIST_START if before.strip() and not in_list else LIST_ITEM).match(
            line.lstrip()) is not None
        if in_block:
            if before.strip() and not FENCE.match(before) and FENCE.match(line):
                yield ""
            in_list = False
        elif in_list and depth and line.strip():
            line = " " * 4 * -(-depth // 3) + line.lstrip()
        elif line.strip():
            table = line.startswith("|") and not before.startswith("|")
            if before.strip() and (table or (item and not in_list)):
                yield ""
            in_list = item or (in_list and bool(before.strip()))
        yield line
        before = line


def collapsed(lines: Sequence[str]) -> Iterator[str]:
    """Marked sections, and those of sources, as blocks of details."""
    marked = False
    level = 0  # of the heading of the open block
    for line, in_block in fenced(lines):
        match = None if in_block else re.fullmatch(r"(#{1,6}) (.+)", line)
        if line == COLLAPSE and not in_block:
            marked = True
            continue
        if match and level and len(match[1]) <= level:
            yield from ("///", "")
            level = 0
        if match and not level and (marked or line == COLLAPSED):
            level = len(match[1])
            anchor = re.sub(r"[^\w\- ]", "", match[2].lower()).replace(" ", "-")
            yield from (f"/// details | {match[2]}", f"    attrs: {{id: {anchor}}}", "")
        else:
            yield line
        marked = marked and not match
    if level:
        yield from ("", "///")


def find_zensical() -> Path:
    """Beside this Python, in .venv, or on the PATH."""
    folders = (f"{sys.prefix}/bin", f"{ROOT}/.venv/bin", os.environ["PATH"])
    if found := shutil.which("zensical", path=os.pathsep.join(folders)):
        return Path(found)
    raise OSError("zensical is not installed; hint: tools/setup.sh test (Python 3.11 or newer)")


def build(root: Path, folder: Path) -> int:
    zensical = find_zensical()
    if folder.exists() and any(folder.iterdir()) and not (folder / "zensical.toml").exists():
        raise OSError(f"{folder}: not empty and not a site; hint: name another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    site = Site(root, folder)
    site.prepare()
    command = [zensical, "build", "--clean", "--strict", "-f", folder / "zensical.toml"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode != 0 or not (site.html / "index.html").is_file():
        print(done.stdout, done.stderr.partition("Traceback")[0], "docs_site: zensical failed",
              sep="\n", file=sys.stderr)
        return 1
    site.finish()
    print(f"docs_site: {len(site.names)} pages, {len(site.sources)} files that they link; "
          f"open {site.html / 'index.html'}")
    return 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="default: this checkout")
    parser.add_argument("--folder", type=Path, help="default: build-site, in the root")
    options = parser.parse_args(arguments)
    root = options.root.resolve()
    try:
        return build(root, (options.folder or root / "build-site").resolve())
    except OSError as error:
        print(f"docs_site: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
