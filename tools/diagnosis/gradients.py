# SPDX-License-Identifier: Apache-2.0
"""Hypotheses about gradients: their averaging, factors, limits, and what is lost of them."""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from .pair import (Answer, Finding, Pair, averages_right, backward_passes, bound, count,
                   disagreeing, factor_of_mean, gradient_norms, has_effect, least_bound, locals_of,
                   moved, numbers, only_in_a, over_mean, precisions, scale_of, skipped)
from .runs import Run
from .vectors import Record, Vector, apart, fit, mean, near, norm, vector


def not_trained(pair: Pair) -> Answer:
    """Tensors that the optimizer leaves as they are."""
    step = pair.beyond
    if skipped(pair.b, step) and not skipped(pair.a, step):
        return Finding("skipped-step", "B skips the step, and A does not: the gradient of B is not "
                       "finite", [f"step {step}: no weight of B moves"])
    sides = pair.a.before(step), pair.b.before(step)
    if not all(sides):
        return "tensors that do not change: the step before is not recorded"
    still = []
    for run, before in zip((pair.a, pair.b), sides):
        pairs = [(n, text == old["weights"].get(n)) for r, old in zip(run.at(step), before)
                 for n, text in r["weights"].items()]
        still.append({n for n, same in pairs if same} - {n for n, same in pairs if not same})
    if not (found := still[0] - still[1]):
        return "tensors that do not change: none"
    lacks = {n for r in pair.a.at(step) for n in r.get("not_optimized", [])}
    evidence = [f"step {step}: {count(len(found), 'tensor')} without a change, such as "
                f"{sorted(found)[0]}" + "; the optimizer does not have them" * (found <= lacks)]
    sizes = gradient_norms(pair.a.at(step), found)
    if not all(map(math.isfinite, sizes)):
        return Finding("skipped-step", "A skips the step: its gradient is not finite" + (
            "; a scale that grows may overflow in one run alone, which is no mistake"
            if scale_of(pair.a, step) > 1 else ""), evidence)
    if not any(sizes) and not found <= lacks:
        return Finding("not-trained", "parameters of A get no gradient: they are frozen, detached, "
                       "or lose it between backward() and step()", evidence)
    return Finding("not-trained", "the optimizer of A has other parameters than the network, or "
                   "lacks some", evidence)


def weights_averaged(pair: Pair) -> Answer:
    """Gradients that differ between the ranks, and weights that do not."""
    step = pair.beyond
    differ = only_in_a(pair, "gradients", step)
    names = sorted(differ)
    own, scale = locals_of(pair.a, step, names), scale_of(pair.a, step)
    if differ and not any(math.isnan(over_mean(vector(record, "gradients", names), own, scale))
                          for record in pair.a.at(step)):
        return "weights averaged instead of gradients: the gradients are averaged, and then scaled"
    if not differ or disagreeing(pair.a, "weights", step) or not moved(pair.a, step):
        return "weights averaged instead of gradients: " + (
            "the weights differ between the ranks" if differ else "the gradients are averaged")
    return Finding("weights-averaged", "A averages weights after the step instead of gradients "
                   "before it", [f"step {step}: gradients of {len(differ)} tensors differ between "
                                 "the ranks, and the weights after the step do not"])


