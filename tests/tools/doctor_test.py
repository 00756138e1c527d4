# SPDX-License-Identifier: Apache-2.0
"""tools/doctor.py on machines made here: folders, and programs that answer as others would."""
from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import doctor
import pytest

from tests.support.files import write
from tests.support.in_process import Start

PROGRAMS = {"g++": "g++ (Debian) 12.2.0", "cmake": "cmake version 3.25.1", "ninja": "1.11.1",
            "python3": "Python 3.11.2"}
PACKAGES = ".venv/lib/python3.11/site-packages"


class Machine:
    """One that has all."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, start: Start) -> None:
        self.root, self.path = folder / "checkout", folder / "bin"
        self.monkeypatch, self.start = monkeypatch, start
        for name, text in PROGRAMS.items():
            self.program(name, text)
        (self.root / PACKAGES / "torch-2.11.0.dist-info").mkdir(parents=True)
        for kind in ("train", "t10k"):
            write(self.root / f"data/mnist/{kind}-images-idx3-ubyte")
            write(self.root / f"data/mnist/{kind}-labels-idx1-ubyte.gz")
        for name in ("LADDER_TORCH_DIR", "Torch_DIR", "CXX"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PATH", str(self.path))

    def program(self, name: str, answer: str) -> None:
        write(self.path / name, f"#!/bin/sh\necho '{answer}'\n", executable=True)

    def look(self) -> tuple[int, dict[str, tuple[str, str]], str]:
        """Exit code, state and text by subject, and the last line."""
        code, output, _ = self.start(doctor, "--root", self.root)
        *lines, last = output.splitlines()
        return code, {line[9:23].strip(): (line[:8].strip(), line[24:]) for line in lines}, last


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start) -> Machine:
    return Machine(tmp_path, monkeypatch, start)


def test_a_machine_that_has_all(machine: Machine) -> None:
    code, rows, last = machine.look()
    assert (code, last) == (0, "nothing is missing"), rows
    for subject in ("g++", "cmake", "ninja", "Python", "LibTorch", "data set", "loopback"):
        assert rows[subject][0] == "ok", rows[subject]
    assert rows["GPUs"][0] == "note" and "on the CPU too" in rows["GPUs"][1]
    assert rows["srun"] == ("note", "not found; only with SLURM")


@pytest.mark.parametrize("name, subject, answer, state, text", [
    ("g++", "g++", "g++ 11.4.0", "missing", "11.4.0; 12 or newer"),
    ("clang++", "clang", "Debian clang version 16.0.6 (15~deb12u1)", "ok", "16.0.6"),
    ("clang++", "clang", "Debian clang version 14.0.6", "missing", "14.0.6; 16 or newer"),
    ("cmake", "cmake", "cmake version 3.18.4", "missing", "3.18.4; 3.25 or newer"),
    ("ninja", "ninja", "", "missing", "not found; ./run sets it up"),
    ("python3", "Python", "Python 3.9.18", "missing", "3.9.18; 3.10 to 3.13"),
    ("python3", "Python", "Python 3.10.0", "ok", "3.10.0"),
    ("python3", "Python", "Python 3.13.7", "ok", "3.13.7"),
    ("python3", "Python", "Python 3.14.0", "missing", "3.14.0; 3.10 to 3.13"),
    ("nvidia-smi", "GPUs", "NVIDIA H100, 580.65.06", "ok", "NVIDIA H100, 580.65.06"),
    ("nvidia-smi", "GPUs", "NVIDIA H100, 570.124", "note", "NVIDIA H100, 570.124; driver 580"),
    ("mpirun", "mpirun", "", "ok", "")])
def test_programs(machine: Machine, name: str, subject: str, answer: str, state: str,
                  text: str) -> None:
    machine.program(name, answer)
    if name == "clang++":
        machine.monkeypatch.setenv("CXX", name)
    code, rows, last = machine.look()
    assert rows[subject][0] == state and rows[subject][1].startswith(text)
    assert ("g++" in rows) == (name != "clang++")
    assert (code, last) == ((1, f"missing: {subject}") if state == "missing" else
                            (0, "nothing is missing"))


def test_the_python_of_the_checkout_comes_first(machine: Machine) -> None:
    machine.program("python3", "Python 3.14.0")
    (machine.root / ".venv/bin").mkdir()
    (machine.path / "python3").rename(machine.root / ".venv/bin/python3")
    assert machine.look()[1]["Python"][0] == "missing"


@pytest.mark.parametrize("package, folder, state, text", [
    ("torch-2.9.1", "", "missing", "2.9.1 in .venv; 2.11 is needed"),
    ("other-1.0", "", "note", "not in .venv yet; ./run sets it up"),
    ("torch-2.9.1", "/usr", "ok", "/usr"),
    ("torch-2.11.0", "/none", "missing", "/none; no such folder")])
def test_libtorch(machine: Machine, package: str, folder: str, state: str, text: str) -> None:
    packages = machine.root / PACKAGES
    (packages / "torch-2.11.0.dist-info").rename(packages / f"{package}.dist-info")
    machine.monkeypatch.setenv("LADDER_TORCH_DIR", folder)
    code, rows, _ = machine.look()
    assert (code, rows["LibTorch"][0]) == (int(state == "missing"), state)
    assert rows["LibTorch"][1].startswith(text)


@pytest.mark.parametrize("free, code, text", [
    ({"/usr": 0.4}, 1, "0.4 GiB are free in /usr; 0.5 are needed there"),
    ({"/usr": 9}, 0, "9.0 GiB are free in /usr"),
    ({"checkout": 5.5}, 1, "5.5 GiB are free in")])
def test_each_disk_has_room(machine: Machine, free: dict[str, float], code: int,
                            text: str) -> None:
    (machine.root / PACKAGES / "torch-2.11.0.dist-info").rmdir()
    machine.monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: SimpleNamespace(
        free=free.get(str(folder), free.get(Path(folder).name, 9)) * 2**30))
    found, output, _ = machine.start(doctor, "--root", machine.root)
    assert (found, f"disk           {text}" in output) == (code, True), output


@pytest.mark.parametrize("missing, row", [
    ("", ("ok", "all")),
    ("g++\nPython packages of .venv\n", ("note", "g++, Python packages of .venv; ./run sets it up"))])
def test_packages(machine: Machine, missing: str, row: tuple[str, str]) -> None:
    machine.program("dpkg-query", "")
    write(machine.root / "tools/setup.sh", f"#!/bin/sh\nprintf '{missing}'\n", executable=True)
    assert machine.look()[1]["packages"] == row


def test_data_that_is_missing(machine: Machine) -> None:
    (machine.root / "data/mnist/train-images-idx3-ubyte").unlink()
    code, rows, last = machine.look()
    assert (code, last) == (1, "missing: data set")
    assert rows["data set"][1].startswith("no train-images; git checkout -- data")


def test_a_name_localhost_that_does_not_resolve(machine: Machine) -> None:
    known = socket.getaddrinfo

    def look_up(host: str, *arguments: int) -> object:
        if host == "localhost":
            raise socket.gaierror("Name or service not known")
        return known(host, *arguments)

    machine.monkeypatch.setattr(socket, "getaddrinfo", look_up)
    code, rows, last = machine.look()
    assert (code, last) == (1, "missing: loopback")
    assert rows["loopback"][1].startswith("localhost: Name or service not known; ")
    assert "echo '127.0.0.1 localhost' >> /etc/hosts" in rows["loopback"][1]


@pytest.mark.parametrize("flags, output, message", [
    ([], "/dev/full", "[Errno 28] No space left on device"),
    (["--root", "/none"], "/dev/null", "[Errno 2] No such file or directory: '/none'")])
def test_a_failure_is_one_line(flags: list[str], output: str, message: str) -> None:
    with open(output, "w", encoding="utf-8") as file:
        done = subprocess.run([sys.executable, doctor.__file__, *flags], stdout=file, text=True,
                              stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, f"doctor: {message}\n")
