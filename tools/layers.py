#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the structure: places of files, a library without MNIST and without flags.

    tools/layers.py [--root DIR]

Looks at the files that git tracks and those that it would add. Each violation is one line
with file, rule and fix. Exit code: 0 none, 1 some, 2 no git checkout.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# Of mnist/, the files that do without torch: a program forks after it has read its command line.
TORCH_FREE = {"accelerated_command_line", "accelerated_main", "accelerated_options", "command_line",
              "command_line_parts", "flags", "main", "named_files", "option_tables", "options",
              "processes", "recipe_options", "trainer_flags"}

# Headers of comm/ show no c10d types, except the one that hands the group to parallel/ and the one
# for backends.
C10D_HEADER = "ladder/comm/c10d_group.h"
BACKEND_HEADER = "ladder/comm/gloo_backend.h"

ROOMS = {"ladder", "mnist", "beyond", "bridges", "examples", "exercises", "bench", "tests", "docs", "traps",
         "data", "cmake", "tools", "scripts", ".ci", ".devcontainer", ".github"}
ROOT_FILES = {".clang-format", ".clang-tidy", ".dockerignore", ".editorconfig", ".gitattributes",
              ".gitignore", "CHANGELOG.md", "CITATION.cff", "CMakeLists.txt", "CMakePresets.json",
              "CONTRIBUTING.md", "Dockerfile", "LICENSE", "README.md", "SECURITY.md",
              "requirements-bench.txt", "requirements-test.txt", "requirements-twins.txt",
              "requirements.txt", "run", "test"}

# The only header of a bridge that programs of C++ include.
EXPORTED_MODULE = "bridges/exported_program/exported_module.h"

STAGE = re.compile(r"stage\d_[a-z0-9_]+")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
STANDARD_HEADER = re.compile(r"[a-z0-9_]+")
TORCH_HEADER = re.compile(r"(torch|ATen|c10|c10d|caffe2)/")
C10D_INCLUDE = re.compile(r"(torch/csrc/distributed/)?c10d/")
# LibTorch's own files hold pickles, and a pickle can hold code. One source reads what the same
# process has just written, one writes what a test of tools/convert_checkpoint.py reads.
PICKLE_SOURCES = {"ladder/guest/optimizer_archive.cpp", "tests/optim/state_helper.cpp"}
PICKLE = re.compile(r"torch::(load|save|pickle_load|pickle_save|jit|serialize)\b|"
                    r"\b(Input|Output)Archive\b|<torch/(script|serialize|csrc/jit)\b")
# The library names the fields of its options. Flags belong to programs; these are the launchers'.
STRING = re.compile(r'"(?:\\.|[^"\\])*"')
FLAG = re.compile(r"--[a-z][\w-]*")
LAUNCHER_FLAGS = {"--config_file", "--cpu", "--main_process_port", "--max-restarts",
                  "--multi_gpu", "--nnodes", "--no-python", "--no_python", "--nproc-per-node",
                  "--num_machines", "--num_processes", "--rdzv-backend", "--rdzv-endpoint", "--standalone",
                  "--strip"}  # of convert_checkpoint.py
# It serves any data: the tutorial's is in mnist/.
MNIST = re.compile(r"mnist|basicnet|convnet", re.IGNORECASE)
MNIST_SIZE = re.compile(r"(?<![\w.])(28\s*[,x×*]\s*28|28|784)(?![\w.])")
CPP_SUFFIXES = {".h", ".cpp", ".cu"}
SPDX_SUFFIXES = CPP_SUFFIXES | {".py", ".sh", ".cmake"}
SPDX = "SPDX-License-Identifier: Apache-2.0"


