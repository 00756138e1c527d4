# SPDX-License-Identifier: Apache-2.0
"""Where zero_grad, backward and step may stand: the cases of accelerate_zero_grad.json.

One weight and halves, quarters, ...: every number is exact, so the file is compared exactly.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

BATCHES = 12
# A, where the batch is announced, comes first or second; Z, B, S: zero_grad, backward, step.
ORDERS = ["A" + "".join(rest) for rest in permutations("ZBS")] + ["ZABS", "ZASB", "SABZ", "SAZB"]


def weights(order: str, num_steps: int) -> list[float]:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num_steps)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=0.5))
    found = []
    for batch in range(BATCHES):
        calls = {
            "Z": optimizer.zero_grad,
            "B": lambda b=batch: accelerator.backward((0.5 * (weight - b % 5) ** 2).sum()),
            "S": optimizer.step,
        }
        for call in order.split("A")[0]:
            calls[call]()
        with accelerator.accumulate(torch.nn.Identity()):
            for call in order.split("A")[1]:
                calls[call]()
        found.append(weight.item())
    return found


def cases() -> list[dict[str, Any]]:
    return [{"order": order, "num_steps": steps, "weights": weights(order, steps)}
            for order in ORDERS for steps in (1, 4)]
