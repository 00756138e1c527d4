# SPDX-License-Identifier: Apache-2.0
"""Machine, versions and load of the measurements, and the limits of the numbers."""

import json
from typing import Any

import pandas

from results import Results
from tables import Table
from words import OPPONENTS, TUNED, USUAL, is_python, stage_of

NOT_RECORDED = "not recorded"
FIELDS = {
    "date": "date", "host_name": "host", "tier": "tier", "ladder_version": "version of ladder",
    "commit": "commit", "compiler": "compiler", "flags": "compiler flags",
    "build_type": "build type", "library_build_type": "build of Google Benchmark",
    "versions": "libraries", "python_versions": "Python and its packages",
    "variables": "environment variables", "cpu": "CPU", "isa": "instruction set",
    "usable_cpus": "usable CPUs", "cgroup_cpu_limit": "CPU limit of the cgroup",
    "mhz_per_cpu": "MHz", "governor": "frequency governor",
    "cpu_scaling_enabled": "frequency scaling",
    "peak_gflops_1": "measured peak, one thread, GFLOP/s fp32",
    "peak_gflops": "measured peak, all CPUs, GFLOP/s fp32",
    "peak_gflops_bf16": "measured peak, all CPUs, GFLOP/s bfloat16", "memory_gib": "memory, GiB",
    "gpu": "GPU", "driver": "GPU driver", "kernel": "kernel", "load_before": "load before",
    "load_avg": "load averages", "steal_before": "stolen ticks before",
    "data_sha256": "sha256 of the training images", "argv": "command",
}
HIDDEN = {"caches", "executable", "num_cpus", "stopped_early"}  # which other lines show


