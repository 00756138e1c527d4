# SPDX-License-Identifier: Apache-2.0
"""The package of bridges/torch_distributed beside Gloo: collectives, wrappers, launchers, errors.

Ranks are forks of this process, which imports torch and computes nothing.
"""
from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from tests.support.programs import PYTHON, ROOT, TORCHRUN, launch, temporary_folder

BRIDGE = ROOT / "bridges" / "torch_distributed"
FORKS = multiprocessing.get_context("fork")
MOST_RANKS = 16
WORLDS = (1, 2, 3, 4, 9)
DTYPES = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool, torch.float16,
          torch.bfloat16, torch.float32, torch.float64)
SIZES = (1, 7, 200_003)  # the last has several pieces, of 256 KiB
SECONDS = 120  # of a test; a hang fails


def built() -> Path:
    """The installed package. Installing into .venv would change what the other tests run."""
    folder = temporary_folder("bridge")
    done = launch(PYTHON, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps",
                  "--no-cache-dir", "--target", folder, BRIDGE, seconds=900)
    assert done.code == 0, done.stderr
    return folder


SITE = built()
sys.path.insert(0, str(SITE))
import ladder_distributed  # noqa: E402, F401 registers the backend


def as_rank(function: Callable[..., Any], arguments: tuple[object, ...], backend: str, rank: int,
            world: int, store: Path, timeout: float, answer: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
                   "LOCAL_WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}  # for Accelerate
    try:
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank,
                                world_size=world, timeout=timedelta(seconds=timeout))
        answer.send(function(rank, *arguments))
        dist.destroy_process_group()
    except Exception as error:  # a test compares it
        answer.send(error)


def ranks(world: int, function: Callable[..., Any], *arguments: object, backend: str = "ladder",
          timeout: float = 60) -> list[Any]:
    """What `function` returns on each rank, or its error; None for a rank that was killed."""
    with tempfile.TemporaryDirectory() as folder:
        ends = [FORKS.Pipe(duplex=False) for _ in range(world)]
        started = [FORKS.Process(target=as_rank, args=(
            function, arguments, backend, rank, world, Path(folder) / "store", timeout,
            ends[rank][1])) for rank in range(world)]
        for process, (_, child_end) in zip(started, ends):
            process.start()
            child_end.close()
        answers, deadline = [], time.monotonic() + SECONDS
        for own_end, _ in ends:
            try:
                assert own_end.poll(max(0.0, deadline - time.monotonic())), "a rank hangs"
                answers.append(own_end.recv())
            except EOFError:
                answers.append(None)
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
            assert process.exitcode is not None, "a rank hangs"
        return answers


# --- the table of collectives -----------------------------------------------------------


def values(rank: int, dtype: torch.dtype, count: int) -> Tensor:
    """Other ones on each rank, with sums that fit."""
    generator = torch.Generator().manual_seed(100 * count + rank)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 12, (count,), generator=generator).to(dtype)


REDUCTIONS = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
              "product": dist.ReduceOp.PRODUCT}  # the last is Gloo's
Results = dict[tuple[str, str, int], list[bytes]]


def reductions(rank: int, world: int, dtype: torch.dtype, count: int) -> Iterator[tuple[str, Any]]:
    for name, op in REDUCTIONS.items():
        if dtype == torch.bool and op != dist.ReduceOp.SUM:
            continue  # Gloo refuses them
        one = values(rank, dtype, count)
        dist.all_reduce(one, op)
        yield f"all_reduce {name}", [one]
        one = values(rank, dtype, count)
        dist.reduce(one, world - 1, op)
        yield f"reduce {name}", [one] if rank == world - 1 else []
        if op != dist.ReduceOp.PRODUCT and dtype != torch.bool:
            part = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_tensor(part, values(rank, dtype, count * world), op)
            yield f"reduce_scatter {name}", [part]
            whole = values(rank, dtype, count * world)
            dist.reduce_scatter_tensor(whole.narrow(0, rank * count, count), whole, op)
            yield f"reduce_scatter {name}, in place", [whole.narrow(0, rank * count, count)]
    one = values(rank, dtype, count)
    dist.all_reduce(one, async_op=True).wait()
    yield "all_reduce sum, again", [one]


