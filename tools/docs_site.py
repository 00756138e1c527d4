#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds a web site from the Markdown pages, with search, tabs and previous/next.

    tools/docs_site.py                  writes build-site/html/index.html
    tools/docs_site.py --folder DIR     writes DIR/html/index.html

The pages themselves do not change. This tool copies them to DIR/pages, adapts the copy to Zensical,
and runs `zensical build`:

  - README.md becomes the start page; each source file that a page links becomes a page, too;
  - headings get the anchors that links to Markdown pages use;
  - HTML comments are removed.

A comment line on a page can ask for more:

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
from typing import NamedTuple

from docs_sync import anchor

ROOT = Path(__file__).resolve().parents[1]
STYLE = Path(__file__).with_suffix(".css")

# Sections of the navigation: pages with their titles, in the order of previous/next. A page that
# does not exist is skipped; a page of docs/ that is not here comes last, under its own heading.
NAVIGATION = {
    "": {"README.md": "Start"},
    "Lessons": {
        "docs/stages/0-single-gpu.md": "0 One device",
        "docs/stages/1-data-parallel.md": "1 DataParallel",
        "docs/stages/2-ddp-spawn.md": "2 DDP by fork",
        "docs/stages/3-ddp-torchrun.md": "3 DDP by launchers",
        "docs/stages/4-ddp-amp.md": "4 Mixed precision",
        "docs/stages/5-accelerator.md": "5 Accelerator",
        "docs/stages/6-trainer.md": "6 Trainer",
    },
    "Stage reference": {
        "docs/reference/0-single-gpu.md": "Reference 0: one device",
        "docs/reference/1-data-parallel.md": "Reference 1: DataParallel",
        "docs/reference/2-ddp-spawn.md": "Reference 2: fork",
        "docs/reference/3-ddp-torchrun.md": "Reference 3: launchers",
        "docs/reference/4-ddp-amp.md": "Reference 4: precision",
        "docs/reference/5-accelerator.md": "Reference 5: Accelerator",
        "docs/reference/6-trainer.md": "Reference 6: Trainer",
    },
    "Learning aids": {
        "docs/cpp-primer.md": "C++ primer",
        "docs/stage0-walk.md": "Stage 0, line by line",
        "docs/answers.md": "Answers to the exercises",
        "docs/traps.md": "Traps",
        "docs/glossary.md": "Glossary",
        "docs/diffs/README.md": "Diffs between stages",
    },
    "Guides": {
        "docs/library.md": "Library",
        "examples/README.md": "Examples",
        "docs/cluster.md": "Several machines",
        "bench/gpu.md": "On a GPU",
        "docs/same-weights.md": "Same weights",
    },
    "Measurements": {
        "docs/performance.md": "Performance",
        "docs/bench.md": "Benchmark tables",
    },
    "Project": {
        "docs/design.md": "Design",
        "docs/formats.md": "Formats and exit codes",
        "docs/security.md": "Security",
        "data/mnist/README.md": "MNIST data",
        "CONTRIBUTING.md": "Contributing",
        "CHANGELOG.md": "Changelog",
    },
    "Other languages": {
        "docs/quick-start.zh.md": "快速入门（中文）",
        "docs/quick-start.ko.md": "빠른 시작 (한국어)",
    },
}
OTHERS = "More"
LANGUAGES = {"docs/quick-start.zh.md": "zh-Hans", "docs/quick-start.ko.md": "ko"}
COLLAPSED = "Sources"  # this section, of every page

TABS, COLLAPSE = "<!-- tabs -->", "<!-- collapse -->"
COLLAPSE_SIGN = "\x04"  # of COLLAPSE, where comments are gone
TAB_TITLES = {"python": "Python", "cpp": "C++", "diff": "C++"}
FENCE = re.compile(r"\s*(`{3,}|~{3,})\s*(\w*)")
CHINESE_BREAK = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef])\n *(?=[\u4e00-\u9fff])")
HEADING = re.compile(r"(#{1,6}) (.+)")
LIST_ITEM = re.compile(r"(?:[-*+]|\d+[.)]) ")
LIST_START = re.compile(r"(?:[-*+]|1[.)]) ")  # can follow a line of text, as 2. cannot
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^()\s]+(?:\([^()\s]*\))?)\)")
IMAGES = {".svg", ".png"}
CODE_LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".cu": "cpp", ".py": "python", ".sh": "bash",
                  ".sbatch": "bash", ".yaml": "yaml", ".json": "json", ".diff": "diff"}
