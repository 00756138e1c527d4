# SPDX-License-Identifier: Apache-2.0
"""Hypotheses about what goes into a step: weights, samples, noise, rates, collectives."""
from __future__ import annotations

import math
from collections import Counter
from itertools import groupby, takewhile
from typing import Any

from .pair import (Answer, Finding, Pair, are_samples, averages_right, backward_passes, count,
                   factor_of_mean, flat, has_effect, is_pipeline, mean_loss, only_in_a,
                   values_per_rank, windows_of)
from .runs import Run, weights_apart
from .vectors import near

# Kinds with their sentences, each of two ways to find it.
PADDING = "padding", "the sampler of A repeats samples to fill the ranks' parts"
ORDERS = "order-per-rank", ("the ranks of A divide orders of their own, as with another seed on "
                            "each: in an epoch, some samples are read twice, others not at all")


def uneven_steps(pair: Pair) -> Answer:
    """A rank of A that ended early: the others waited, or trained on without it."""
    counts = Counter(rank for _, rank in pair.a.records)
    most, least = max(counts.values()), min(counts.values())
    of_b = Counter(rank for _, rank in pair.b.records)
    if most == least or pair.a.is_cut or max(of_b.values()) != min(of_b.values()):
        return f"steps per rank: {least} to {most}"
    return Finding("uneven-steps", "the ranks of A took different numbers of steps",
                   [f"steps of ranks {pair.a.ranks()}: {[counts[r] for r in pair.a.ranks()]}"])


def tensors(pair: Pair) -> Answer:
    """The names of the weights; tied ones that became two."""
    step = pair.steps[0]
    of_a, of_b = ({n for r in run.at(step) for n in r["weights"] | r["buffers"]}
                  for run in (pair.a, pair.b))
    if of_a == of_b:
        return f"names of {len(of_a)} tensors: equal"
    first = (pair.a.before(step) or pair.a.at(step))[0]
    twins = {extra: name for extra in of_a - of_b for name in of_a & of_b
             if first["weights"].get(extra) == first["weights"].get(name)}
    if twins and of_a > of_b and twins.keys() == of_a - of_b:
        return Finding("tied", "weights that are tied in B are two in A",
                       [f"{extra} begins equal to {name}, and B has {name} alone"
                        for extra, name in sorted(twins.items())])
    return Finding("another-network", "the runs have other tensors", [
        f"in A alone: {sorted(of_a - of_b)[:5]}; in B alone: {sorted(of_b - of_a)[:5]}"])


def start(pair: Pair) -> Answer:
    """The weights before the first common step."""
    step = pair.steps[0]
    sides = pair.a.before(step), pair.b.before(step)
    if not all(sides):  # each tenth step is recorded
        sides = pair.a.begin(), pair.b.begin()
        if not all(sides) or pair.a.origin() != pair.b.origin():
            return "weights before the first step: not recorded"
        step = pair.a.origin() + 1
    names = [n for n in sides[1][0]["weights"] if n in sides[0][0]["weights"]]
    for record in sides[0][1:] if len(sides[1]) == 1 or sides[1][0]["weights"] == sides[1][-1][
            "weights"] else []:
        other = [n for n in names if record["weights"].get(n, "") not in (
            "", sides[0][0]["weights"][n])]
        if other:
            return Finding(
                "start", "the ranks of A begin with different parameters or buffers",
                [f"before step {step}: {len(other)} of {len(names)} tensors of rank "
                 f"{record['rank']} differ from rank 0, such as {other[0]}"])
    distance = weights_apart(sides[0][0], sides[1][0])
    of_a, of_b = ({one for r in run.at(pair.steps[0]) for one in r.get("dtypes", ["float32"])}
                  for run in (pair.a, pair.b))
    if of_a != of_b and 0 < distance < 2.0**-7 and (of_a | of_b) & {"bfloat16", "float16"}:
        return Finding("precision", f"A has parameters in {' and '.join(sorted(of_a))}, B in "
                       f"{' and '.join(sorted(of_b))}", [
                           f"before step {step}: relative distance {distance:.1e}, which the "
                           "shorter numbers explain"])
    if distance > 16 * pair.rounding_unit:
        return Finding("start", "A begins with other parameters than B", [
            f"before step {step}: relative distance {distance:.1e}"] + [
                "if A resumes: after a step that B records"] * (step < pair.steps[0]))
    return f"parameters before step {step}: relative distance {distance:.1g}"


