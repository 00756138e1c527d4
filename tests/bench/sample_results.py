# SPDX-License-Identifier: Apache-2.0
"""Made-up results in the form that the suite writes: for tests, and a measurement of nothing."""
from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from results import Results, read
from words import PHASES, STAGES, TWINS

SAME, AT_WORLD_2 = "a" * 64, "b" * 64
REASON = "exit code 4: rank 1: no answer within 30 s | hint: see <log>"
NOT_RUN = "not run: exit code 77; last line: fatal error: Python.h: No such file or directory"
JITTER = (1.00, 1.03, 0.98, 1.30, 1.01)  # of each repetition, for all programs alike
LINES = (118, 121, 131, 124, 142, 96, 57)
WOBBLE = (-10, 0, 10)  # of the images that are right, by seed; each stage begins elsewhere
TWINS_WOBBLE = (4, -2, -2)  # added to that of the stage
WRONG_DIGITS = 62
LABELS = Path(__file__).resolve().parents[2] / "data/mnist/t10k-labels-idx1-ubyte.gz"

CONTEXT = {
    "date": "2026-01-02T03:04:05+00:00", "host_name": "sample", "num_cpus": 2, "mhz_per_cpu": 2600,
    "load_avg": [0.5, 0.4, 0.3], "library_build_type": "release", "caches": [],
    "ladder_version": "0.9.0", "commit": "b1aeebe dirty", "compiler": "GNU 12.2.0",
    "build_type": "Release", "cpu": "Sample CPU of nobody", "isa": "avx512", "usable_cpus": "2",
    "memory_gib": "24.0", "cgroup_cpu_limit": "2", "governor": "", "kernel": "Linux 6.1",
    "gpu": "none", "load_before": "0.52", "steal_before": "17", "data_sha256": "440f" * 16,
    "peak_gflops": "228.1", "peak_gflops_1": "115.0",
    "peak_gflops_bf16": "436.2", "python_versions": '{"torch": "2.11.0", "accelerate": "1.12.0"}',
    "variables": '{"OMP_PROC_BIND": "close"}', "argv": "suite --tier bench",
    "versions": '{"libtorch": "2.11.0", "onednn": "3.7.1"}', "tier": "bench",
    "flags": "-O3 -march=native", "driver": "none",
}

Entry = dict[str, Any]


def entry(kind: str, recipe: str, program: str, world: int = 1, threads: int = 1,
          precision: str = "fp32", more: str = "", **values: Any) -> Entry:
    name = f"{kind}/{recipe}/{program}/world:{world}/precision:{precision}/threads:{threads}{more}"
    name += "/iterations:1/manual_time"
    return {"name": name, "run_name": name, "run_type": "iteration", "time_unit": "s", **values}


def trace(pool: str = "aten::max_pool2d_with_indices") -> dict[str, Any]:
    """A Chrome trace: steps of 10 ms, each a convolution of 4, pooling of 2 within a wrapper, a
    thread that does something else, and an optimizer of 1 at the end."""
    events = [{"ph": "X", "name": name, "ts": begin + at, "dur": length, "tid": thread}
              for begin in (0, 10_000, 20_000) for name, at, length, thread in (
                  ("aten::conv2d", 0, 4_000, 1), ("aten::mkldnn_convolution", 100, 3_800, 1),
                  ("wrapper", 5_000, 2_500, 1), (pool, 5_100, 2_000, 1),
                  ("gloo:all_reduce", 0, 9_000, 2), ("aten::_fused_adamw_", 9_000, 1_000, 1))]
    return {"traceEvents": [{"ph": "M", "name": "process_name"}, *events]}