def not_averaged(pair: Pair) -> Answer:
    """Gradients that differ between the ranks, as sums of those of the ranks."""
    step = pair.beyond
    differ = sorted(only_in_a(pair, "gradients", step))
    if not differ:
        return "averaging: the gradients are equal on all ranks"
    equal = {name for name in set(pair.names("gradients", step)) - set(differ)
             if any(pair.whole(pair.a, "gradients", step, [name]))}  # zero is equal without a sum
    evidence = [f"step {step}: gradients of {len(differ)} of {len(differ) + len(equal)} tensors "
                f"differ between the ranks, such as {differ[0]}"]
    found = [vector(record, "gradients", differ) for record in pair.a.at(step)]
    own = locals_of(pair.a, step, differ)
    rows = [fit(one, own) for one in found] if own else []
    if rows and max(rest for _, rest in rows) < 0.05:
        evidence += [f"gradient of rank {rank} = {numbers(factors)} times those of the ranks"
                     for rank, (factors, _) in zip(pair.a.ranks(), rows)]
        small = 0.02 * max(abs(f) for row, _ in rows for f in row)
        apart_alone = all(abs(f) <= small for i, (factors, _) in enumerate(rows)
                          for k, f in enumerate(factors) if k != i)
        groups = [[i for i, f in enumerate(row) if abs(f) > small] for row, _ in rows]
        if not apart_alone and len(set(map(tuple, groups))) > 1 and all(
                near(f, 1 / len(group)) for (row, _), group in zip(rows, groups)
                for f in row if abs(f) > small):
            return Finding("partly-averaged", "the ranks of A average in groups and not all "
                           "together: the wrapper has another process group", evidence)
        if not apart_alone and all(near(f, row[0]) for row, _ in rows for f in row):
            text = "the ranks' factors of the mean are " + numbers(
                [sum(row) * scale_of(pair.a, step) for row, _ in rows])
            if factor_of_mean(pair, pair.b, step) < 0.98:
                return Finding("clipping", "each rank of A clips by a norm of its own, such as "
                               "that of the parameters that it optimizes, and B by that of all",
                               [evidence[0], text])
            return f"averaging: right, and then another factor per rank: {text}"
        if not apart_alone and fit(rows[0][0], [rows[-1][0]])[1] > 0.02:
            return Finding("partly-averaged", "a backward of the step is not averaged, so each "
                           "rank counts its own gradient more than those of the others", evidence)
        if not apart_alone:
            return Finding("divided-early", "the ranks of A weigh the gradients differently: one "
                           "divides before the sum has arrived", evidence)
    elif apart(mean(found), pair.whole(pair.b, "gradients", step, differ)) < 0.05:
        evidence.append("the mean of the ranks' gradients is the gradient of B")
        if own and not equal:
            return Finding("partly-averaged", "some backward passes of the step are averaged, and "
                           "others not: no_sync(), or the flag that it sets, must be there before "
                           "the forward, and not in the last pass", evidence)
    else:
        return "averaging: the gradients of the ranks are no sums of each other"
    if equal:
        return Finding("outside-the-wrapper", "some parameters of A are not averaged: they are "
                       "outside of the wrapper, ignored by it or unfrozen after it was made, or "
                       "averaging by hand misses them",
                       evidence)
    if step - 1 in pair.steps and not disagreeing(pair.a, "gradients", step - 1):
        return Finding("no-sync", f"A averages up to step {step - 1} and not from step {step} "
                       "on: no_sync is left on, or averaging by hand finds no parameters", evidence)
    wrapped = [r.get("wrapper_forwards", 0) for r in pair.a.at(step)]
    if any(wrapped):
        return Finding("no-sync", "no backward of the step averages: no_sync is left on, the "
                       "gradients come from autograd.grad(), which calls no hooks, or the wrapper "
                       "has a process group of one rank",
                       evidence + ["the wrapper is called"])
    return Finding("not-averaged", "each rank of A trains alone: the forward is that of the "
                   "network and not of the wrapper, or there is no wrapper", evidence)


def scaled(pair: Pair) -> Answer:
    """A gradient that is a multiple of the right one."""
    step = pair.beyond
    names = pair.names("gradients", step)
    gradient, of_b = (unclipped(pair, run, step, names) for run in (pair.a, pair.b))
    factors, rest = fit(gradient, [of_b])
    title = "gradients N times too large or small: "
    if only_in_a(pair, "gradients", step) or rest > max(0.01, 4 * least_bound(pair)):
        return f"{title}no multiple of B's leaves less than {rest:.1g}"
    times = factors[0]
    before = pair.distances[-2][2] if len(pair.distances) > 1 else 0.0  # of the weights
    if near(times, 1, max(0.01, 4 * least_bound(pair), 10 * before)):
        return f"{title}those of B"
    evidence = [f"step {step}: {times:.4g} times the gradient of B, the rest {rest:.1e}"]
    own = locals_of(pair.a, step, names)
    factors, rest = fit(gradient, own) if own else ([], math.inf)
    if rest < 0.02:
        evidence.append(f"= {numbers(factors)} times the gradients of the ranks")
    added = not factors or near(factors[0], 1)
    if found := factor_kind(pair, times, added, evidence):
        return found
    limit = common_limit(pair)
    if limit and times > 1.02 and near(size_of(pair, pair.a, step), limit, 1e-3) and (
            pair.a.world() > 1) and not near(size_of(pair, pair.b, step), limit, 1e-3):
        return Finding("summed", "the gradient of A is too large before its norm is limited, as if "
                       "those of the ranks were added and not averaged",
                       [*evidence, f"the limit of both runs is {limit:.4g}"])
    return title + evidence[0]


def limit_of(pair: Pair, run: Run) -> tuple[float, set[int]]:
    """The largest norm of a gradient and the steps that have it, if they are several."""
    norms = {step: norm([sketch[0] for sketch in run.at(step)[0]["sketches"].get(
        "gradients", {}).values()]) for step in pair.steps}
    limit = max(norms.values())
    hits = {step for step, size in norms.items() if near(size, limit, 1e-3)}
    return (limit, hits) if len(hits) > 1 else (0.0, set())


def clip_limit(pair: Pair, run: Run) -> float:
    """That of this step's gradient; 0 = it has none."""
    limit, hits = limit_of(pair, run)
    averaged = near(factor_of_mean(pair, run, pair.beyond), 1)
    return limit if pair.beyond in hits and not averaged else 0.0


def common_limit(pair: Pair) -> float:
    """Of steps in both runs; 0 = none."""
    of_a, of_b = (limit_of(pair, run)[0] for run in (pair.a, pair.b))
    return of_a if near(of_a, of_b, 1e-3) else 0.0


def unclipped(pair: Pair, run: Run, step: int, names: list[str]) -> Vector:
    """The gradient before its norm was limited, as it is in both runs, or would be in the other
    one, whose norm is less than the limit."""
    gradient, own = pair.whole(run, "gradients", step, names), locals_of(run, step, names)
    other = pair.b if run is pair.a else pair.a
    below = size_of(pair, other, step) < 0.999 * limit_of(pair, run)[0]
    if not over_mean(gradient, own, scale_of(run, step)) < 0.98 or not (
            common_limit(pair) or below):
        return gradient
    return [x / scale_of(run, step) for x in mean(own)]


def size_of(pair: Pair, run: Run, step: int) -> float:
    return norm(gradient_norms(run.at(step)[:1], pair.names("gradients", step)))


def clipping(pair: Pair) -> Answer:
    """Gradients with a limit for their norm."""
    if not has_effect(pair, pair.beyond):
        return "clipping: the gradients are those of B"
    of_a, of_b = limits = [clip_limit(pair, run) for run in (pair.a, pair.b)]
    if not any(limits) or disagreeing(pair.a, "gradients", pair.beyond):
        return "clipping: no norm of a gradient is that of several steps"
    if not all(limits) and (limit := common_limit(pair)):
        return f"clipping: the norm of the gradient has the limit {limit:.4g} in both runs"
    evidence = [f"step {pair.beyond}: the norm of the gradient has a limit: " + ", ".join(
        f"{limit:.4g} in {run}" if limit else f"none in {run}" for limit, run in zip(limits, "AB"))]
    scale = scale_of(pair.a, pair.beyond)
    size = size_of(pair, pair.b, pair.beyond)
    # A limit that B's gradient does not reach is that of B too.
    if scale > 1 and of_a and (near(of_a * scale, of_b) or not of_b and size < of_a * scale):
        return Finding("clipped-before-unscale", "A clips its gradient while it has the scale of "
                       "the loss: unscale_() comes after clipping, or not at all", evidence + [
                           f"the scale is {scale:g}, so the limit is {of_a * scale:.4g}"])
    below = of_a and not of_b and size < 0.999 * of_a
    if near(of_a, of_b) or below or not of_a and not averages_right(pair, pair.beyond):
        return evidence[0]
    return Finding("clipping", "A clips its gradient to another norm than B" if all(limits) else
                   f"{'A' if of_a else 'B'} clips its gradient, and the other does not", evidence)


