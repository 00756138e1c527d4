# SPDX-License-Identifier: Apache-2.0
"""Hypotheses about losses, buffers and optimizers."""
from __future__ import annotations

import math

from .pair import (Answer, Finding, Pair, averages_right, backward_passes, bound, count,
                   disagreeing, factor_of_mean, gradient_norms, has_effect, mean_loss, only_in_a,
                   precisions, windows_of)
from .runs import STATISTICS, weights_apart
from .vectors import apart, fit, mean, near, norm, sketch_of, vector


def counters_of(pair: Pair, step: int) -> list[str]:
    """Buffers of BatchNorm that count its forward passes in training mode."""
    return [n for n in pair.names("buffers", step) if n.endswith(STATISTICS[2])]


def statistics(pair: Pair, step: int) -> Answer:
    """Running statistics after a step, where all gradients so far are those of B."""
    if step not in pair.steps:
        return "running statistics: not recorded"
    names = [n for n in pair.names("buffers", step) if n.endswith(STATISTICS[:2])]
    found = [n for n in names if apart(*(pair.whole(run, "buffers", step, [n])
                                         for run in (pair.a, pair.b))) > max(
                                             0.02, 10 * bound(pair, step))]
    if not found:
        return "running statistics: those of B"
    counters = counters_of(pair, step)
    passes = [sum(run.at(step)[0]["sketches"]["buffers"].get(n, [0.0])[0] for n in counters)
              for run in (pair.a, pair.b)]
    windows = [backward_passes(run, step) or 1 for run in (pair.a, pair.b)]
    why = "it has other inputs, or BatchNorm has another momentum"
    if passes[0] * windows[1] > passes[1] * windows[0]:
        why = ("it counts more forward passes in training mode, of an evaluation or of activation "
               "checkpointing, which repeats the forward")
    return Finding("statistics", f"A has the gradients of B and other running statistics: {why}", [
        f"step {step}: {len(found)} of {len(names)} differ, such as {found[0]}" + (
            f"; batches counted: {passes[0]:.0f} in A, {passes[1]:.0f} in B" * bool(counters))])


def another_loss(pair: Pair) -> Answer:
    """Another loss of the same weights and samples."""
    step = pair.beyond
    of_a, of_b = (mean_loss(run, step) for run in (pair.a, pair.b))
    before = [old[0] if old else {} for old in (pair.a.before(step), pair.b.before(step))]
    if math.isnan(of_a + of_b) or not all(before) or not pair.samples(pair.a, step):
        return "loss: losses, samples or the weights before are not recorded"
    windows = windows_of(pair, step)
    text = f"step {step}: the loss is {of_a:.7g} in A, {of_b:.7g} in B"
    if near(of_a, of_b, 1e-5 + 10 * weights_apart(*before)):
        calls = {call[0] for r in pair.a.at(step) for call in r.get("collectives", [])}
        if averages_right(pair, step) and any("gather" in call for call in calls):
            return Finding("detached", "a part of the loss of A has no gradient: it is cut, as by "
                           "all_gather, which passes none on",
                           [text, f"A calls {', '.join(sorted(calls))} in the step"])
        return text + "; so the difference is in the backward pass or behind it"
    of_mean = factor_of_mean(pair, pair.a, step)  # less than 1: clipped
    if not of_mean < 1.02 or windows[0] != windows[1] and near(
            of_a * windows[1], of_b * windows[0]):
        return text
    if isinstance(answer := statistics(pair, step - 1), Finding):
        return Finding(answer.kind, "A computes another loss with other running statistics" +
                       answer.sentence[answer.sentence.index(":"):], [*answer.evidence, text])
    if isinstance(answer := window_buffers(pair), Finding):
        return Finding(answer.kind, answer.sentence, [*answer.evidence, text])
    means = ""
    if windows[0] != windows[1]:
        text += f"; backward passes: {windows[0]} in A, {windows[1]} in B"
        means = ("means of the batches of an accumulation window, which count differently in B by "
                 "their samples or tokens, ")
    return Finding("another-loss", "A computes another loss of the same weights and samples: " +
                   means + "other labels, masks, terms or reductions, a formula that needs the "
                   "samples of all ranks, or a part of the network that computes something else" + (
                       ", or has a state that the checkpoint lacks"
                       if pair.b.shift and step == pair.steps[0] else ""), [text])