def slices(recipe: str, program: str, seconds: float, world: int, threads: int,
           precision: str = "fp32", more: str = "", kind: str = "slice",
           **values: Any) -> list[Entry]:
    images = 200 * (64 if recipe == "basicnet" else 32)
    return [
        entry(kind, recipe, program, world, threads, precision, more, repetition_index=index,
              real_time=seconds * jitter, samples_per_second=images / (seconds * jitter),
              percent_of_floor=100 * 3.9 / (seconds * jitter), startup_seconds=0.7 + index / 100,
              peak_rss_bytes=5.9e8 * world, load=1.5, steal_ticks=17 + index,
              **{"sent_bytes_per_step": 9.6e6 * (world - 1), "label": "device=cpu", **values})
        for index, jitter in enumerate(JITTER)
    ]


def exact_sums() -> dict[str, Any]:
    """The price of exact sums, and their accuracy over three seeds: 0.02 points up, equal, down."""
    rows = [row for world in (1, 2) for size, factor in ((0, 1.0), (8, 1.3), (16, 1.15), (32, 1.1))
            for row in slices("basicnet", STAGES[2], 6.0 * factor / world, world, 1, kind="sums",
                              more=f"/micro_batch:{size}" * (size > 0))]
    rows += [full("basicnet", STAGES[2], 20.0, 2, 1, correct, kind="seeds",
                  more=f"/micro_batch:{size}" * (size > 0) + f"/seed:{seed}")
             for seed in (1, 2, 3) for size, correct in ((0, 9840 + seed), (16, 9844 - seed))]
    return {"context": dict(CONTEXT), "benchmarks": rows}


def full(recipe: str, program: str, seconds: float, world: int, threads: int, correct: int,
         kind: str = "full", precision: str = "fp32", more: str = "", seen: int = 10_000,
         **values: Any) -> Entry:
    basic = recipe.startswith("basicnet")
    values = {"batch_size": 64 if basic else 32, "lr": 0.001 if basic else 0.0001,
              "steps": 9380 if basic else 5625, "label": f"weights_sha256={SAME} device=cpu",
              "startup_seconds": 0.8, **values}
    return entry(kind, recipe, program, world, threads, precision, more, real_time=seconds,
                 total_seconds=0.98 * seconds, train_seconds=0.95 * seconds,
                 accuracy=100 * correct / max(seen, 1), correct=correct, seen=seen,
                 peak_rss_bytes=6.1e8 * world, eval_loss=0.0471, **values)


def brief(recipe: str, program: str, seconds: float, *how: Any, **more: Any) -> Entry:
    return entry("brief", recipe, program, *how, **more, real_time=1000 * seconds, time_unit="ms",
                 label=f"weights_sha256={SAME} device=cpu")


def failed(kind: str, recipe: str, program: str, *how: Any, reason: str = REASON,
           **more: Any) -> Entry:
    return entry(kind, recipe, program, *how, **more, real_time=0.0, error_occurred=True,
                 error_message=reason)


def checks(recipe: str, weights: Mapping[tuple[str, int], str] | None = None) -> list[Entry]:
    usual = {(stage, world): (SAME, AT_WORLD_2)[world - 1] for world in (1, 2)
             for stage in STAGES[world - 1:]}
    return [entry("check", recipe, program, world, real_time=0.4,
                  label=f"device=cpu weights_sha256={digest}")
            for (program, world), digest in (usual | dict(weights or {})).items()]


