# SPDX-License-Identifier: Apache-2.0
"""What a measured program consists of: its sources, each by a hash of its tokens.

Comments, white space and the contents of strings do not count, so a corrected help text or comment
changes no hash. Files that run only before the first step, such as the command line, are omitted.
The compiler's flags and the versions of the libraries count as two sources more.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

BEFORE_THE_FIRST_STEP = (
    "mnist/command_line.*", "mnist/flags.h", "mnist/hparams_file.*", "mnist/main.*",
    "mnist/named_files.*", "mnist/option_tables.h", "mnist/trainer_flags.*", "ladder/io/json.*",
    "ladder/io/option_table.*", "ladder/io/yaml.*", "ladder/accelerate/accelerator_options.cpp",
    "ladder/accelerate/accelerate_config.*", "ladder/trainer/argument_file.*",
    "ladder/trainer/argument_table.*", "bench/records/record.py")  # which writes what was measured
PEERS = "bench/peers"
PYTHON = {"python_single": "single.py", "python_data_parallel": "data_parallel.py",
          "python_ddp_spawn": "ddp.py", "python_ddp_torchrun": "ddp.py", "python_ddp_amp": "ddp.py",
          "python_accelerate": "accelerated.py", "python_trainer": "trainer.py",
          "python_zero_redundancy": "zero_redundancy.py", "python_pipeline": "pipeline.py",
          "python_fully_sharded": "fully_sharded.py", "python_cuda_graph": "cuda_graph.py",
          "python_tuned": "tuned.py", "python_tuned_compile": "tuned.py",
          "python_tuned_graph": "tuned.py", "python_tuned_compile_graph": "tuned.py",
          "python_jax": "jax_jit.py", "python_fabric": "fabric.py",
          "python_lightning": "lightning_trainer.py"}
FLAGS = "compiler flags"
LIBRARIES = ("torch",)
LIBRARIES_OF_PYTHON = ("torch", "numpy", "accelerate", "transformers")
LIBRARIES_OF = {"jax_jit.py": ("jax", "optax"), "fabric.py": ("lightning",),
                "lightning_trainer.py": ("lightning",)}  # beside these
HASH_DIGITS = 12

CPP_TOKEN = re.compile(r"""
    (?P<skip> //(?:\\\n|[^\n])* | /\*.*?\*/ | \s+ )
  | (?P<include> \#[ ]*include[ ]*[<"][^>"\n]*[>"] )
  | (?P<string> (?:u8|[uUL])?(?: R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" ))
  | '(?:\\.|[^'\\\n])+' | \.?\d(?:[eEpP][+-]|'?[\w.])* | \w+ | .""", re.VERBOSE | re.DOTALL)
PYTHON_TOKEN = re.compile(r"""
    (?P<skip> \#[^\n]* | \\\n | [ \t\r\f]+ )
  | (?P<line> \n(?:[ \t]*(?:\#[^\n]*)?\n)*[ ]* )
  | (?P<string> \"{3}(?:\\.|.)*?\"{3} | '{3}(?:\\.|.)*?'{3}
              | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
  | \.?\d[\w.]* | \w+ | .""", re.VERBOSE | re.DOTALL)
CPP_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
ADDS_ITSELF = re.compile(r'^extern "C" const bool ladder_', re.MULTILINE)
PYTHON_IMPORT = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)
FLAG = re.compile(r"(?<=[\s\">:;])-(?:[fm][a-z]|O\d|D[A-Z])[\w=+-]*")
BUILD_FILES = ("CMakeLists.txt", "CMakePresets.json", "cmake/*.cmake", "ladder/CMakeLists.txt",
               "mnist/CMakeLists.txt")


def cpp_tokens(text: str) -> Iterator[str]:
    for match in CPP_TOKEN.finditer(text):
        if not match["skip"]:
            yield '""' if match["string"] else match[0]


def python_tokens(text: str) -> Iterator[str]:
    """With the indentation of each statement, which begins a line outside of all brackets."""
    depth = 0
    for match in PYTHON_TOKEN.finditer("\n" + text):
        token = match[0]
        if match["line"]:
            if depth == 0:
                yield f"\n{len(token) - token.rfind(chr(10)) - 1}"
        elif not match["skip"]:
            depth += (token in "([{") - (token in ")]}")
            yield '""' if match["string"] else token


def token_hash(name: str, text: str) -> str:
    """Neighbouring strings are one; a string that is a whole statement, as a docstring, is none."""
    kept: list[str] = []
    for token in python_tokens(text) if name.endswith(".py") else cpp_tokens(text):
        if token[0] == "\n":
            while kept and (kept[-1][0] == "\n" or kept[-2:-1] and kept[-1] == '""'
                            and kept[-2][0] == "\n"):
                kept.pop()
        if not (token == '""' and kept and kept[-1] == '""'):
            kept.append(token)
    return hashlib.sha256("\0".join(kept).encode()).hexdigest()[:HASH_DIGITS]


def is_before_the_first_step(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in BEFORE_THE_FIRST_STEP)


class Tree:
    """The text files of a checkout, or of a commit that the repository has."""

    def __init__(self, root: Path, commit: str = "") -> None:
        self.root, self.commit = root, commit
        self._hashes: dict[str, str] = {}

    @cached_property
    def _archive(self) -> Mapping[str, str]:
        done = subprocess.run(["git", "-C", self.root, "archive", self.commit, ".",
                               ":(exclude)data", ":(exclude)docs"], check=True,
                              capture_output=True, timeout=60)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
            return {one.name: files.extractfile(one).read().decode(errors="replace")
                    for one in files if one.isfile()}

    @cached_property
    def names(self) -> list[str]:
        if self.commit:
            return sorted(self._archive)
        done = subprocess.run(["git", "-C", self.root, "ls-files", "-co", "--exclude-standard"],
                              check=True, capture_output=True, text=True, timeout=60)
        return [name for name in done.stdout.splitlines() if (self.root / name).is_file()]

    def text(self, name: str) -> str:
        if self.commit:
            return self._archive[name]
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    def hash(self, name: str) -> str:
        if name not in self._hashes:
            self._hashes[name] = token_hash(name, self.text(name))
        return self._hashes[name]

    def matching(self, *patterns: str) -> list[str]:
        return [name for name in self.names if any(fnmatch(name, one) for one in patterns)]

    # A source without a header of its own belongs to all headers of its folder. One that adds itself
    # to a table belongs to what it and its header include, where the table is; core/ has none.
    @cached_property
    def _sources_of_headers(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name in self.matching("ladder/*.cpp"):
            own = f"{name[:-4]}.h"
            headers = [] if own in self.names else self.matching(f"{name.rpartition('/')[0]}/*.h")
            if ADDS_ITSELF.search(self.text(name)):
                for one in {name, own} & set(self.names):
                    headers += CPP_INCLUDE.findall(self.text(one))
            for header in headers:
                if not header.startswith("ladder/core/"):
                    found.setdefault(header, []).append(name)
        return found

    def closure(self, *entries: str) -> set[str]:
        """The entries and all that they include, with the sources of the headers.

        Omits only files that run before the first step, and what they alone include.
        """
        there = set(self.names)
        found: set[str] = set()
        todo = list(entries)
        while todo:
            name = todo.pop()
            if name in found or name not in there or is_before_the_first_step(name):
                continue
            found.add(name)
            if name.endswith(".py"):
                folder = name.rpartition("/")[0]
                todo += (f"{folder}/{one}.py" for one in PYTHON_IMPORT.findall(self.text(name)))
                continue
            todo += CPP_INCLUDE.findall(self.text(name))
            if name.endswith(".h"):
                todo += (f"{name[:-2]}.cpp", f"{name[:-2]}.cu",
                         *self._sources_of_headers.get(name, ()))
        return found

    @cached_property
    def flags(self) -> str:
        found = {flag for name in self.matching(*BUILD_FILES)
                 for flag in FLAG.findall(re.sub(r"#[^\n]*", "", self.text(name)))}
        return " ".join(sorted(found))

    @cached_property
    def _pins(self) -> dict[str, str]:
        text = "\n".join(self.text(name) for name in self.matching("requirements*.txt"))
        return dict(re.findall(r"^([\w-]+)==(\S+)", text, re.MULTILINE))

    def sources(self, entries: Iterable[str]) -> dict[str, str]:
        """Hashes by name, of a program that begins in these files."""
        files = self.closure(*entries)
        found = {name: self.hash(name) for name in sorted(files) if name in self.names}
        if any(name.endswith(".cpp") for name in files):
            found[FLAGS] = self.flags
        in_python = any(name.startswith(PEERS) for name in files)
        packages = [*(LIBRARIES_OF_PYTHON if in_python else LIBRARIES)]
        packages += [package for entry in entries
                     for package in LIBRARIES_OF.get(Path(entry).name, ())]
        return found | {f"version of {name}": self._pins.get(name, "") for name in packages}


def entry_of(program: str) -> str:
    """The file in which a program of the suite begins."""
    if program in PYTHON:
        return f"{PEERS}/{PYTHON[program]}"
    if program == "libtorch_usual":
        return f"{PEERS}/{program}.cpp"
    return f"{'' if program.startswith('stage') else 'beyond/'}{program}/main.cpp"
