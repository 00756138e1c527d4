# SPDX-License-Identifier: Apache-2.0
"""tools/layers.py on small trees made here, each with one thing wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "layers.py"
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"

GOOD_TREE = {
    "README.md": "# A tree\n",
    "ladder/core/error.h": SPDX + "#pragma once\n#include <string>\n",
    "ladder/core/error.cpp": SPDX + '#include "ladder/core/error.h"\n',
    "ladder/core/device.h": SPDX + "#include <torch/types.h>\n",
    "ladder/data/batch_mode.h": SPDX + '#include "ladder/core/error.h"\n',
    "ladder/data/sampler.h":
        SPDX + '#include <torch/types.h>\n#include "ladder/data/batch_mode.h"\n',
    "ladder/comm/c10d_group.h": SPDX + "#include <torch/csrc/distributed/c10d/Store.hpp>\n",
    "ladder/train/loss_meter.h": SPDX + '#include "ladder/data/sampler.h"\n',
    "ladder/train/monitor_options.h": SPDX + "#include <string>\n",
    "mnist/options.h": SPDX + '#include "ladder/train/monitor_options.h"\n',
    "mnist/recipe.h": SPDX + '#include "ladder/train/loss_meter.h"\n#include "mnist/options.h"\n',
    "stage0_single_gpu/main.cpp": SPDX + '#include <vector>\n#include "mnist/recipe.h"\n',
    "tests/core/error_test.cpp": SPDX + '#include <gtest/gtest.h>\n#include <torch/torch.h>\n',
    "run": "#!/usr/bin/env bash\n# SPDX-License-Identifier: Apache-2.0\n",
}
GOOD_TREE_SOURCES = len(GOOD_TREE) - 1  # all but README.md


class LayersTest(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        subprocess.run(["git", "init", "-q"], cwd=self.root, env=self.environment, check=True)
        for name, text in GOOD_TREE.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run_tool(self, root: Path | None = None) -> tuple[int, list[str]]:
        where = ["--root", str(root)] if root else []
        done = subprocess.run(
            [sys.executable, str(TOOL), *where], capture_output=True, text=True, check=False
        )
        return done.returncode, (done.stdout + done.stderr).splitlines()

    def expect_violation(self, name: str, text: str, *expected: str) -> None:
        """Adds one file to the good tree: it is the only violation, and is explained."""
        self.write(name, text)
        code, lines = self.run_tool(self.root)
        self.assertEqual(code, 1, lines)
        self.assertEqual(len(lines), 2, lines)
        for part in (name, *expected):
            self.assertIn(part, lines[0])
        self.assertRegex(lines[1], r"^layers: \d+ files, 1 violations$")

    def test_a_good_tree_passes(self) -> None:
        self.assertEqual(
            self.run_tool(self.root), (0, [f"layers: {GOOD_TREE_SOURCES} files, 0 violations"])
        )

    def test_an_include_upwards(self) -> None:
        self.expect_violation(
            "ladder/core/log.h", SPDX + '\n#include "ladder/launch/spawn.h"\n',
            "log.h:3: core/ (layer 0) may not include launch/ (layer 2)",
        )

    def test_an_include_sideways(self) -> None:
        self.expect_violation(
            "ladder/data/batch_mode.h", SPDX + '#include "ladder/comm/store.h"\n',
            "batch_mode.h:2: data/ (layer 2) may not include comm/ (layer 2)",
        )

    def test_an_include_of_a_folder_without_a_layer(self) -> None:
        self.expect_violation(
            "ladder/train/loop.h", SPDX + '#include "ladder/misc/a.h"\n',
            "loop.h:2: misc/ is not in the layer table",
        )

    def test_an_include_of_another_room(self) -> None:
        self.expect_violation(
            "ladder/train/loop.h", SPDX + '#include "tests/support/x.h"\n',
            'loop.h:2: ladder/ may not include "tests/support/x.h"',
        )

    def test_an_include_without_the_full_path(self) -> None:
        self.expect_violation(
            "ladder/core/log.h", SPDX + '#include "error.h"\n',
            'log.h:2: ladder/ may not include "error.h"',
        )

    def test_torch_in_core(self) -> None:
        for header in ("torch/torch.h", "ATen/ATen.h", "c10/core/Device.h",
                       "torch/csrc/autograd/variable.h"):
            self.expect_violation(
                "ladder/core/log.h", f"{SPDX}#include <{header}>\n",
                f"log.h:2: this file is torch-free but includes {header}",
            )

    def test_torch_in_a_parser(self) -> None:
        for name in ("ladder/data/batch_mode", "ladder/checkpoint/safetensors_header",
                     "mnist/idx", "mnist/files"):
            header = self.root / f"{name}.h"
            before = header.read_text() if header.exists() else None
            self.expect_violation(
                f"{name}.h", SPDX + "#include <torch/types.h>\n", "torch-free"
            )
            header.write_text(before) if before else header.unlink()

    def test_torch_by_a_detour(self) -> None:
        self.expect_violation(
            "mnist/command_line.h", SPDX + '#include "mnist/recipe.h"\n',
            "torch-free but includes mnist/recipe.h -> ladder/train/loss_meter.h "
            "-> ladder/data/sampler.h -> torch/types.h",
        )

    def test_the_application_in_the_library(self) -> None:
        self.write("ladder/train/loop.h", SPDX + '#include "mnist/recipe.h"\n')
        code, lines = self.run_tool(self.root)
        self.assertEqual(code, 1)
        self.assertIn('loop.h:2: ladder/ may not include "mnist/recipe.h"', "\n".join(lines))

    def test_a_flag_in_a_message_of_the_library(self) -> None:
        self.expect_violation(
            "ladder/core/error.cpp",
            SPDX + 'auto a = "torchrun --no-python";  // --comment\nauto b = "lower --lr";\n',
            "error.cpp:3: a message of ladder/ names the flag --lr; name the field",
        )

    def test_the_tutorials_data_in_the_library(self) -> None:
        for text in ("images[0].resize({28, 28});", "// float [N, 1, 28, 28]", "// 28 x 28 pixels",
                     "constexpr int kSide = 28;", "// ConvNet", "Linear(784, 10);", "// as in MNIST"):
            self.expect_violation(
                "ladder/core/error.cpp", f"{SPDX}{text}\n", "error.cpp:2: '",
                "in ladder/, which serves any data")
        self.write("ladder/core/error.cpp", f"{SPDX}exit(128 + 2.28); // 9216 x 128\n")
        self.assertEqual(self.run_tool(self.root)[0], 0)

    def test_what_the_application_may_include(self) -> None:
        self.expect_violation("mnist/main.h", SPDX + '#include "tests/support/x.h"\n',
                              'main.h:2: mnist/ may not include "tests/support/x.h"')

    def test_c10d_in_a_public_header_of_comm(self) -> None:
        self.expect_violation(
            "ladder/comm/process_group.h",
            SPDX + "#include <torch/csrc/distributed/c10d/Backend.hpp>\n",
            "process_group.h:2: headers of comm/ show no c10d types",
        )

    def test_an_unknown_folder_of_ladder(self) -> None:
        self.expect_violation("ladder/misc/a.h", SPDX, "holds FOLDER/FILE")

    def test_a_file_directly_in_ladder(self) -> None:
        self.expect_violation("ladder/a.h", SPDX, "holds FOLDER/FILE")

    def test_a_source_without_its_header(self) -> None:
        self.expect_violation("ladder/core/lone.cpp", SPDX, "no lone.h beside it")

    def test_a_second_file_in_a_stage(self) -> None:
        self.expect_violation("stage0_single_gpu/helper.h", SPDX, "holds main.cpp and nothing else")

    def test_a_stage_that_includes_something_else(self) -> None:
        for include in ("<torch/torch.h>", "<unistd.h>", '"tests/support/x.h"', "<CLI/CLI.hpp>"):
            self.expect_violation(
                "stage1_data_parallel/main.cpp", f"{SPDX}#include {include}\n",
                f"main.cpp:2: a stage may not include {include[1:-1]}",
            )

    def test_an_unknown_file_of_the_root(self) -> None:
        self.expect_violation("notes.txt", "hello\n", "not a known file of the root")

    def test_an_unknown_room(self) -> None:
        self.expect_violation("src/a.md", "hello\n", "'src/' is not a room")

    def test_a_source_without_a_licence_line(self) -> None:
        for name in ("tests/core/a.cpp", "tools/a.py", "tools/a.sh", "cmake/A.cmake",
                     "bench/CMakeLists.txt"):
            self.expect_violation(name, "\n", ":1: no licence line")
            (self.root / name).unlink()
        self.expect_violation("tools/script", "#!/bin/sh\n", ":1: no licence line")

    def test_a_pickle(self) -> None:
        cases = {"mnist/idx.h": "void f() { torch::load(tensor, path); }",
                 "stage0_single_gpu/main.cpp": "auto model = torch::jit::load(path);",
                 "traps/pickle.cpp": "auto value = torch::pickle_load(bytes);",
                 "tests/core/error_test.cpp": "#include <torch/serialize/archive.h>"}
        for name, line in cases.items():
            with self.subTest(name):
                self.expect_violation(name, f"{SPDX}// Not torch::save.\n{line}\n", f"{name}:3: ",
                                      "pickles; use ladder/checkpoint/safetensors.h")
                self.write(name, GOOD_TREE.get(name, SPDX))

    def test_tracked_files_count_and_ignored_ones_do_not(self) -> None:
        self.write(".gitignore", "/build/\n")
        self.write("build/junk.cpp", "")
        self.assertEqual(self.run_tool(self.root)[0], 0)
        subprocess.run(["git", "add", "-f", "build/junk.cpp"], cwd=self.root,
                       env=self.environment, check=True)
        self.assertEqual(self.run_tool(self.root)[0], 1)

    def test_a_folder_without_git_is_an_error_of_its_own(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            code, lines = self.run_tool(Path(folder))
        self.assertEqual(code, 2)
        self.assertIn("is it a git checkout?", lines[-1])

    def test_the_real_tree_is_looked_at(self) -> None:
        summary = self.run_tool()[1][-1]
        self.assertRegex(summary, r"^layers: [1-9]\d* files, ")


if __name__ == "__main__":
    unittest.main()
