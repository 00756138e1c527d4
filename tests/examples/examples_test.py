# SPDX-License-Identifier: Apache-2.0
"""Installs the library, builds a copy of examples/ outside of it, and runs what its page states.

With LADDER_FULL in the environment, it builds and runs checks.cpp too: other ways to train the
network, and the limits that the page states.
"""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from examples import compare
from tests.support.files import write
from tests.support.programs import (DATA, FULL, PYTHON, ROOT, SECONDS, TORCHRUN, Result, launch,
                                    temporary_folder)

TORCH = next((ROOT / ".venv" / "lib").glob("python3*/site-packages/torch")).resolve()
BUILD = Path(os.environ.get("LADDER_BUILD", ROOT / "build"))
FEW = ("--data", DATA, "--pairs", 1301, "--epochs", 2)  # 21 in the last batch
ALONE = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": 1}
full = pytest.mark.skipif(not FULL, reason="with LADDER_FULL")

# What a check prints when it meets the limit: its exit code, and a part of the message.
LIMITS = {
    "output_rows": (2, "output of the model: expected one row per sample, got 'a scalar'"),
    "gathered_rows": (2, "gather_for_metrics: expected 4 rows"),
    "predicted_rows": (2, "gather_for_metrics: expected 8 rows"),
    "scattered_rows": (2, "input right: expected 4 rows, as left has"),
    "input_rows": (2, "input right: expected 4 rows, as left has"),
    "several_devices": (2, "DistributedDataParallel: pixels.weight is on cpu, expected meta"),
    "unused_parameter": (4, "expected a gradient for every parameter, got none for spare.weight, "
                            "spare.bias"),
    "class_scores": (1, "Dimension out of range"),
    "dropout_scope": (2, "expected a RandomScope around the forward"),
    "second_backward": (1, "second time"),
    "transform_in_evaluation": (2, "DataLoader: a transform with"),
    "spawn_after_tensor": (2, "spawn: this process has"),
    "dispatched_lengths": (2, "dispatch_batches: input x: expected Float ["),
    "sparse_gradient": (2, "DistributedDataParallel: the gradient of words.weight is sparse"),
}


def run_cmake(*arguments: object, **variables: object) -> tuple[int, str]:
    """Returns its exit code, and all that it printed, with single blanks."""
    done = subprocess.run(["cmake", *map(str, arguments)], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, timeout=SECONDS, check=False,
                          env=os.environ | {name: str(value) for name, value in variables.items()})
    return done.returncode, " ".join(done.stdout.split())


def cmake(*arguments: object) -> None:
    code, output = run_cmake(*arguments)
    assert code == 0, output


def project(folder: Path, *lines: str) -> Path:
    text = "\n".join(("cmake_minimum_required(VERSION 3.25)", *lines, ""))
    write(folder / "CMakeLists.txt", text)
    return folder


def torch_folder(folder: Path, version: str, *libraries: str) -> Path:
    """What the build looks at before it compiles."""
    major, minor = version.split(".")
    write(folder / "include/torch/csrc/api/include/torch/version.h",
          f"#define TORCH_VERSION_MAJOR {major}\n#define TORCH_VERSION_MINOR {minor}\n")
    for library in ("libtorch_cpu.so", *libraries):
        write(folder / "lib" / library, "\0libcudart-0a1b.so.12\0")
    return folder


@pytest.fixture(name="folder", scope="module")
def installed_and_built() -> Path:
    """The library is in `prefix`, the programs are in `build`."""
    folder = temporary_folder("examples")
    cmake("--install", BUILD, "--prefix", folder / "before")
    (folder / "before").rename(folder / "prefix")
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copytree(ROOT / "tests" / "examples", folder / "checks")
    for name in ("examples", "checks") if FULL else ("examples",):
        build = folder / "build" / name
        cmake("-S", folder / name, "-B", build, "-G", "Ninja",
              f"-DCMAKE_PREFIX_PATH={folder / 'prefix'}", f"-DEXAMPLES={folder / 'examples'}")
        cmake("--build", build)
    return folder


