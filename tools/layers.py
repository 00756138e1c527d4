#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the structure: places of files, a library without MNIST and without flags.

    tools/layers.py [--root DIR]

Looks at the files that git tracks and those that it would add. Each violation is one line
with file, rule and fix. Exit code: 0 none, 1 some, 2 the folder cannot be listed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

# Of mnist/, the files that do without torch: a program forks after it has read its command line.
TORCH_FREE = {"accelerated_command_line", "accelerated_main", "accelerated_options", "command_line",
              "command_line_parts", "flags", "main", "options", "processes", "recipe_options",
              "trainer_flags"}

# Headers of comm/ show no c10d types, except the one that hands the group to parallel/.
C10D_HEADER = "ladder/comm/c10d_group.h"

ROOMS = {"ladder", "mnist", "beyond", "examples", "exercises", "bench", "tests", "docs", "traps",
         "data", "cmake", "tools", "scripts", ".ci", ".devcontainer", ".github"}
ROOT_FILES = {".clang-format", ".clang-tidy", ".dockerignore", ".editorconfig", ".gitattributes",
              ".gitignore", "CHANGELOG.md", "CITATION.cff", "CMakeLists.txt", "CMakePresets.json",
              "CONTRIBUTING.md", "Dockerfile", "LICENSE", "README.md", "SECURITY.md",
              "requirements-bench.txt", "requirements-test.txt", "requirements-twins.txt",
              "requirements.txt", "run", "test"}

STAGE = re.compile(r"stage\d_[a-z0-9_]+")
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
STANDARD_HEADER = re.compile(r"[a-z0-9_]+")
TORCH_HEADER = re.compile(r"(torch|ATen|c10|c10d|caffe2)/")
C10D_INCLUDE = re.compile(r"(torch/csrc/distributed/)?c10d/")
# LibTorch's own files hold pickles, and a pickle can hold code. One source reads what the same
# process has just written, one writes what a test of tools/convert_checkpoint.py reads.
PICKLE_SOURCES = {"ladder/checkpoint/optimizer_archive.cpp", "tests/optim/state_helper.cpp"}
PICKLE = re.compile(r"torch::(load|save|pickle_load|pickle_save|jit|serialize)\b|"
                    r"\b(Input|Output)Archive\b|<torch/(script|serialize|csrc/jit)\b")
# The library names the fields of its options. Flags belong to programs; these are the launchers'.
STRING = re.compile(r'"(?:\\.|[^"\\])*"')
FLAG = re.compile(r"--[a-z][\w-]*")
LAUNCHER_FLAGS = {"--config_file", "--cpu", "--main_process_port", "--max-restarts",
                  "--multi_gpu", "--nnodes", "--no-python", "--no_python", "--nproc-per-node",
                  "--num_machines", "--num_processes", "--rdzv-backend", "--rdzv-endpoint", "--standalone"}
# It serves any data: the tutorial's is in mnist/.
MNIST = re.compile(r"mnist|basicnet|convnet", re.IGNORECASE)
MNIST_SIZE = re.compile(r"(?<![\w.])(28\s*[,x×*]\s*28|28|784)(?![\w.])")
CPP_SUFFIXES = {".h", ".cpp", ".cu"}
SPDX_SUFFIXES = CPP_SUFFIXES | {".py", ".sh", ".cmake"}
SPDX = "SPDX-License-Identifier: Apache-2.0"


class Include(NamedTuple):
    line: int
    target: str
    quoted: bool