def moves(rank: int, world: int, dtype: torch.dtype, count: int) -> Iterator[tuple[str, Any]]:
    own = values(rank, dtype, count)
    one = own.clone()
    dist.broadcast(one, world - 1)
    yield "broadcast", [one]
    all_of_them = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(all_of_them, own)
    yield "all_gather", all_of_them
    whole = torch.empty(world * count, dtype=dtype)
    dist.all_gather_into_tensor(whole, own)
    yield "all_gather_into_tensor", [whole]
    gathered = [torch.empty_like(own) for _ in range(world)] if rank == 0 else None
    dist.gather(own, gathered, dst=0)
    yield "gather", gathered or []
    one = torch.empty_like(own)
    dist.scatter(one, [values(other, dtype, count) for other in range(world)] if rank == 0 else None)
    yield "scatter", [one]
    whole = torch.empty(world * count, dtype=dtype)
    dist.all_to_all_single(whole, values(rank, dtype, world * count))
    yield "all_to_all", [whole]
    if world > 1:
        for tag in (0, 7):
            one, right = torch.empty_like(own), (rank + 1) % world
            sent = dist.isend(own, right, tag=tag)
            dist.recv(one, (rank - 1) % world, tag=tag)
            sent.wait()
            yield f"send, tag {tag}", [one]
        number, one = values(rank, dtype, 1).reshape(()), torch.empty(1, dtype=dtype)
        sent = dist.isend(number, right)
        dist.recv(one, (rank - 1) % world)
        sent.wait()
        yield "send of a number", [one]


def content(one: Tensor) -> bytes:
    row = torch.cat([one]).view(torch.uint8)  # contiguous
    return bytes((row != 0 if one.dtype == torch.bool else row).numpy())  # Gloo adds flags up to 2


def table(rank: int, world: int) -> Results:
    """Bytes instead of tensors, whose shared memory would end with the rank."""
    found = {}
    for dtype in DTYPES:
        for count in SIZES:
            for collectives in (reductions, moves):
                for name, tensors in collectives(rank, world, dtype, count):
                    found[name, str(dtype).removeprefix("torch."), count] = [
                        content(one) for one in tensors]
    return found


@cache
def answers(world: int, backend: str) -> list[Results]:
    found = ranks(world, table, world, backend=backend)
    for one in found:
        assert isinstance(one, dict), one
    return found


def is_rounded(name: str, dtype: str) -> bool:
    return ("sum" in name or "product" in name) and "float" in dtype


@pytest.mark.parametrize("world", WORLDS)
def test_integers_minima_maxima_moves_and_all_at_two_ranks_equal_gloos(world: int) -> None:
    for rank, (ours, gloos) in enumerate(zip(answers(world, "ladder"), answers(world, "gloo"))):
        assert ours.keys() == gloos.keys()
        different = [key for key in ours if ours[key] != gloos[key]
                     and not (world > 2 and is_rounded(key[0], key[1]))]
        assert not different, (rank, different)


def tensor(content: bytes, dtype: str) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=getattr(torch, dtype)).double()


@pytest.mark.parametrize("world", [world for world in WORLDS if world > 2])
def test_sums_of_floats_are_within_the_bound_of_sums_in_turn_and_equal_on_all_ranks(
        world: int) -> None:
    """Ranks are added in turn: world - 1 roundings, each of at most half an epsilon of a partial
    sum, which is at most the sum of the absolute values. Another epsilon covers second order."""
    found = answers(world, "ladder")
    for (name, dtype, count), contents in found[0].items():
        if name != "all_reduce sum" or not is_rounded(name, dtype):
            continue
        terms = torch.stack([values(rank, getattr(torch, dtype), count).double()
                             for rank in range(world)])
        bound = (world * torch.finfo(getattr(torch, dtype)).eps / 2) * terms.abs().sum(0)
        error = (tensor(contents[0], dtype) - terms.sum(0)).abs()
        assert (error <= bound).all(), (dtype, count, (error / bound).max())
        for answer in found:
            assert answer[name, dtype, count] == contents
            assert answer["all_reduce sum, again", dtype, count] == contents


def objects(rank: int, world: int) -> list[Any]:
    gathered = [None] * world
    dist.all_gather_object(gathered, {"rank": rank})
    shared = ["first", rank] if rank == 0 else [None, None]
    dist.broadcast_object_list(shared, src=0)
    odd = dist.new_group([rank for rank in range(world) if rank != 1])
    one = torch.tensor([rank])
    if rank != 1:
        dist.all_reduce(one, group=odd)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    part, rows = torch.empty(2).long(), torch.arange(2 * world).view(2, world).t()
    dist.reduce_scatter_tensor(part, rows + rank)  # which is not contiguous
    return [gathered, shared, one.item(), mesh.get_group().size(), part.tolist()]


def test_objects_subgroups_meshes_and_tensors_that_are_not_contiguous() -> None:
    for rank, answer in enumerate(ranks(4, objects, 4)):
        assert answer == [[{"rank": other} for other in range(4)], ["first", 0],
                          1 if rank == 1 else 5, 4, [6 + 4 * rank, 22 + 4 * rank]]