def zero_grad(pair: Pair) -> Answer:
    """Gradients of another step that are still there, and those of this step that are not."""
    step = pair.beyond
    names = pair.names("gradients", step)
    of_a, of_b = (pair.whole(run, "gradients", step, names) for run in (pair.a, pair.b))
    own = locals_of(pair.a, step, names)
    of_others = locals_of(pair.b, step, names)
    if own and len(own) == len(of_others) and fit(of_a, own)[1] < 0.01 and (
            fit(of_b, own)[1] > 0.05) and max(map(apart, own, of_others)) < 10 * bound(pair, step):
        return Finding("zero-grad", "A keeps gradients that B discards: zero_grad() is called "
                       "elsewhere, or not at all", [
                           f"step {step}: the backward passes of A are those of B; its gradient is "
                           "the mean of all, and that of B is not"])
    if not own or disagreeing(pair.a, "gradients", step) or fit(of_a, own)[1] < 0.02:
        return "zero_grad: the gradient of A is one of its backward passes"
    if fit(of_b, own)[1] < 0.01 and backward_passes(pair.a, step) > 1:
        limit = clip_limit(pair, pair.a)
        return Finding("accumulation-window", "A loses or changes gradients within an accumulation "
                       "window: zero_grad() is called, or the norm is clipped, after each backward "
                       "pass and not once per step", [
                           f"step {step}: the backward passes of A have the gradient of B, and its "
                           "optimizer gets another" + f" of the norm {limit:.4g}" * bool(limit)])
    if step - 1 in pair.steps:
        former = pair.whole(pair.a, "gradients", step - 1, names)
        factors, rest = fit(of_a, [*own, former])
        if rest < 0.01 and near(factors[-1], 1) and max(map(abs, factors[:-1])) < 0.01:
            return Finding("zero-grad", "A steps with the gradient of the step before: step() "
                           "comes before backward()", [f"step {step}: {numbers(factors)} times "
                                                       "those of the ranks and the one before"])
        if rest < 0.01 and near(factors[-1], 1):
            return Finding("zero-grad", "A adds its gradient to that of the step before: "
                           "zero_grad() is not called", [f"step {step}: {numbers(factors)} times "
                                                         "those of the ranks and the one before"])
    return "zero_grad: the gradient of A is no sum of its backward passes"


def eval_mode(pair: Pair) -> Answer:
    """Dropout that draws nothing, and BatchNorm that counts nothing, on one side."""
    step = pair.beyond
    beside = [other for other in (step - 1, step + 1) if other in pair.steps]  # a loader draws too

    def rests(run: Run, state: Callable[[Record], Any]) -> bool:
        own = state(run.at(step)[0])
        return bool(own) and any(own == state(run.at(other)[0]) for other in beside)

    states: dict[str, Callable[[Record], Any]] = {
        "no random numbers are drawn": lambda record: record.get("random"),
        "running means rest": lambda record: {
            n: text for n, text in record["buffers"].items() if n.endswith("running_mean")}}
    evidence = [f"step {step}: {what} in A, and not in B" for what, state in states.items()
                if rests(pair.a, state) and not rests(pair.b, state)]
    means = states["running means rest"]
    if not evidence and rests(pair.b, means) and not rests(pair.a, means):
        return Finding("eval-mode", "a BatchNorm of B is in evaluation mode, and in training mode "
                       "in A: train() of the network undoes eval() of a part",
                       [f"step {step}: running means rest in B, and not in A"])
    if not evidence:
        return "evaluation mode: random numbers and running means move or rest as in B"
    return Finding("eval-mode", "A, or a part of it, trains in evaluation mode: eval() is called, "
                   "and train() is not called after it", evidence)