def precision(pair: Pair) -> Answer:
    of_a, of_b = precisions(pair)
    if of_a == of_b:
        step = pair.steps[0]
        scaled = [any(record.get("scale") for record in run.at(step)) for run in (pair.a, pair.b)]
        apart_by = {n: apart(*(pair.whole(run, "gradients", step, [n]) for run in (pair.a, pair.b)))
                    for n in pair.names("gradients", step)}
        most = max(apart_by, key=apart_by.__getitem__, default="")
        if of_a != "fp16" or scaled != [False, True] or apart_by[most] <= bound(pair, step):
            return f"precision: {of_a} in both"
        return Finding("precision", "A computes in fp16 without the GradScaler that B has: small "
                       "gradients become zero", [
                           f"step {step}: the gradient of {most} is {apart_by[most]:.1e} from that "
                           f"of B, and all together {pair.distance('gradients', step):.1e}"])
    return Finding("precision", f"A computes in {of_a}, B in {of_b}", [
        f"step {pair.distances[-1][0]}: gradients {pair.distances[-1][1]:.1e} from those of B"])


def batch_norm(pair: Pair) -> Answer:
    """Statistics of each rank's part, whose mean over the ranks is that of B; of each batch of an
    accumulation window."""
    step = pair.beyond
    counters = counters_of(pair, step)
    windows = windows_of(pair, step)
    sides = [(run.at(step), run.before(step)) for run in (pair.a, pair.b)]
    if counters and 0 not in windows and windows[0] != windows[1] and all(old for _, old in sides):
        passes = [sum(sketch_of(new[0], "buffers", n)[0] - sketch_of(old[0], "buffers", n)[0]
                      for n in counters) for new, old in sides]
        if 0 not in passes and passes[0] * windows[1] == passes[1] * windows[0]:
            return Finding("batch-norm-per-batch", "BatchNorm normalises each batch of an "
                           "accumulation window by itself: accumulation is not a larger batch", [
                               f"step {step}: forward passes in training mode: {windows[0]} in A, "
                               f"{windows[1]} in B, of the same samples"])
    names = [n for n in pair.names("buffers", step) if n.endswith("running_mean")]
    if not names or pair.a.world() < 2:
        return "BatchNorm: " + ("one rank" if names else "no running mean")
    parts = [vector(record, "buffers", names) for record in pair.a.at(step)]
    of_b = pair.whole(pair.b, "buffers", step, names)
    own, together = max(apart(part, of_b) for part in parts), apart(mean(parts), of_b)
    if own < 1e-4:
        return f"BatchNorm: running means are those of B, up to {own:.1g}"
    evidence = [f"step {step}: running means of a rank are {own:.1e} from those of B, their mean "
                f"over the ranks {together:.1e}"]
    if together < 0.1 * own:
        return Finding("batch-norm-per-rank", "each rank of A normalises with the statistics of "
                       "its own part: BatchNorm is not synchronised", evidence)
    return "BatchNorm: " + evidence[0]