def usual(place: int) -> dict[str, Any]:
    """How a stage is meant to run."""
    world = 1 if place == 0 else 2
    return {"world": world, "threads": 2 // world, "precision": "bf16" if place == 4 else "fp32"}


def setups(place: int) -> list[dict[str, Any]]:
    """How the speed of a stage is measured: alone and on two processes, in 32 and in 16 bits."""
    if place < 2:
        return [usual(place)]
    return [{"world": world, "threads": 2 // world, "precision": precision}
            for precision in ("fp32", "bf16")[:1 + (place > 3)] for world in (1, 2)]


def seconds_of(place: int, precision: str) -> float:
    return 3.1 if precision == "bf16" else 5.4 + 0.07 * place


def recipe_rows(recipe: str, scale: float) -> list[Entry]:
    """The speed of every stage and its twin, and of LibTorch used the usual way."""
    parts = {f"phase_{name}_ms": part for name, part in zip(PHASES, (0.1, 8, 17, 1.5, 0.6))}
    found = slices(recipe, "libtorch_usual", scale * 8.8, 1, 2, user_lines=88)
    for place, (stage, twin) in enumerate(zip(STAGES, TWINS)):
        for how in setups(place):
            seconds = scale * seconds_of(place, how["precision"])
            for program, times in ((stage, 1.0), (twin, 2.1)):
                label = {"label": "device=cpu replicas=1"} if program == TWINS[1] else {}
                lines = LINES[place] - 10 * (program == twin)
                found += slices(recipe, program, seconds * times, **how, user_lines=lines, **label)
        found.append(entry("phases", recipe, stage, **usual(place), real_time=0.4, **parts))
    return found


def variant_rows() -> list[Entry]:
    """How batches are fed and gradients synchronised; the row without a variant is their base."""
    return [row for variant, seconds, sent, main, others in (
        ("dispatch", 6.2, 9.8e6, 64_000, 0), ("accumulate", 4.4, 2.4e6, 32_000, 32_000),
        ("accumulate_sync", 5.9, 9.6e6, 32_000, 32_000)) for row in slices(
            "basicnet", STAGES[5], seconds, 2, 1, more=f"/variant:{variant}",
            sent_bytes_per_step=sent, read_bytes_main=main, read_bytes_others=others)]


def misclassified() -> str:
    """The first test images, each as the digit behind its own."""
    labels = gzip.decompress(LABELS.read_bytes())[8:]
    return ",".join(f"{index}:{(labels[index] + 1) % 10}" for index in range(WRONG_DIGITS))


def whole_rows(recipe: str, scale: float, correct: int) -> list[Entry]:
    """Every stage and its twin as they are meant to run, with three seeds. Weights are equal in
    stages 2, 3, 5 and 6, for the last seed in stage 4 too; stage 6 has other accuracies."""
    found = []
    for place, pair in enumerate(zip(STAGES, TWINS)):
        for seed, slow in ((1, 0.98), (2, 1.0), (3, 1.04)):
            same = 2 if place in (2, 3, 5, 6) or (place == 4 and seed == 3) else place
            tested = 6 if place == 6 else same
            for twin, program in enumerate(pair):
                right = correct - 3 * tested + WOBBLE[(seed - 1 + tested) % 3]
                right += TWINS_WOBBLE[seed - 1] if twin else 0
                label = "device=cpu weights_sha256=" + f"c{same}{seed}".ljust(64, "0")
                if program == STAGES[0]:
                    label += f" misclassified={misclassified()}"
                seconds = 4.9 * scale * seconds_of(place, usual(place)["precision"])
                found.append(full(recipe, program, seconds * slow * (2.1 if twin else 1.0),
                                  correct=right, **usual(place), more=f"/seed:{seed}",
                                  user_lines=LINES[place] - 10 * twin, label=label))
    return found


def short() -> dict[str, Any]:
    """What ./run measures: each stage once, the checks at the world sizes of these runs, and steps of
    the twins, one of which failed."""
    rows = [full("basicnet", stage, 4.9 * seconds_of(place, usual(place)["precision"]),
                 correct=9841 - 3 * place, **usual(place), user_lines=LINES[place])
            for place, stage in enumerate(STAGES)]
    rows += [brief("basicnet", twin, 0.03 + 0.001 * place, **usual(place))
             for place, twin in enumerate(TWINS[:-1])]
    rows += [failed("brief", "basicnet", TWINS[-1], **usual(6)),
             brief("basicnet", "python_tuned", 0.02, 1, 2)]
    rows += [brief(recipe, STAGES[2], seconds / world, world, 1)
             for recipe, seconds in (("basicnet", 0.015), ("convnet", 0.004)) for world in (1, 2)]
    left_out = tuple(f"check/basicnet/{STAGES[place]}/world:1/" for place in (1, 3, 4, 5, 6))
    rows += [row for row in checks("basicnet") if not row["name"].startswith(left_out)]
    return {"context": {name: value for name, value in CONTEXT.items()
                        if not name.startswith("peak")}, "benchmarks": rows}


def width_rows() -> list[Entry]:
    """A stage alone, one on two processes and one in 16 bits, as the network grows."""
    return [row for width, seconds in ((2, 1.9), (4, 6.1)) for stage, world, share, precision in (
        (0, 1, 1.0, "fp32"), (2, 2, 0.98, "fp32"), (4, 2, 0.7, "bf16")) for row in slices(
            "convnet", STAGES[stage], seconds * share, world, 2 // world, precision,
            f"/width:{width}")]


def rival_rows() -> list[Entry]:
    """Tuned Python beside stage 0 and stage 4 with one rank, but for one program that was not run;
    Lightning on one process and on two, and JAX, which failed."""
    found = [row for recipe, program, seconds, precision in (
        ("basicnet", "python_tuned", 9.0, "fp32"), ("basicnet", "python_tuned", 5.4, "bf16"),
        ("basicnet", "python_tuned_compile", 8.0, "fp32"),
        ("basicnet", "python_tuned_compile", 4.8, "bf16"),
        ("convnet", "python_tuned", 1.08, "fp32"), ("basicnet", "python_lightning", 20.0, "fp32"))
        for row in slices(recipe, program, seconds, 1, 2, precision)]
    found += [full("basicnet", "python_lightning", 90.0, 2, 1, 9830 + seed, more=f"/seed:{seed}")
              for seed in (1, 2, 3)]
    return [*found, *slices("basicnet", "python_lightning", 16.0, 2, 1),
            failed("slice", "basicnet", "python_jax", 1, 2),
            failed("slice", "convnet", "python_tuned_compile", 1, 2, reason=NOT_RUN)]


def sample(weights: dict[tuple[str, int], str] | None = None) -> Entry:
    """The whole comparison, as of one file: two recipes, whole runs with three seeds, curves,
    scaling, widths, and a row that failed."""
    found = checks("basicnet", weights) + checks("convnet", weights)
    for recipe, scale, correct in (("basicnet", 1.0, 9841), ("convnet", 0.12, 9155)):
        found += recipe_rows(recipe, scale) + whole_rows(recipe, scale, correct)
        for world, seconds in ((1, 10.7), (4, 3.2)):
            found += slices(recipe, "stage2_ddp_spawn", scale * seconds, world, 1)
    for epochs, correct in ((1, 8421), (2, 9012)):
        for program, seconds in (("stage0_single_gpu", 5.1), ("python_single", 14.8)):
            found.append(full("convnet", program, seconds * epochs, 1, 2, correct, kind="curve",
                              more=f"/epochs:{epochs}"))
    found += width_rows() + rival_rows() + variant_rows()
    found.append(full("basicnet", STAGES[0], 26.5, 1, 2, 5000))  # without a seed: does not count
    found.append(full("basicnet-hf-defaults", "stage6_trainer", 21.5, 1, 2, 9189, steps=938,
                      train_loss=0.6, logged_loss=0.8493))
    for program, seconds in (("stage4_ddp_amp", 21.5), ("python_ddp_amp", 40.0)):
        found.append(full("convnet-ddp-practice", program, seconds, 2, 1, 8741, precision="bf16",
                          steps=2814))
    found.append(failed("slice", "basicnet", "stage6_trainer", 4, 1))
    found.append({"name": "x_mean", "run_name": "ignored", "run_type": "aggregate", "real_time": 1})
    return {"context": dict(CONTEXT), "benchmarks": found}


def write(path: Path, content: Entry) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_rows(path: Path, rows: Sequence[Entry], **context: Any) -> Path:
    return write(path, {"context": CONTEXT | context, "benchmarks": rows})


def results(*rows: Entry) -> Results:
    """As read from a file with these rows."""
    with tempfile.TemporaryDirectory() as folder:
        return read([write_rows(Path(folder) / "a.json", rows)])


def sample_results(**how: Any) -> Results:
    return results(*sample(**how)["benchmarks"])
