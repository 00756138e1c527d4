# SPDX-License-Identifier: Apache-2.0
"""Networks of PyTorch in C++, by bridges/exported_program: bits, wrappers, ranks, refusals.

With LADDER_FULL in the environment, all networks; else the small ones.
"""
from __future__ import annotations

import importlib.util
import io
import json
import multiprocessing
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.export.pt2_archive._package import load_pt2, package_pt2
from torch.nn.parallel import DistributedDataParallel

from tests.bridges import exported_networks
from tests.support.programs import (BIN, FULL, ROOT, SECONDS, Result, free_port, launch,
                                    require_refused, result_record)
from tests.support.ways import STAGE3, STAGE5, STAGE6, one_rank, small, train

SCRIPT = ROOT / "bridges" / "exported_program" / "export_network.py"
spec = importlib.util.spec_from_file_location("export_network", SCRIPT)
assert spec is not None and spec.loader is not None
export_network = importlib.util.module_from_spec(spec)
spec.loader.exec_module(export_network)

SMALL = ("words", "scatter", "shapes")
NAMES = [make.__name__ for make in exported_networks.NETWORKS if FULL or make.__name__ in SMALL]
ONE_THREAD = {"OMP_NUM_THREADS": 1}
STEPS = 5


def made(name: str, rows: int | None = None) -> tuple[Any, ...]:
    torch.manual_seed(1)
    return getattr(exported_networks, name)(*([] if rows is None else [rows]))


@pytest.fixture(scope="session", name="exported")
def exported_files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("exported")
    torch.set_num_threads(1)

    def exported(name: str) -> Path:
        path = folder / f"{name}.pt2"
        if not path.exists():
            network, inputs, *shapes = made(name)
            export_network.export_network(network, inputs, path, *shapes)
        return path
    return exported


def helper(*arguments: object) -> None:
    done = launch(BIN / "exported_helper", *arguments, environment=ONE_THREAD)
    assert done.code == 0, done.stderr


def outputs_of(value: Any) -> list[Tensor]:
    if isinstance(value, dict):
        value = tuple(value.values())
    return list(value) if isinstance(value, tuple) else [value]


def loss_of(outputs: list[Tensor]) -> Tensor:
    loss = outputs[0].float().square().mean()
    for output in outputs[1:]:
        loss = loss + output.float().square().mean()
    return loss


def pythons_step(network: nn.Module, inputs: dict[str, Tensor],
                 autocast: bool = False) -> dict[str, Tensor]:
    """What exported_helper writes."""
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        outputs = outputs_of(network(**inputs))
    if autocast:
        outputs = [output.float() for output in outputs]
    loss_of(outputs).backward()
    return ({f"output.{i}": output.detach() for i, output in enumerate(outputs)}
            | {f"grad.{name}": parameter.grad
               for name, parameter in network.named_parameters(remove_duplicate=False)
               if parameter.grad is not None}
            | {f"buffer.{name}": network.get_buffer(name) for name in network.state_dict()
               if name in dict(network.named_buffers())})


def step(path: Path, inputs: dict[str, Tensor], folder: Path, mode: str = "train",
         wrapper: str = "none") -> dict[str, Tensor]:
    save_file(inputs, folder / "in")
    helper("step", path, folder / "in", folder / "out", mode, wrapper)
    return load_file(folder / "out")


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    return sorted({*one} ^ {*other}) + [
        name for name in {*one} & {*other}
        if one[name].dtype != other[name].dtype or not torch.equal(one[name], other[name])]


@pytest.mark.parametrize("mode", ("train", "eval"))
@pytest.mark.parametrize("name", NAMES)
def test_a_step_has_pythons_bits(exported: Callable[[str], Path], tmp_path: Path, name: str,
                                 mode: str) -> None:
    """Outputs, gradients and buffers at one thread, with another number of rows than exported."""
    rows = {"scatter": 11}.get(name, 7)
    network, inputs, *_ = made(name, rows)
    expected = pythons_step(network.train(mode == "train"), inputs)
    found = step(exported(name), inputs, tmp_path, mode)
    assert len([key for key in found if key.startswith("grad.")]) > 1
    assert differing(expected, found) == []