def factor_kind(pair: Pair, times: float, summed: bool, evidence: list[str]) -> Finding | None:
    """`summed`: as far as is known, the gradients of the ranks are added undivided."""
    first = pair.a.at(pair.beyond)[0]
    scale, world = first.get("scale") or pair.b.at(pair.beyond)[0].get("scale"), pair.a.world()
    windows = max(len(r.get("losses", [0])) for r in pair.a.at(pair.beyond))
    if scale and scale > 1 and near(times * scale, 1) or not scale and times < 2**-7 and near(
            math.log2(times), round(math.log2(times)), 1e-3):
        return Finding("unscaled-twice", "the gradient of A is divided by the scale of the loss "
                       "twice", evidence + [f"1 / {1 / times:.6g}"])
    if scale and scale > 1 and near(times, scale):
        return Finding("not-unscaled", "the gradient of A still has the scale of the loss",
                       evidence)
    if world > 1 and near(times, world) and summed:
        return Finding("summed", "A adds the gradients of the ranks, and does not divide by their "
                       "number", evidence)
    divisor = world / factor_of_mean(pair, pair.a, pair.beyond)
    if world > 1 and divisor < world - 0.5 and near(divisor, round(divisor), 1e-3):
        return Finding("summed", f"A divides the sum of the ranks' gradients by {divisor:.0f}, and "
                       f"has {world} ranks", evidence)
    most = max(len(r.get("losses", [0])) for s in pair.steps for r in pair.a.at(s))
    if windows < most and near(times * most, windows):
        return Finding("accumulation", f"A divides the loss of a window of {windows} batches by "
                       f"{most}", evidence)
    if windows > 1 and near(times, windows):
        return Finding("accumulation", "A does not divide the loss by the batches of an "
                       "accumulation window", evidence + [f"{windows} backward passes per step"])
    if world > 1 and near(times * world, 1):
        return Finding("divided-twice", "A divides the gradients by the number of ranks twice" + (
            ", or by that of the batches of an accumulation window, which is the same"
            if windows == world else "") + (
                ", or a gather in the loss passes each rank's part of the gradient alone to it"
                if any("gather" in call[0] for call in first.get("collectives", [])) else ""),
            evidence)
    if windows > 1 and near(times * windows, 1):
        return Finding("accumulation", "A divides the loss by the batches of an accumulation "
                       "window twice", evidence)
    if averages_right(pair, pair.beyond):
        return Finding("loss-factor", f"the loss of A is {times:.4g} times that of B" + (
            ", the number of ranks, though its gradients are averaged"
            if world > 1 and near(times, world) else ""), evidence)
    return None


