# SPDX-License-Identifier: Apache-2.0
"""tools/layers.py on a small tree made here, each time with one file changed."""
from __future__ import annotations

import os
import subprocess
from pathlib import Path

import layers
import pytest
import structure

from tests.support.files import write
from tests.support.in_process import Start

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
        "images[0].resize({28, 28});", "// 28 x 28 pixels", "Linear(784, 10);", "// as in MNIST")),
    ("mnist/main.h", '#include "tests/x.h"', 'mnist/ may not include "tests/x.h"'),
    ("mnist/options.h", "#include <ATen/ATen.h>", "is torch-free but includes ATen/ATen.h; move"),
    ("mnist/command_line.h", '#include "mnist/recipe.h"',
     "is torch-free but includes mnist/recipe.h -> ladder/monitor/loss_meter.h -> "
     "ladder/data/sampler.h -> ladder/core/device.h -> torch/types.h"),
    *(("stage0_single_gpu/main.cpp", f"#include {header}",
       f"a stage may not include {header[1:-1]}") for header in ("<unistd.h>", '"tests/x.h"')),
    ("mnist/idx.h", "void f() { torch::load(tensor, path); }", PICKLE),
    ("tests/core/error_test.cpp", "#include <torch/serialize/archive.h>", PICKLE),
]
# A file, its text, and the whole violation up to its reason.
FILES = [
    ("ladder/a.h", SPDX, f"ladder/a.h:1: ladder/ {ALONE}"),
    ("stage0_single_gpu/helper.h", SPDX, "stage0_single_gpu/helper.h: a stage holds main.cpp and"),
    ("notes.txt", "hello\n", "notes.txt: not a known file of the root"),
    ("src/a.md", "hello\n", "src/a.md: 'src/' is not a room"),
    ("cmake/A.cmake", "\n", "cmake/A.cmake:1: no licence line"),
    ("tools/script", "#!/bin/sh\n", "tools/script:1: no licence line"),
]
CASES = [(name, f"{SPDX}{line}\n", f"{name}:2: ", part) for name, line, part in LINES]
CASES += [(name, text, begin, "") for name, text, begin in FILES]


def git(root: Path, *arguments: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    subprocess.run(["git", *arguments], cwd=root, env=environment, check=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    for name, text in TREE.items():
        write(tmp_path / name, text)
    return tmp_path


def violations_with(root: Path, name: str, text: str) -> list[str]:
    write(root / name, text)
    return layers.check_tree(root)[1]


def test_a_good_tree_passes(root: Path, start: Start) -> None:
    assert start(layers, "--root", root) == (
        0, f"layers: {len(TREE) - 1} files, 0 violations\n", "")
    text = f"{SPDX}exit(128 + 2.28); // 9216 x 128, torch::save\n"
    assert violations_with(root, "ladder/core/error.cpp", text) == []


@pytest.mark.parametrize("name, text, begin, part", CASES)
def test_a_violation(root: Path, name: str, text: str, begin: str, part: str) -> None:
    [found] = violations_with(root, name, text)
    assert found.startswith(begin) and part in found


def test_tracked_files_count_and_ignored_ones_do_not(root: Path) -> None:
    assert violations_with(root, "build/junk.cpp", "") == []
    git(root, "add", "-f", "build/junk.cpp")
    assert layers.main(["--root", str(root)]) == 1


def test_a_folder_without_git(tmp_path: Path, start: Start) -> None:
    code, _, err = start(layers, "--root", tmp_path)
    assert code == 2 and "is it a git checkout?" in err


def test_structure_counts_what_stage_0_reaches_and_what_the_spine_includes(tmp_path: Path) -> None:
    sources = {
        "ladder/io/a.h": '#include "ladder/kernels/b.h"\n', "ladder/io/a.cpp": "// exact sums\n\n",
        "ladder/kernels/b.h": '#include "ladder/core/philox.h"\n', "ladder/core/philox.h": "",
        "ladder/monitor/fingerprint.h": "",
        "ladder/exact/c.h": '#include "ladder/io/a.h"\n// exact\n',
        "mnist/d.h": '#include "ladder/io/a.h"\n// exactly\n  int per_device_train_batch_size;\n',
        "stage0_single_gpu/main.cpp": '#include "mnist/d.h"\n',
    }
    for name, text in sources.items():
        write(tmp_path / name, text)
    tree = structure.Tree(tmp_path)
    assert structure.measures(tree) == [4, 4, 1, 1, 1, 0]
    assert structure.crossings(tree) == [("ladder/io/a", "ladder/kernels/b")]
    assert structure.shelf("ladder/monitor/fingerprint.h") == "observe"