@pytest.mark.parametrize("wrapper", ("copy", "ddp", "accelerator", "data_parallel", "autocast"))
@pytest.mark.parametrize("name", [name for name in NAMES if name != "words"])  # it has two outputs
def test_wrappers_take_it(exported: Callable[[str], Path], tmp_path: Path, name: str,
                          wrapper: str) -> None:
    """With Python's bits, except those of DataParallel, which adds in another order."""
    if (wrapper, name) in (("data_parallel", "scatter"), ("data_parallel", "shapes"),
                           ("autocast", "scatter")):
        pytest.skip("a row depends on others; or as in Python, scatter_add refuses two dtypes")
    mode = "eval" if wrapper == "data_parallel" else "train"  # else replicas have other masks
    network, inputs, *_ = made(name)
    expected = pythons_step(network.train(mode == "train"), inputs, wrapper == "autocast")
    found = step(exported(name), inputs, tmp_path, mode, wrapper)
    if wrapper != "data_parallel":
        assert differing(expected, found) == []
    for key, value in found.items():
        assert torch.allclose(value, expected[key], rtol=1e-4, atol=1e-6), key


# --- several ranks ----------------------------------------------------------------------


def pythons_rank(rank: int, name: str, inputs: dict[str, Tensor], out: Path, store: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    network, *_ = made(name)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    part = {key: value.chunk(2)[rank] for key, value in inputs.items()}
    torch.manual_seed(0)
    for _ in range(STEPS):
        loss_of(outputs_of(model(**part))).backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        torch.save(network.state_dict(), out)
    dist.destroy_process_group()


def pythons_training(name: str, inputs: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=pythons_rank, args=(rank, name, inputs, folder / "python.pt",
                                                        folder / "store")) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(SECONDS)
        assert process.exitcode == 0
    return torch.load(folder / "python.pt", weights_only=True)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "scatter"])
def test_two_ranks_train_as_pythons(exported: Callable[[str], Path], tmp_path: Path,
                                    name: str) -> None:
    """And the weights load in Python by name."""
    network, inputs, *_ = made(name, 8)
    save_file(inputs, tmp_path / "in")
    expected = pythons_training(name, inputs, tmp_path)
    # Buckets of fully sharded units add up in another order of memory, not of ranks.
    for wrapper in ("reducer",) if name == "words" else ("ddp", "zero", "sharded", "reducer"):
        if wrapper == "sharded" and name == "shapes":
            continue  # a frozen parameter
        helper("train", exported(name), tmp_path / "in", tmp_path / "out", 2, STEPS, wrapper)
        weights = load_file(tmp_path / "out")
        missing, surplus = network.load_state_dict(weights, strict=False)
        assert surplus == [] and set(missing) <= {"head.weight", "words.weight"}  # tied: one of two
        for key, value in weights.items():
            if "running" not in key:  # each implementation keeps those of its last forward
                assert torch.allclose(value, expected[key], rtol=1e-4, atol=1e-6), (wrapper, key)


