# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of pyproject.toml with CMake, for the torch of this Python. It needs no other package."""
from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build-torch_distributed"
TESTED = "2.11"  # LADDER_TORCH_VERSION of cmake/LibTorch.cmake
HINT = ("hint: tools/setup.sh bridge, then .venv/bin/pip install --no-build-isolation --no-deps "
        "./bridges/torch_distributed")
NAME, VERSION = "ladder_distributed", "0.3.0"
PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
TAG = f"{PYTHON}-{PYTHON}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def refuse(what: str, expected: str, got: str) -> None:
    sys.exit(f"{NAME}: {what}: expected {expected}, got {got}; {HINT}")


def torch_folder() -> tuple[str, Path]:
    """Release and folder of the torch of this Python."""
    try:
        import torch
    except ImportError:
        refuse("torch", f"release {TESTED} in this Python", "none")
    release = torch.__version__.partition("+")[0]
    if not release.startswith(f"{TESTED}."):
        refuse("torch", f"release {TESTED}", release)
    return release, Path(torch.__file__).parent


def built_module(torch: Path) -> Path:
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        refuse("headers of Python", str(headers / "Python.h"), "none")
    for command in (["-S", HERE, "-B", BUILD, "-G", "Ninja", f"-DPython3_EXECUTABLE={sys.executable}",
                     f"-DLADDER_TORCH_DIR={torch}", "-DLADDER_UNITY=ON"],
                    ["--build", BUILD, "--target", "_backend"]):
        subprocess.run(["cmake", *command], check=True)
    return BUILD / f"_backend{sysconfig.get_config_var('EXT_SUFFIX')}"


def build_wheel(wheel_directory: str, config_settings: object = None,
                metadata_directory: object = None) -> str:
    release, torch = torch_folder()
    info = f"{NAME}-{VERSION}.dist-info"
    module = built_module(torch)
    files = {f"{NAME}/__init__.py": (HERE / NAME / "__init__.py").read_bytes(),
             f"{NAME}/{module.name}": module.read_bytes(),
             f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n"
                                 f"Requires-Dist: torch=={release}\n".encode(),
             f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: false\n"
                              f"Tag: {TAG}\n".encode()}
    hashes = {name: base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
              for name, content in files.items()}
    record = [f"{name},sha256={hashes[name]},{len(content)}" for name, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,\n"]).encode()
    wheel = f"{NAME}-{VERSION}-{TAG}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel
