# SPDX-License-Identifier: Apache-2.0
"""run, test and tools/*.sh in a checkout made here, among stubs of the commands they call."""
from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.files import write
from tests.support.programs import ROOT, launch

STAGE = "stage0_single_gpu"
STUBS = ROOT / "tests/support/stubs/setup"


def array(name: str) -> list[str]:
    """The words of one bash array of tools/setup.sh."""
    text = (ROOT / "tools/setup.sh").read_text(encoding="utf-8")
    return re.search(rf"^{name}=\(([^)]*)\)", text, re.MULTILINE).group(1).split()


BUILD_PACKAGES = array("build_packages")
ALL_PACKAGES = BUILD_PACKAGES + array("test_packages")


class Checkout:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "checkout"
        (self.root / "tools").mkdir(parents=True)
        for pattern in ("run", "test", "tools/*.sh", "requirements*.txt"):
            for path in ROOT.glob(pattern):
                shutil.copy(path, self.root / path.relative_to(ROOT))
        shutil.copytree(STUBS, folder / "stubs")
        for name in ("apt-get", "cmake", "ctest"):
            shutil.copy(STUBS / "record", folder / "stubs" / name)
        self.write(f"checkout/build/bin/{STAGE}", "#!/bin/sh\n")
        self.calls_file = folder / "calls"
        self.environment = {
            "PATH": f"{folder / 'stubs'}:/usr/bin:/bin", "CALLS": str(self.calls_file),
            "INSTALLED": " ".join(ALL_PACKAGES), "FOREIGN": "", "REMOVED": "", "SUDO_WORKS": "1",
            "UV_FAILS": "", "LADDER_TORCH_DIR": "/opt/libtorch"}

    def write(self, name: str, text: str) -> None:
        write(self.folder / name, text, executable=True)

    def start(self, *command: str, code: int | None = 0, **changes: str) -> str:
        """Runs a command in the checkout; the calls of the stubs are those of this run alone."""
        self.calls_file.write_text("", encoding="utf-8")
        done = launch(*command, cwd=self.root, environment=self.environment | changes)
        output = done.stdout + done.stderr
        assert done.code == code if code is not None else done.code, output
        return output

    def calls(self, name: str) -> list[str]:
        lines = self.calls_file.read_text(encoding="utf-8").splitlines()
        return [line for line in lines if line.split()[0] == name]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path.resolve())


SOME = " ".join(set(BUILD_PACKAGES) - {"cmake", "ccache", "zlib1g-dev", "g++"})


@pytest.mark.parametrize("level, state, wanted", [
    ("build", {"INSTALLED": ""}, BUILD_PACKAGES),
    ("build", {"INSTALLED": SOME, "FOREIGN": "zlib1g-dev", "REMOVED": "cmake"},
     ["g++", "cmake", "ccache"]),
    ("build", {}, []), ("twins", {}, []), ("bench", {}, []), ("test", {}, []),
    ("links", {"INSTALLED": " ".join(BUILD_PACKAGES)}, ["iproute2"]),
    ("bridge", {}, ["python3-dev"])])
def test_setup_installs_in_one_call_each_what_is_missing(
        checkout: Checkout, level: str, state: dict[str, str], wanted: list[str]) -> None:
    checkout.start("tools/setup.sh", level, LADDER_TORCH_DIR="", **state)
    call = ("apt-get install -y --no-install-recommends -qq -o APT::Status-Fd=3 "
            + " ".join(wanted))
    assert [one for one in checkout.calls("apt-get") if " update" not in one] == (
        [call] if wanted else [])
    uv, = checkout.calls("uv")
    assert re.findall(r"-rrequirements(\S*)\.txt", uv) == [
        "", *["-twins"] * (level not in ("build", "bridge")), *([f"-{level}"] * (level in ("bench", "test")))]


def test_packages_show_how_far_they_are(checkout: Checkout) -> None:
    checkout.write("stubs/apt-get", "#!/bin/sh\n[ $1 = update ] || printf 'dlstatus:1:50.9:a: b\\n"
                   "pmstatus:g++:9.5:c\\npmstatus:g++:100:c\\n' >&3\n")
    lines = checkout.start("tools/setup.sh", INSTALLED="").splitlines()
    assert [line for line in lines if "%" in line] == [
        f"setup: Debian packages, {done} of 100 %" for done in (25, 54, 100)]


@pytest.mark.parametrize("programs, line", [
    ("sudo", "sudo sh -c 'LINE'"), ("", "su - -c 'LINE'")])
def test_setup_without_root_prints_the_line_to_type(
        checkout: Checkout, programs: str, line: str) -> None:
    script = checkout.root / "tools/setup.sh"
    script.write_text(script.read_text().replace("((EUID))", "((1000))"))
    if not programs:
        (checkout.folder / "stubs/sudo").unlink()
        script.write_text(re.sub("(command -v|!) sudo", r"\1 /none/sudo", script.read_text()))
    known = [name for name in BUILD_PACKAGES if name not in ("cmake", "ccache")]
    output = checkout.start("tools/setup.sh", code=1, INSTALLED=" ".join(known), SUDO_WORKS="")
    wanted = line.replace(
        "LINE", "apt-get update && apt-get install -y --no-install-recommends cmake ccache")
    assert wanted in [text.removeprefix("setup:").strip() for text in output.splitlines()]
    assert checkout.calls("apt-get") == [] and "installing" not in output