class Digits(nn.Module):
    """A small network for the stages, with BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 5, 3), nn.BatchNorm2d(4)
        self.fc = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(x))).flatten(1)
        return F.log_softmax(self.fc(F.dropout(x, 0.2, self.training)), dim=1)


@pytest.fixture(scope="session", name="digits")
def digits_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "digits.pt2"
    torch.manual_seed(1)
    export_network.export_network(Digits(), torch.ones(2, 1, 28, 28), path)
    return path


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4),
                                   nn.BatchNorm1d(4, affine=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.norms(x).sigmoid()


def test_two_ranks_share_their_batch_norm(tmp_path: Path) -> None:
    """They train the network of one rank with the whole batch; without conversion, another."""
    export_network.export_network(Normed(), torch.ones(2, 3), tmp_path / "net")
    save_file({"x": exported_networks.normal(6, 3).cumsum(0)}, tmp_path / "in")
    weights = {}
    for ranks, wrapper in ((1, "ddp"), (2, "ddp"), (2, "sync")):
        helper("train", tmp_path / "net", tmp_path / "in", tmp_path / "out", ranks, STEPS, wrapper)
        weights[ranks, wrapper] = load_file(tmp_path / "out")
    far = {run: max(float((found[key] - value).abs().max())
                    for key, value in weights[1, "ddp"].items() if "tracked" not in key)
           for run, found in weights.items()}
    assert far[2, "ddp"] > 1e-2 and far[2, "sync"] < 1e-5, far


EACH_EPOCH = {  # how a stage saves, and how it resumes
    STAGE3: (("--snapshot", "snapshot"), ()),
    STAGE5: (("--project-dir", "project", "--checkpointing-steps", "epoch"), ("--resume", "auto")),
    STAGE6: (("--profile", "none", "--output-dir", "out", "--save-strategy", "epoch",
              "--lr-scheduler-type", "constant"), ("--resume",))}


@pytest.mark.parametrize("stage", EACH_EPOCH, ids=lambda stage: stage.name)
def test_stages_resume_with_it(digits: Path, tmp_path: Path, stage: Path) -> None:
    """To the weights of a run without interruption, with the same masks of dropout."""
    saves, resumes = EACH_EPOCH[stage]
    way = one_rank(0, 1, free_port(), program=stage)
    runs = [small("--network", digits, *flags, limit_train=320, epochs=epochs)
            for epochs, flags in ((2, saves), (1, saves), (2, (*saves, *resumes)))]
    whole, first = (train(way, *flags, parent=tmp_path) for flags in runs[:2])
    again = launch(*way.command, *runs[2], "--metrics", "b.jsonl", cwd=first.folder,
                   environment=way.environment)
    assert again.code == 0, again.stderr
    result = result_record(first.folder / "b.jsonl")
    for field in ("weights_sha256", "steps", "correct"):
        assert result[field] == whole.result[field] != first.result[field], field


# --- refusals ---------------------------------------------------------------------------


class Branch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


class Foreign(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.prims.sin(x)


class Quiet(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x.exp()
        return y * x


@pytest.mark.parametrize("network, operator", ((Branch, "torch.ops.higher_order.cond"),
                                               (Foreign, "torch.ops.prims.sin.default"),
                                               (Quiet, "torch.ops.higher_order.")))
def test_refuses_other_operators_with_their_line(tmp_path: Path, network: type[nn.Module],
                                                 operator: str) -> None:
    export_network.export_network(network(), torch.ones(2, 3), tmp_path / "net.pt2")
    done = launch(BIN / "exported_helper", "read", tmp_path / "net.pt2")
    require_refused(done, 3, f"models/train.json: {operator}", "exported_program_test.py",
                    "in forward: ", "expected an operator of torch.ops.aten", "hint: change this line")


def edited(source: Path, target: Path, **changes: Any) -> None:
    """A copy with other records: bytes, None for none, or a function of the JSON."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            for suffix, change in changes["records"].items():
                if not name.endswith(suffix):
                    continue
                if callable(change):
                    document = json.loads(content)
                    content = json.dumps(change(document) or document).encode()
                else:
                    content = change
            if content is not None:
                new.writestr(name, content, changes.get("method", zipfile.ZIP_STORED))


TRAIN, WEIGHTS = "models/train.json", "train_weights_config.json"


def nodes(document: dict[str, Any]) -> list[dict[str, Any]]:
    return document["graph_module"]["graph"]["nodes"]


def tensor(document: dict[str, Any]) -> dict[str, Any]:
    return document["config"]["fc.weight"]["tensor_meta"]


