#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a network of PyTorch as a .pt2 file, which a C++ program trains: ladder::ExportedModule.

    python export_network.py NETWORK out.pt2

NETWORK is a function without arguments, as net.py:make or package.module:make. It returns

    network, inputs[, dynamic_shapes]

inputs: example inputs of at least two samples, a tensor, a tuple of tensors or a dict by the names
of forward's arguments. dynamic_shapes: as of torch.export.export; without it, the first dimension
of each input may vary, and all have the same.

The file holds the network twice, as train() and as eval() compute it, and each weight once.
"""
from __future__ import annotations

import argparse
import importlib
import io
import json
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export.pt2_archive._package import package_pt2

MODES = ("train", "eval")


def export_network(network: torch.nn.Module, inputs: Any, path: str | Path,
                   dynamic_shapes: Any = None) -> None:
    """The network keeps its mode."""
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})
    if dynamic_shapes is None:
        batch = {0: torch.export.Dim("batch")}
        dynamic_shapes = dict.fromkeys(kwargs, batch) if kwargs else (batch,) * len(args)
    was_training = network.training
    programs = {mode: torch.export.export(network.train(mode == "train"), args, kwargs,
                                          dynamic_shapes=dynamic_shapes) for mode in MODES}
    network.train(was_training)
    both = io.BytesIO()
    package_pt2(both, exported_programs=programs)
    share_weights(both, path)


def share_weights(both: io.BytesIO, path: str | Path) -> None:
    """Of the two models that package_pt2 has written, each with its weights, eval gets train's."""
    with zipfile.ZipFile(both) as source, zipfile.ZipFile(path, "w") as target:
        root = source.namelist()[0].partition("/")[0] + "/data/weights/"
        tables = [f"{root}{mode}_weights_config.json" for mode in MODES]
        kept = {root + weight["path_name"]
                for weight in json.loads(source.read(tables[0]))["config"].values()}
        for name in source.namelist():
            if name in kept or not name.startswith(root + "weight_"):
                target.writestr(name, source.read(tables[0] if name == tables[1] else name))


def load(network: str) -> Any:
    """What the function NETWORK returns."""
    module, colon, function = network.rpartition(":")
    if not colon:
        sys.exit(f"export_network: NETWORK: expected FILE.py:FUNCTION, got '{network}'; "
                 f"hint: {network}:make")
    sys.path.insert(0, str(Path(module).resolve().parent if module.endswith(".py") else "."))
    return getattr(importlib.import_module(Path(module).stem if module.endswith(".py") else module),
                   function)()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", metavar="NETWORK")
    parser.add_argument("path", metavar="out.pt2")
    given = parser.parse_args()
    network, inputs, *dynamic_shapes = load(given.network)
    export_network(network, inputs, given.path, *dynamic_shapes)


if __name__ == "__main__":
    main()