class Violation(NamedTuple):
    place: str  # file or file:line
    text: str  # the rule, and what to do

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class File:
    """A file of the tree, by its path from the root."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.path = PurePosixPath(name)
        self.parts = self.path.parts
        self.text = (root / name).read_text(encoding="utf-8", errors="replace")

    def is_cpp(self) -> bool:
        return self.path.suffix in CPP_SUFFIXES

    def is_source(self) -> bool:
        named_so = self.path.suffix in SPDX_SUFFIXES or self.path.name == "CMakeLists.txt"
        return named_so or self.text.startswith("#!")

    def includes(self) -> Iterator[Include]:
        for number, line in enumerate(self.text.splitlines(), start=1):
            match = INCLUDE.match(line)
            if match:
                yield Include(number, match[2], match[1] == '"')

    def at(self, line: int, text: str) -> Violation:
        return Violation(f"{self.name}:{line}", text)


def git_files(root: Path) -> list[str]:
    """Tracked files and untracked ones that are not ignored, as far as they exist."""
    # Inside a git hook these variables point to the repository of the hook.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=True)
    names = {name for name in done.stdout.decode().split("\0") if name}
    return sorted(name for name in names if (root / name).is_file())


def check_place(name: str) -> Iterator[Violation]:
    """Every top-level entry is a room or a known file."""
    parts = PurePosixPath(name).parts
    if len(parts) == 1 and name not in ROOT_FILES:
        yield Violation(name, "not a known file of the root; move it into a room, "
                              "or add it to ROOT_FILES in tools/layers.py with a reason")
    if len(parts) > 1 and parts[0] not in ROOMS and not STAGE.fullmatch(parts[0]):
        yield Violation(name, f"'{parts[0]}/' is not a room; the rooms are "
                              f"{', '.join(sorted(ROOMS))} and stageN_NAME")
    if STAGE.fullmatch(parts[0]) and len(parts) > 1 and parts[1:] != ("main.cpp",):
        yield Violation(name, "a stage holds main.cpp and nothing else; "
                              "shared code belongs in mnist/ or ladder/, pages in docs/")


def check_spdx(file: File) -> Iterator[Violation]:
    if not any(SPDX in line for line in file.text.splitlines()[:2]):
        yield file.at(1, f"no licence line; begin the file (after a #! line) with '{SPDX}'")


def check_no_pickle(file: File) -> Iterator[Violation]:
    """Weights are read and written as safetensors, which are data and nothing else."""
    for number, line in enumerate(file.text.splitlines(), start=1):
        match = PICKLE.search(line.partition("//")[0])
        if match and file.name not in PICKLE_SOURCES:
            yield file.at(number, f"{match[0]} reads or writes pickles; use "
                                  "ladder/checkpoint/safetensors.h")


def check_library(file: File) -> Iterator[Violation]:
    """No flag of a program and no MNIST in ladder/."""
    for number, line in enumerate(file.text.splitlines(), start=1):
        literals = " ".join(STRING.findall(line.partition("// ")[0]))
        for flag in FLAG.findall(literals):
            if flag not in LAUNCHER_FLAGS:
                yield file.at(number, f"a message of ladder/ names the flag {flag}; name the field "
                                      "of the options, as it is spelled there")
        for pattern in (MNIST, MNIST_SIZE):
            match = pattern.search(line)
            if match:
                yield file.at(number, f"'{match[0]}' in ladder/, which serves any data; move what "
                                      "is the tutorial's into mnist/")


def check_mnist_file(file: File, files: dict[str, File]) -> Iterator[Violation]:
    """mnist/ uses itself and ladder/."""
    for include in file.includes():
        if include.quoted and not include.target.startswith(("ladder/", "mnist/")):
            yield file.at(include.line, f'mnist/ may not include "{include.target}"; it uses '
                                        "ladder/ and mnist/")
        route = route_to_torch(include.target, files, set())
        if route and file.path.stem in TORCH_FREE:
            yield file.at(include.line, f"this file is torch-free but includes "
                                        f"{' -> '.join(route)}; move what needs torch into "
                                        "another file")


def check_stage_include(file: File, include: Include) -> Iterator[Violation]:
    """A stage uses ladder/, mnist/ and the standard library."""
    allowed = (
        include.target.startswith(("ladder/", "mnist/"))
        if include.quoted
        else STANDARD_HEADER.fullmatch(include.target)
    )
    if not allowed:
        yield file.at(include.line, f"a stage may not include {include.target}; "
                                    "it uses ladder/, mnist/ and standard headers")


def check_order(file: File, include: Include) -> Iterator[Violation]:
    """ladder/ includes itself by full path. CMake's targets know which folders come first."""
    parts = PurePosixPath(include.target).parts
    if include.quoted and (parts[0] != "ladder" or len(parts) != 3):
        yield file.at(include.line, f'ladder/ may not include "{include.target}"; '
                                    'write "ladder/FOLDER/FILE.h", and use no other room')


def route_to_torch(target: str, files: dict[str, File], seen: set[str]) -> list[str]:
    """The chain of includes from `target` to a torch header; empty if there is none."""
    if TORCH_HEADER.match(target):
        return [target]
    if target not in files or target in seen:
        return []
    seen.add(target)
    for include in files[target].includes():
        route = route_to_torch(include.target, files, seen)
        if route:
            return [target, *route]
    return []


def check_ladder_file(file: File) -> Iterator[Violation]:
    """A file is in a folder, and includes others by full path."""
    if len(file.parts) != 3:
        yield file.at(1, "ladder/ holds FOLDER/FILE, with a folder of ladder/CMakeLists.txt; move "
                         "the file")
        return
    is_public = file.path.suffix == ".h" and file.name != C10D_HEADER
    for include in file.includes():
        yield from check_order(file, include)
        if file.parts[1] == "comm" and is_public and C10D_INCLUDE.match(include.target):
            yield file.at(include.line, f"headers of comm/ show no c10d types; include "
                                        f"{include.target} in the .cpp or in {C10D_HEADER}")


def check_file(file: File, files: dict[str, File]) -> Iterator[Violation]:
    yield from check_spdx(file)
    if not file.is_cpp():
        return
    yield from check_no_pickle(file)
    if file.parts[0] == "ladder":
        yield from check_library(file)
        yield from check_ladder_file(file)
    elif file.parts[0] == "mnist":
        yield from check_mnist_file(file, files)
    elif STAGE.fullmatch(file.parts[0]):
        for include in file.includes():
            yield from check_stage_include(file, include)


def check_tree(root: Path) -> tuple[int, list[Violation]]:
    """The number of source files, and the violations."""
    names = git_files(root)
    violations = [violation for name in names for violation in check_place(name)]
    read = (File(root, name) for name in names)
    files = {file.name: file for file in read if file.is_source()}
    for file in files.values():
        violations += check_file(file, files)
    return len(files), violations


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--root", type=Path, default=here, help="default: this checkout")
    root = parser.parse_args(arguments).root
    try:
        count, violations = check_tree(root)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"layers: cannot list the files of {root}, is it a git checkout? {error}",
              file=sys.stderr)
        return 2
    for violation in violations:
        print(violation)
    print(f"layers: {count} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