class Payload:
    """Unpickled, it writes a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


def renamed(document: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(document).replace('"fc.weight"', '"' + "a." * 100_000 + 'b"'))


# A change of JSON, and a part of the message.
JSON_CHANGES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "version": (TRAIN, lambda d: d["schema_version"].update(major=9), "expected version 8"),
    "operator": (TRAIN, lambda d: nodes(d)[0].update(target="torch.ops.aten.nope.default"),
                 "torch.ops.aten.nope.default"),
    "file_operator": (TRAIN, lambda d: nodes(d)[0].update(
        target="torch.ops.aten.from_file.default"), "expected an operator without files"),
    "namespace": (TRAIN, lambda d: nodes(d)[0].update(target="os.system"), "os.system"),
    "argument": (TRAIN, lambda d: nodes(d)[0]["inputs"][0].update(arg={"as_string": "x"}),
                 "expected Tensor, got"),
    "argument_kind": (TRAIN, lambda d: nodes(d)[0]["inputs"][0].update(
        arg={"as_custom_obj": {"name": "x", "class_fqn": "y"}}), "as_custom_obj"),
    "argument_missing": (TRAIN, lambda d: nodes(d)[0].update(inputs=[]), "expected the argument"),
    "order": (TRAIN, lambda d: nodes(d).reverse(), "expected the name of a value that exists"),
    "twice": (TRAIN, lambda d: nodes(d).append(nodes(d)[0]), "expected every value once"),
    "results": (TRAIN, lambda d: nodes(d)[0].update(outputs=[]), "expected 1 results"),
    "form": (TRAIN, lambda d: [1], "expected an object"),
    "pickle": (WEIGHTS, lambda d: d["config"]["fc.weight"].update(use_pickle=True),
               "expected a tensor without a pickle"),
    "size": (WEIGHTS, lambda d: tensor(d).update(sizes=[{"as_int": 2**40}] * 2), "expected at most"),
    "negative_size": (WEIGHTS, lambda d: tensor(d).update(sizes=[{"as_int": -1}] * 2),
                      "expected at most"),
    "offset": (WEIGHTS, lambda d: tensor(d).update(storage_offset={"as_int": 2**62}),
               "expected a part of its record"),
    "strides": (WEIGHTS, lambda d: tensor(d).update(strides=[{"as_int": 10**6}] * 2),
                "expected a part of its record"),
    "dtype": (WEIGHTS, lambda d: tensor(d).update(dtype=99), "expected a dtype"),
    "record": (WEIGHTS, lambda d: d["config"]["fc.weight"].update(path_name="../../etc/passwd"),
               "etc/passwd"),
    "no_weight": (WEIGHTS, lambda d: d["config"].pop("fc.weight") and None, "fc.weight"),
}


def flip_a_bit(path: Path, target: Path) -> None:
    """Of a weight."""
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith("weight_0"))
    content[info.header_offset + 30 + len(info.filename) + 5] ^= 1
    target.write_bytes(content)


def bomb(path: Path, target: Path) -> None:
    """A megabyte of the record that LibTorch's reader unpacks by itself."""
    edited(path, target, records={".data/version": b"3" + b"0" * 600_000_000},
           method=zipfile.ZIP_DEFLATED)


def two_copies(_path: Path, target: Path) -> None:
    """As package_pt2 alone writes them."""
    inputs = (torch.ones(2, 3),)
    package_pt2(target, exported_programs={mode: torch.export.export(nn.Linear(3, 2), inputs)
                                           for mode in ("train", "eval")})