SECONDS = 300  # that a build may take; it takes 3
LARGEST_PAGE = 100_000  # bytes of a source file; a larger one is copied as it is

CONFIGURATION = """\
[project]
site_name = "ladder"
site_description = "Data-parallel training in C++, in seven stages"
docs_dir = "pages"
site_dir = "html"
use_directory_urls = false
extra_css = ["site.css"]
extra.polyfills = ["offline-search.js"]
nav = {nav}

[project.theme]
font = false
features = ["content.code.copy", "content.tabs.link", "navigation.footer", "navigation.sections",
  "navigation.top", "search.highlight", "toc.integrate"]

[[project.theme.palette]]
media = "(prefers-color-scheme)"
toggle.icon = "lucide/sun-moon"
toggle.name = "Use the light colours"

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Use the dark colours"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Use the colours of the system"

[project.plugins.search]
separator = '[\\s\\-_,:!=\\[\\]()\\\\"`/、，。；：（）]+|\\.(?!\\d)|(?<=[\\u4e00-\\u9fff])(?=[\\u4e00-\\u9fff])'

[project.markdown_extensions]
attr_list = {{}}
md_in_html = {{}}
toc.permalink = true
toc.toc_depth = "2-3"
pymdownx.blocks.details = {{}}
pymdownx.highlight.pygments_lang_class = true
pymdownx.superfences = {{}}
pymdownx.tabbed.alternate_style = true
"""

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


class SiteError(Exception):
    """What the site needs is not there."""


class Part(NamedTuple):
    """Lines of a page: one fenced block, or what is between two."""

    language: str | None  # of a block; None: no block
    lines: list[str]


def parts_of(lines: Sequence[str]) -> Iterator[Part]:
    part: list[str] = []
    fence = language = ""
    for line in lines:
        opened = FENCE.match(line)
        if not fence and opened:
            yield Part(None, part)
            part, fence, language = [line], opened[1], opened[2]
        elif fence and line.strip() == fence:
            yield Part(language, [*part, line])
            part, fence = [], ""
        else:
            part.append(line)
    yield Part(language if fence else None, part)


def masked(text: str, pattern: re.Pattern[str], held: list[str]) -> str:
    """Matches are replaced by a sign that nothing else matches; unmasked puts them back."""
    def hold(match: re.Match[str]) -> str:
        held.append(match[0])
        return f"\x02{len(held) - 1}\x03"
    return pattern.sub(hold, text)


def unmasked(text: str, held: Sequence[str]) -> str:
    return re.sub(r"\x02(\d+)\x03", lambda match: held[int(match[1])], text)


