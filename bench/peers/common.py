# SPDX-License-Identifier: Apache-2.0
"""What the Python twins of the stages share: networks, data, evaluation, records, command line.

Plain PyTorch as its tutorials write it, so that a twin is a fair opponent. Three choices
make its weights comparable with the C++ programs bit by bit: the order of an epoch comes
from (seed + epoch), the optimizers are the fused ones, and nothing but the initial weights
and the dropout masks draws from the global random stream.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import platform
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

DATA_ROOT = Path(__file__).resolve().parents[2] / "data" / "mnist"
MNIST_MEAN = 0.1307
MNIST_STD = 0.3081


# --- networks ---------------------------------------------------------------------------
# Under autocast their last layer computes in 16 bits; .float() makes the loss exact. Without
# autocast it does nothing.


class BasicNet(nn.Module):
    """The network of the PyTorch MNIST example."""

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32 * width, 3)
        self.conv2 = nn.Conv2d(32 * width, 64 * width, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216 * width, 128 * width)
        self.fc2 = nn.Linear(128 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        return F.log_softmax(self.fc2(x).float(), dim=1)


class ConvNet(nn.Module):
    """The small BatchNorm network of the DDP-practice tutorial."""

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        self.layer1 = self._layer(1, 16 * width)
        self.layer2 = self._layer(16 * width, 32 * width)
        self.fc = nn.Linear(7 * 7 * 32 * width, 10)

    @staticmethod
    def _layer(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel_size=5, padding=2),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(x))
        return self.fc(x.flatten(1)).float()


class StackLayer(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.up = nn.Linear(features, 4 * features)
        self.down = nn.Linear(4 * features, features)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.up(x)))


class StackNet(nn.Module):
    """Equal layers, one after another."""

    def __init__(self, width: int = 1, depth: int = 8) -> None:
        super().__init__()
        self.input = nn.Linear(28 * 28, 256 * width)
        self.layers = nn.ModuleList(StackLayer(256 * width) for _ in range(depth))
        self.head = nn.Linear(256 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.input(x.flatten(1))
        for layer in self.layers:
            x = layer(x)
        return F.log_softmax(self.head(x).float(), dim=1)


# --- recipes ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    model: Callable[..., nn.Module]  # of network_sizes
    loss: Callable[..., Tensor]  # mean over the batch, or with reduction="sum" its sum
    optimizer: Callable[..., torch.optim.Optimizer]
    lr: float
    batch_size: int
    epochs: int
    normalize: bool  # subtract the mean, divide by the standard deviation
    accuracy_line: str
    epoch_line: str = ""  # printed before an epoch and before the test, where the
    testing_line: str = ""  # tutorial does
    files: bool = True  # of MNIST, else images of a formula


RECIPES = {
    "basicnet": Recipe(
        model=BasicNet,
        loss=F.nll_loss,
        optimizer=torch.optim.AdamW,
        lr=1e-3,
        batch_size=64,
        epochs=1,
        normalize=True,
        accuracy_line="Accuracy: {:.2f}",
    ),
    "convnet": Recipe(
        model=ConvNet,
        loss=F.cross_entropy,
        optimizer=torch.optim.SGD,
        lr=1e-4,
        batch_size=32,
        epochs=3,
        normalize=False,
        accuracy_line="Accuracy is {:.2f}%",
        epoch_line="begin training of epoch {}/{}",
        testing_line="begin testing",
    ),
}
RECIPES["stack"] = replace(RECIPES["basicnet"], model=StackNet, files=False)


def network_sizes(options: argparse.Namespace) -> tuple[int, ...]:
    return (options.width, options.depth) if options.recipe == "stack" else (options.width,)


def make_network(options: argparse.Namespace) -> nn.Module:
    return RECIPES[options.recipe].model(*network_sizes(options))


def make_optimizer(options: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    return RECIPES[options.recipe].optimizer(model.parameters(), lr=options.lr, fused=True)


# --- ranks ------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """Which process this is, of how many that train together."""

    rank: int = 0
    size: int = 1

    def sum(self, number: int | float) -> int | float:
        """The sum over all ranks, a collective; an int stays one and is added exactly."""
        if self.size == 1:
            return number
        kind = torch.int64 if isinstance(number, int) else torch.float64
        total = torch.tensor(number, dtype=kind)
        dist.all_reduce(total)
        return total.item()

    def gather(self, number: int) -> list[int]:
        """Those of all ranks, in their order; a collective."""
        if self.size == 1:
            return [number]
        all_of_them = [torch.tensor(0) for _ in range(self.size)]
        dist.all_gather(all_of_them, torch.tensor(number))
        return [one.item() for one in all_of_them]


def choose_device(options: argparse.Namespace) -> torch.device:
    """The GPU of this process, if there is one for each: else the CPU."""
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if options.device == "cpu" or torch.cuda.device_count() < local_world:
        return torch.device("cpu")
    return torch.device("cuda", local_rank)


# --- data -------------------------------------------------------------------------------


def read_idx(path: Path) -> numpy.ndarray:
    """Reads an IDX file of bytes, plain or gzipped (PATH or PATH.gz)."""
    raw = path.read_bytes() if path.exists() else gzip.open(f"{path}.gz").read()
    dimensions = raw[3]
    shape = numpy.frombuffer(raw, dtype=">u4", count=dimensions, offset=4)
    return numpy.frombuffer(raw, dtype=numpy.uint8, offset=4 + 4 * dimensions).reshape(shape)


def read_files(root: Path, train: bool) -> tuple[numpy.ndarray, numpy.ndarray]:
    part = "train" if train else "t10k"
    return tuple(read_idx(root / f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))


def formula_bytes(numbers: numpy.ndarray) -> numpy.ndarray:
    """The first 8 bits of these numbers, counted from 0, of SplitMix64 with seed 0."""
    z = (numbers.astype(numpy.uint64) + numpy.uint64(1)) * numpy.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> numpy.uint64(shift))) * numpy.uint64(factor)
    return ((z ^ (z >> numpy.uint64(31))) >> numpy.uint64(56)).astype(numpy.int64)


def formula_files(train: bool) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Mosaics of 7 x 7 tiles with noise, and labels that a linear function of the tiles gives."""
    first, count = (1, 12_800) if train else (12_801, 2_000)
    weights = formula_bytes(numpy.arange(490)).reshape(10, 49) - 128
    images = numpy.empty((count, 28, 28), numpy.uint8)
    labels = numpy.empty(count, numpy.uint8)
    for index in range(count):
        drawn = formula_bytes((first + index) * 1024 + numpy.arange(64 + 28 * 28))
        tiles, noise = drawn[:49], drawn[64:].reshape(28, 28)
        labels[index] = (weights @ (tiles - 128)).argmax()
        images[index] = (3 * tiles.reshape(7, 7).repeat(4, 0).repeat(4, 1) + noise) // 4
    return images, labels