FILE_CHANGES: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "nothing": (lambda path, target: target.write_bytes(b""), "expected an archive"),
    "noise": (lambda path, target: target.write_bytes(bytes(range(256)) * 64), "expected an archive"),
    "half": (lambda path, target: target.write_bytes(path.read_bytes()[:3000]),
             "expected an archive"),
    "folder": (lambda path, target: target.mkdir(), "got a folder"),
    "pipe": (lambda path, target: os.mkfifo(target), "got a pipe"),
    "bit": (flip_a_bit, "expected checksum"),
    "compressed": (lambda path, target: edited(path, target, records={TRAIN: b"[" * (1 << 26)},
                                               method=zipfile.ZIP_DEFLATED), "got compressed"),
    "bomb": (bomb, "expected an archive"),
    "deep": (lambda path, target: edited(path, target, records={TRAIN: b"[" * 100_000}),
             "expected JSON of at most 64 levels"),
    "no_json": (lambda path, target: edited(path, target, records={TRAIN: b"{]"}),
                "expected valid JSON"),
    "no_record": (lambda path, target: edited(path, target, records={"weight_0": None}),
                  "weight_0"),
    "one_model": (lambda path, target: torch.export.save(
        torch.export.export(nn.Linear(3, 2), (torch.ones(2, 3),)), target), "models/train.json"),
    "torchscript": (lambda path, target: torch.save(nn.Linear(3, 2).state_dict(), target),
                    "models/train.json"),
    "two_copies": (two_copies, "expected weights that train and eval share"),
    "deep_name": (lambda path, target: edited(path, target, records=dict.fromkeys(
        ("train.json", "eval.json", WEIGHTS, "eval_weights_config.json"), renamed)),
        "expected names of at most 64 modules"),
}


def read_bounded(path: Path) -> Result:
    """With a gigabyte of memory, half of it for the libraries, and five seconds of a CPU."""
    return launch("prlimit", f"--data={1 << 30}", "--cpu=5", BIN / "exported_helper", "read", path,
                  cwd=path.parent)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).relu()


@pytest.fixture(scope="session", name="good")
def good_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a pickle that would run a command in place of the example inputs."""
    plain, good = (tmp_path_factory.mktemp("good") / name for name in ("plain.pt2", "good.pt2"))
    export_network.export_network(Small(), torch.ones(2, 3), plain)
    payload = pickle.dumps(Payload())
    edited(plain, good, records={"train.pt": payload, "eval.pt": payload})
    assert read_bounded(good).code == 0
    return good


@pytest.mark.parametrize("change", [*JSON_CHANGES, *FILE_CHANGES])
def test_refuses_damaged_and_hostile_files(good: Path, tmp_path: Path, change: str) -> None:
    """In seconds, within a gigabyte; nothing in them is executed."""
    path = tmp_path / "net.pt2"
    if change in JSON_CHANGES:
        record, make, text = JSON_CHANGES[change]
        edited(good, path, records={record: make})
    else:
        write, text = FILE_CHANGES[change]
        write(good, path)
    done = read_bounded(path)
    require_refused(done, 3, text, "hint: ")
    assert not (tmp_path / "executed").exists() and not (good.parent / "executed").exists()


# --- the file ---------------------------------------------------------------------------


def test_the_file_has_each_weight_once_and_loads_in_python(exported: Callable[[str], Path]) -> None:
    network, inputs, *_ = made("words")
    with zipfile.ZipFile(exported("words")) as archive:
        weights = [name for name in archive.namelist() if "/data/weights/weight_" in name]
    assert len(weights) == len(network.state_dict())
    programs = load_pt2(exported("words")).exported_programs
    for mode in ("train", "eval"):
        found = programs[mode].module()(**inputs)
        assert torch.equal(found["scores"], network(**inputs)["scores"])


def test_inputs_of_other_sizes_are_refused(exported: Callable[[str], Path], tmp_path: Path) -> None:
    _, inputs, *_ = made("shapes")
    save_file({"x": torch.ones(5, 3)}, tmp_path / "in")
    done = launch(BIN / "exported_helper", "step", exported("shapes"), tmp_path / "in",
                  tmp_path / "out", "train", "none")
    require_refused(done, 2, "input x: expected sizes [", ", 4], got '[5, 3]'", "hint: ")


def test_the_script_exports_a_function_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import torch\n\ndef make():\n"
                                     "    return torch.nn.Linear(3, 2), torch.ones(2, 3)\n")
    done = launch(ROOT / ".venv/bin/python", SCRIPT, "net.py:make", "out.pt2", cwd=tmp_path)
    assert done.code == 0, done.stderr
    helper("read", tmp_path / "out.pt2")