class Site:
    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self.pages = folder / "pages"
        self.html = folder / "html"
        self.names = names_of(root)
        self.copies: set[str] = set()  # source files and images that pages link

    def target(self, name: str) -> str | None:
        """Where in pages/ a file of the project is; None: nowhere."""
        path = self.root / name
        if name in self.names:
            folder, _, file = name.rpartition("/")
            return f"{folder}/{'index.md' if file == 'README.md' else file}".lstrip("/")
        if not path.is_file():
            return None
        self.copies.add(name)
        if path.suffix in IMAGES:
            return name
        return f"source/{name}{'.md' * (path.stat().st_size <= LARGEST_PAGE)}"

    def link(self, page: str, match: re.Match[str]) -> str:
        image, text, address = match.groups()
        if re.match(r"[a-z]+:", address) or address.startswith("#"):
            return match[0]
        file, hash_sign, fragment = address.partition("#")
        path = (self.root / page).parent / file
        name = os.path.relpath(path, self.root)
        target = self.target(name)
        if target is None:
            # A folder has no page. What does not exist stays, for a check to find.
            return text if path.is_dir() else match[0]
        relative = os.path.relpath(target, Path(self.target(page) or "").parent)
        return f"{image}[{text}]({relative}{hash_sign}{fragment})"

    def prose(self, page: str, lines: Sequence[str]) -> list[str]:
        """Without comments, with the links of the site."""
        held: list[str] = []
        text = masked("\n".join(lines), CODE, held)
        text = COMMENT.sub("", text)
        text = LINK.sub(lambda match: self.link(page, match), text)
        return unmasked(text, held).split("\n")

    def page(self, name: str) -> str:
        parts = list(parts_of((self.root / name).read_text(encoding="utf-8").splitlines()))
        lines: list[str] = []
        tabs = False
        anchors: dict[str, int] = {}
        for part in parts:
            if part.language is None:
                comments_alone = not COMMENT.sub("", "\n".join(part.lines)).strip()
                tabs = TABS in part.lines or (tabs and comments_alone)
                marked = [COLLAPSE_SIGN if line.strip() == COLLAPSE else line
                          for line in part.lines]
                lines += spaced(numbered(self.prose(name, marked), anchors))
            elif tabs and part.language in TAB_TITLES:
                title = TAB_TITLES[part.language]
                lines += ["", f'=== "{title}"', "", *(f"    {line}" for line in part.lines), ""]
            else:
                lines += ["", *part.lines, ""]
        text = "\n".join(collapsed(lines)) + "\n"
        if language := LANGUAGES.get(name):
            text = CHINESE_BREAK.sub("", text)
            return f'<div lang="{language}" markdown="1">\n\n{text}\n</div>\n'
        return text

    def source(self, name: str) -> str:
        """The page of a source file. The search leaves it out."""
        text = (self.root / name).read_text(encoding="utf-8").rstrip("\n")
        fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", text))])
        language = CODE_LANGUAGES.get(Path(name).suffix, "text")
        return (f"---\ntitle: {name}\nsearch:\n  exclude: true\n---\n\n# `{name}`\n\n"
                f"{fence}{language}\n{text}\n{fence}\n")

    def write(self, name: str, text: str) -> None:
        path = self.pages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def navigation(self) -> str:
        """The value of nav, in TOML."""
        entries = []
        for section, titles in sections_of(self.root, self.names).items():
            pages = ", ".join(f"{{ {json.dumps(title, ensure_ascii=False)} = "
                              f"{json.dumps(self.target(name))} }}"
                              for name, title in titles.items())
            entries.append(f"{{ {json.dumps(section)} = [{pages}] }}" if section else pages)
        return "[\n  " + ",\n  ".join(entries) + "\n]"

    def prepare(self) -> None:
        for folder in (self.pages, self.html):
            shutil.rmtree(folder, ignore_errors=True)
        for name in self.names:
            target = self.target(name)
            assert target
            self.write(target, self.page(name))
        for name in sorted(self.copies):
            target = self.target(name)
            assert target
            if target.endswith(".md"):
                self.write(target, self.source(name))
            else:
                (self.pages / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.root / name, self.pages / target)
        shutil.copyfile(STYLE, self.pages / "site.css")
        self.write("offline-search.js", "")
        (self.folder / "zensical.toml").write_text(
            CONFIGURATION.format(nav=self.navigation()), encoding="utf-8")

    def finish(self) -> None:
        """Adds what the search needs without a server; removes what only a server needs."""
        for name in ("404.html", "sitemap.xml"):
            (self.html / name).unlink(missing_ok=True)
        index = (self.html / "search.json").read_text(encoding="utf-8")
        (self.html / "search.js").write_text(f"var __index = {index};\n", encoding="utf-8")
        workers = list(self.html.glob("assets/javascripts/workers/search.*.js"))
        if len(workers) != 1:
            raise SiteError(f"expected one search worker of zensical, got {len(workers)}")
        source = json.dumps(workers[0].read_text(encoding="utf-8"))
        (self.html / "offline-search.js").write_text(
            OFFLINE_SEARCH.format(source=source), encoding="utf-8")


