#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The network of pairs.h in plain PyTorch: the same pairs, another random order and transform.

    .venv/bin/python examples/pairs/pairs.py --data data/mnist --pairs 60000 --epochs 3
"""
from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

BATCH_SIZE, LEARNING_RATE, TEST_PAIRS = 64, 1e-3, 10_000
TRAIN_PAIRS_SEED, TEST_PAIRS_SEED = 1, 2


def read_idx(path: Path, header: int) -> Tensor:
    return torch.frombuffer(bytearray(gzip.decompress(path.read_bytes())[header:]),
                            dtype=torch.uint8)


def pairs(folder: Path, split: str, size: int, seed: int) -> TensorDataset:
    """The pairs of the class Pairs, sample by sample: rows of left and right images, same or not."""
    images = read_idx(folder / f"{split}-images-idx3-ubyte.gz", 16).view(-1, 784)
    digits = read_idx(folder / f"{split}-labels-idx1-ubyte.gz", 8).long()
    by_digit = digits.argsort(stable=True)
    count = digits.bincount(minlength=10)
    first = count.cumsum(0) - count
    random = torch.Generator().manual_seed(seed)
    same = torch.randperm(size, generator=random) < size // 2
    left = torch.randint(len(digits), (size,), generator=random)
    other = (digits[left] + torch.randint(1, 10, (size,), generator=random)) % 10
    wanted = torch.where(same, digits[left], other)
    which = torch.rand(size, generator=random, dtype=torch.float64) * count[wanted]
    right = by_digit[first[wanted] + which.long()]
    return TensorDataset(images[left], images[right], same.float())


class PairNet(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.pixels = nn.Linear(784, width)
        self.code = nn.Linear(width, width)
        self.compare = nn.Linear(3 * width, width)
        self.score = nn.Linear(width, 1)

    def encode(self, images: Tensor) -> Tensor:
        return self.code(self.pixels(images).relu()).relu()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        left, right = self.encode(left), self.encode(right)
        both = torch.cat([left, right, (left - right).abs()], 1)
        return self.score(self.compare(both).relu()).squeeze(1)


def swap_sides(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    swap = torch.rand(len(left), 1) < 0.5
    return torch.where(swap, right, left), torch.where(swap, left, right)


def evaluate(model: PairNet, data: TensorDataset) -> tuple[float, float]:
    loss = correct = 0.0
    with torch.no_grad():
        for left, right, same in DataLoader(data, batch_size=None, sampler=BatchSampler(
                range(len(data)), 500, drop_last=False)):
            scores = model(left / 255, right / 255)
            loss += binary_cross_entropy_with_logits(scores, same, reduction="sum").item()
            correct += ((scores > 0) == (same > 0)).sum().item()
    return loss / len(data), correct / len(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data/mnist"))
    parser.add_argument("--pairs", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    train = pairs(options.data, "train", options.pairs, TRAIN_PAIRS_SEED)
    test = pairs(options.data, "t10k", TEST_PAIRS, TEST_PAIRS_SEED)
    loader = DataLoader(train, batch_size=None,
                        sampler=BatchSampler(RandomSampler(train), BATCH_SIZE, drop_last=False))
    model = PairNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0, fused=True)
    for epoch in range(options.epochs):
        for left, right, same in loader:
            left, right = swap_sides(left / 255, right / 255)
            loss = binary_cross_entropy_with_logits(model(left, right), same)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        test_loss, accuracy = evaluate(model, test)
        print(f"epoch {epoch + 1}: test loss {test_loss:.4f}, accuracy {100 * accuracy:.2f} %",
              flush=True)


if __name__ == "__main__":
    main()
