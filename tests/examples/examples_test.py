# SPDX-License-Identifier: Apache-2.0
"""Installs the library, builds a copy of examples/ outside the project, and runs what its page states.

With LADDER_FULL in the environment, it builds and runs checks.cpp too: other ways to train the
network, and the limits that the page states.
"""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples import compare  # noqa: E402
from tests.support.programs import (DATA, PYTHON, ROOT, SECONDS, TORCHRUN,  # noqa: E402
                                    Result, launch)  # noqa: E402

TORCH = next((ROOT / ".venv" / "lib").glob("python3*/site-packages/torch")).resolve()
BUILD = Path(os.environ.get("LADDER_BUILD", ROOT / "build"))
FULL = "LADDER_FULL" in os.environ
FEW = ("--data", DATA, "--pairs", 1301, "--epochs", 2)  # 21 in the last batch

# What a check prints when it meets the limit: its exit code, and a part of the message.
LIMITS = {
    "output_rows": (2, "gather_for_metrics: expected 8 rows"),
    "input_rows": (2, "input right: expected 4 rows, as left has"),
    "several_devices": (2, "DistributedDataParallel: pixels.weight is on cpu, expected meta"),
    "unused_parameter": (4, "expected a gradient for every parameter, got none for spare.weight, "
                            "spare.bias"),
    "class_scores": (1, "Dimension out of range"),
    "dropout_scope": (2, "expected a RandomScope around the forward"),
    "second_backward": (1, "second time"),
    "transform_in_evaluation": (2, "DataLoader: a transform with"),
    "fp16_without_gpu": (2, "mixed_precision fp16: it needs a GPU"),
    "spawn_after_tensor": (2, "spawn: this process has"),
    "dispatched_lengths": (2, "dispatch_batches: input x: expected rows as in the first batch"),
    "sparse_gradient": (1, "SparseTensorImpl"),
}