def lines_of(program: Path, *arguments: object) -> list[str]:
    done = launch(program, *arguments, environment=ALONE)
    assert done.code == 0, done.stderr
    return done.lines


def test_loop_and_trainer_end_with_equal_weights(folder: Path, tmp_path: Path) -> None:
    """On one process and on two, by compare.py, which writes a record and a table."""
    record = tmp_path / "results.json"
    done = launch(PYTHON, ROOT / "examples" / "compare.py", "--build",
                  folder / "build" / "examples", *FEW, "--seeds", 1, "--output", record)
    assert done.code == 0, done.stderr
    assert "Equal weights of ddp and trainer: 2 of 2 pairs of runs" in done.lines
    assert len([line for line in done.lines if line.startswith("| `")]) == 5
    losses = [run["test_loss"] for run in json.loads(record.read_text())["runs"]]
    assert len(losses) == 5 and max(losses) < 0.6  # that of a coin is 0.69


def test_gan_learns_the_ring_and_resumes(folder: Path, tmp_path: Path) -> None:
    """On one process, where the second run only loads, and on two, with the same noise."""
    gan = folder / "build" / "examples" / "gan"
    whole = lines_of(gan, tmp_path / "gan")
    assert lines_of(gan, tmp_path / "gan") == whole
    two = lines_of(TORCHRUN, "--standalone", "--no-python", "--nproc-per-node", 2, gan)
    for line in (whole[0], two[0]):
        assert re.fullmatch(r"mean radius (0\.9|1\.0)\d", line)


@full
def test_data_parallel_and_accelerator_end_with_those_weights(folder: Path) -> None:
    checks = folder / "build" / "checks" / "checks"
    weights = lines_of(folder / "build" / "examples" / "ddp", *FEW, "--nprocs", 2)[-1]
    assert lines_of(checks, "data_parallel", *FEW, "--nprocs", 1) == [weights]
    accelerated, accumulated = lines_of(checks, "accelerator", *FEW, "--nprocs", 2)
    assert accelerated == weights
    assert float(accumulated.removeprefix("accumulation ")) < 1e-5


def test_a_program_has_the_sources_that_add_themselves(folder: Path) -> None:
    """No other source calls them: the package names them to the linker."""
    assert b"ladder_shared_memory_backend" in (folder / "build" / "examples" / "ddp").read_bytes()
    if FULL:
        checks = folder / "build" / "checks" / "checks"
        assert lines_of(checks, "backend", *FEW, "--nprocs", 2) == ["shm"]


def test_a_program_of_the_spine_alone_ends_with_those_weights(folder: Path, tmp_path: Path) -> None:
    pairs = folder / "examples" / "pairs"
    code, output = configure(
        folder, tmp_path, "find_package(ladder REQUIRED)\nfind_package(ZLIB REQUIRED)\n"
        f"add_executable(ddp {pairs}/ddp.cpp)\n"
        "target_link_libraries(ddp PRIVATE ladder::spine ZLIB::ZLIB)")
    assert code == 0, output
    cmake("--build", tmp_path / "build")
    ddp = tmp_path / "build" / "ddp"
    assert b"ladder_durable_store" not in ddp.read_bytes()
    whole = folder / "build" / "examples" / "ddp"
    assert lines_of(ddp, *FEW, "--nprocs", 2) == lines_of(whole, *FEW, "--nprocs", 2)


@full
def test_several_labels_reach_compute_metrics(folder: Path) -> None:
    line, = lines_of(folder / "build/checks/checks", "two_labels", *FEW, "--nprocs", 1)
    assert re.fullmatch(r"brightness 0\.13\d\d", line)  # the mean of MNIST is 0.13


@full
def test_python_draws_the_same_pairs(folder: Path) -> None:
    code = ("import sys; sys.path.insert(0, sys.argv[1]); import pairs, torch\n"
            "from pathlib import Path\n"
            "left, right, same = pairs.pairs(Path(sys.argv[2]), 'train', 1301, 1).tensors\n"
            "rows = [left.long(), right.long(), 255 * same.long()]\n"
            "print('pairs', *((one.flatten() * torch.arange(one.numel())).sum().item() "
            "for one in rows))")
    assert lines_of(PYTHON, "-c", code, ROOT / "examples" / "pairs", DATA) == \
        lines_of(folder / "build/checks/checks", "pairs_sum", *FEW, "--nprocs", 1)