def test_python_packages_are_installed_once_and_again_when_that_failed(checkout: Checkout) -> None:
    for fails, level, installs in (("1", "build", 1), ("", "build", 1), ("", "build", 0),
                                   ("", "twins", 1), ("", "build", 0), ("", "twins", 0),
                                   ("changed", "build", 1), ("", "build", 1), ("", "twins", 1)):
        if fails == "changed":
            (checkout.root / "requirements.txt").write_text("numpy==0\n", encoding="utf-8")
            (checkout.root / "requirements-twins.txt").write_text("a==0\n", encoding="utf-8")
        missing = checkout.start("tools/setup.sh", level, "--missing", LADDER_TORCH_DIR="")
        assert missing == "Python packages of .venv\n" * installs
        output = checkout.start("tools/setup.sh", level, code=None if fails else 0,
                                LADDER_TORCH_DIR="", UV_FAILS=fails)
        assert ("is ready" in output) == (not fails)
        assert len(checkout.calls("uv")) == installs


@pytest.mark.parametrize("name, ends_alike, kept", [
    ("moved-here", False, True), ("a place", False, False), ("moved-here", True, True),
    ("a place", True, False)])
def test_a_moved_checkout_keeps_its_packages_unless_scripts_cannot_name_it(
        checkout: Checkout, name: str, ends_alike: bool, kept: bool) -> None:
    first = checkout.root
    if ends_alike:  # the old name ends with the new one
        first = checkout.folder / str(checkout.folder / name)[1:]
        first.parent.mkdir(parents=True)
        checkout.root = checkout.root.rename(first)
    checkout.start("tools/setup.sh", LADDER_TORCH_DIR="")
    script = checkout.root / ".venv/bin/torchrun"
    script.write_text(f"#!{checkout.root}/.venv/bin/python\n")
    checkout.root = checkout.root.rename(checkout.folder / name)
    output = checkout.start("tools/setup.sh", LADDER_TORCH_DIR="")
    assert f"made as {first}/.venv" in output
    assert len(checkout.calls("uv")) == int(not kept)
    script = checkout.root / ".venv/bin/torchrun"
    assert not kept or script.read_text() == f"#!{checkout.root}/.venv/bin/python\n"


def test_too_little_room_is_reported_before_the_download(checkout: Checkout) -> None:
    checkout.write("stubs/df", "#!/bin/sh\necho a; echo b 9 9 5999 9\n")
    output = checkout.start("tools/setup.sh", code=1, LADDER_TORCH_DIR="")
    assert "6 GB of disk are needed" in output and "5999 MB are free" in output
    assert checkout.calls("uv") == []


@pytest.mark.parametrize("megabytes, cpus, compilers", [
    (2000, 8, 1), (4000, 8, 1), (5000, 2, 2), (16000, 2, 4), (16000, 64, 9)])
def test_the_memory_limits_the_compilers(checkout: Checkout, megabytes: int, cpus: int,
                                         compilers: int) -> None:
    checkout.write("stubs/awk", f"#!/bin/sh\necho {megabytes}\n")
    checkout.write("stubs/nproc", f"#!/bin/sh\necho {cpus}\n")
    checkout.start("tools/configure.sh", "release")
    assert f" -DCMAKE_JOB_POOLS=compile={compilers} " in checkout.calls("cmake")[0]


@pytest.mark.parametrize("command, home, fresh", [
    (["./run", STAGE], None, ""), (["./run", STAGE], "checkout", ""),
    (["./run", STAGE], "link", ""), (["./run", STAGE], "where-it-was", "--fresh "),
    (["./test", "--quick"], "where-it-was", "--fresh ")])
def test_a_moved_checkout_alone_configures_anew(checkout: Checkout, command: list[str],
                                                home: str | None, fresh: str) -> None:
    (checkout.folder / "link").symlink_to(checkout.root)
    for name in ("fmt-subbuild", "fmt-src"):
        (checkout.root / "build/_deps" / name).mkdir(parents=True)
    if home:
        (checkout.root / "build/CMakeCache.txt").write_text(
            f"CMAKE_HOME_DIRECTORY:INTERNAL={checkout.folder / home}\n", encoding="utf-8")
    checkout.start(*command)
    assert checkout.calls("cmake")[0].startswith(f"cmake {fresh}--preset release ")
    # The caches of fetched libraries, which --fresh leaves, go too.
    left = sorted(path.name for path in (checkout.root / "build/_deps").iterdir())
    assert left == ["fmt-src", "fmt-subbuild"][:1 if fresh else 2]


def test_lint_reads_every_source_but_the_tests(checkout: Checkout) -> None:
    assert "no sources to lint" in checkout.start("./test", "--quick", "--lint", code=None)
    assert checkout.calls("ctest") == []
    sources = ["bench/micro/main.cpp", "ladder/core/error.cpp", f"{STAGE}/main.cpp"]
    for name in [*sources, "tests/core/error_test.cpp", "mnist/a.h"]:
        checkout.write(f"checkout/{name}", "")
    output = checkout.start("./test", "--quick", "--lint")
    assert sorted(call.split()[-1] for call in checkout.calls("clang-tidy-19")) == sources
    assert "clang-tidy found nothing in 3 sources" in output
    checkout.write("stubs/clang-tidy-19", "#!/usr/bin/env bash\nexit 1\n")
    assert "found nothing" not in checkout.start("./test", "--quick", "--lint", code=None)
    assert checkout.calls("ctest") == []