def names_of(root: Path) -> list[str]:
    """The pages that exist, in the order of the navigation."""
    known = [name for titles in NAVIGATION.values() for name in titles]
    found = sorted(path.relative_to(root).as_posix() for path in root.glob("docs/**/*.md"))
    names = [name for name in known if (root / name).is_file()]
    if "README.md" not in names:
        raise SiteError(f"{root}: README.md is missing; hint: --root names the project's root")
    return names + [name for name in found if name not in known]


def sections_of(root: Path, names: Sequence[str]) -> dict[str, dict[str, str]]:
    sections = {section: {name: title for name, title in titles.items() if name in names}
                for section, titles in NAVIGATION.items()}
    placed = {name for titles in sections.values() for name in titles}
    sections[OTHERS] = {name: first_heading(root / name) for name in names if name not in placed}
    return {section: titles for section, titles in sections.items() if titles}


def first_heading(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line[2:].replace("`", "") for line in lines if line.startswith("# ")), path.stem)


def numbered(lines: Sequence[str], anchors: dict[str, int]) -> Iterator[str]:
    """Headings with their anchors; of equal ones, all but the first with a number."""
    for line in lines:
        match = HEADING.fullmatch(line)
        if match is None:
            yield line
            continue
        name = anchor(match[2].strip())
        count = anchors[name] = anchors.get(name, -1) + 1
        yield f"{line.rstrip()} {{ #{name}{f'-{count}' * bool(count)} }}"


def spaced(lines: Iterator[str]) -> Iterator[str]:
    """Python's Markdown wants a blank line before a list or a table, and four blanks to nest."""
    before = ""
    in_list = False
    for line in lines:
        depth = len(line) - len(line.lstrip())
        item = (LIST_START if before.strip() and not in_list else LIST_ITEM).match(
            line.lstrip()) is not None
        if in_list and depth and line.strip():
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
    fence = ""
    for line in lines:
        opened = FENCE.match(line)
        if opened and (not fence or line.strip() == fence):
            fence = "" if fence else opened[1]
        match = None if fence else re.fullmatch(r"(#{1,6}) (.+) \{ #(\S+) \}", line)
        if line == COLLAPSE_SIGN:
            marked = True
            continue
        if match and level and len(match[1]) <= level:
            yield from ("///", "")
            level = 0
        if match and not level and (marked or match[2] == COLLAPSED):
            level = len(match[1])
            yield from (f"/// details | {match[2]}", f"    attrs: {{id: {match[3]}}}", "")
        else:
            yield line
        marked = marked and not match
    if level:
        yield from ("", "///")


def find_zensical() -> Path:
    """Beside this Python, in .venv, or on the PATH."""
    other = shutil.which("zensical")
    for path in (Path(sys.prefix) / "bin/zensical", ROOT / ".venv/bin/zensical",
                 *([Path(other)] if other else [])):
        if path.is_file():
            return path
    raise SiteError("zensical is not installed; hint: tools/setup.sh test (Python 3.11 or newer)")


def build(root: Path, folder: Path) -> int:
    zensical = find_zensical()
    if folder.exists() and any(folder.iterdir()) and not (folder / "zensical.toml").exists():
        raise SiteError(f"{folder}: not empty and not a site; hint: name another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    site = Site(root, folder)
    site.prepare()
    done = subprocess.run([zensical, "build", "--clean", "-f", folder / "zensical.toml"],
                          check=False, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode != 0 or not (site.html / "index.html").is_file():
        print(done.stdout, done.stderr, sep="", file=sys.stderr)
        print("docs_site: zensical failed", file=sys.stderr)
        return 1
    site.finish()
    print(f"docs_site: {len(site.names)} pages, {len(site.copies)} files that they link; "
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
    except subprocess.TimeoutExpired:
        print(f"docs_site: zensical did not end within {SECONDS} s", file=sys.stderr)
        return 1
    except (OSError, SiteError) as error:
        print(f"docs_site: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