def repeated_samples(pair: Pair) -> Answer:
    """Samples that several ranks of A read in one step."""
    twice = all_of_a = in_b = all_of_b = begin = 0
    equal = set(range(1, pair.a.world()))  # to an earlier one in each step
    for step in pair.steps:
        ranks = [set(part) for part in pair.samples(pair.a, step)]
        equal &= {i for i in range(len(ranks)) if ranks[i] in ranks[:i]}
        twice += sum(map(len, ranks)) - len(set().union(*ranks))
        begin = begin or step * (twice > 0)
        all_of_a += sum(map(len, ranks))
        of_b = flat(pair.samples(pair.b, step))
        in_b += len(of_b) - len(set(of_b))  # equal rows of the data
        all_of_b += len(of_b)
    if 2 * in_b > all_of_b:
        return "samples: most rows of a step are equal, so they are none"
    if not all_of_a:
        return "samples: not recorded in both runs"
    text = f"{twice} of {all_of_a} samples of A were also read by another rank in that step"
    if twice and not are_samples(pair, begin):
        return f"{text}, and the gradient is that of the samples of B"
    if twice and equal:
        some = "some ranks of A read" if len(equal) < pair.a.world() - 1 else "every rank reads"
        return Finding("repeated-samples", f"{some} the same samples: the loader has no sampler, "
                       "or one with the same rank on several", [text])
    if not twice or in_b:
        return f"samples: {twice} of A on two ranks in one step, {in_b} twice in one of B"
    all_of = [Counter(one for step in pair.steps for one in flat(pair.samples(run, step)))
              for run in (pair.a, pair.b)]
    if lost := all_of[1] - all_of[0]:
        return Finding(*ORDERS, [
            text, f"{lost.total()} of {all_of[1].total()} samples of B are missing"])
    windows = [windows_of(pair, step) for step in pair.steps]
    if any(x * windows[0][1] != y * windows[0][0] for x, y in windows):
        return f"{text}, in windows of other numbers of batches"
    return Finding(*PADDING, [text])


def step_without_batch(pair: Pair) -> Answer:
    """Steps of the optimizer with no forward of the network since the last one."""
    counts = [[("rows" in r, len(r.get("losses", []))) for s in pair.steps for r in run.at(s)]
              for run in (pair.a, pair.b)]
    without = sum(not rows and not passes for rows, passes in counts[0])
    if without in (0, len(counts[0])) or not all(rows for rows, _ in counts[1]):
        return "steps without a batch: none"
    return Finding("step-without-batch", "the optimizer of A steps without a new batch: step() is "
                   "called twice", [f"{without} of {len(counts[0])} records of A have no batch"])


