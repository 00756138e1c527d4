# SPDX-License-Identifier: Apache-2.0
"""tools/convert_checkpoint.py."""
from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.programs import ROOT, Result, run  # noqa: E402

sys.path.insert(0, str(ROOT / "tools"))
import convert_checkpoint  # noqa: E402

SCALER = {"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000,
          "_growth_tracker": 7}


class ConvertCheckpoint(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory(prefix="ladder-convert-")
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.weights = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.tensor(3),
                        "c": torch.ones(4, dtype=torch.bfloat16)}

    def run_tool(self, *arguments: str) -> Result:
        with contextlib.redirect_stdout(io.StringIO()) as out, \
             contextlib.redirect_stderr(io.StringIO()) as errors:
            try:
                code = convert_checkpoint.main([*arguments])
            except SystemExit as end:  # of argparse
                code = int(end.code or 0)
        return Result(code, out.getvalue(), errors.getvalue())

    def convert(self, source: str, target: str, *more: str) -> Result:
        return self.run_tool(f"{self.folder}/{source}", f"{self.folder}/{target}", *more)

    def save(self, content: object, name: str = "a.pt") -> None:
        torch.save(content, self.folder / name)

    def same(self, tensors: dict[str, torch.Tensor]) -> None:
        self.assertEqual(sorted(tensors), sorted(self.weights))
        for name, tensor in self.weights.items():
            self.assertEqual(tensors[name].dtype, tensor.dtype)
            self.assertTrue(torch.equal(tensors[name], tensor), name)

    def converted(self, *more: str) -> dict[str, torch.Tensor]:
        done = self.convert("a.pt", "a.safetensors", *more)
        self.assertEqual((done.code, done.stdout),
                         (0, f"{self.folder}/a.safetensors: 3 tensors\n"), done.stderr)
        self.assertEqual((self.folder / "a.safetensors").stat().st_mode,
                         (self.folder / "a.pt").stat().st_mode)
        return load_file(self.folder / "a.safetensors")

    def refused(self, text: str, source: str = "a.pt", target: str = "a.safetensors",
                *more: str, code: int = 1) -> None:
        before = sorted(self.folder.iterdir())
        done = self.convert(source, target, *more)
        self.assertEqual((done.code, done.stdout), (code, ""), done.stderr)
        self.assertIn(text, done.stderr)
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_a_state_dictionary_and_back(self) -> None:
        self.save(self.weights)
        self.same(self.converted())
        self.assertEqual(self.convert("a.safetensors", "b.pt").code, 0)
        self.same(torch.load(self.folder / "b.pt", weights_only=True))

    def test_the_prefix_of_a_wrapper_is_removed(self) -> None:
        self.save({"module.b": torch.ones(1), "b": torch.ones(1)})
        self.refused("a.pt: expected every tensor once, got one with and one without the prefix")
        self.save({f"module.{name}": tensor for name, tensor in self.weights.items()})
        self.same(self.converted())

    def test_a_prefix_by_its_name(self) -> None:
        """Of torch.compile without it; also from what is safetensors already."""
        self.save({f"module._orig_mod.model.{name}": tensor for name, tensor in self.weights.items()})
        self.refused("expected names that begin with net., got model.a.weight; hint: omit --strip",
                     "a.pt", "a.safetensors", "--strip", "net.")
        save_file(self.converted(), self.folder / "b.safetensors")
        self.assertEqual(self.convert("b.safetensors", "c.safetensors", "--strip", "model.").code, 0)
        self.same(load_file(self.folder / "c.safetensors"))
        for number, prefix in enumerate(("_orig_mod.", "module._orig_mod.", "_orig_mod.module.")):
            self.save({f"{prefix}{name}": tensor for name, tensor in self.weights.items()})
            target = f"{number}.safetensors"
            self.assertEqual(self.convert("a.pt", target, "--strip", prefix).code, 0)
            self.same(load_file(self.folder / target))

    def test_views_of_one_tensor_are_written_each(self) -> None:
        both = torch.arange(6.0).view(3, 2)
        self.weights = {"a": both.t(), "b": both[0], "c": both}
        self.save(self.weights)
        self.same(self.converted())

    def test_the_state_of_a_scaler_goes_along(self) -> None:
        self.save({"model": self.weights, "scaler": SCALER, "epoch": 3})
        self.same(self.converted())
        with safetensors.safe_open(self.folder / "a.safetensors", "pt") as file:
            self.assertEqual(json.loads(file.metadata()["scaler"]), SCALER)
        done = self.convert("a.safetensors", "b.pt")
        self.assertEqual(done.code, 0, done.stderr)
        back = torch.load(self.folder / "b.pt", weights_only=True)
        self.assertEqual(back["scaler"], SCALER)
        self.same(back["model"])

    def test_what_is_dropped_is_named(self) -> None:
        self.save({"state_dict": self.weights, "epoch": 3, "optimizer": {"lr": 0.1}})
        done = self.convert("a.pt", "a.safetensors")
        self.assertEqual((done.code, done.stderr),
                         (0, f"{self.folder}/a.pt: not converted: epoch, optimizer\n"))

    def test_another_key_is_named_by_the_user(self) -> None:
        self.save({"ema": self.weights})
        self.refused("expected a state dictionary, got dict with 'ema'; hint: name the one of the "
                     "weights with --key")
        self.refused("expected a state dictionary under 'x'", "a.pt", "a.safetensors", "--key", "x")
        self.same(self.converted("--key", "ema"))

    def test_archives_of_cpp_become_what_the_library_writes(self) -> None:
        """But for the class of the optimizer, which its archive does not have."""
        self.assertEqual(run("state_helper", "archive", self.folder).code, 0)
        metadata = {}
        for name in ("model", "adam"):
            done = self.convert(f"{name}.pt", f"{name}_pt.safetensors")
            self.assertEqual(done.code, 0, done.stderr)
            self.weights = load_file(self.folder / f"{name}.safetensors")
            self.same(load_file(self.folder / f"{name}_pt.safetensors"))
            for file in (f"{name}_pt", name):
                with safetensors.safe_open(self.folder / f"{file}.safetensors", "pt") as opened:
                    metadata[file] = opened.metadata()
        self.assertEqual(metadata["model_pt"], metadata["model"])
        self.assertEqual(json.loads(metadata["adam_pt"]["archive"])["values"],
                         json.loads(metadata["adam"]["archive"])["values"])

    def test_any_other_input_is_refused(self) -> None:
        """Also a file that could run code; a pipe is not waited for."""
        self.refused("a.pt: expected a file, got none; hint: check the path")
        for content in (b"PK\3\4 damaged", b"hello\n", b"a\nb\n"):
            (self.folder / "a.pt").write_bytes(content)
            self.refused("a.pt: expected a file of torch.save")
        self.save(torch.nn.Linear(1, 1))
        self.refused("with tensors and plain values only, got: ")
        self.save(self.weights)
        self.refused("nowhere", "a.pt", "nowhere/a.safetensors")
        with zipfile.ZipFile(self.folder / "b.pt", "w") as archive:
            archive.writestr("a/constants.pkl", b"")
            archive.writestr("a/data.pkl", pickle.dumps(print))
        self.refused("b.pt: expected a file of torch.save, got: unknown builtins.print", "b.pt")
        (self.folder / "b.safetensors").write_bytes(b"{}")
        self.refused("b.safetensors: expected a safetensors file", "b.safetensors", "c.pt")
        os.mkfifo(self.folder / "pipe.pt")
        self.refused("pipe.pt: expected a file, got something else; hint: check the path", "pipe.pt")
        self.refused("expected one .safetensors file and one other", "a.pt", "b.pt", code=2)
        self.refused("OUTPUT: expected .safetensors, .pt", "a.safetensors", "b.txt", code=2)

    def test_an_existing_file_is_kept(self) -> None:
        self.save(self.weights)
        save_file(self.weights, self.folder / "a.safetensors")
        before = (self.folder / "a.safetensors").read_bytes()
        self.refused("a.safetensors: expected no file of this name, got one; hint: remove it")
        self.assertEqual((self.folder / "a.safetensors").read_bytes(), before)

    def test_what_safetensors_cannot_hold_is_refused(self) -> None:
        one = torch.ones(2, 2)
        for weights, text in (({"__metadata__": one}, "expected names of tensors, got '__metadata__'"),
                              ({1: one}, "expected names of tensors, got 1"),
                              ({"a": one.to_sparse()}, "expected a dense tensor as a, got "),
                              ({"a": one.to("meta")}, "expected a dense tensor as a, got "),
                              ({"a": one.to(torch.complex128)}, "save torch.view_as_real(x)")):
            self.save(weights)
            self.refused(text)

        self.save({"model": {"a": one}, "scaler": {"scale": float("nan")}})
        self.refused("expected finite numbers by name under 'scaler'")

    def test_a_dtype_is_converted_if_the_programs_load_it(self) -> None:
        """Every one that torch.save can hold; the other way, Python has them all."""
        loaded = set()
        for dtype in {one for one in vars(torch).values() if isinstance(one, torch.dtype)}:
            try:
                self.save({"a": torch.empty(2, dtype=dtype)})
            except (RuntimeError, KeyError):  # it cannot hold them
                continue
            if self.convert("a.pt", f"{dtype}.safetensors").code == 0:
                loaded.add(dtype)
            else:
                self.refused(f"a.pt: expected a dtype that the programs load, got {dtype} of a")
        self.assertEqual(loaded, convert_checkpoint.DTYPES)
        save_file({"a": torch.ones(2).to(torch.float8_e5m2)}, self.folder / "b.safetensors")
        self.assertEqual(self.convert("b.safetensors", "b.pt").code, 0)

    def test_a_python_without_torch(self) -> None:
        done = run(Path(sys.executable), "-S", ROOT / "tools" / "convert_checkpoint.py")
        self.assertEqual((done.code, len(done.errors)), (1, 1), done.stderr)
        self.assertIn("hint: pip install torch safetensors, or use .venv/bin/python ", done.stderr)

    def test_help(self) -> None:
        done = self.run_tool("--help")
        self.assertEqual(done.code, 0, done.stderr)
        self.assertIn("weights_only=True", done.stdout)


if __name__ == "__main__":
    unittest.main()