def require_error(done: Result, code: int, message: str) -> None:
    assert done.code == code and message in done.stderr, done


@full
@pytest.mark.parametrize("limit", LIMITS)
def test_each_limit_is_met_as_the_page_states(folder: Path, limit: str) -> None:
    done = launch(folder / "build/checks/checks", limit, *FEW, "--nprocs",
                  2 if limit == "dispatched_lengths" else 1, environment=ALONE)
    require_error(done, *LIMITS[limit])


@pytest.mark.parametrize("arguments, code, message", [
    (("--data", "/nowhere"), 3, "/nowhere/train-images"), (("--lr", 1), 2, "--lr"),
    (("--pairs",), 2, "--pairs")])
def test_a_missing_file_and_an_unknown_flag_are_named(
        folder: Path, arguments: tuple[object, ...], code: int, message: str) -> None:
    done = launch(folder / "build" / "examples" / "ddp", *arguments, environment=ALONE)
    require_error(done, code, message)


def test_the_package_is_the_library_without_the_application(folder: Path) -> None:
    prefix = folder / "prefix"
    headers = list(prefix.rglob("*.h"))
    assert [path for path in headers if "mnist" in str(path.relative_to(prefix))
            or re.search(r'#include [<"]mnist/', path.read_text())] == []
    assert sorted(path.name for path in (prefix / "bin").iterdir()) == [
        "convert_checkpoint.py", "export_network.py"]
    cmake("--install", BUILD, "--prefix", prefix, "--component", "programs")
    assert launch(prefix / "bin" / "stage0_single_gpu", "--version").code == 0


def configure(folder: Path, source: Path, line: str, *more: str) -> tuple[int, str]:
    """Configures a project with this line, which finds the package."""
    project(source, f"project({source.name} LANGUAGES C CXX)", line)
    return run_cmake("-S", source, "-B", source / "build", "-G", "Ninja",
                     f"-DCMAKE_PREFIX_PATH={folder / 'prefix'}", *more)


def test_another_version_of_the_package_is_refused(folder: Path, tmp_path: Path) -> None:
    code, output = configure(folder, tmp_path, "find_package(ladder 0.0 REQUIRED)")
    assert code != 0 and 'requested version "0.0"' in output, output


def test_another_libtorch_than_that_of_the_package_is_refused(folder: Path,
                                                              tmp_path: Path) -> None:
    config = next((folder / "prefix").rglob("ladderConfig.cmake")).read_text()
    built, = re.findall(r'ladder_built_with "(.+)"', config)
    release, *has_cuda = built.split(" with ")
    rows = [(torch_folder(tmp_path / "old", "2.10"), f"expected {built}, which"),
            ("/nowhere", f"the folder of LibTorch {built}")]
    if has_cuda:
        same = torch_folder(tmp_path / "same", release)
        rows.append((same, f"got {release} without CUDA"))
    for torch, text in rows:
        code, output = configure(folder, tmp_path / "other", "find_package(ladder REQUIRED)",
                                 f"-DLADDER_TORCH_DIR={torch}")
        assert code != 0 and text in output, output


def test_a_project_can_find_the_package_twice(folder: Path, tmp_path: Path) -> None:
    code, output = configure(folder, tmp_path, "find_package(ladder REQUIRED)\n" * 2)
    assert code == 0, output


def test_a_project_can_contain_the_library(folder: Path, tmp_path: Path) -> None:
    """Without programs and tests; unity builds of either side do not meet."""
    shutil.copy(ROOT / "examples/gan/gan.cpp", tmp_path / "main.cpp")
    code, output = configure(
        folder, tmp_path, f"add_subdirectory({ROOT} ladder SYSTEM EXCLUDE_FROM_ALL)\n"
        "add_executable(main main.cpp)\ntarget_link_libraries(main ladder::ladder)",
        "-DLADDER_UNITY=ON", "-DCMAKE_UNITY_BUILD=ON")
    assert code == 0, output
    steps = launch("ninja", "-C", tmp_path / "build", "-n", "-v").stdout
    assert "ladder/ladder/libladder_spine.a" in steps and "stage0" not in steps
    compiled = [line for line in steps.splitlines()
                if " -c " in line and "ladder/ladder/CMakeFiles" in line]
    assert compiled and all(" -O" in line for line in compiled), compiled[:1]