class Mnist(Dataset):
    """MNIST, or without a folder images of a formula; each image goes through ToTensor and, if
    asked, Normalize when it is taken."""

    def __init__(self, root: Path | None, train: bool, normalize: bool, limit: int = 0) -> None:
        images, labels = read_files(root, train) if root else formula_files(train)
        self.images = images[: limit or None].copy()
        self.labels = labels[: limit or None].astype(numpy.int64)
        self.mean_std = torch.tensor([MNIST_MEAN, MNIST_STD]) if normalize else None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(self.images[index]).unsqueeze(0).to(torch.float32).div(255)
        if self.mean_std is not None:
            image.sub_(self.mean_std[0]).div_(self.mean_std[1])
        return image, int(self.labels[index])


def make_datasets(options: argparse.Namespace) -> tuple[Mnist, Mnist]:
    """The images to train on and those to test on."""
    recipe = RECIPES[options.recipe]
    root = options.data_root if recipe.files else None
    return (
        Mnist(root, True, recipe.normalize, options.limit_train),
        Mnist(root, False, recipe.normalize, options.limit_test),
    )


class EpochSampler(Sampler):
    """The order of epoch e, counted from 0: randperm(n) from a generator seeded seed + e."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.size, generator=generator).tolist())


def make_loader(dataset: Mnist, **options: Any) -> DataLoader:
    # A loader draws a number for its workers at every start. From a generator of its own:
    # out of the global stream it would move the dropout masks.
    return DataLoader(dataset, generator=torch.Generator(), **options)


# --- evaluation -------------------------------------------------------------------------


@dataclass
class Evaluation:
    correct: int
    seen: int
    loss_sum: float  # over the images

    @property
    def accuracy(self) -> float:
        return 100.0 * self.correct / self.seen

    @property
    def loss(self) -> float:
        return self.loss_sum / self.seen


Together = Callable[[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: DataLoader,
    loss: Callable[..., Tensor],
    gather: Together = lambda part: part,
    device: torch.device = torch.device("cpu"),
) -> Evaluation:
    """`gather` makes of this rank's outputs and labels of a batch those of all ranks."""
    model.eval()
    correct, seen, total = 0, 0, 0.0
    for images, labels in loader:
        output, labels = gather((model(images.to(device)), labels.to(device)))
        total += loss(output, labels, reduction="sum").item()
        correct += (output.argmax(dim=1) == labels).sum().item()
        seen += len(labels)
    return Evaluation(correct, seen, total)