def batch_size(pair: Pair) -> Answer:
    """Samples per step."""
    step = pair.steps[0]
    counts = [[len(part) for part in pair.samples(run, step)] for run in (pair.a, pair.b)]
    if not sum(counts[0]):
        return "batch size: not recorded in both runs"
    total, wanted = map(sum, counts)
    alike = sum(sum(map(len, pair.samples(pair.a, s))) * wanted == total * sum(map(
        len, pair.samples(pair.b, s))) for s in pair.steps)
    if total == wanted or 2 * alike <= len(pair.steps):  # the last step of an epoch may be short
        return f"samples per step: {total} in A, {wanted} in B in {count(alike, 'step')}"
    evidence = [f"step {step}: {total} samples in A ({counts[0]} on its ranks), {wanted} in B"]
    world = pair.a.world()
    parts = [pair.samples(run, step) for run in (pair.a, pair.b)]
    once = [set(flat(part)) for part in parts]
    if once[0] == once[1] and any(len(set(part)) < len(part) for part in flat(parts)):
        return Finding("accumulation-window", "A passes some samples of a step through the network "
                       "another number of times than B: a closure, or a second pass, has not all "
                       "batches of the window", [*evidence, f"the same {len(once[0])} samples"])
    if not are_samples(pair, step):
        return f"{evidence[0]}, and the gradient is that of the samples of B"
    if counts[0] == [wanted // world] * world:
        return Finding("batch-remainder", "the ranks of A divide the batch without its remainder",
                       evidence)
    if world > 1 and counts[0] == [wanted] * world:
        passes = backward_passes(pair.a, step)
        return Finding("per-device-batch", "each rank of A takes a batch" + (
            f", or a window of {passes} batches," * (passes > 1)) + " as large as that of all "
            "ranks of B, so a step has more samples and an epoch fewer steps", evidence)
    of_a, of_b = (mean_loss(run, step) for run in (pair.a, pair.b))
    if total < wanted and wanted % total == 0 and near(of_a, of_b, 1e-6):
        return Finding("detached", "a part of the loss of A has no gradient: its forward is under "
                       "no_grad(), or its result is detached", [
                           *evidence, f"the loss is {of_a:.7g} in A, {of_b:.7g} in B"])
    first = [one for s in pair.steps[:wanted // total] for one in flat(pair.samples(pair.a, s))]
    if total < wanted and Counter(first) == Counter(flat(pair.samples(pair.b, step))):
        return Finding("accumulation-window", "A takes a step after each batch of an accumulation "
                       "window", [*evidence, f"the first {wanted // total} steps of A have the "
                                             "samples of the first one of B"])
    return Finding("batch-size", "A has another batch size", evidence)


def order(pair: Pair) -> Answer:
    """Other samples, or the same ones in other steps."""
    of_a, of_b = ([flat(pair.samples(run, step)) for step in pair.steps]
                  for run in (pair.a, pair.b))
    if not any(of_a):
        return "order of the samples: not recorded in both runs"
    differs = [i for i, (x, y) in enumerate(zip(of_a, of_b)) if Counter(x) != Counter(y)]
    if not differs:
        return f"samples: the same ones in {count(sum(map(bool, of_a)), 'step')}"
    step = pair.steps[differs[0]]
    if not has_effect(pair, step) or not are_samples(pair, step):
        return "samples: other rows, such as cut or padded ones, and the same gradients"
    found = order_of_samples(pair, of_a, of_b, differs)
    found.step = step
    return found


def order_of_samples(pair: Pair, of_a: list[list[Any]], of_b: list[list[Any]],
                     differs: list[int]) -> Finding:
    """Samples that differ in steps[i] for i in `differs`."""
    begins = [i for i in range(1, len(of_a)) if of_a[i] == of_a[0]]
    again = bool(begins) and all(x == y for x, y in zip(of_a, of_a[begins[0]:]))
    if again and begins[0] == differs[0] and of_b[begins[0]] != of_b[0]:
        return Finding("set-epoch", "every epoch of A has the order of the first one: set_epoch "
                       "is not called", [f"step {pair.steps[begins[0]]} of A has the "
                                         f"{len(of_a[0])} samples of step {pair.steps[0]} again"])
    times = [len([*same]) for _, same in groupby(of_a)]
    if times[0] > 1 and len(times) > 1 and set(times[:-1]) == {times[0]}:
        return Finding("repeated-batches", f"A reads each batch {times[0]} times in a row, as from "
                       "an IterableDataset that its workers do not divide", [
                           f"the same {len(of_a[0])} samples are in steps {pair.steps[0]} to "
                           f"{pair.steps[times[0] - 1]} of A"])
    all_a, all_b = Counter(flat(of_a)), Counter(flat(of_b))
    step = pair.steps[differs[0]]
    parts = [[len(part) for part in pair.samples(run, step)] for run in (pair.a, pair.b)]
    sizes = [sum(part) for part in parts]
    passes = windows_of(pair, step)
    if sizes[0] != sizes[1]:
        evidence = [f"step {step}: {sizes[0]} samples in A, {sizes[1]} in B"]
        if passes[0] != passes[1]:
            return Finding("accumulation-window", "accumulation windows of A have another number "
                           "of batches: the condition of step() is wrong, or leaves out the first "
                           "or last batches of an epoch", evidence + [
                               f"backward passes: {passes[0]} in A, {passes[1]} in B"])
        i = differs[0]
        more, fewer = Counter(of_a[i]) - Counter(of_b[i]), Counter(of_b[i]) - Counter(of_a[i])
        if more and not fewer and more.keys() <= set(flat(of_a[:i])):
            return Finding(*PADDING, evidence)
        if passes[0] == passes[1] > 0 and bool(more) != bool(fewer) and (
                max(sizes) % min(sizes) == 0 and len(set(parts[0])) == 1):
            alone, steps = "AB" if more else "BA"
            return Finding("skipped-step", f"{steps} steps with a batch that {alone} only passes "
                           "forward: it skips the step, or evaluates",
                           [*evidence, f"backward passes: {passes[0]} in both"])
        if len(set(parts[0])) > len(set(parts[1])):
            return Finding("uneven-steps", "a rank of A leaves out a batch or a backward pass that "
                           "the others have, or has one more", evidence + [
                               f"samples of A's ranks: {parts[0]}"])
        return Finding("batch-size", "A has another batch size in some steps, as in the last one "
                       "of an epoch", evidence)
    if found := shifted(pair, of_a, differs[0]):
        return found
    ranks = [set(part) for part in pair.samples(pair.a, step)]
    alien = [rank for rank, part in enumerate(ranks) if not part & all_b.keys()]
    known = set().union(*(part for rank, part in enumerate(ranks) if rank not in alien))
    if alien and known and known <= set(of_b[differs[0]]) and not pair.samples(
            pair.a, step, ("samples",)):
        return Finding("other-samples", f"rank {alien[0]} of A reads none of the samples of B, or "
                       "the same ones with other values, such as another augmentation",
                       [f"step {step}: the samples of the other ranks are those of B"])
    lost = all_b - all_a
    share = lost.total() / all_b.total()
    other = Counter(of_b[differs[0]]) - Counter(of_a[differs[0]])
    evidence = [f"step {step}: {other.total()} of {len(of_b[differs[0]])} samples are not those of "
                f"B; in these {len(pair.steps)} steps {lost.total()} of {all_b.total()} samples of "
                "B are not in A"]
    if share == 1:
        return Finding("other-samples", "A reads none of the samples of B" + (
            ", or the same ones with other values: normalised, augmented, cut or cast otherwise"
            if not pair.samples(pair.a, step, ("samples",)) else ""), evidence)
    begun = set(flat(of_b[:differs[0]]))
    if begun.issuperset(of_b[differs[0]]) and len(all_a) >= len(all_b) + sizes[1] and not (
            pair.samples(pair.a, step, ("samples",))):  # drop_last leaves out less than a batch
        return Finding("other-samples", "the samples of A get other values in the course of the "
                       "run, as by a transform that changes the data in place", [
                           *evidence, f"A has {len(all_a)} different samples, and B, which reads "
                           f"them again, {len(all_b)}"])
    reads = [Counter(flat([pair.samples(pair.a, s)[rank] for s in pair.steps]))
             for rank in range(len(ranks))]
    shared = sum(map(len, reads)) - len(all_a)
    # Within an epoch; and more than fills equal parts.
    if shared > len(ranks) and max(all_b.values()) == max(max(r.values()) for r in reads) == 1:
        return Finding(*ORDERS, [
            *evidence, f"{count(shared, 'sample')} of A are read by several ranks"])
    if ascending(pair, pair.a) and not ascending(pair, pair.b):
        return Finding("another-order", "A does not shuffle: its samples are in ascending order",
                       evidence)
    return Finding("another-order", "A reads the samples in another order, as with another seed "
                   "or division of the data", evidence)


def ascending(pair: Pair, run: Run) -> bool:
    parts = [[int(one) for one in part if one.isdigit()] for step in pair.steps
             for part in pair.samples(run, step, ("samples",))]
    return any(parts) and all(part == sorted(part) for part in parts)


def shifted(pair: Pair, of_a: list[list[Any]], begin: int) -> Finding | None:
    """Batches that B had some steps earlier, or has some later."""
    kind = "samples" if pair.samples(pair.a, pair.steps[0], ("samples",)) else "rows"
    in_b: dict[int, Counter] = {}
    ranks = pair.b.ranks()[:1 if is_pipeline(pair.b, pair.steps[0]) else None]
    for (step, rank), record in pair.b.records.items():
        if rank in ranks:
            in_b.setdefault(step, Counter()).update(map(str, record.get(kind) or []))
    own = [(step, Counter(part)) for step, part in zip(pair.steps[begin:], of_a[begin:])][:8]
    for by in sorted({s - own[0][0] for s, part in in_b.items() if part == own[0][1]}, key=abs):
        met = len([*takewhile(bool, (in_b[step + by] == part for step, part in own
                                     if step + by in in_b))])
        if met > 1:
            when = f"{count(abs(by), 'step')} {'earlier' if by < 0 else 'later'}"
            return Finding("data-position", f"A reads the batches that B reads {when}: data and "
                           "weights are of other steps, as after a resume that skips no batch, one "
                           "too many or some in each epoch, or has the weights of another "
                           "checkpoint",
                           [" have the samples of ".join(
                               f"steps {begin} to {begin + met - 1} of {run.name}" for
                               run, begin in ((pair.a, own[0][0] + pair.a.shift),
                                              (pair.b, own[0][0] + by + pair.b.shift)))])
    return None


def moves(run: Run, steps: list[int]) -> bool:
    """Whether most steps draw from the default random generator."""
    states = [run.at(step)[0].get("random") for step in steps]
    pairs = list(zip(states, states[1:]))
    return None not in states and sum(x != y for x, y in pairs) > len(pairs) / 2


def same_random(run: Run, step: int) -> bool:
    return run.world() > 1 and len({record.get("random") for record in run.at(step)}) == 1


def is_deterministic(run: Run) -> bool:
    """Whether samples that are read again have the same rows."""
    rows: dict[str, list[str]] = {}
    for record in run.records.values():
        for sample, row in zip(record.get("samples") or [], record.get("rows") or []):
            rows.setdefault(str(sample), []).append(str(row))
    again = [texts for texts in rows.values() if len(texts) > 1]
    return bool(again) and all(len(set(texts)) == 1 for texts in again)


def noise(pair: Pair) -> Answer:
    """Augmentation: other inputs for the same samples. Dropout: another gradient of the same
    inputs, where the averaging is right."""
    steps = pair.steps
    of_inputs = [  # most of the rows differ: a few are cut or padded otherwise
        step for step in steps
        if pair.samples(pair.a, step, ("samples",)) and 2 * (
            Counter(rows := flat(pair.samples(pair.a, step, ("rows",)))) - Counter(
                flat(pair.samples(pair.b, step, ("rows",))))).total() >= len(rows) > 0
        and has_effect(pair, step)]
    step = of_inputs[0] if of_inputs else pair.beyond
    if not step or not (of_inputs or moves(pair.a, steps)):
        return "noise: most steps of A draw no random numbers"
    if of_inputs and not moves(pair.a, steps) and is_deterministic(pair.a):
        return Finding("other-samples", "the samples of A have other values than in B, the same in "
                       "each epoch: normalised, cut or cast otherwise",
                       [f"step {step}: the same samples have other inputs"], step)
    evidence = [f"step {step}: " + (
        "the same samples have other inputs" if of_inputs else
        "the ranks' gradients add up to A's, and not to B's")]
    sums = of_inputs or not math.isnan(factor_of_mean(pair, pair.a, step))
    if sums and moves(pair.a, steps) and same_random(pair.a, step) and not (
            same_random(pair.b, step) and moves(pair.b, steps)):
        return Finding("same-noise", "all ranks of A draw the same random numbers", evidence + [
            f"their generators have one state, {pair.a.at(step)[0]['random']}, which moves with "
            "each step"], step)
    if not of_inputs and not averages_right(pair, step):
        return "noise: the gradients of the ranks do not add up to A's"
    states = [[record.get("random") for record in run.at(step)] for run in (pair.a, pair.b)]
    if not of_inputs and states[0] == states[1]:
        return "noise: the random generators have the states of B"
    return Finding("other-noise", "A draws other random numbers than B, for " + (
        "augmentation: another seed, or one generator that the workers or ranks share"
        if of_inputs else "augmentation or dropout"), evidence, step)


def rates_of(run: Run, step: int) -> list[list[float]]:
    return [record["rates"] for record in run.at(step)]


def schedule(pair: Pair) -> Answer:
    """Learning rates: per rank, and over the steps."""
    if not all(all(rates_of(run, s)) for run in (pair.a, pair.b) for s in pair.steps):
        return "learning rates: not recorded in both runs"
    for step, rates in values_per_rank(pair, lambda record: record["rates"]):
        return Finding("schedule-per-rank", "the ranks of A have different learning rates: "
                       "the scheduler steps on some of them alone, or by their own numbers",
                       [f"step {step}: {rates} on ranks {pair.a.ranks()}"], step)
    of_a, of_b = ([rates_of(run, s)[0] for s in pair.steps] for run in (pair.a, pair.b))
    other = [i for i, (x, y) in enumerate(zip(of_a, of_b))
             if any(not near(p, q, 1e-6) for p, q in zip(x, y))]
    if not other:
        return f"learning rates: equal in {len(pair.steps)} steps"
    step = pair.steps[other[0]]
    evidence = [f"step {step}: learning rate {of_a[other[0]]} in A, {of_b[other[0]]} in B"]
    if restarted(pair):
        return Finding("schedule-restarted", "the schedule of A starts again after the resume: the "
                       "state of the scheduler is not loaded", [
                           *evidence, "from its second step on, A has the rates of B's steps 2, "
                           "3, ..."], step)
    if other[0] == 0:
        ratios = [f"{x / y if y else math.inf:.4g}" for x, y in zip(of_a[0], of_b[0])]
        times, rates = ratios[0], "rate"
        if len(set(ratios)) > 1:
            times, rates = " and ".join(ratios), "rates of the parameter groups"
        return Finding("learning-rate", f"A begins with {times} times the learning {rates} of B",
                       evidence)
    for factor in range(2, 65):
        for of_fast, of_slow, word in ((of_a, of_b, "fast"), (of_b, of_a, "slow")):
            if follows(of_fast, of_slow, factor):
                return Finding(f"schedule-too-{word}", f"the schedule of A runs {factor} times too "
                               f"{word}", evidence, step)
    return Finding("schedule", "A has another learning-rate schedule", evidence, step)


def restarted(pair: Pair) -> bool:
    """Whether a resumed A has the rates with which B began. A's first one is the optimizer's."""
    rank = pair.b.ranks()[0]
    rates = [(rates_of(pair.a, step)[0], pair.b.records[begun, rank]["rates"])
             for step in pair.steps[1:] if (begun := step - pair.b.shift, rank) in pair.b.records]
    return bool(pair.b.shift) and len(rates) > 1 and all(
        near(x, y, 1e-6) for pairs in rates for x, y in zip(*pairs))


def scales(pair: Pair) -> Answer:
    """The scale of the loss per rank."""
    for step, found in values_per_rank(pair, lambda record: record.get("scale")):
        if only_in_a(pair, "gradients", step) or has_effect(pair, step):
            return Finding("scale-per-rank", "the ranks of A scale their losses differently, and "
                           "then average: the state of the GradScaler is loaded or updated on "
                           "some of them alone",
                           [f"step {step}: scales {found} on ranks {pair.a.ranks()}"], step)
    return "scale of the loss: the same on all ranks"


def follows(fast: list[list[float]], slow: list[list[float]], factor: int) -> bool:
    """Whether `fast` changes its value `factor` times as early, and to the same ones."""
    changes = [[i for i in range(1, len(r)) if r[i] != r[i - 1]] for r in (fast, slow)]
    if not all(changes):
        return False
    matched = [near(fast[i][0], slow[i * factor][0], 0.02) for i in changes[0]
               if i * factor < len(slow)]
    # A rate of each step in its second step, one of each epoch at its begin.
    return bool(matched) and all(matched) and (
        changes[1][0] == factor * changes[0][0] or changes[0][0] == changes[1][0] == 1 < len(
            matched))


def collectives(pair: Pair) -> Answer:
    """Calls that one rank of A made, and another did not."""
    for step, calls in values_per_rank(pair, lambda record: [
            tuple(call) for call in record.get("collectives", [])]):
        return Finding("skipped-collective", "a rank of A skipped a collective, so the calls "
                       "of the ranks do not belong together",
                       [f"step {step}: rank {rank} called {dict(Counter(map(str, one)))}"
                        for rank, one in zip(pair.a.ranks(), calls)], step)
    return "collectives: the same calls on all ranks"