def from_threads(rank: int) -> list[float]:
    groups, found = [dist.new_group([0, 1]) for _ in range(3)], [0.0] * 3

    def work(number: int) -> None:
        for _ in range(40):
            one = torch.full((70_000,), float(number + 1))
            pending = dist.all_reduce(one, group=groups[number], async_op=True)
            other = torch.empty(3)
            transfers = [dist.isend(torch.full((3,), float(rank)), 1 - rank, group=groups[number]),
                         dist.irecv(other, 1 - rank, group=groups[number])]
            for each in (*transfers, pending):
                each.wait()
            found[number] += one[-1].item() + other[0].item()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_with_groups_of_their_own() -> None:
    assert ranks(2, from_threads) == [[40 * (2.0 * number + 1 - rank) for number in (1, 2, 3)]
                                      for rank in (0, 1)]


# --- wrappers ---------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(300, 400), nn.BatchNorm1d(400), nn.ReLU(), nn.Linear(400, 10))


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int,
            backward: Callable[[Tensor], object] = Tensor.backward) -> None:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(4):
        images = torch.randn(16, 300, generator=generator)
        labels = torch.randint(0, 10, (16,), generator=generator)
        backward(nn.functional.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()


def in_ddp(rank: int) -> nn.Module:
    model = nn.parallel.DistributedDataParallel(network())
    stepped(model, torch.optim.AdamW(model.parameters()), rank)
    return model.module


def in_zero_redundancy(rank: int) -> nn.Module:
    model = nn.parallel.DistributedDataParallel(network())
    stepped(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW), rank)
    return model.module


def in_fsdp2(rank: int) -> nn.Module:
    model, mesh = network(), dist.device_mesh.init_device_mesh("cpu", (2,))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    stepped(model, torch.optim.AdamW(model.parameters()), rank)
    return model


def in_accelerate(rank: int) -> nn.Module:
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    stepped(model, optimizer, rank, accelerator.backward)
    return accelerator.unwrap_model(model)


def weights(rank: int, train: Callable[[int], nn.Module]) -> list[bytes]:
    found = []
    for tensor in train(rank).state_dict().values():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found.append(bytes(whole.detach().reshape(-1).view(torch.uint8).numpy()))
    return found


@pytest.mark.parametrize("train", [in_ddp, in_zero_redundancy, in_fsdp2, in_accelerate])
def test_two_ranks_end_with_gloos_weights(train: Callable[[int], nn.Module]) -> None:
    ours, gloos = (ranks(2, weights, train, backend=backend) for backend in ("ladder", "gloo"))
    assert isinstance(ours[0], list) and len(ours[0]) == 9, ours
    assert ours == gloos


SCRIPT = """
import sys
import ladder_distributed, torch, torch.distributed as dist
dist.init_process_group(sys.argv[1])
if sys.argv[2:]:
    from accelerate import Accelerator
    assert Accelerator(cpu=True).num_processes == 2
one = torch.ones(3)
dist.all_reduce(one)
print(f"{dist.get_backend()} {one.tolist()}\\n", end="")  # one write
dist.destroy_process_group()
"""


@pytest.mark.parametrize("command, backend, more", [
    ((TORCHRUN, "--standalone", "--nproc-per-node", 2), "ladder", ()),
    ((TORCHRUN, "--standalone", "--nproc-per-node", 2), "cpu:ladder,cuda:gloo", ()),
    ((PYTHON.parent / "accelerate", "launch", "--multi_gpu", "--num_processes", 2, "--num_machines", 1,
      "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", 0), "ladder",
     ("accelerate",))])
def test_ranks_of_a_launcher(tmp_path: Path, command: tuple[object, ...], backend: str,
                             more: tuple[str, ...]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = launch(*command, script, backend, *more, cwd=tmp_path,
                  environment={"PYTHONPATH": str(SITE)})
    assert (done.code, sorted(done.lines)) == (0, [f"{backend} [2.0, 2.0, 2.0]"] * 2), done


# --- faults -----------------------------------------------------------------------------


def other_collectives(rank: int) -> None:
    if rank == 0:
        dist.all_reduce(torch.ones(3))
    else:
        dist.broadcast(torch.ones(3), 0)


def a_killed_rank(rank: int) -> None:
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(3))


def a_silent_peer(rank: int) -> None:
    dist.barrier()
    if rank == 1:
        time.sleep(6)  # is the fault itself
        dist.all_reduce(torch.ones(3))  # rank 0 had given its part
    dist.all_reduce(torch.ones(3))


def timed(rank: int, fault: Callable[[int], None]) -> tuple[float, str]:
    begin = time.monotonic()
    try:
        fault(rank)
    except RuntimeError as error:
        return time.monotonic() - begin, str(error)
    return time.monotonic() - begin, ""