# --- hashes and records -----------------------------------------------------------------

DTYPE_NAMES = {torch.float32: "F32", torch.int64: "I64"}  # as safetensors spells them


def tensor_bytes(tensor: Tensor) -> bytes:
    """The elements in row-major (NCHW) order, little endian."""
    array = tensor.detach().cpu().contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def weights_sha256(state: dict[str, Tensor]) -> str:
    """Over name, dtype, shape and bytes of every entry, in the order of the names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        shape = ",".join(str(size) for size in tensor.shape)
        for text in (name, DTYPE_NAMES[tensor.dtype], shape):
            digest.update(text.encode() + b"\0")
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def tensor_digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor_bytes(tensor)).hexdigest()[:16]


class Metrics:
    """One JSON object a line; without a path, nothing."""

    def __init__(self, path: Path | None) -> None:
        self.file = open(path, "w", encoding="utf-8") if path else None

    def write(self, record: str, **values: Any) -> None:
        if self.file:
            line = json.dumps({"record": record, **values}, default=str)
            print(line, file=self.file, flush=True)


class Fingerprint:
    """Hashes of a step every K steps, for tools/same_run.

    Lies beside the metrics, a file a rank: a.jsonl -> a.rank0.jsonl. Call it after
    optimizer.step(): this step's gradients, the weights after it.
    """

    def __init__(self, metrics: Path | None, every: int, rank: int) -> None:
        self.every = every
        self.rank = rank
        path = str(metrics).removesuffix(".jsonl") + f".rank{rank}.jsonl"
        self.file = open(path, "w", encoding="utf-8") if every else None

    def __call__(
        self, step: int, epoch: int, positions: range, loss: Tensor, model: nn.Module
    ) -> None:
        if not self.file or step % self.every:
            return
        record = {
            "step": step,
            "epoch": epoch,
            "rank": self.rank,
            "positions": tensor_digest(torch.tensor(positions, dtype=torch.int64)),
            "loss": tensor_digest(loss),
            "loss_value": loss.item(),
            "gradients": {n: tensor_digest(p.grad) for n, p in model.named_parameters()},
            "weights": {n: tensor_digest(t) for n, t in sorted(model.state_dict().items())},
        }
        print(json.dumps(record), file=self.file, flush=True)


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def peak_rss_bytes() -> int:
    """The kernel's VmHWM: unlike getrusage's ru_maxrss, it begins anew when a program starts."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")


def sent_bytes() -> int:
    """Through the TCP sockets of this process that are open, as the kernel counts them."""
    sent = struct.Struct("200xQ")  # tcpi_bytes_sent of struct tcp_info
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # no socket, or not of TCP
            continue
        total += sent.unpack_from(info)[0] if len(info) >= sent.size else 0
    return total


def read_bytes() -> int:
    """From files, also cached ones, and through read() from pipes and sockets. 0 if the kernel does
    not count them."""
    try:
        lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    except OSError:
        return 0
    return int(lines["rchar"])


