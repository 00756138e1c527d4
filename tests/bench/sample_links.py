# SPDX-License-Identifier: Apache-2.0
"""A made-up record of bench/links/links.py, with numbers that can be worked out by hand."""
from __future__ import annotations

from typing import Any

GRADIENT = 4_799_528  # bytes of basicnet
ALPHA = 1e-5  # seconds
BETA = 100 * GRADIENT  # bytes per second: all gradients in 10 ms
MESSAGES = {"plain": [GRADIENT], "bf16": [GRADIENT], "fp16": [GRADIENT],
            "accumulation": [GRADIENT], "one-bucket": [GRADIENT],
            "no-overlap": [GRADIENT - 40, 40], "convnet": [116_136]}
# Milliseconds per backward. Two ranks compute for 32 ms, and exchange for 10.02 ms.
TIMES = {"compute": 32.0, "compute-accumulation": 30.0, "plain": 40.0, "bf16": 50.0, "fp16": 35.0,
         "accumulation": 31.0, "one-bucket": 42.02, "no-overlap": 21.02, "convnet-compute": 8.0,
         "convnet": 8.1}


def row(name: str, times: dict[str, float] = TIMES) -> dict[str, Any]:
    return {"seconds": [times[name] / 1e3] * 3, "sent_bytes": [sum(MESSAGES.get(name, []))] * 3,
            "messages": MESSAGES.get(name, [])}


def section(names: tuple[str, ...] = tuple(TIMES)) -> dict[str, Any]:
    sizes = (4, 65_536, GRADIENT)
    return {"all_reduce": {str(size): [2 * ALPHA + size / BETA] * 3 for size in sizes},
            "variants": {name: row(name) for name in names}}


def record() -> dict[str, Any]:
    """1 Gbit/s was measured, 10 Gbit/s was not. A step always takes 1 ms per image."""
    spans = [["forward", 0.0, 10.0, 0], ["wire", 14.0, 20.0, 4_724_264],
             ["backward", 10.0, 40.0, 0], ["wire", 30.0, 10.0, 75_264], ["optimizer", 50.0, 1.0, 0]]
    return {
        "commit": "0a1b2c3", "date": "2026-11-25T05:00:00+00:00",
        "machine": {"cpu": "Made Up", "cpus": 2, "kernel": "6.1", "load_before": 0.25},
        "links": {"1gbit": section(), "10gbit": {"not_run": "not run: no tc here"}},
        "shared_memory": section(("compute", "compute-accumulation", "convnet-compute", "plain",
                                  "convnet")),
        "alone": {"compute": [0.064] * 3, "convnet-compute": [0.016] * 3},
        "images": {f"{recipe}/{images}": [images / 1e3] * 3 for recipe in ("basicnet", "convnet")
                   for images in (1, 2, 4, 8, 16, 32, 64)},
        "hooks": {"plain": [0.002] * 3, "bf16": [0.003] * 3, "fp16": [0.003] * 3},
        "samples": {"images": 32, "seconds": [0.032] * 10},
        "traces": {"plain": {"rate": "1gbit", "spans": spans}}}