@pytest.mark.parametrize("fault, seconds, texts", [
    (other_collectives, (0, 2), ("rank 1 called broadcast", "rank 0 called all_reduce")),
    (a_killed_rank, (0, 2), ("all_reduce on rank 0 of 2: rank 1 has ended", None)),
    (a_silent_peer, (2, 5), ("timed out after 3 s waiting for rank 1", "rank 0 has"))])
def test_a_fault_is_named_soon(fault: Callable[[int], None], seconds: tuple[float, float],
                               texts: tuple[str | None, ...]) -> None:
    for rank, (answer, text) in enumerate(zip(ranks(2, timed, fault, timeout=3), texts)):
        if text is None:
            assert answer is None
            continue
        assert text in answer[1], (rank, answer)
        if rank == 0:
            assert seconds[0] <= answer[0] <= seconds[1], answer


def refused(world: int, before: Callable[[int], None] = lambda rank: None) -> list[Any]:
    """The errors of init_process_group."""
    def start(rank: int, store: Path, answer: Any) -> None:
        before(rank)
        try:
            dist.init_process_group("ladder", init_method=f"file://{store}", rank=rank,
                                    world_size=world, timeout=timedelta(seconds=30))
            answer.send("")
        except Exception as error:
            answer.send(str(error))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "store").touch()
        for path, mode in ((folder, 0o777), (f"{folder}/store", 0o666)):
            os.chmod(path, mode)
        ends = [FORKS.Pipe(duplex=False) for _ in range(world)]
        started = [FORKS.Process(target=start, args=(rank, Path(folder) / "store", end))
                   for rank, (_, end) in enumerate(ends)]
        for process in started:
            process.start()
        found = [own.recv() if own.poll(SECONDS) else "hangs" for own, _ in ends]
        for process in started:
            process.join(SECONDS)
        return found


def test_more_ranks_than_the_protocol_has_are_refused_on_each() -> None:
    many = MOST_RANKS + 1
    for text in refused(many):
        assert text == (
            f"backend ladder: {many} ranks that do not share one machine's memory; hint: "
            f"use backend gloo; up to {MOST_RANKS} ranks of one user can share memory, all outside "
            "containers or all in the same one")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
def test_ranks_that_cannot_share_memory_are_refused_on_each() -> None:
    """Two users stand for two machines, which the ranks find out in the same way."""
    def become_nobody(rank: int) -> None:
        if rank == 1:
            os.seteuid(65534)
    for text in refused(2, become_nobody):
        assert "2 ranks that do not share one machine's memory; hint: use backend gloo" in text


def without_a_source(rank: int) -> str:
    other, one = 1 - rank, torch.tensor([rank])
    with pytest.raises(RuntimeError, match="recv: no rank to receive from; hint: name the rank"):
        dist.recv(one)
    with pytest.raises(ValueError, match="monitored_barrier is only implemented for GLOO"):
        dist.monitored_barrier()
    with pytest.raises(RuntimeError, match="No backend type associated with device type cuda"):
        dist.group.WORLD._get_backend(torch.device("cuda"))
    with pytest.raises(RuntimeError, match="tensor has to be contiguous"):
        dist.send(torch.ones(2, 2)[:, 0], other)
    return "refused"


def test_what_the_backend_lacks_is_refused_by_name() -> None:
    """A GPU's tensor too; without a GPU there is none, so the test does what torch does with it."""
    assert ranks(2, without_a_source) == ["refused"] * 2


def test_another_torch_is_refused_at_import() -> None:
    done = launch(PYTHON, "-c", "import torch; torch.__version__ = '2.10.0+cpu'\n"
                  "import ladder_distributed", environment={"PYTHONPATH": str(SITE)})
    assert done.code == 1 and done.errors[-1] == (
        f"ImportError: ladder_distributed: expected torch=={torch.__version__.partition('+')[0]}, "
        "which it was built for, got torch 2.10.0+cpu; hint: pip install --no-build-isolation "
        "--no-deps --force-reinstall ./bridges/torch_distributed"), done


@pytest.mark.parametrize("change, text", [
    ("import torch; torch.__version__ = '2.10.0'", "torch: expected release 2.11, got 2.10.0; hint"),
    ("import sys; sys.modules['torch'] = None", "torch: expected release 2.11 in this Python, got "),
    ("import sysconfig; sysconfig.get_paths = lambda: {'include': '/none'}",
     "headers of Python: expected /none/Python.h, got none; hint: tools/setup.sh bridge")])
def test_what_the_build_lacks_is_one_sentence(tmp_path: Path, change: str, text: str) -> None:
    done = launch(PYTHON, "-c", f"{change}\nimport build_backend; build_backend.build_wheel('.')",
                  cwd=tmp_path, environment={"PYTHONPATH": str(BRIDGE)})
    assert done.code == 1 and len(done.errors) == 1 and text in done.stderr, done