def save_weights(
    model: nn.Module, path: Path | None, metadata: dict[str, str] | None = None
) -> None:
    if path:
        save_file({name: t.contiguous() for name, t in model.state_dict().items()}, path, metadata)


@dataclass
class Epoch:
    """What one epoch did, on all ranks together."""

    number: int  # from 1
    steps: int = 0
    samples: int = 0
    # Over the samples; until the epoch ends, over this rank's, and on a GPU a tensor there.
    loss_sum: float | Tensor = 0.0
    seconds: float = 0.0

    @property
    def train_loss(self) -> float:
        return float(self.loss_sum) / self.samples


WARM_UP_STEPS = 20  # in which libraries choose kernels and memory is fetched


class Record:
    """Tells how a run goes: lines for people, --metrics and --fingerprint.

    Make it first: its clock is that of `time elapsed`. All ranks call it alike. Rank 0 alone
    prints and writes metrics; what they say are sums over the ranks.
    """

    def __init__(self, stage: str, options: argparse.Namespace, world: World = World(),
                 device: torch.device | str = "cpu") -> None:
        self.start = self.epoch_start = time.perf_counter()
        self.stage = stage
        self.options = options
        self.recipe = RECIPES[options.recipe]
        self.world = world
        self.device = str(device)
        self.done: list[Epoch] = []
        self.first_step_at: float | None = None  # time.monotonic()
        self.warm_up_seconds: float | None = None
        self.metrics = Metrics(options.metrics if world.rank == 0 else None)
        self.fingerprint = Fingerprint(options.metrics, options.fingerprint, world.rank)
        self.metrics.write("run", stage=stage, world_size=world.size, rank=0,
                           **vars(options) | {"device": self.device}, versions=versions())

    def say(self, line: str) -> None:
        if line and self.world.rank == 0:
            print(line, flush=True)

    @property
    def steps(self) -> int:
        return sum(epoch.steps for epoch in self.done)

    @property
    def enough(self) -> bool:
        """True when the run has taken the steps that --steps asks for."""
        return 0 < self.options.steps <= self.steps

    def epochs(self) -> Iterator[int]:
        """The numbers of the epochs to train, from 1; each is recorded when it is done."""
        for number in range(1, self.options.epochs + 1):
            if self.enough:
                return
            self.begin_epoch(number)
            yield number
            self.end_epoch()

    def begin_epoch(self, number: int) -> None:
        self.say(self.recipe.epoch_line.format(number, self.options.epochs))
        self.done.append(Epoch(number))
        self.epoch_start = time.perf_counter()

    def end_epoch(self) -> None:
        epoch = self.done[-1]
        epoch.loss_sum = self.world.sum(float(epoch.loss_sum))
        epoch.seconds = time.perf_counter() - self.epoch_start
        self.metrics.write("epoch", epoch=epoch.number, steps=epoch.steps, samples=epoch.samples,
                           train_loss=epoch.train_loss, seconds=epoch.seconds)

    def step(
        self, model: nn.Module, loss: Tensor, size: int, positions: range | None = None
    ) -> None:
        """Takes note of a step, between optimizer.step() and zero_grad().

        `loss` is the sum over this rank's samples, times ranks, divided by `size`, that of the
        batch of all ranks. `positions` are this rank's samples in the order of the epoch.
        """
        epoch = self.done[-1]
        if positions is None:
            positions = range(epoch.samples, epoch.samples + size)
        epoch.steps += 1
        epoch.samples += size
        if self.device.startswith("cuda"):  # which must not be waited for in each step
            value = loss.detach().double() if isinstance(loss, Tensor) else loss
        else:
            value = loss.item()
        epoch.loss_sum = epoch.loss_sum + value * (size / self.world.size)
        self.first_step_at = self.first_step_at or time.monotonic()
        if self.steps == WARM_UP_STEPS:
            before = sum(epoch.seconds for epoch in self.done)  # 0 in the epoch under way
            self.warm_up_seconds = before + time.perf_counter() - self.epoch_start
        self.fingerprint(self.steps, epoch.number, positions, loss, model)

    def device_peak(self) -> dict[str, int]:
        """Of the memory of all GPUs, as the stages count it."""
        if not self.device.startswith("cuda"):
            return {}
        devices = range(torch.cuda.device_count())
        own = sum(torch.cuda.max_memory_allocated(device) for device in devices)
        return {"device_peak_bytes": self.world.sum(own)}

    def begin_testing(self) -> None:
        self.say(self.recipe.testing_line)

    def finish(self, model: nn.Module, test: Evaluation | None, **more: float) -> None:
        """Prints accuracy and time, writes the result. `test` counts all ranks.

        `more` are further numbers for the result, by name.
        """
        peak_rss = self.world.sum(peak_rss_bytes())
        sent = self.world.sum(sent_bytes())
        read = self.world.gather(read_bytes())
        if test:
            self.say(self.recipe.accuracy_line.format(test.accuracy))
        total_seconds = time.perf_counter() - self.start
        self.say(f"time elapsed: {total_seconds:.2f} seconds")
        seconds = sum(epoch.seconds for epoch in self.done)
        samples = sum(epoch.samples for epoch in self.done)
        self.metrics.write(
            "result",
            stage=self.stage,
            recipe=self.options.recipe,
            world_size=self.world.size,
            precision=self.options.precision,
            device=self.device,
            epochs=self.options.epochs,
            steps=self.steps,
            accuracy=test.accuracy if test else None,
            correct=test.correct if test else None,
            seen=test.seen if test else None,
            train_loss=self.done[-1].train_loss if self.done else None,
            eval_loss=test.loss if test else None,
            train_seconds=seconds,
            total_seconds=total_seconds,
            first_step_at=self.first_step_at,
            warm_up_seconds=self.warm_up_seconds,
            samples_per_second=samples / seconds if samples else 0.0,
            peak_rss_bytes=peak_rss,
            sent_bytes=sent,
            read_bytes=read,
            **self.device_peak(),
            weights_sha256=weights_sha256(model.state_dict()),
            **more,
        )