def buffers(pair: Pair) -> Answer:
    """Buffers of each rank's part, such as a codebook that is a moving average."""
    step = pair.beyond
    names = [n for n in pair.names("buffers", step) if not n.endswith(STATISTICS)]
    for when, sides in (("before", (pair.a.before(step), pair.b.before(step))),
                        ("after", (pair.a.at(step), pair.b.at(step)))):  # a forward changes them
        found = [n for n in names if all(sides) and len({r["buffers"].get(n) for r in sides[0]}) > 1
                 and len({r["buffers"].get(n) for r in sides[1]}) == 1 and max(
                     apart(*(sketch_of(record, "buffers", n) for record in (one, sides[1][0])))
                     for one in sides[0]) > bound(pair, step)]
        if found and has_effect(pair, step):
            return Finding("buffers-per-rank", "each rank of A changes buffers by its own part, "
                           "and in B they depend on all samples: they are not averaged over the "
                           "ranks",
                           [f"{when} step {step}: {', '.join(found[:3])} differ between the ranks, "
                            "and from B"])
    return f"buffers: {count(len(names), 'one')} without a gradient, none per rank"


def optimizers(pair: Pair) -> Answer:
    """Equal gradients, and weights that differ between the ranks."""
    step = pair.beyond
    if disagreeing(pair.a, "gradients", step) or not only_in_a(pair, "weights", step):
        return "optimizers per rank: " + (
            "the gradients differ already" if disagreeing(pair.a, "gradients", step) else
            "the weights are equal on all ranks")
    with_gradient = [record["gradients"].keys() for record in pair.a.at(step)]
    if any(names != with_gradient[0] for names in with_gradient):
        return Finding("partly-averaged", "the ranks of A have gradients of different parameters, "
                       "which an average by hand pairs wrongly or leaves out", [
                           f"step {step}: gradients of {[len(names) for names in with_gradient]} "
                           "parameters on its ranks"])
    names = pair.names("weights", step)
    of_b = pair.whole(pair.b, "weights", step, names)
    evidence = [f"step {step}: {len(only_in_a(pair, 'weights', step))} tensors differ between the "
                "ranks after it; distances from B: " + ", ".join(
                    f"{apart(vector(r, 'weights', names), of_b):.1e}" for r in pair.a.at(step))]
    if step - 1 in pair.steps and not disagreeing(pair.a, "weights", step - 1):
        return Finding("changed-weights", "the ranks of A take equal steps up to this one: then "
                       "code of some ranks alone changes weights, such as an export that casts "
                       "the network, or their optimizers differ", evidence)
    return Finding("optimizer-per-rank", "the optimizers of A's ranks make different steps of "
                   "equal gradients", evidence)


def without_gradient(pair: Pair) -> Answer:
    """Tensors that change without a gradient in one run alone."""
    names = [n for n in pair.names("buffers", pair.steps[-1]) if not n.endswith(STATISTICS)]
    change = [{n for n in names if len({record["buffers"].get(n) for step in pair.steps
                                        for record in (*run.before(step), *run.at(step))}) > 1}
              for run in (pair.a, pair.b)]
    if change[0] == change[1] or not pair.names("gradients", pair.steps[-1]):
        return f"tensors that change without a gradient: {len(change[0])} in both"
    for found, run in zip((change[0] - change[1], change[1] - change[0]), "AB"):
        if found:
            break
    evidence = [f"steps {pair.steps[0]} to {pair.steps[-1]}: {count(len(found), 'tensor')} without "
                f"a gradient in both runs, such as {min(found)}, changes in {run} alone"]
    if run == "B":
        return Finding("not-trained", "A leaves tensors as they are that B changes without a "
                       "gradient, such as moving averages or a codebook", evidence)
    return Finding("also-trained", "A changes parameters or buffers that have no gradient and rest "
                   "in B: by weight decay or momentum, if zeros take the place of no gradient, or "
                   "by code of its own", evidence)


