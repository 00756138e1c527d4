# SPDX-License-Identifier: Apache-2.0
"""What a training step of each stage costs on a GPU: contracts, counted on tests/support/fake_cuda.

Every wait of the host and every copy of pageable memory stalls a real GPU; each operator launches at
least one kernel. The table has the present numbers; a change may lower them, and then lowers the
table too. The one wait of stage 6 in fp16 is for the end of the step before: did it overflow?
`FAKE_CUDA_STACKS=1` shows the places of waits and pageable copies.
"""
from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.fake_gpu import Costs, costs_of, costs_per_step, gpu, gpu_ranks  # noqa: E402
from tests.support.ways import (STAGE0, STAGE1, STAGE2, STAGE3, STAGE4, STAGE5,  # noqa: E402
                                STAGE6, Way, ignore_accelerate_configuration)

FOLDER = Path(tempfile.mkdtemp(prefix="ladder-costs-"))
atexit.register(shutil.rmtree, FOLDER)
ignore_accelerate_configuration(FOLDER)


class Numbers(NamedTuple):
    """Of one step of a rank."""

    operators: int
    syncs: int = 0  # waits for all that the device was given
    events: int = 0  # waits for an event, after which the device has more to do
    pageable: int = 0  # copies of pageable memory, from or to the device
    between: int = 0  # copies from one device to another

    @staticmethod
    def of(costs: Costs) -> Numbers:
        events = costs.syncs["event"]
        return Numbers(costs.kernels.total(), costs.syncs.total() - events, events, costs.pageable,
                       costs.copies["between_devices"])


class Row(NamedTuple):
    name: str
    way: Way
    flags: tuple[object, ...]
    expected: Numbers  # of rank 0; the other ranks must wait and copy as often


CONVNET = ("--recipe", "convnet")
PRECISION = {STAGE4: "--precision", STAGE5: "--mixed-precision"}


def in_precision(stage: Path, name: str) -> tuple[object, ...]:
    if stage == STAGE6:
        return () if name == "fp32" else (f"--{name}", "true")
    return (PRECISION[stage], name)


def single(stage: Path = STAGE0) -> Way:
    return gpu(stage, "--device", "cuda", *(() if stage == STAGE0 else ("--nprocs", 1)))


def replicas(*devices: str) -> Way:
    return gpu(STAGE1, "--device-ids", ",".join(devices))


def amp(stage: Path, precision: str, *flags: object, ranks: int = 1,
        expected: Numbers) -> Row:
    way = single(stage) if ranks == 1 else gpu_ranks(stage, ranks)
    recipe = "convnet" if "convnet" in flags else "basicnet"
    return Row(f"{stage.name[:6]} {recipe} {precision} on {ranks}", way,
               (*flags, *in_precision(stage, precision)), expected)


def trainer(name: str, *flags: object, expected: Numbers) -> Row:
    return Row(f"stage6 {name}", single(STAGE6), flags, expected)


