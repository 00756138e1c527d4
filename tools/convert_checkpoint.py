#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts a checkpoint of PyTorch (.pt) to safetensors, which the stages read, or back.

    .venv/bin/python tools/convert_checkpoint.py model.pt model.safetensors
    DIR/bin/convert_checkpoint.py model.safetensors model.pt  # installed to DIR

The .pt file holds a state dictionary, or a dictionary with one under "model", "state_dict" or
"model_state_dict" (--key names another). It is read with weights_only=True, so it cannot run code.
It may also be an archive of C++'s torch::save: a module, or an optimizer, whose tensors become
state.P.NAME of parameter P. Of an archive, only tensors and plain values are read, no code.
The prefixes "module." and "_orig_mod.", which DistributedDataParallel and torch.compile put before
each name, are removed; --strip PREFIX removes another one, also from a .safetensors file. The state of a GradScaler under "scaler" is converted too, both ways; all else is dropped,
with a note. OUTPUT must not exist. Exit code: 0 written, 1 refused, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pickle
import sys
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".tar")
KEYS = ("model", "state_dict", "model_state_dict")
PREFIXES = ("module.", "_orig_mod.")

try:
    import safetensors
    import torch
    from safetensors.torch import save_file
except ImportError as missing:
    sys.exit(f"error: {missing}; hint: pip install torch safetensors, or use .venv/bin/python after ./run")


# Those that load_safetensors reads.
DTYPES = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32,
          torch.int64, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64}


class Refused(Exception):
    """A conversion that cannot be done; the message has the file and a hint."""


class Checkpoint(NamedTuple):
    tensors: dict[str, torch.Tensor]
    scaler: dict[str, Any] | None = None  # state of a GradScaler
    archive: str | None = None  # JSON text of what is no tensor in the archive of an optimizer


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def is_state_dict(value: object) -> bool:
    return (isinstance(value, Mapping) and len(value) > 0
            and all(isinstance(tensor, torch.Tensor) for tensor in value.values()))


