# SPDX-License-Identifier: Apache-2.0
"""Tables of a record of bench/links/links.py: what links cost, and the α-β model beside it."""

from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Any

from intervals import median_of
from link_model import (
    RATES, TOLERANCE, VARIANTS, Link, Measured, cables, compute_times, fitted, measurements,
    sections,
)
from tables import Table
from words import number, significant

BATCHES = {"basicnet": 64, "convnet": 32}  # images per step of all ranks
GRADIENTS = {"basicnet": 4_799_528, "convnet": 116_136}  # bytes
PLAIN = {"basicnet": "plain", "convnet": "convnet"}  # variants
RANKS = (2, 4, 8, 16, 64)


def milliseconds(seconds: float) -> str:
    return significant(1000 * seconds)


def machine_text(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    return (f"{machine['cpus']} cores of {machine['cpu']}, Linux {machine['kernel']}; load before "
            f"{machine['load_before']:.1f}; commit {record['commit']}, {record['date'][:10]}.")


def link_value(record: Mapping[str, Any], link: str, what: str) -> str:
    """Of a link: its alpha in µs, its beta in Mbit/s; in ms an all-reduce of basicnet's gradients
    on `what` ranks, or a step of the variant `what`, or what a rank computes in it."""
    words = RATES[link]
    one = cables(record)[words]
    if what in ("alpha", "beta"):
        return f"{one.alpha * 1e6:.0f}" if what == "alpha" else f"{one.beta * 8e-6:.0f}"
    if what.isdecimal():
        return milliseconds(one.all_reduce(int(what), GRADIENTS["basicnet"]))
    return milliseconds(median(record["links"][link]["variants"][what]["seconds"]))


def share_text(row: Measured) -> str:
    return f"{100 * abs(row.deviation):.0f} % {'above' if row.deviation > 0 else 'below'}"


def against(row: Measured) -> str:
    if abs(row.deviation) < 0.005:
        return "inside"
    return "WRONG: " * (abs(row.deviation) > TOLERANCE) + share_text(row)


def cells(row: Measured) -> list[str]:
    bounds = dict.fromkeys(row.prediction)  # one, without overlap
    return [row.link, VARIANTS[row.name].words, row.time.text(milliseconds),
            significant(row.sent / 1e6) if row.sent else "0", milliseconds(row.compute),
            " to ".join(map(milliseconds, bounds)), against(row)]


def wrong_text(rows: list[Measured]) -> str:
    """Where the model was wrong, by the way in which gradients are averaged."""
    total = Counter(row.name for row in rows)
    wrong = Counter(row.name for row in rows if abs(row.deviation) > TOLERANCE)
    text = (f"The model is within {100 * TOLERANCE:.0f} % of {len(rows) - wrong.total()} of "
            f"{len(rows)} measurements.")
    if not wrong:
        return text
    worst = max(rows, key=lambda row: abs(row.deviation))
    counts = ", ".join(f"{VARIANTS[name].words.replace(',', '')} {wrong[name]} of {total[name]}"
                       for name in total if wrong[name])
    return (f"{text} Its largest error: {VARIANTS[worst.name].words}, {worst.link}, measured "
            f"{share_text(worst)}. Wrong rows: {counts}.")


def hook_text(record: Mapping[str, Any]) -> str:
    """What a rank computes for compression."""
    hooks = {name: median(seconds) for name, seconds in record["hooks"].items()}
    return (f"Not in the model: to convert all gradients of basicnet takes "
            f"{milliseconds(hooks['bf16'])} ms in bf16 and {milliseconds(hooks['fp16'])} ms in "
            f"fp16, to divide them without compression {milliseconds(hooks['plain'])} ms.")


def not_run_row(words: str, section: Mapping[str, Any], columns: int) -> list[str]:
    """With "not run" or "failed"; the reason is a note."""
    return [words, section["not_run"].split(":")[0], *[""] * (columns - 2)]


def reasons(record: Mapping[str, Any]) -> list[str]:
    """Why links have no numbers."""
    found = {words: section.get("not_run") for words, section in sections(record).items()}
    return [f"{', '.join(words for words in found if found[words] == reason)}: {reason}"
            for reason in dict.fromkeys(filter(None, found.values()))]


def links_table(record: Mapping[str, Any]) -> Table:
    """Each way to average gradients on each link, beside its prediction."""
    measured = measurements(record)
    rows = []
    for words, section in sections(record).items():
        rows += ([cells(row) for row in measured if row.link == words]
                 or [not_run_row(words, section, 7)])
    for variant in map(VARIANTS.get, PLAIN.values()):
        time = median_of(record["alone"][variant.compute])
        rows.append(["one process", variant.words, time.text(milliseconds), "0",
                     milliseconds(time.value), "", ""])
    notes = [wrong_text(measured), hook_text(record), *reasons(record),
             "Time per 64 images of basicnet and per 32 of convnet, divided between two ranks of "
             "one thread each. MB sent: by each rank, without the headers of the network. "
             "Computing: the same loop without a link, while the other rank computes too. Model: "
             "computing and all-reduces one after the other; with overlap, at least the longer "
             f"of both. WRONG: more than {100 * TOLERANCE:.0f} % outside of the model.",
             machine_text(record)]
    return Table("Links", ("link", "gradients", "ms per step [95 %]", "MB sent", "computing, ms",
                           "model, ms", "measured"), rows, notes, [], 2)


def fits_table(record: Mapping[str, Any]) -> Table:
    links, rows = fitted(record), []
    for words, section in sections(record).items():
        if words not in links:
            rows.append(not_run_row(words, section, 5))
            continue
        link = links[words]
        errors = {int(size): link.all_reduce(2, int(size)) / median(times) - 1
                  for size, times in section["all_reduce"].items()}
        worst = max(errors, key=lambda size: abs(errors[size]))
        rows.append([words, significant(1e6 * link.alpha), significant(8e-6 * link.beta),
                     f"{round(100 * errors[worst]):+d}", f"{worst:,}"])
    notes = ["Error of the fit: of the all-reduce that it misses most, above 0 where the fit is "
             "too long. One α does not fit small messages of all sizes."]
    return Table("α and β", ("link", "α, µs", "β, Mbit/s", "largest error of the fit, %",
                             "at bytes"), rows, notes)


def speed_of(record: Mapping[str, Any], recipe: str, link: Link, ranks: int) -> float | None:
    """Times as fast as one rank, with the batch divided; None without a measured computing time."""
    times = compute_times(record, recipe)
    images = BATCHES[recipe] // ranks
    if images not in times:
        return None
    return times[BATCHES[recipe]] / (times[images] + link.all_reduce(ranks, GRADIENTS[recipe]))


def measured_speeds(record: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Two ranks over one process, by recipe and link."""
    return {(recipe, row.link): median(record["alone"][VARIANTS[name].compute]) / row.time.value
            for recipe, name in PLAIN.items() for row in measurements(record) if row.name == name}


def largest_promise(record: Mapping[str, Any], links: Mapping[str, Link]) -> str:
    """Where the model is furthest above a measurement of two ranks; "" if nowhere."""
    speeds = {key: (speed, speed_of(record, key[0], links[key[1]], 2))
              for key, speed in measured_speeds(record).items() if key[1] in links}
    wrong = [(model / speed, *key, model, speed) for key, (speed, model) in speeds.items()
             if model is not None and model > (1 + TOLERANCE) * speed]
    if not wrong:
        return ""
    _, recipe, words, model, speed = max(wrong)
    return (f"The model is too high by more than {100 * TOLERANCE:.0f} % for {len(wrong)} of "
            f"{len(speeds)} measurements with two ranks, most for {recipe}, {words}: {model:.2f}, "
            f"measured {speed:.2f}.")


def speed_table(record: Mapping[str, Any]) -> Table:
    links, found = cables(record), measured_speeds(record)
    places = [(recipe, words) for recipe in GRADIENTS for words in links]
    rows = [["2, measured", *(number(found.get(place), 2) for place in places)]]
    for ranks in RANKS:
        speeds = [speed_of(record, recipe, links[words], ranks) for recipe, words in places]
        rows.append([str(ranks), *("" if speed is None else number(speed, 2) for speed in speeds)])
    return Table("Speed over one rank, by the model",
                 ("ranks", *(", ".join(place) for place in places)), rows if links else [],
                 list(filter(None, [largest_promise(record, links)])))
