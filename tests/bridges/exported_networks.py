# SPDX-License-Identifier: Apache-2.0
"""Networks for exported_program_test.py, each with inputs by the names of forward's arguments."""
from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

from tests.support.programs import PEERS

sys.path.insert(0, str(PEERS))
from common import BasicNet  # noqa: E402

Made = tuple[Any, ...]  # network, inputs[, dynamic_shapes]


class Block(nn.Module):
    """The basic block of a ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                        nn.BatchNorm2d(outputs)) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet18(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        for i in range(1, 5):
            self.add_module(f"layer{i}", nn.Sequential(
                Block(widths[i - 1], widths[i], 1 if i == 1 else 2), Block(widths[i], widths[i], 1)))
        self.fc = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 16, num_layers=2, batch_first=True, dropout=0.2)
        self.lstm = nn.LSTM(16, 12, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.gru(x)
        x, _ = self.lstm(x)
        return self.fc(x[:, -1])


class Encoder(nn.Module):
    """A transformer encoder with a causal mask of infinities."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(12),
                             persistent=False)
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.words(x), self.mask, is_causal=False))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = self._double(1, 8), self._double(8, 16)
        self.middle = self._double(16, 32)
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.up2, self.up1 = self._double(32, 16), self._double(24, 8)
        self.out = nn.Conv2d(8, 2, 1)

    @staticmethod
    def _double(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs),
                             nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1),
                             nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1))

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.up(self.middle(F.avg_pool2d(two, 2)))
        x = self.up2(torch.cat((x, two), 1))
        x = F.interpolate(x, size=one.shape[-2:], mode="bilinear", align_corners=False)
        return self.out(self.up1(torch.cat((x, one), 1)))


class Words(nn.Module):
    """Two inputs with embeddings, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 16, padding_idx=0)
        self.bag = nn.EmbeddingBag(100, 16, mode="mean")
        self.user = nn.Embedding(7, 16, max_norm=None)
        self.norm = nn.LayerNorm(16)
        self.fc = nn.Linear(16, 5)

    def forward(self, text: Tensor, user: Tensor) -> dict[str, Tensor]:
        x = self.words(text).mean(1) + self.bag(text)
        x = self.norm(x * torch.sigmoid(self.user(user)))
        scores = self.fc(F.gelu(x))
        return {"scores": scores, "norm": x.pow(2).sum(1).add(1e-6).sqrt()}


class Messages(nn.Module):
    """A graph network: nodes add what their neighbours send."""

    def __init__(self) -> None:
        super().__init__()
        self.send, self.keep = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        self.seen += nodes.shape[0]
        for _ in range(2):
            sent = torch.relu(self.send(nodes))[edges[:, 0]]
            index = edges[:, 1:].expand(-1, 6)
            total = torch.zeros_like(nodes).scatter_add(0, index, sent)
            most = torch.zeros_like(nodes).scatter_reduce(0, index, sent, "amax")
            nodes = torch.tanh(self.keep(nodes) + total.index_add(0, edges[:, 0], sent) + most)
        return nodes


class Shapes(nn.Module):
    """Sizes that are computed, constants in forward, dtypes, devices, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.5, 0.5]))
        self.frozen = nn.Parameter(torch.tensor([2.0]), requires_grad=False)
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        positions = torch.arange(rows * 2, device=x.device).view(rows, 2) // 2
        weights = torch.tensor([0.25, 0.75]) * self.scale
        x = self.fc(F.dropout(x, 0.3, self.training))
        halves = x.view(rows, 2, -1).masked_fill(positions[:, :, None] == 1, -float("inf"))
        soft = torch.softmax(halves.double().clamp(min=-1e3), -1).float()
        share = torch.ones(rows * 4 // 2 + 6, device=x.device).sum() / rows
        return torch.einsum("nkd,k->nd", soft, weights) * self.frozen + share


def normal(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def whole(most: int, *sizes: int) -> Tensor:
    return torch.randint(most, sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def basic(rows: int = 4) -> Made:
    return BasicNet(), {"x": normal(rows, 1, 28, 28)}


def resnet18(rows: int = 4) -> Made:
    return ResNet18(), {"x": normal(rows, 3, 64, 64)}


def recurrent(rows: int = 4) -> Made:
    return Recurrent(), {"x": normal(rows, 9, 8)}


def encoder(rows: int = 4) -> Made:
    return Encoder(), {"x": whole(50, rows, 12)}


def unet(rows: int = 4) -> Made:
    return UNet(), {"x": normal(rows, 1, 32, 32)}


def words(rows: int = 4) -> Made:
    return Words(), {"text": whole(100, rows, 6), "user": whole(7, rows)}


def scatter(rows: int = 6) -> Made:
    sizes = {"nodes": {0: Dim("nodes")}, "edges": {0: Dim("edges")}}
    return Messages(), {"nodes": normal(rows, 6), "edges": whole(rows, 3 * rows, 2)}, sizes


def shapes(rows: int = 4) -> Made:
    return Shapes(), {"x": normal(rows, 4)}


NETWORKS = (basic, resnet18, recurrent, encoder, unet, words, scatter, shapes)