def text_of(value: Any) -> str:
    """A field as words; JSON in a text is parsed."""
    if isinstance(value, str) and value[:1] in "{[" and value:
        try:
            value = json.loads(value)
        except ValueError:
            return value
    if isinstance(value, dict):
        return ", ".join(f"{name} {text_of(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(text_of, value)) or NOT_RECORDED
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NOT_RECORDED if value in (None, "") else str(value)


def measured_fields(results: Results, file: int) -> dict[str, str]:
    """The load, and the ticks that the host gave to others between the start and the last run."""
    loads, ticks = (results.measured(file, name) for name in ("load", "steal_ticks"))
    found = {}
    if loads:
        found["load while measuring"] = f"{min(loads):.2f} to {max(loads):.2f}"
    if before := results.contexts[file].get("steal_before"):
        stolen = max(map(float, [before, *ticks])) - float(before)
        found["stolen ticks while measuring"] = f"{stolen:.0f}"
    return found


def environment_table(results: Results) -> Table:
    """A row per field that is recorded, a column per file; what is as in the first shows once."""
    known = [*FIELDS, *(name for context in results.contexts for name in context
                        if name not in HIDDEN)]
    files = [{FIELDS.get(name, name): text_of(context.get(name)) for name in known}
             | measured_fields(results, file) for file, context in enumerate(results.contexts)]
    frame = pandas.DataFrame(files).T.fillna(NOT_RECORDED)
    frame = frame[(frame != NOT_RECORDED).any(axis=1)].reset_index()
    others = frame.iloc[:, 2:]
    frame.iloc[:, 2:] = others.where(others.ne(frame.iloc[:, 1], axis=0), "same")
    names = ["value"] if len(files) == 1 else [f"file {i + 1}" for i in range(len(files))]
    return Table("Environment", ("field", *names), frame.values.tolist(), [], [], len(names) + 1)


def machine_line(results: Results) -> str:
    """The machine in one line of at most 100 characters."""
    cpu, cpus, gpu, commit, load = (text_of(results.contexts[0].get(name)) for name in (
        "cpu", "usable_cpus", "gpu", "commit", "load_before"))
    return f"{cpu}; {cpus} CPUs; GPU {gpu}; commit {commit}; load {load}"[:100]


def measured_at(results: Results) -> str:
    """The commits of the rows, and the machine: the line below a table of a page."""
    cpu, cpus, gpu = (text_of(results.contexts[0].get(name))
                      for name in ("cpu", "usable_cpus", "gpu"))
    commits = dict.fromkeys(commit for context in results.contexts
                            for commit in text_of(context.get("commit")).split(" and "))
    return f"Measured at commit {' and '.join(commits)}: {cpu}, {cpus} CPUs, GPU {gpu}."


def run_notes(results: Results) -> list[str]:
    """The limits of this very file."""
    notes = []
    if any(context.get("stopped_early") for context in results.contexts):
        notes.append("The run was stopped: rows are missing.")
    if failed := sum(bool(run.error) for row in results.rows.values() for run in row.repetitions):
        notes.append(f"Runs that failed or were skipped: {failed}. Their rows give the reason.")
    notes += [f"{row.setup.program}, parts of a step: failed: {row.error}."
              for row in results.of_kind("phases") if row.error]
    if any((row.counter("percent_of_floor") or 0) > 100 for row in results.rows.values()):
        notes.append("A row is above 100 % of its floor: the floor counts all arithmetic, and the "
                     "backward of BasicNet skips zeros. Or another program ran while the peak was "
                     "measured.")
    if counts := sorted({len(row.good) for row in results.of_kind("slice") if row.good}):
        words = " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
        coarse = ": with so few, an interval is nearly their whole range" * (counts[0] < 10)
        notes.append(f"Times of 200 steps come from {words} repetitions per row{coarse}.")
    if any(context.get("tier") == "quick" for context in results.contexts):
        notes.append("Times of 200 steps are those of 30 steps, multiplied.")
    if not any(is_python(row.setup.program) for row in results.rows.values()):
        notes.append("The Python twins were not run: nothing here compares C++ with Python.")
    if all(str(context.get("gpu", "none")) == "none" for context in results.contexts):
        notes.append("There was no GPU: no row here ran on one.")
    runs = results.of_kind("full")
    timed, whole = ({row.setup.program for row in results.of_kind(kind) if row.good}
                    for kind in ("slice", "full"))
    if runs and (rest := sorted(timed - whole - {*TUNED}, key=lambda name: (stage_of(name), name))):
        notes.append(f"Without a whole run here: {', '.join(rest)}.")
    if seeds := {seed for row in runs for seed in row.of_seeds() if seed}:
        notes.append(f"Accuracies of whole runs are means over {len(seeds)} seeds at most. Their "
                     "intervals show what another seed would change on the same test images.")
    for name, words in (("commit", "commits"), ("cpu", "CPUs"), ("data_sha256", "data")):
        if len({text_of(context.get(name)) for context in results.contexts}) > 1:
            notes.append(f"The files come from different {words}: compare the rows of one file.")
    peaks = [float(context.get("peak_gflops", 0)) for context in results.contexts]
    if max(peaks) > 1.2 * min(peaks) > 0:
        notes.append("The files come from CPUs of different speed, with peaks of "
                     f"{' and '.join(f'{peak:.0f}' for peak in peaks)} GFLOP/s: a time of a whole "
                     "run does not compare with that of 200 steps in its row.")
    if any(" and " in text_of(context.get("commit")) for context in results.contexts):
        notes.append("Some rows were measured again at another commit: ratios between them and the "
                     "others are those of two runs.")
    if any("dirty" in text_of(context.get("commit")) for context in results.contexts):
        notes.append("The sources had changes that are in no commit.")
    return notes


# Each with the rows that it is about: a kind, a program, a counter, or any.
GENERAL_NOTES = (
    ("any", "One machine, on one day. Other CPUs, libraries and loads give other numbers; ratios "
     "of one run hold better elsewhere than times."),
    ("slice", "The time of 200 steps leaves out start-up, 20 steps of warm-up and the test."),
    ("full", "The whole run is from the start of the program to its end, with imports, launcher "
     "and rendezvous. One run has no interval."),
    ("twin", "A ratio is that of two medians, of rows that ran in random order. Its interval "
     'resamples both rows independently. "twin not run" marks a row without a twin.'),
    ("full", "The interval of an accuracy of one run shows what another test set of the same size "
     "might give, not what another seed would. A difference marked as noise may be chance: over "
     "seeds, its interval contains 0; of one run each, both tests were taken as independent, "
     "though their images are the same."),
    ("check", "Equal weights were checked for 20 steps in fp32 on one thread. With more threads, "
     "with 16 bits, or in Python, sums are taken in another order, and only accuracies compare."),
    ("twin", "The C++ programs and their twins follow the same recipe, on the same data. The C++ "
     "rows use --math fast: channels_last, dropout by counter, and memory kept between steps. The "
     "twins have PyTorch's defaults with fused optimizers. With --math reference both have the "
     "same bits."),
    ("twin", "The ranks of a twin draw the same dropout masks, as each calls manual_seed with one "
     "seed. Those of a stage draw different ones in --math fast, which can change its accuracy."),
    ("twin", "Stage 4 on convnet shares BatchNorm's statistics between the ranks, which PyTorch "
     "cannot on a CPU: its ratio to the twin compares more work with less."),
    ("tuned", "python_tuned and python_tuned_compile are no twins of a stage but Python tuned for "
     "speed: images in memory, channels_last, and torch.compile in the second. They run on one "
     "process with all threads, like stage 0. The time of torch.compile is in the start-up alone."),
    ("opponent", "python_jax, python_fabric and python_lightning are no twins but other libraries "
     "with the same recipes: JAX beside stage 0, Lightning's Fabric and its Trainer beside stages "
     "5 and 6. JAX compiles in the start-up, and its memory includes PyTorch, which reads the "
     "images."),
    ("phases", "The parts of a step are those of one run under LibTorch's profiler, steps 5 to 8, "
     'rank 0. "data" is everything from the optimizer to the first convolution.'),
    ("slice", "Samples/s and the floor count training images alone. The floor is the arithmetic "
     "of the convolutions and matrix products at this machine's measured peak: in 16 bits at that "
     "in bfloat16 where the CPU multiplies in bfloat16, else at that in fp32. Nothing else that a "
     "step does is in it."),
    ("any", "Peak memory is the sum over the ranks: what they share, such as LibTorch's code, "
     "counts once for each. Launcher and parent processes are not counted."),
    ("sent", "Bytes sent per step are counted in the programs and summed over the ranks: those of "
     "TCP sockets by the kernel, and those written to shared memory."),
    ("lines", "Code lines are those of a program's own source file, without blank lines, "
     "comments, #include and import: what a user writes, and not the library under it. Twins "
     "share files: common.py, which is not counted, and ddp.py, which serves three stages."),
    ("twin", "Without a GPU, PyTorch's DataParallel runs the module alone: its row is one "
     "replica, with all threads."),
    ("usual", "libtorch_usual is neither a stage nor a twin: LibTorch as its own tutorials use "
     "it, with contiguous images, torch::data and torch::optim."),
)


def honesty(results: Results) -> list[str]:
    rows = results.rows.values()
    programs = {row.setup.program for row in rows}
    there = {"any": True, "twin": any(map(is_python, programs)), "usual": USUAL in programs,
             "tuned": bool(programs.intersection(TUNED)),
             "opponent": any(map(is_python, programs.intersection(OPPONENTS))),
             "sent": any(row.counter("sent_bytes_per_step") is not None for row in rows),
             "lines": any(row.counter("user_lines") is not None for row in rows)}
    there |= {row.key.kind: True for row in rows}
    return [*run_notes(results), *(text for about, text in GENERAL_NOTES if there.get(about))]
