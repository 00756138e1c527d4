# SPDX-License-Identifier: Apache-2.0
"""tools/layers.py on a small tree made here, each time with one file changed."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import layers  # noqa: E402

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
TREE = {
    ".gitignore": "/build/\n",
    "ladder/core/error.h": SPDX + "#pragma once\n#include <string>\n",
    "ladder/core/device.h": SPDX + "#include <torch/types.h>\n",
    "ladder/data/sampler.h": SPDX + '#include "ladder/core/device.h"\n',
    "ladder/comm/c10d_group.h": SPDX + "#include <torch/csrc/distributed/c10d/Store.hpp>\n",
    "ladder/monitor/loss_meter.h": SPDX + '#include "ladder/data/sampler.h"\n',
    "mnist/options.h": SPDX + '#include "ladder/core/error.h"\n',
    "mnist/recipe.h": SPDX + '#include "ladder/monitor/loss_meter.h"\n#include "mnist/options.h"\n',
    "stage0_single_gpu/main.cpp": SPDX + '#include <vector>\n#include "mnist/recipe.h"\n',
    "tests/core/error_test.cpp": SPDX + "#include <gtest/gtest.h>\n#include <torch/torch.h>\n",
    "run": "#!/usr/bin/env bash\n# SPDX-License-Identifier: Apache-2.0\n",
}
ALONE = "holds FOLDER/FILE, with a folder of ladder/CMakeLists.txt"
OTHER = "in ladder/, which serves any data; move what is the tutorial's into mnist/"
PICKLE = "reads or writes pickles; use ladder/checkpoint/safetensors.h"

# A file, its second line, and a part of the only violation, which names both.
LINES = [
    ("ladder/monitor/loop.h", '#include "tests/a/x.h"', 'ladder/ may not include "tests/a/x.h"'),
    ("ladder/core/log.h", '#include "error.h"', 'ladder/ may not include "error.h"'),
    ("ladder/comm/process_group.h", "#include <torch/csrc/distributed/c10d/Backend.hpp>",
     "headers of comm/ show no c10d types"),
    ("ladder/core/error.cpp", 'auto b = "lower --lr, not torchrun --no-python";  // "--comment"',
     "a message of ladder/ names the flag --lr; name the field"),
    *(("ladder/core/error.cpp", text, OTHER) for text in (
        "images[0].resize({28, 28});", "// float [N, 1, 28, 28]", "// 28 x 28 pixels",
        "constexpr int kSide = 28;", "// ConvNet", "Linear(784, 10);", "// as in MNIST")),
    ("mnist/main.h", '#include "tests/x.h"', 'mnist/ may not include "tests/x.h"'),
    *(("mnist/options.h", f"#include <{header}>", f"is torch-free but includes {header}; move")
      for header in ("torch/torch.h", "ATen/ATen.h", "c10/core/Device.h")),
    ("mnist/command_line.h", '#include "mnist/recipe.h"',
     "is torch-free but includes mnist/recipe.h -> ladder/monitor/loss_meter.h -> "
     "ladder/data/sampler.h -> ladder/core/device.h -> torch/types.h"),
    *(("stage0_single_gpu/main.cpp", f"#include {header}",
       f"a stage may not include {header[1:-1]}")
      for header in ("<torch/torch.h>", "<unistd.h>", '"tests/support/x.h"', "<CLI/CLI.hpp>")),
    ("mnist/idx.h", "void f() { torch::load(tensor, path); }", PICKLE),
    ("stage0_single_gpu/main.cpp", "auto model = torch::jit::load(path);", PICKLE),
    ("traps/pickle.cpp", "auto value = torch::pickle_load(bytes);", PICKLE),
    ("tests/core/error_test.cpp", "#include <torch/serialize/archive.h>", PICKLE),
]
# A file, its text, and the whole violation up to its reason.
FILES = [
    ("ladder/a.h", SPDX, f"ladder/a.h:1: ladder/ {ALONE}"),
    ("stage0_single_gpu/helper.h", SPDX, "stage0_single_gpu/helper.h: a stage holds main.cpp and"),
    ("notes.txt", "hello\n", "notes.txt: not a known file of the root"),
    ("src/a.md", "hello\n", "src/a.md: 'src/' is not a room"),
    *((name, "\n", f"{name}:1: no licence line") for name in (
        "tests/core/a.cpp", "tools/a.py", "tools/a.sh", "cmake/A.cmake", "bench/CMakeLists.txt")),
    ("tools/script", "#!/bin/sh\n", "tools/script:1: no licence line"),
]


class LayersTest(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name)
        self.git("init", "-q")
        for name, text in TREE.items():
            self.write(name, text)

    def git(self, *arguments: str) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        subprocess.run(["git", *arguments], cwd=self.root, env=environment, check=True)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def violations_with(self, name: str, text: str) -> list[str]:
        """Of the tree with this file, which is put back."""
        self.write(name, text)
        found = [str(violation) for violation in layers.check_tree(self.root)[1]]
        self.write(name, TREE[name]) if name in TREE else (self.root / name).unlink()
        return found

    def run_tool(self, root: Path) -> tuple[int, str]:
        with (contextlib.redirect_stdout(io.StringIO()) as output,
              contextlib.redirect_stderr(output)):
            code = layers.main(["--root", str(root)])
        return code, output.getvalue()

    def test_a_good_tree_passes(self) -> None:
        sources = len(TREE) - 1  # but .gitignore
        self.assertEqual(self.run_tool(self.root), (0, f"layers: {sources} files, 0 violations\n"))
        self.assertEqual(self.violations_with(
            "ladder/core/error.cpp", f"{SPDX}exit(128 + 2.28); // 9216 x 128, torch::save\n"), [])

    def test_each_violation_is_found_and_no_other(self) -> None:
        cases = [(name, f"{SPDX}{line}\n", f"{name}:2: ", part) for name, line, part in LINES]
        cases += [(name, text, part, "") for name, text, part in FILES]
        for name, text, begin, part in cases:
            with self.subTest(f"{name}: {text}"):
                found = self.violations_with(name, text)
                self.assertEqual(len(found), 1, found)
                self.assertEqual(found[0][:len(begin)], begin)
                self.assertIn(part, found[0])

    def test_the_application_in_the_library(self) -> None:
        found = self.violations_with("ladder/monitor/loop.h", SPDX + '#include "mnist/recipe.h"\n')
        self.assertIn('ladder/monitor/loop.h:2: ladder/ may not include "mnist/recipe.h"; write '
                      '"ladder/FOLDER/FILE.h", and use no other room', found)

    def test_tracked_files_count_and_ignored_ones_do_not(self) -> None:
        self.write("build/junk.cpp", "")
        self.assertEqual(self.run_tool(self.root)[0], 0)
        self.git("add", "-f", "build/junk.cpp")
        self.assertEqual(self.run_tool(self.root)[0], 1)

    def test_a_folder_without_git_is_an_error_of_its_own(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            code, output = self.run_tool(Path(folder))
        self.assertEqual(code, 2)
        self.assertIn("is it a git checkout?", output)


if __name__ == "__main__":
    unittest.main()