# --- command line -----------------------------------------------------------------------


def make_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.set_defaults(precision="fp32")  # a twin that has others adds the flag
    add = parser.add_argument
    add("--recipe", choices=sorted(RECIPES), default="basicnet")
    add("-e", "--epochs", type=int, help="default: the recipe's")
    add("--width", type=int, default=1, help="times as many channels in the network")
    add("--depth", type=int, default=8, help="layers of the stack")
    add("-b", "--batch-size", type=int, help="default: the recipe's")
    add("--eval-batch-size", type=int, help="default: the recipe's batch size")
    add("--lr", type=float, help="learning rate; default: the recipe's")
    add("--data-root", type=Path, default=DATA_ROOT, help="folder of the IDX files")
    add("--limit-train", type=int, default=0, help="use the first N training images")
    add("--limit-test", type=int, default=0, help="use the first N test images")
    add("--device", choices=["auto", "cpu"], default="auto", help="auto: a GPU, if there is one")
    add("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    add("--seed", type=int, default=42)
    add("--steps", type=int, default=0, help="stop after N steps, without the test")
    add("--save", type=Path, metavar="PATH.safetensors", help="write the final weights")
    add("--metrics", type=Path, metavar="PATH.jsonl", help="write the records of the run")
    add("--fingerprint", type=int, default=0, metavar="K", help="hash every K-th step")
    return parser


def recipe_defaults(options: argparse.Namespace) -> dict[str, int | float]:
    recipe = RECIPES[options.recipe]
    return {
        "epochs": recipe.epochs,
        "batch_size": recipe.batch_size,
        "eval_batch_size": recipe.batch_size,
        "lr": recipe.lr,
    }


def parse_options(
    parser: argparse.ArgumentParser,
    defaults: Callable[[argparse.Namespace], dict[str, int | float]] = recipe_defaults,
) -> argparse.Namespace:
    """Parses the command line and fills in what the recipe decides."""
    options = parser.parse_args()
    for name, value in defaults(options).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.fingerprint and not options.metrics:
        parser.error("--fingerprint writes beside the metrics: give --metrics PATH.jsonl too")
    return options