def window_buffers(pair: Pair) -> Answer:
    """Tensors that change without a gradient further than in B, in another number of batches."""
    step, windows = pair.beyond, windows_of(pair, pair.beyond)
    sides = [(run.before(step), run.at(step)) for run in (pair.a, pair.b)]
    if windows[0] == windows[1] or not all(old for old, _ in sides):
        return "moving averages: as many batches as in B"
    kept = {n for r in pair.a.at(step) for n in r.get("not_optimized", [])}
    for name in (*pair.names("buffers", step), *(n for n in pair.names("weights", step)
                                                 if n in kept)):
        kind = "weights" if name in kept else "buffers"
        moved_by = [norm([x - y for x, y in zip(sketch_of(new[0], kind, name),
                                                sketch_of(old[0], kind, name))])
                    for old, new in sides]
        if not name.endswith(STATISTICS) and all(moved_by) and not near(*moved_by, 0.2):
            return Finding("buffers-per-batch", "A changes tensors that have no gradient in each "
                           "batch of an accumulation window, and B in each step, such as moving "
                           "averages of weights or centers", [
                               f"step {step}: {name} moves {moved_by[0] / moved_by[1]:.3g} times "
                               f"as far as in B; backward passes: {windows[0]} in A, {windows[1]} "
                               "in B"])
    return "moving averages: those of B"


def also_trained(pair: Pair) -> Answer:
    """Gradients of parameters that have none in B."""
    if isinstance(answer := without_gradient(pair), Finding):
        return answer
    step = pair.beyond
    of_a, of_b = ({n for r in run.at(step) for n in r["gradients"]} for run in (pair.a, pair.b))
    found = [n for n in sorted(of_a - of_b) if n in pair.names("weights", step) and apart(
        *(pair.whole(run, "weights", step, [n]) for run in (pair.a, pair.b))) > bound(pair, step)]
    if not found or not of_b:
        return "parameters with a gradient: those of B"
    [of_b, *_], [began, *_] = pair.b.at(step), pair.a.begin() or [{"weights": {}}]
    twin = next((n for n, text in of_b["weights"].items() if n != found[0]
                 and text == of_b["weights"].get(found[0])), None)
    if twin and began["weights"].get(twin) == began["weights"].get(found[0]) is not None:
        return Finding("tied", "weights that are tied in B are two in A",
                       [f"step {step}: {found[0]} and {twin} are equal in B, and not in A"])
    zero = not any(gradient_norms(pair.a.at(step), found))
    return Finding("also-trained", "the optimizer of A moves parameters that have no gradient in "
                   "B: " + ("zeros take the place of no gradient, as after "
                            "zero_grad(set_to_none=False)" if zero else
                            "they are frozen, unused or tied there"),
                   [f"step {step}: {count(len(found), 'parameter')}, such as {found[0]}"])


def optimizer(pair: Pair) -> Answer:
    """Equal gradients on both sides, and other weights after the step."""
    step, gradients, weights = pair.distances[-1]
    if disagreeing(pair.a, "gradients", step) or only_in_a(pair, "weights", step) or (
            not pair.names("gradients", step) or gradients > bound(pair, step)):
        return "optimizer: the gradients are not those of B"
    names = pair.names("weights", step)
    other = [n for n in names if apart(*(pair.whole(run, "weights", step, [n])
                                         for run in (pair.a, pair.b))) > bound(pair, step)]
    of_a, of_b = (pair.whole(run, "weights", step, names) for run in (pair.a, pair.b))
    factors, rest = fit(of_a, [of_b])
    if pair.a.world() > 1 and rest < 0.01 and near(factors[0], pair.a.world()):
        return Finding("summed", "A adds the weights of the ranks after the step, and does not "
                       "divide by their number",
                       [f"step {step}: {factors[0]:.4g} times the weights of B, after equal "
                        "gradients"])
    return Finding("optimizer", "A and B have other weights after equal gradients: other settings "
                   "of the optimizer, a state that is not loaded, or something else that changes "
                   "weights, such as averages that stay after an evaluation",
                   [f"step {step}: gradients {gradients:.1e}, weights {weights:.1e} from B; "
                    f"{len(other)} of {len(names)} tensors differ, such as {', '.join(other[:3])}"])