class File:
    """A file of the tree, by its path from the root."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.path = PurePosixPath(name)
        self.room = self.path.parts[0]
        self.lines = (root / name).read_text(encoding="utf-8", errors="replace").splitlines()
        # Line number, target, and whether it is in quotes.
        self.includes = [(number, match[2], match[1] == '"')
                         for number, line in enumerate(self.lines, start=1)
                         if (match := INCLUDE.match(line))]

    def is_source(self) -> bool:
        return (self.path.suffix in SPDX_SUFFIXES or self.path.name == "CMakeLists.txt"
                or "".join(self.lines[:1]).startswith("#!"))


def git_files(root: Path) -> list[str]:
    """Tracked files and untracked ones that are not ignored, as far as they exist."""
    # Inside a git hook these variables point to the repository of the hook.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True,
                          check=True)
    return sorted(name for name in {*done.stdout.split("\0")} if (root / name).is_file())


def check_place(name: str) -> Iterator[str]:
    """Every top-level entry is a room or a known file."""
    room, _, rest = name.partition("/")
    if not rest and name not in ROOT_FILES:
        yield ("not a known file of the root; move it into a room, or add it to ROOT_FILES in "
               "tools/layers.py with a reason")
    if rest and room not in ROOMS and not STAGE.fullmatch(room):
        yield f"'{room}/' is not a room; the rooms are {', '.join(sorted(ROOMS))} and stageN_NAME"
    if STAGE.fullmatch(room) and rest not in ("", "main.cpp", "README.md"):
        yield ("a stage holds main.cpp and README.md; shared code belongs in mnist/ or ladder/, "
               "pages in docs/")


def check_line(file: File, line: str) -> Iterator[str]:
    """No pickles: weights are safetensors, which are data and nothing else. In ladder/, which
    serves any program, no flag of a program and no MNIST."""
    match = PICKLE.search(line.partition("//")[0])
    if match and file.name not in PICKLE_SOURCES:
        yield f"{match[0]} reads or writes pickles; use ladder/checkpoint/safetensors.h"
    if file.room != "ladder":
        return
    literals = " ".join(STRING.findall(line.partition("// ")[0]))
    for flag in FLAG.findall(literals):
        if flag not in LAUNCHER_FLAGS:
            yield (f"a message of ladder/ names the flag {flag}; name the field of the options, as "
                   "it is spelled there")
    for pattern in (MNIST, MNIST_SIZE):
        if match := pattern.search(line):
            yield (f"'{match[0]}' in ladder/, which serves any data; move what is the tutorial's "
                   "into mnist/")


def check_include(file: File, target: str, quoted: bool, files: dict[str, File]) -> Iterator[str]:
    """ladder/ uses itself by full path, and CMake's targets know which folders come first; mnist/
    uses both; a stage uses the two and the standard library."""
    own = target.startswith(("ladder/", "mnist/"))
    if file.room == "ladder":
        if quoted and not re.fullmatch("ladder/[^/]+/[^/]+", target):
            yield (f'ladder/ may not include "{target}"; write "ladder/FOLDER/FILE.h", and use no '
                   "other room")
        public = file.path.match("ladder/comm/*.h") and file.name not in (C10D_HEADER,
                                                                          BACKEND_HEADER)
        if public and C10D_INCLUDE.match(target):
            yield (f"headers of comm/ show no c10d types; include {target} in the .cpp or in "
                   f"{C10D_HEADER}")
    elif file.room == "mnist":
        if quoted and not own and target != EXPORTED_MODULE:
            yield f'mnist/ may not include "{target}"; it uses ladder/ and mnist/'
        if file.path.stem in TORCH_FREE and (route := route_to_torch(target, files, set())):
            yield (f"this file is torch-free but includes {' -> '.join(route)}; move what needs "
                   "torch into another file")
    elif STAGE.fullmatch(file.room) and not (own if quoted else STANDARD_HEADER.fullmatch(target)):
        yield f"a stage may not include {target}; it uses ladder/, mnist/ and standard headers"


def route_to_torch(target: str, files: dict[str, File], seen: set[str]) -> list[str]:
    """The chain of includes from `target` to a torch header; empty if there is none."""
    if TORCH_HEADER.match(target):
        return [target]
    if target not in files or target in seen:
        return []
    seen.add(target)
    for _, included, _ in files[target].includes:
        if route := route_to_torch(included, files, seen):
            return [target, *route]
    return []


def check_file(file: File, files: dict[str, File]) -> Iterator[str]:
    if not any(SPDX in line for line in file.lines[:2]):
        yield f"1: no licence line; begin the file (after a #! line) with '{SPDX}'"
    if file.path.suffix not in CPP_SUFFIXES:
        return
    if file.room == "ladder" and len(file.path.parts) != 3:
        yield "1: ladder/ holds FOLDER/FILE, with a folder of ladder/CMakeLists.txt; move the file"
    for number, line in enumerate(file.lines, start=1):
        yield from (f"{number}: {text}" for text in check_line(file, line))
    for number, target, quoted in file.includes:
        yield from (f"{number}: {text}" for text in check_include(file, target, quoted, files))


def check_tree(root: Path) -> tuple[int, list[str]]:
    """The number of source files, and the violations."""
    names = git_files(root)
    violations = [f"{name}: {text}" for name in names for text in check_place(name)]
    read = (File(root, name) for name in names)
    files = {file.name: file for file in read if file.is_source()}
    for file in files.values():
        violations += [f"{file.name}:{text}" for text in check_file(file, files)]
    return len(files), violations


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--root", type=Path, default=here, help="default: this checkout")
    root = parser.parse_args(arguments).root
    try:
        count, violations = check_tree(root)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"layers: cannot list the files of {root}, is it a git checkout? {error}",
              file=sys.stderr)
        return 2
    print(*violations, f"layers: {count} files, {len(violations)} violations", sep="\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