def test_the_page_shows_the_record() -> None:
    record = json.loads(compare.RECORD.read_text(encoding="utf-8"))
    assert compare.table(record) in (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    equal, total = compare.pairs_of_equal_weights(record)
    assert equal == total


@pytest.mark.parametrize("program", ["ddp", "trainer"])
def test_a_program_has_at_most_ninety_lines(program: str) -> None:
    text = (ROOT / "examples" / "pairs" / f"{program}.cpp").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 90


# LADDER_TORCH_DIR and Torch_DIR name another LibTorch; only the configuration is tried.

def configure_ladder(folder: Path, **variables: object) -> tuple[int, str]:
    return run_cmake("-S", ROOT, "-B", folder, "-G", "Ninja", "-DLADDER_TESTS=OFF",
                     "-DLADDER_BENCH=OFF", **variables)


@pytest.mark.parametrize("variables, torch", [
    ({"LADDER_TORCH_DIR": TORCH, "PATH": "/usr/bin:/bin", "CUDA_HOME": ""}, TORCH),
    ({"CMAKE_PREFIX_PATH": "/nowhere"}, TORCH),  # that has no LibTorch: the own one
    ({"Torch_DIR": TORCH / "share/cmake/Torch", "TORCH_CUDA_ARCH_LIST": "9.0"},
     TORCH / "share/cmake/Torch")])
def test_a_libtorch_by_its_name(tmp_path: Path, variables: dict[str, object], torch: Path) -> None:
    if "Torch_DIR" in variables and shutil.which("nvcc") is None:
        pytest.skip("LibTorch's own package wants nvcc, and there is none")
    code, output = configure_ladder(tmp_path, **variables)
    assert code == 0 and f"LibTorch: {torch}" in output, output


def test_a_folder_of_the_environment_outlives_the_variable(tmp_path: Path) -> None:
    for variables, folder in (({"LADDER_TORCH_DIR": "/nowhere"}, "/nowhere"), ({}, "/nowhere"),
                              ({"LADDER_TORCH_DIR": ""}, str(TORCH))):
        code, output = configure_ladder(tmp_path, **variables)
        assert (code == 0) == (folder != "/nowhere")
        assert (f"{folder}/lib/libtorch_cpu.so" if code else f"LibTorch: {folder}") in output


CUDA = ("libtorch_cuda.so", "libc10_cuda.so")


@pytest.mark.parametrize("version, libraries, with_cuda, text", [
    ("2.8", (), "ON", "expected version 2.9 to 2.11, got 2.8; hint: point LADDER_TORCH_DIR"),
    ("2.9", (), "ON", "-- LibTorch: "), ("2.11", CUDA, "OFF", "-- LibTorch: "),
    ("2.12", (), "ON", "2.12 was not tried; the newest release that was is 2.11"),
    ("2.10", CUDA, "ON", "CUDA runtime of LibTorch: expected one of"),
    ("2.10", (*CUDA, "libcudart-0a1b.so.12"), "ON", "CUDA headers of LibTorch: expected one of")])
def test_releases_and_cuda_of_a_folder(tmp_path: Path, version: str, libraries: tuple[str, ...],
                                       with_cuda: str, text: str) -> None:
    torch = torch_folder(tmp_path / "torch", version, *libraries)
    project(tmp_path, "project(row LANGUAGES NONE)", f"include({ROOT}/cmake/LibTorch.cmake)")
    _, output = run_cmake("-S", tmp_path, "-B", tmp_path / "build", "-G", "Ninja",
                          f"-DLADDER_TORCH_DIR={torch}", f"-DLADDER_TORCH_CUDA={with_cuda}",
                          CUDA_HOME="")
    assert text in output, output