def unwrapped(name: str) -> str:
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def without_prefix(path: Path, tensors: Mapping[object, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Refuses what safetensors and the stages cannot hold."""
    result = {}
    for name, tensor in tensors.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise Refused(f"{path}: expected names of tensors, got {name!r}; hint: save "
                          "model.state_dict()")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise Refused(f"{path}: expected a dense tensor as {name}, got {tensor.layout}, "
                          f"{tensor.dtype} on {tensor.device}; hint: convert it before torch.save")
        result[unwrapped(name)] = tensor
    if len(result) < len(tensors):
        raise Refused(f"{path}: expected every tensor once, got one with and one without the prefix "
                      f"{' or '.join(PREFIXES)}; hint: remove one of the two")
    return result


def require_dtypes(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            cure = "torch.view_as_real(x)" if tensor.is_complex() else "x.to(torch.float32)"
            raise Refused(f"{path}: expected a dtype that the programs load, got {tensor.dtype} of "
                          f"{name}; hint: save {cure} in its place")


def stripped(path: Path, tensors: Mapping[str, torch.Tensor],
             prefix: str) -> dict[str, torch.Tensor]:
    prefix = unwrapped(prefix)  # as the names are already
    if other := next((name for name in tensors if not name.startswith(prefix)), None):
        raise Refused(f"{path}: expected names that begin with {prefix}, got {other}; hint: omit "
                      "--strip, or name the prefix of all")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


class Archive(dict):
    """A module of an archive of C++: its entries by name."""

    __setstate__ = dict.update


def tensor_of(storage: torch.Tensor, offset: int, size: Sequence[int], stride: Sequence[int],
              *_: object) -> torch.Tensor:
    return storage.as_strided(size, stride, offset)


class ArchiveReader(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(archive.open(f"{folder}/data.pkl"))
        self.archive, self.folder = archive, folder

    def find_class(self, module: str, name: str) -> object:
        if module.split(".")[0] == "__torch__":
            return Archive
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return tensor_of
        if module == "torch" and name.endswith("Storage") and hasattr(torch, name):
            return getattr(torch, name)._dtype
        raise pickle.UnpicklingError(f"unknown {module}.{name}")

    def persistent_load(self, identity: Sequence[Any]) -> torch.Tensor:
        _, dtype, key, *_ = identity
        record = bytearray(self.archive.read(f"{self.folder}/data/{key}"))
        return torch.frombuffer(record, dtype=dtype) if record else torch.empty(0, dtype=dtype)


def archive_folder(path: Path) -> str | None:
    """The folder in a file of C++'s torch::save; None for other files."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        return None
    folder = names[0].split("/")[0] if names else ""
    return folder if f"{folder}/constants.pkl" in names else None


def entries(archive: Archive, numbers: Mapping[str, str],
            prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All values by their full names; `numbers` replace the addresses that name parameters."""
    for name, value in archive.items():
        full = prefix + numbers.get(name, name)
        if isinstance(value, Archive):
            yield f"{full}.", "nested"
            yield from entries(value, numbers, f"{full}.")
        else:
            yield full, numbers.get(value, value) if isinstance(value, str) else value


def read_archive(path: Path, folder: str) -> Checkpoint:
    try:
        with zipfile.ZipFile(path) as archive:
            content = ArchiveReader(archive, folder).load()
        numbers: dict[str, str] = {}
        for name, value in entries(content, {}):
            if name.startswith("param_groups.") and ".params/" in name and isinstance(value, str):
                numbers.setdefault(value, str(len(numbers)))
        found = dict(entries(content, numbers))
        tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
        values = json.dumps({"values": {name: value for name, value in found.items()
                                        if name not in tensors}})
    except Exception as error:  # whatever damaged bytes lead to
        raise Refused(f"{path}: expected a file of torch.save, got: {first_line(error)}; hint: the "
                      "file is damaged, or of another kind") from error
    return Checkpoint(without_prefix(path, tensors), archive=values if numbers else None)


def read_pickled(path: Path, key: str | None) -> Checkpoint:
    folder = archive_folder(path)
    if folder is not None:
        return read_archive(path, folder)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise Refused(f"{path}: expected a file of torch.save with tensors and plain values only, got: "
                      f"{first_line(error)}; hint: save model.state_dict(), not the model"
                      ) from error
    except OSError:
        raise
    except Exception as error:  # anything, of a file that is not pickle
        raise Refused(f"{path}: expected a file of torch.save, got: {first_line(error)}; hint: the "
                      "file is damaged, or of another kind") from error
    if key is None and is_state_dict(content):
        return Checkpoint(without_prefix(path, content))
    found = content if isinstance(content, Mapping) else {}
    keys = [key] if key is not None else [name for name in KEYS if name in found]
    if not keys or not is_state_dict(found.get(keys[0])):
        raise Refused(f"{path}: expected a state dictionary{f' under {key!r}' if key else ''}, got "
                      f"{type(content).__name__} with {', '.join(map(repr, found)) or 'no keys'}; "
                      "hint: name the one of the weights with --key")
    scaler = found.get("scaler") or None
    if scaler is not None and not (isinstance(scaler, Mapping) and all(
            isinstance(value, (int, float)) and math.isfinite(value) for value in scaler.values())):
        raise Refused(f"{path}: expected finite numbers by name under 'scaler', got {type(scaler).__name__}; "
                      "hint: save scaler.state_dict()")
    dropped = [name for name in found if name not in (keys[0], "scaler")]
    if dropped:
        print(f"{path}: not converted: {', '.join(map(str, dropped))}", file=sys.stderr)
    return Checkpoint(without_prefix(path, found[keys[0]]), dict(scaler) if scaler else None)


def read_safetensors(path: Path) -> Checkpoint:
    try:
        with safetensors.safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            scaler = (file.metadata() or {}).get("scaler")
            return Checkpoint(without_prefix(path, tensors), json.loads(scaler) if scaler else None)
    except (safetensors.SafetensorError, ValueError) as error:
        raise Refused(f"{path}: expected a safetensors file, got {error}; hint: the file is damaged, "
                      "or of another kind") from error


def write(checkpoint: Checkpoint, path: Path) -> None:
    if path.suffix == ".safetensors":
        metadata = {"format": "pt"}
        if checkpoint.scaler is not None:
            metadata["scaler"] = json.dumps(checkpoint.scaler)
        if checkpoint.archive is not None:
            metadata["archive"] = checkpoint.archive
        # Tensors that share memory are refused otherwise.
        tensors = {name: tensor.detach().contiguous().clone()
                   for name, tensor in checkpoint.tensors.items()}
        save_file(tensors, path, metadata)
    elif checkpoint.scaler is not None:
        torch.save({"model": checkpoint.tensors, "scaler": checkpoint.scaler}, path)
    else:
        torch.save(checkpoint.tensors, path)


def convert(source: Path, target: Path, key: str | None, prefix: str) -> int:
    """Returns the number of tensors."""
    if not source.is_file():
        got = "something else" if source.exists() else "none"
        raise Refused(f"{source}: expected a file, got {got}; hint: check the path")
    if target.exists():
        raise Refused(f"{target}: expected no file of this name, got one; hint: remove it, or name "
                      "another")
    of_python = source.suffix != ".safetensors"
    checkpoint = read_pickled(source, key) if of_python else read_safetensors(source)
    checkpoint = checkpoint._replace(tensors=stripped(source, checkpoint.tensors, prefix))
    if target.suffix == ".safetensors":
        require_dtypes(source, checkpoint.tensors)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convert-") as folder:
        whole = Path(folder) / target.name
        write(checkpoint, whole)
        os.umask(mask := os.umask(0))
        whole.chmod(0o666 & ~mask)  # that of safetensors is for its user alone
        os.link(whole, target)  # unlike rename, never replaces a file
    return len(checkpoint.tensors)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, metavar="INPUT", help="checkpoint to read")
    parser.add_argument("output", type=Path, metavar="OUTPUT",
                        help=f"file to write: .safetensors, or {', '.join(PICKLED)}")
    parser.add_argument("--key", metavar="NAME", help="entry of a .pt file with the weights")
    parser.add_argument("--strip", metavar="PREFIX", default="",
                        help="beginning of every name, to be removed")
    options = parser.parse_args(given)
    if not options.strip and (
            (options.output.suffix == ".safetensors") == (options.input.suffix == ".safetensors")):
        parser.error("expected one .safetensors file and one other, got "
                     f"{options.input.name} and {options.output.name}")
    if options.output.suffix not in (".safetensors", *PICKLED):
        parser.error(f"OUTPUT: expected .safetensors, {', '.join(PICKLED)}, got {options.output.name}")
    try:
        count = convert(options.input, options.output, options.key, options.strip)
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:  # of reading and writing
        print(f"error: {first_line(error)}; hint: check the paths and permissions, and whether the "
              "disk is full or a limit set: df -h; ulimit -f", file=sys.stderr)
        return 1
    print(f"{options.output}: {count} tensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