# Recipe basicnet has counter-based dropout, convnet has none and BatchNorm instead.
ROWS = [
    Row("stage0 basicnet", single(), (), Numbers(50)),
    Row("stage0 convnet", single(), CONVNET, Numbers(38)),
    Row("stage0 basicnet, pinned", single(), ("--pin-memory",), Numbers(43)),
    Row("stage0 basicnet, shifted", single(), ("--augment", "shift"), Numbers(61)),
    Row("stage1 basicnet on 0,1", replicas("0", "1"), (), Numbers(100, between=5)),
    Row("stage1 convnet on 0,1", replicas("0", "1"), CONVNET, Numbers(93, between=6)),
    Row("stage1 basicnet on 0,cpu", replicas("0", "cpu"), (), Numbers(61, syncs=5, pageable=5)),
    Row("stage2 basicnet on 2", gpu_ranks(STAGE2), (), Numbers(62)),
    Row("stage2 convnet on 2", gpu_ranks(STAGE2), CONVNET, Numbers(61)),
    Row("stage3 basicnet on 2", gpu_ranks(STAGE3), (), Numbers(62)),
    amp(STAGE4, "fp32", expected=Numbers(50)),
    amp(STAGE4, "bf16", expected=Numbers(71)),
    amp(STAGE4, "fp16", expected=Numbers(87)),
    amp(STAGE4, "fp16", ranks=2, expected=Numbers(99)),
    amp(STAGE4, "fp32", *CONVNET, ranks=2, expected=Numbers(159)),
    amp(STAGE4, "fp16", *CONVNET, ranks=2, expected=Numbers(182)),
    amp(STAGE5, "fp32", expected=Numbers(50)),
    amp(STAGE5, "bf16", expected=Numbers(71)),
    amp(STAGE5, "fp16", expected=Numbers(87)),
    amp(STAGE5, "fp16", ranks=2, expected=Numbers(99)),
    Row("stage5 basicnet, dispatched, on 2", gpu_ranks(STAGE5), ("--dispatch-batches",),
        Numbers(64)),
    amp(STAGE6, "fp32", expected=Numbers(59)),
    amp(STAGE6, "bf16", expected=Numbers(80)),
    amp(STAGE6, "fp16", expected=Numbers(96, events=1)),
    amp(STAGE6, "fp16", ranks=2, expected=Numbers(108, events=1)),
    amp(STAGE6, "fp32", *CONVNET, expected=Numbers(47)),
    trainer("hf-defaults", "--profile", "hf-defaults", expected=Numbers(75)),
    trainer("hf-defaults fp16", "--profile", "hf-defaults", "--fp16", "true",
            expected=Numbers(114, events=1)),
    *(trainer(f"fp16, {optimizer}", "--profile", "none", "--fp16", "true", "--optim", optimizer,
              expected=numbers)
      for optimizer, numbers in (("sgd", Numbers(98, events=1)),
                                 ("rmsprop", Numbers(186, events=1)),
                                 ("adagrad", Numbers(114, events=1)))),
]


class Table(unittest.TestCase):
    def test_costs_per_step(self) -> None:
        lines = [f"{'per training step':35} operators  waits  events  pageable  between"]
        self.addCleanup(lambda: print("\n".join(lines), flush=True))
        for row in ROWS:
            with self.subTest(row.name):
                costs, *others = costs_per_step(row.way, *row.flags, parent=FOLDER)
                seen = Numbers.of(costs)
                lines.append(f"{row.name:35} {seen.operators:9}  {seen.syncs:5}  {seen.events:6}  "
                             f"{seen.pageable:8}  {seen.between:7}")
                self.assertEqual(seen, row.expected, f"waits: {dict(costs.syncs)}, "
                                 f"copies: {dict(costs.copies)}")
                for other in others:
                    self.assertEqual(Numbers.of(other)._replace(operators=seen.operators), seen,
                                     f"waits: {dict(other.syncs)}, copies: {dict(other.copies)}")

    def test_a_run_on_the_cpu_takes_nothing_from_the_gpu(self) -> None:
        for stage in (STAGE0, STAGE2, STAGE5, STAGE6):
            way = gpu(stage, "--device", "cpu")
            self.assertEqual(costs_of(way, "--pin-memory", "--limit-train", 32, "--limit-test", 8,
                                      "--batch-size", 8, "--quiet", parent=FOLDER), [])

    def test_the_host_looks_at_the_loss_every_50_steps(self) -> None:
        flags = ("--threads", 1, "--epochs", 1, "--batch-size", 2, "--limit-test", 2, "--quiet")
        for way in (single(), replicas("0", "1")):
            few, more = (costs_of(way, *flags, "--limit-train", 2 * steps, parent=FOLDER)[0]
                         for steps in (100, 150))
            self.assertEqual({cause: number for cause, number in (more.syncs - few.syncs).items()},
                             {"copy.to_host.pageable.blocking": 1})


if __name__ == "__main__":
    unittest.main()
