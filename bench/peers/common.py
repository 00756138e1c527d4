# SPDX-License-Identifier: Apache-2.0
"""What the Python twins of the stages share: data, networks, recipes, records, command line.

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
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

DATA_ROOT = Path(__file__).resolve().parents[2] / "data" / "mnist"
MNIST_MEAN = 0.1307
MNIST_STD = 0.3081


# --- networks ---------------------------------------------------------------------------


class BasicNet(nn.Module):
    """The network of the PyTorch MNIST example."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        return F.log_softmax(self.fc2(x), dim=1)


class ConvNet(nn.Module):
    """The small BatchNorm network of the DDP-practice tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = self._layer(1, 16)
        self.layer2 = self._layer(16, 32)
        self.fc = nn.Linear(7 * 7 * 32, 10)

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
        return self.fc(x.flatten(1))


# --- recipes ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    model: Callable[[], nn.Module]
    loss: Callable[..., Tensor]  # mean over the batch, or with reduction="sum" its sum
    optimizer: Callable[..., torch.optim.Optimizer]
    lr: float
    batch_size: int
    epochs: int
    normalize: bool  # subtract the mean, divide by the standard deviation
    accuracy_line: str
    epoch_line: str = ""  # printed before an epoch and before the test, where the
    testing_line: str = ""  # tutorial does


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


def say(line: str) -> None:
    if line:
        print(line, flush=True)


# --- data -------------------------------------------------------------------------------


def read_idx(path: Path) -> numpy.ndarray:
    """Reads an IDX file of bytes, plain or gzipped (PATH or PATH.gz)."""
    raw = path.read_bytes() if path.exists() else gzip.open(f"{path}.gz").read()
    dimensions = raw[3]
    shape = numpy.frombuffer(raw, dtype=">u4", count=dimensions, offset=4)
    return numpy.frombuffer(raw, dtype=numpy.uint8, offset=4 + 4 * dimensions).reshape(shape)


class Mnist(Dataset):
    """MNIST; each image goes through ToTensor and, if asked, Normalize when it is taken."""

    def __init__(self, root: Path, train: bool, normalize: bool, limit: int = 0) -> None:
        part = "train" if train else "t10k"
        keep = slice(limit or None)
        self.images = read_idx(root / f"{part}-images-idx3-ubyte")[keep].copy()
        self.labels = read_idx(root / f"{part}-labels-idx1-ubyte")[keep].astype(numpy.int64)
        self.mean_std = torch.tensor([MNIST_MEAN, MNIST_STD]) if normalize else None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(self.images[index]).unsqueeze(0).to(torch.float32).div(255)
        if self.mean_std is not None:
            image.sub_(self.mean_std[0]).div_(self.mean_std[1])
        return image, int(self.labels[index])


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


def make_loader(dataset: Mnist, batch_size: int, sampler: Sampler | None = None) -> DataLoader:
    # A loader draws a number for its workers at every start. From a generator of its own:
    # out of the global stream it would move the dropout masks.
    generator = torch.Generator()
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, generator=generator)


# --- evaluation -------------------------------------------------------------------------


@dataclass
class Evaluation:
    correct: int
    seen: int
    loss: float  # mean over the images

    @property
    def accuracy(self) -> float:
        return 100.0 * self.correct / self.seen


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, loss: Callable[..., Tensor]) -> Evaluation:
    model.eval()
    correct, seen, total = 0, 0, 0.0
    for images, labels in loader:
        output = model(images)
        total += loss(output, labels, reduction="sum").item()
        correct += (output.argmax(dim=1) == labels).sum().item()
        seen += len(labels)
    return Evaluation(correct, seen, total / seen)


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


def short_hash(tensor: Tensor) -> str:
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
    """Hashes of a step every K steps, for tools/first_difference.

    Lies beside the metrics: a.jsonl -> a.rank0.jsonl. Call it after optimizer.step(): this
    step's gradients, the weights after it.
    """

    def __init__(self, metrics: Path | None, every: int) -> None:
        self.every = every
        path = str(metrics).removesuffix(".jsonl") + ".rank0.jsonl"
        self.file = open(path, "w", encoding="utf-8") if every else None

    def __call__(
        self, step: int, epoch: int, positions: range, loss: Tensor, model: nn.Module
    ) -> None:
        if not self.file or step % self.every:
            return
        record = {
            "step": step,
            "epoch": epoch,
            "rank": 0,
            "positions": short_hash(torch.tensor(positions, dtype=torch.int64)),
            "loss": short_hash(loss),
            "loss_value": loss.item(),
            "gradients": {n: short_hash(p.grad) for n, p in model.named_parameters()},
            "weights": {n: short_hash(t) for n, t in sorted(model.state_dict().items())},
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


def save_weights(model: nn.Module, path: Path | None) -> None:
    if path:
        save_file({name: t.contiguous() for name, t in model.state_dict().items()}, path)


# --- command line -----------------------------------------------------------------------


def make_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--recipe", choices=sorted(RECIPES), default="basicnet")
    add("-e", "--epochs", type=int, help="default: the recipe's")
    add("-b", "--batch-size", type=int, help="default: the recipe's")
    add("--eval-batch-size", type=int, help="default: the recipe's batch size")
    add("--lr", type=float, help="learning rate; default: the recipe's")
    add("--data-root", type=Path, default=DATA_ROOT, help="folder of the IDX files")
    add("--limit-train", type=int, default=0, help="use the first N training images")
    add("--limit-test", type=int, default=0, help="use the first N test images")
    add("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    add("--seed", type=int, default=42)
    add("--steps", type=int, default=0, help="stop after N steps, without the test")
    add("--save", type=Path, metavar="PATH.safetensors", help="write the final weights")
    add("--metrics", type=Path, metavar="PATH.jsonl", help="write the records of the run")
    add("--fingerprint", type=int, default=0, metavar="K", help="hash every K-th step")
    return parser


def parse_options(description: str) -> argparse.Namespace:
    """Parses the command line and fills in what the recipe decides."""
    parser = make_parser(description)
    options = parser.parse_args()
    recipe = RECIPES[options.recipe]
    defaults = {
        "epochs": recipe.epochs,
        "batch_size": recipe.batch_size,
        "eval_batch_size": recipe.batch_size,
        "lr": recipe.lr,
    }
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.fingerprint and not options.metrics:
        parser.error("--fingerprint writes beside the metrics: give --metrics PATH.jsonl too")
    return options
