#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the structure of ladder/: what the spine and a stage reach, against the budgets.

    tools/structure.py [--root DIR] [--list]

The spine is what lessons 0 to 4 and 7 to 9 need; what is optional stands on shelves, which the spine
must not include. A module is a source with its header; a file reaches what it includes and the
sources of the headers that it includes. A file names exact sums if it names their class, files,
shelf, options or choice (ExactDataParallel, exact_sums, "exact sums", --sums exact), not if
another thing is exact, such as ExactEvalSampler. --list prints each include from the spine into a
shelf.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

SPINE = ("core", "io", "launch", "comm", "data", "nn", "optim", "amp", "parallel", "monitor",
         "checkpoint")
# Shelves by folder, and by the names that their files had in the folders of the spine.
SHELVES = {
    "accelerate": "accelerate/",
    "armour": "armour/ checkpoint/folder_lock checkpoint/checkpoint_folder "
              "checkpoint/checkpoint_manifest monitor/stop_signal monitor/loss_guard",
    "exact": "exact/",
    "graph": "graph/",
    "guest": "guest/ optim/torch_lr_scheduler checkpoint/optimizer_archive",
    "kernels": "kernels/",
    "launchers": "launchers/",
    "observe": "observe/ monitor/fingerprint monitor/step_trace monitor/progress_bar "
               "monitor/observers accelerate/trackers accelerate/event_file",
    "shm": "shm/ comm/shared_memory",
    "trainer": "trainer/",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
EXACT_SUMS = re.compile(r"[Ee]xact(?:[ _]?|\s+// )(?:sums|Sums|data_parallel|DataParallel)|"
                        r"sums(?: to |\W{1,4})exact\b|fast\|exact|\"exact\"|\bkExact\b|"
                        r"ladder(?:/|::)exact\b")
# A field, a row of a table, a text in quotes; not where the training uses the value.
OPTION = re.compile(r'^ +[\w:]+ per_device_train_batch_size\b|::per_device_train_batch_size>|'
                    r'"per_device_train_batch_size"', re.MULTILINE)
BUDGETS = {
    "files of ladder/ that stage 0 reaches": 90,
    "lines of them": 8500,
    "modules of shelves that modules of the spine include": 0,
    "files outside exact/ that name exact sums": 12,
    "places that define per_device_train_batch_size": 2,
    "lines of accelerator.h and accelerator.cpp": 710,
}


class Tree:
    """The sources of ladder/ and mnist/ by their path from the root."""

    def __init__(self, root: Path) -> None:
        paths = [path for room in ("ladder", "mnist") for path in (root / room).rglob("*")
                 if path.suffix in (".h", ".cpp", ".cu")]
        self.text = {str(path.relative_to(root)): path.read_text("utf-8") for path in paths}
        [main] = root.glob("stage0_*/main.cpp")
        self.main = main.read_text("utf-8")

    def includes(self, text: str) -> list[str]:
        return [name for name in INCLUDE.findall(text) if name in self.text]

    def lines(self, names: list[str]) -> int:
        return sum(self.text[name].count("\n") for name in names)

    def reached(self, text: str) -> set[str]:
        seen: set[str] = set()
        open_names = self.includes(text)
        while open_names:
            name = open_names.pop()
            if name not in seen:
                seen.add(name)
                open_names += self.includes(self.text[name])
                sources = (name[:-2] + suffix for suffix in (".cpp", ".cu") if name.endswith(".h"))
                open_names += [source for source in sources if source in self.text]
        return seen


def module(name: str) -> str:
    return name.rpartition(".")[0]


def shelf(name: str) -> str:
    """The shelf of a file; "" for the spine and for what is not the library."""
    inside = name.removeprefix("ladder/")
    if inside == name:
        return ""
    names = (one for one, parts in SHELVES.items() if inside.startswith(tuple(parts.split())))
    # A part by its name comes before the folder in which it still stands.
    return max(names, key=lambda one: max(len(part) for part in SHELVES[one].split()
                                          if inside.startswith(part)), default="")


def crossings(tree: Tree) -> list[tuple[str, str]]:
    spine = [name for name in tree.text if name.startswith("ladder/") and not shelf(name)]
    return sorted({(module(name), module(target)) for name in spine
                   for target in tree.includes(tree.text[name]) if shelf(target)})


def measures(tree: Tree) -> list[int]:
    stage0 = [name for name in tree.reached(tree.main) if name.startswith("ladder/")]

    def naming(pattern: re.Pattern[str]) -> int:
        return sum(bool(pattern.search(text)) for name, text in tree.text.items()
                   if not name.startswith("ladder/exact/"))

    accelerator = [name for name in tree.text if module(name) == "ladder/accelerate/accelerator"]
    return [len(stage0), tree.lines(stage0), len(crossings(tree)), naming(EXACT_SUMS), naming(OPTION),
            tree.lines(accelerator)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--root", type=Path, default=here, help="default: this checkout")
    parser.add_argument("--list", action="store_true", help="each include into a shelf")
    parsed = parser.parse_args(arguments)
    tree = Tree(parsed.root)
    print(f"{'':<54}{'now':>7}{'budget':>9}")
    for (what, budget), value in zip(BUDGETS.items(), measures(tree), strict=True):
        print(f"{what:<54}{value:>7,}{budget:>9,}")
    print(f"\n{'files and lines':<40}{'files':>7}{'lines':>9}")
    for one in ("", *SHELVES):
        names = [name for name in tree.text if name.startswith("ladder/") and shelf(name) == one]
        print(f"{one or 'spine (' + ' '.join(SPINE[:4]) + ' ...)':<40}{len(names):>7,}"
              f"{tree.lines(names):>9,}")
    if parsed.list:
        print("", *(f"{name} -> {shelf(target)}: {target}" for name, target in crossings(tree)),
              sep="\n")


if __name__ == "__main__":
    main()
