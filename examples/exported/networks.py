# SPDX-License-Identifier: Apache-2.0
"""Networks of PyTorch that C++ trains. Each function returns a network and example inputs:

    python PREFIX/bin/export_network.py examples/exported/networks.py:lookup lookup.pt2
    build-examples/exported lookup.pt2 weights.safetensors
    python examples/exported/networks.py weights.safetensors
"""
import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LENGTH, WORDS = 12, 32


class BasicNet(nn.Module):
    """The network of the tutorials, for the stages: --network basic.pt2."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.relu(self.fc1(F.dropout(x, 0.25, self.training).flatten(1)))
        return F.log_softmax(self.fc2(F.dropout(x, 0.5, self.training)), dim=1)


class Lookup(nn.Module):
    """A transformer block. The first word of a text is a place; the word there is the answer."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, WORDS)

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text) + self.places(torch.arange(LENGTH, device=text.device))
        return self.head(self.block(x)[:, 0])


def basic() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(42)
    return BasicNet(), torch.zeros(2, 1, 28, 28)


def lookup() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(42)
    return Lookup(), torch.ones(2, LENGTH, dtype=torch.int64)


def texts(count: int) -> tuple[Tensor, Tensor]:
    words = torch.randint(WORDS, (count, LENGTH))
    words[:, 0] = torch.randint(1, LENGTH, (count,))
    return words, words.gather(1, words[:, :1]).flatten()


if __name__ == "__main__":  # the accuracy of weights that C++ has trained
    from safetensors.torch import load_file
    trained = Lookup().eval()
    trained.load_state_dict(load_file(sys.argv[1]))
    words, answers = texts(10_000)
    print(f"accuracy {(trained(words).argmax(1) == answers).float().mean():.4f}")