def per_tensor(pair: Pair) -> Answer:
    """Gradients of tensors that are multiples of B's, each by its own factor."""
    step, factors, limits = pair.beyond, {}, Counter()
    names = [n for n in pair.names("gradients", step)
             if any(pair.whole(pair.b, "gradients", step, [n]))]
    for name in names:
        of_a, of_b = (pair.whole(run, "gradients", step, [name]) for run in (pair.a, pair.b))
        found, rest = fit(of_a, [of_b]) if any(of_a) else ([0.0], 0.0)
        sizes = gradient_norms([pair.a.at(s)[0] for s in pair.steps], [name])
        limits[float(f"{max(sizes, default=0.0):.4g}")] += 1
        if rest > max(0.001, 4 * least_bound(pair)):
            return f"factors of tensors: {name} is no multiple of that of B"
        factors[name] = found[0]
    if len(factors) < 2 or max(factors.values()) < 1.02 * min(factors.values()):
        return "factors of tensors: one for all"
    evidence = [f"step {step}: the gradients of A's tensors are multiples of B's: " + ", ".join(
        f"{factor:.4g} for {name}" for name, factor in [*factors.items()][:4])]
    [(limit, times)] = limits.most_common(1)
    if limit and times > max(1, len(names) // 3):
        return Finding("clipping", "A clips the gradient of each tensor by itself, and not the "
                       "norm of all",
                       [*evidence, f"{times} tensors have a largest norm of {limit}"])
    return Finding("factor-per-tensor", "something gives the gradient of each tensor of A another "
                   "factor, such as a hook, or clipping tensor by tensor", evidence)


def changed_gradient(pair: Pair) -> Answer:
    """Backward passes with the gradient of B, and steps with another."""
    step = pair.beyond
    names = pair.names("gradients", step)
    own = locals_of(pair.a, step, names)
    of_b = pair.whole(pair.b, "gradients", step, names)
    factors, rest = fit(of_b, own) if own else ([], math.inf)
    if rest > 10 * bound(pair, step) or not all(near(f, factors[0], 0.01) for f in factors):
        return "gradient between backward and step: that of B is no mean of those of A's ranks"
    found = [vector(record, "gradients", names) for record in pair.a.at(step)]
    apart_by = [apart(one, of_b) for one in found]
    other = [str(rank) for rank, size in zip(pair.a.ranks(), apart_by) if size > 10 * bound(
        pair, step)]
    text = [f"step {step}: the mean of the ranks' gradients is {rest:.1e} from the gradient of B, "
            f"that of the step {max(apart_by):.1e}"]
    if not other:
        return "gradient between backward and step: that of B"
    if len(other) < pair.a.world():
        return Finding("changed-gradient", f"rank {', '.join(other)} of A steps with another "
                       "gradient than the mean, which the others have: reduce() in the place of "
                       "all_reduce(), or clipping or noise on some ranks", text)
    return Finding("changed-gradient", "A changes the gradient between the backward pass and the "
                   "step: " + ("a communication hook or a sum in 16 bits"
                               if max(apart_by) < 2.0**-7 else
                               "clipping by value, a communication hook, noise"), text)


def mean_of_means(pair: Pair) -> Answer:
    """Ranks with different numbers of samples and equal weights, or one that does not count."""
    step = pair.beyond
    names = pair.names("gradients", step)
    own = locals_of(pair.a, step, names)
    if pair.a.world() < 2 or not own or only_in_a(pair, "gradients", step):
        return "mean of means: no gradients of several ranks"
    if lost := [rank for rank, one in zip(pair.a.ranks(), own) if not norm(one)]:
        return Finding("lost-gradient", f"the gradient of rank {lost[0]} of A does not count",
                       [f"step {step}: it is zero before it is averaged"])
    (of_a, rest), (of_b, rest_b) = (fit(pair.whole(run, "gradients", step, names), own)
                                    for run in (pair.a, pair.b))
    if max(rest, rest_b) > max(1e-3, 10 * least_bound(pair)) or apart(of_a, of_b) < 0.01:
        return "mean of means: the gradient of B is " + (
            "no sum of those of A's ranks" if max(rest, rest_b) > 1e-3 else "the same sum")
    sizes = [len(part) for part in pair.samples(pair.a, step)]
    evidence = [f"step {step}: gradient of A = {numbers(of_a)} times those of its ranks, of B = "
                f"{numbers(of_b)}" + (f"; samples of the ranks: {sizes}" * bool(sizes))]
    alike = min(of_b) > 0 and near(sum(of_a), sum(of_b)) and len({*precisions(pair)}) == 1
    if all(near(f, of_a[0]) for f in of_a) and (len(set(sizes)) > 1 or alike):
        return Finding("mean-of-means", "A averages the means of parts that count differently in "
                       "B, by their numbers of samples or tokens, or the weights of their classes",
                       evidence)
    most = max(map(abs, of_a))
    if lost := [rank for rank, factor in zip(pair.a.ranks(), of_a) if abs(factor) < 0.02 * most]:
        return Finding("lost-gradient", f"the gradient of rank {lost[0]} of A does not count",
                       evidence)
    shrunk = [factor * len(own) * scale_of(pair.a, step) for factor in of_a]
    if max(shrunk) < 1.02 and min(shrunk) > 0 and all(near(f, of_b[0]) for f in of_b):
        return Finding("clipping", "each rank of A shrinks its gradient before the average, as "
                       "clip_grad_norm_ does", evidence)
    return "mean of means: " + evidence[0]