def cmake(*arguments: object) -> None:
    done = subprocess.run(["cmake", *map(str, arguments)], capture_output=True, text=True,
                          timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def project(folder: Path, *lines: str) -> None:
    folder.mkdir(exist_ok=True)
    text = "\n".join(("cmake_minimum_required(VERSION 3.25)", *lines, ""))
    (folder / "CMakeLists.txt").write_text(text)


def torch_folder(folder: Path, version: str, *libraries: str) -> Path:
    """What the build looks at before it compiles."""
    major, minor = version.split(".")
    header = folder / "include/torch/csrc/api/include/torch/version.h"
    header.parent.mkdir(parents=True)
    header.write_text(f"#define TORCH_VERSION_MAJOR {major}\n#define TORCH_VERSION_MINOR {minor}\n")
    (folder / "lib").mkdir()
    for library in ("libtorch_cpu.so", *libraries):
        (folder / "lib" / library).write_text("\0libcudart-0a1b.so.12\0")
    return folder


class Examples(unittest.TestCase):
    folder: Path

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(prefix="ladder-examples-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        cmake("--install", BUILD, "--prefix", cls.folder / "before")
        (cls.folder / "before").rename(cls.folder / "prefix")
        shutil.copytree(ROOT / "examples", cls.folder / "examples")
        shutil.copytree(ROOT / "tests" / "examples", cls.folder / "checks")
        for project in ("examples", "checks") if FULL else ("examples",):
            build = cls.folder / "build" / project
            cmake("-S", cls.folder / project, "-B", build, "-G", "Ninja",
                  f"-DCMAKE_PREFIX_PATH={cls.folder / 'prefix'}",
                  f"-DEXAMPLES={cls.folder / 'examples'}")
            cmake("--build", build)

    def run_program(self, program: str, *arguments: object) -> Result:
        return launch(self.folder / "build" / program, *arguments,
                      environment={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": 1})

    def lines_of(self, program: str, *arguments: object) -> list[str]:
        done = self.run_program(program, *arguments)
        self.assertEqual(done.code, 0, done.stderr)
        return done.lines

    def test_loop_and_trainer_end_with_equal_weights(self) -> None:
        """On one process and on two, by compare.py, which writes a record and a table."""
        record = self.folder / "results.json"
        done = launch(PYTHON, ROOT / "examples" / "compare.py", "--build",
                      self.folder / "build" / "examples", *FEW, "--seeds", 1, "--output", record)
        self.assertEqual(done.code, 0, done.stderr)
        self.assertIn("Equal weights of ddp and trainer: 2 of 2 pairs of runs", done.lines)
        self.assertEqual(len([line for line in done.lines if line.startswith("| `")]), 5)
        runs = json.loads(record.read_text())["runs"]
        self.assertEqual(len(runs), 5)
        for run in runs:
            self.assertLess(run["test_loss"], 0.6)  # that of a coin is 0.69

    def test_gan_learns_the_ring_and_resumes(self) -> None:
        """On one process, where the second run only loads, and on two, with the same noise."""
        project = self.folder / "gan"
        whole = self.lines_of("examples/gan", project)
        self.assertEqual(self.lines_of("examples/gan", project), whole)
        radius = r"^mean radius (0\.9|1\.0)\d$"
        self.assertRegex(whole[0], radius)
        done = launch(TORCHRUN, "--standalone", "--no-python", "--nproc-per-node", 2,
                      self.folder / "build" / "examples" / "gan",
                      environment={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": 1})
        self.assertEqual(done.code, 0, done.stderr)
        self.assertRegex(done.lines[0], radius)

    @unittest.skipUnless(FULL, "with LADDER_FULL")
    def test_data_parallel_and_accelerator_end_with_those_weights(self) -> None:
        weights = self.lines_of("examples/ddp", *FEW, "--nprocs", 2)[-1]
        self.assertEqual(self.lines_of("checks/checks", "data_parallel", *FEW, "--nprocs", 1),
                         [weights])
        accelerated, accumulated = self.lines_of("checks/checks", "accelerator", *FEW,
                                                 "--nprocs", 2)
        self.assertEqual(accelerated, weights)
        self.assertLess(float(accumulated.removeprefix("accumulation ")), 1e-5)

    @unittest.skipUnless(FULL, "with LADDER_FULL")
    def test_several_labels_reach_compute_metrics(self) -> None:
        line, = self.lines_of("checks/checks", "two_labels", *FEW, "--nprocs", 1)
        self.assertRegex(line, r"^brightness 0\.13\d\d$")  # the mean of MNIST is 0.13

    @unittest.skipUnless(FULL, "with LADDER_FULL")
    def test_python_draws_the_same_pairs(self) -> None:
        code = ("import sys; sys.path.insert(0, sys.argv[1]); import pairs, torch\n"
                "from pathlib import Path\n"
                "left, right, same = pairs.pairs(Path(sys.argv[2]), 'train', 1301, 1).tensors\n"
                "rows = [left.long(), right.long(), 255 * same.long()]\n"
                "print('pairs', *((one.flatten() * torch.arange(one.numel())).sum().item() "
                "for one in rows))")
        done = launch(PYTHON, "-c", code, ROOT / "examples" / "pairs", DATA)
        self.assertEqual(done.code, 0, done.stderr)
        self.assertEqual(done.lines, self.lines_of("checks/checks", "pairs_sum", *FEW,
                                                   "--nprocs", 1))

    @unittest.skipUnless(FULL, "with LADDER_FULL")
    def test_each_limit_is_met_as_the_page_states(self) -> None:
        for limit, (code, message) in LIMITS.items():
            with self.subTest(limit=limit):
                done = self.run_program("checks/checks", limit, *FEW, "--nprocs",
                                        2 if limit == "dispatched_lengths" else 1)
                self.assertEqual(done.code, code, done.stderr)
                self.assertIn(message, done.stderr)

    def test_a_missing_file_and_an_unknown_flag_are_named(self) -> None:
        for arguments, code, message in ((("--data", "/nowhere"), 3, "/nowhere/train-images"),
                                         (("--lr", 1), 2, "--lr"), (("--pairs",), 2, "--pairs")):
            with self.subTest(arguments=arguments):
                done = self.run_program("examples/ddp", *arguments)
                self.assertEqual(done.code, code, done.stderr)
                self.assertIn(message, done.stderr)

    def test_the_package_is_the_library_without_the_application(self) -> None:
        prefix = self.folder / "prefix"
        installed = [path.relative_to(prefix) for path in prefix.rglob("*.h")]
        self.assertEqual([path for path in installed if "mnist" in str(path)], [])
        included = [path for path in prefix.rglob("*.h")
                    if re.search(r'#include [<"]mnist/', path.read_text())]
        self.assertEqual(included, [])
        self.assertEqual([path.name for path in (prefix / "bin").iterdir()],
                         ["convert_checkpoint.py"])
        cmake("--install", BUILD, "--prefix", prefix, "--component", "programs")
        self.assertEqual(launch(prefix / "bin" / "stage0_single_gpu", "--version").code, 0)

    def configure(self, name: str, line: str, *more: str) -> None:
        project(self.folder / name, f"project({name} LANGUAGES C CXX)", line)
        cmake("-S", self.folder / name, "-B", self.folder / name / "build", "-G", "Ninja",
              f"-DCMAKE_PREFIX_PATH={self.folder / 'prefix'}", *more)

    def test_another_version_of_the_package_is_refused(self) -> None:
        with self.assertRaisesRegex(AssertionError, 'requested version "0.2"'):
            self.configure("later", "find_package(ladder 0.2 REQUIRED)")

    def test_another_libtorch_than_that_of_the_package_is_refused(self) -> None:
        config = next((self.folder / "prefix").rglob("ladderConfig.cmake")).read_text()
        built, = re.findall(r'ladder_built_with "(.+)"', config)
        release, *has_cuda = built.split(" with ")
        rows = [(torch_folder(self.folder / "old", "2.10"), f"expected {built}, which"),
                ("/nowhere", f"the folder of LibTorch {built}")]
        if has_cuda:
            same = torch_folder(self.folder / "same", release)
            rows.append((same, f"got {release} without CUDA"))
        for folder, text in rows:
            with self.subTest(text=text), self.assertRaises(AssertionError) as raised:
                self.configure("other", "find_package(ladder REQUIRED)",
                               f"-DLADDER_TORCH_DIR={folder}")
            self.assertIn(text, " ".join(str(raised.exception).split()))

    def test_a_project_can_find_the_package_twice(self) -> None:
        self.configure("twice", "find_package(ladder REQUIRED)\nfind_package(ladder REQUIRED)")

    def test_a_project_can_contain_the_library(self) -> None:
        """Without programs and tests; unity builds of either side do not meet."""
        (self.folder / "inside").mkdir()
        shutil.copy(ROOT / "examples/gan/gan.cpp", self.folder / "inside/main.cpp")
        self.configure("inside", f"add_subdirectory({ROOT} ladder SYSTEM EXCLUDE_FROM_ALL)\n"
                       "add_executable(main main.cpp)\ntarget_link_libraries(main ladder::ladder)",
                       "-DLADDER_UNITY=ON", "-DCMAKE_UNITY_BUILD=ON")
        steps = launch("ninja", "-C", self.folder / "inside/build", "-n").stdout
        self.assertIn("Linking CXX static library ladder/ladder/libladder.a", steps)
        self.assertNotIn("stage0", steps)


class Page(unittest.TestCase):
    def test_it_shows_the_record(self) -> None:
        record = json.loads(compare.RECORD.read_text(encoding="utf-8"))
        self.assertIn(compare.table(record),
                      (ROOT / "examples" / "README.md").read_text(encoding="utf-8"))
        equal, total = compare.pairs_of_equal_weights(record)
        self.assertEqual(equal, total)

    def test_each_program_has_at_most_ninety_lines(self) -> None:
        for program in ("ddp", "trainer"):
            text = (ROOT / "examples" / "pairs" / f"{program}.cpp").read_text(encoding="utf-8")
            self.assertLessEqual(len(text.splitlines()), 90, program)


class OtherLibTorch(unittest.TestCase):
    """LADDER_TORCH_DIR and Torch_DIR name another LibTorch; only the configuration is tried."""

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="ladder-configure-")
        self.addCleanup(self.folder.cleanup)

    def configure(self, **variables: object) -> subprocess.CompletedProcess:
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        return subprocess.run(
            ["cmake", "-S", ROOT, "-B", self.folder.name, "-G", "Ninja", "-DLADDER_TESTS=OFF",
             "-DLADDER_BENCH=OFF"], env=environment, capture_output=True, text=True,
            timeout=SECONDS, check=False)

    def test_a_folder_by_name(self) -> None:
        done = self.configure(LADDER_TORCH_DIR=TORCH, PATH="/usr/bin:/bin", CUDA_HOME="")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"LibTorch: {TORCH}", done.stdout)

    def test_a_folder_that_is_none(self) -> None:
        done = self.configure(LADDER_TORCH_DIR="/nowhere")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/nowhere/lib/libtorch_cpu.so", done.stderr)

    def test_a_folder_of_the_environment_outlives_the_variable(self) -> None:
        for variables, folder in (({"LADDER_TORCH_DIR": "/nowhere"}, "/nowhere"), ({}, "/nowhere"),
                                  ({"LADDER_TORCH_DIR": ""}, str(TORCH))):
            done = self.configure(**variables)
            self.assertIn(f"{folder}/lib/libtorch_cpu.so" if done.returncode else
                          f"LibTorch: {folder}", done.stdout + done.stderr)

    def test_releases_and_cuda_of_a_folder(self) -> None:
        cuda = ("libtorch_cuda.so", "libc10_cuda.so")
        rows = (("2.8", (), "", "expected version 2.9 to 2.11, got 2.8; hint: point LADDER_TORCH_DIR"),
                ("2.9", (), "", "-- LibTorch: "), ("2.11", cuda, "OFF", "-- LibTorch: "),
                ("2.12", (), "", "2.12 was not tried; the newest release that was is 2.11"),
                ("2.10", cuda, "ON", "CUDA runtime of LibTorch: expected one of"),
                ("2.10", (*cuda, "libcudart-0a1b.so.12"), "ON", "CUDA headers of LibTorch: expected one of"))
        for number, (version, libraries, with_cuda, text) in enumerate(rows):
            with self.subTest(version=version, libraries=libraries):
                folder = Path(self.folder.name) / str(number)
                torch = torch_folder(folder / "torch", version, *libraries)
                project(folder, "project(row LANGUAGES NONE)", f"include({ROOT}/cmake/LibTorch.cmake)")
                done = subprocess.run(["cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja",
                                       f"-DLADDER_TORCH_DIR={torch}", f"-DLADDER_TORCH_CUDA={with_cuda or 'ON'}"],
                                      capture_output=True, text=True, timeout=SECONDS, check=False,
                                      env={**os.environ, "CUDA_HOME": ""})
                self.assertIn(text, " ".join((done.stdout + done.stderr).split()))

    def test_a_package_by_torch_dir(self) -> None:
        if shutil.which("nvcc") is None:
            self.skipTest("skipped: LibTorch's own package wants nvcc, and there is none")
        done = self.configure(Torch_DIR=TORCH / "share/cmake/Torch", TORCH_CUDA_ARCH_LIST="9.0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"LibTorch: {TORCH}/share/cmake/Torch", done.stdout)

    def test_a_prefix_path_without_torch_leaves_the_own_one(self) -> None:
        done = self.configure(CMAKE_PREFIX_PATH="/nowhere")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"LibTorch: {TORCH}", done.stdout)


if __name__ == "__main__":
    unittest.main()
