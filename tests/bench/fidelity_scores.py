"""Scores of estimates against published runs, by rules that do not look at any estimate.

- A peak is scored where the run ended, and, for a language model, where the batch is larger than 10: below, the
  longest text of a batch is often shorter than 128 tokens.
- Whether memory runs out is scored of every run, and of every cap that was set on one.
"""

from __future__ import annotations

import statistics
from typing import Any

Row = dict[str, Any]
TOOLS = ("oomdoctor", "xmem", "dnnmem")
CLOSE = 0.05
FAMILIES = ("VGG", "ResNet", "ConvNeXt", "RegNet", "MobeNetV3", "GPT", "OPT", "T5")
_SMALLEST_TEXT_BATCH = 11


def family(row: Row) -> str:
    """Return what a row is grouped by: its model without size."""
    model: str = row["model"]
    return next((one for one in FAMILIES if one.lower() in model.lower()), model)


def is_scored(row: Row) -> bool:
    """Return whether a row's peak is scored."""
    is_text = "tokens" in row["input"]
    return not row["real_oom"] and not (is_text and row["batch"] < _SMALLEST_TEXT_BATCH)


def errors(rows: list[Row], tool: str) -> dict[int, float]:
    """Return the signed relative errors of a tool's peaks, by the row's place; positive is too much."""
    found = {}
    for index, row in enumerate(rows):
        estimate = row["ours"].get("reserved_bytes") if tool == "oomdoctor" else row[f"{tool}_bytes"]
        if is_scored(row) and estimate is not None and "problem" not in row["ours"]:
            measured = row["measured_nvml_delta_bytes"]
            found[index] = (estimate - measured) / measured
    return found


def spread(values: list[float]) -> Row:
    """Return median, 90th percentile and share within 5 % of errors without their sign; None where there are none."""
    sizes = [abs(value) for value in values]
    if len(sizes) < 2:
        return {"rows": len(sizes), "median": sizes[0] if sizes else None, "p90": None, "within": None}
    return {
        "rows": len(sizes),
        "median": round(statistics.median(sizes), 5),
        "p90": round(statistics.quantiles(sizes, n=10, method="inclusive")[-1], 5),
        "within": round(sum(size <= CLOSE for size in sizes) / len(sizes), 4),
    }


def decisions(rows: list[Row], tool: str) -> Row:
    """Return on how many runs a tool is right whether memory runs out, and the others' names."""
    asked = [(row, row["ours"].get("oom") if tool == "oomdoctor" else row[f"{tool}_predicts_oom"]) for row in rows]
    known = [(row, int(said)) for row, said in asked if said is not None]
    wrong = [name(row) for row, said in known if said != row["real_oom"]]
    return {"rows": len(known), "right": len(known) - len(wrong), "wrong": wrong}


def caps(rows: list[Row]) -> Row:
    """Return under how many caps we are right whether a run passes, and the others with what was seen."""
    asked = [(row, tool, oom) for row in rows for tool, oom in row["ours"]["caps"].items()]
    wrong = [
        f"{name(row)}, {row[f'{tool}_bytes'] >> 20} MiB: {row[f'{tool}_cap_outcome']}"
        for row, tool, oom in asked
        if oom != (row[f"{tool}_cap_outcome"] == "oom")
    ]
    return {"rows": len(asked), "right": len(asked) - len(wrong), "wrong": wrong}


def name(row: Row) -> str:
    """Return a row as a person would say it."""
    return f"{row['model']} b{row['batch']} {row['optimizer']} on {row['card']}"


def summary(rows: list[Row]) -> Row:
    """Return all scores; a tool is compared with us on the rows that it has."""
    ours = errors(rows, "oomdoctor")
    families: dict[str, list[int]] = {}
    for index in ours:
        families.setdefault(family(rows[index]), []).append(index)
    tools = {}
    for tool in TOOLS:
        found = errors(rows, tool)
        tools[tool] = {
            "all": spread([*found.values()]),
            "ours_on_these": spread([ours[index] for index in found]),
            "families": {one: spread([found[i] for i in each if i in found]) for one, each in sorted(families.items())},
            "oom": decisions(rows, tool),
        }
    return {
        "tools": tools,
        "caps": caps(rows),
        "misses": {name(rows[i]): round(error, 4) for i, error in ours.items() if abs(error) > CLOSE},
        "problems": {name(row): row["ours"]["problem"] for row in rows if "problem" in row["ours"]},
    }


def page_block(found: Row) -> str:
    """Return the tables of the page on accuracy."""
    said = found["summary"]
    lines = ["", "| estimate | rows | median | 90th percentile | within 5 % | ours on these | OOM or not |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for tool, one in said["tools"].items():
        every, oom = one["all"], one["oom"]
        shares = [_percent(share) for share in (every["median"], every["p90"], every["within"])]
        cells = [tool, str(every["rows"]), *shares, _percent(one["ours_on_these"]["median"])]
        lines.append(f"| {' | '.join(cells)} | {oom['right']} of {oom['rows']} |")
    lines += ["", "| model | rows | oomdoctor | xMem | DNNMem |", "| --- | ---: | ---: | ---: | ---: |"]
    for one, ours in said["tools"]["oomdoctor"]["families"].items():
        medians = [_percent(said["tools"][tool]["families"][one]["median"]) for tool in TOOLS]
        lines.append(f"| {one} | {ours['rows']} | {' | '.join(medians)} |")
    held = said["caps"]
    lines += ["", f"Under the caps that were set on the real runs, {held['right']} of {held['rows']} are right."]
    lines += ["", "| miss | error |", "| --- | ---: |"]
    lines += [f"| {one} | {error:+.1%} |" for one, error in said["misses"].items()]
    lines += [f"| {one} | wrong under a cap |" for one in held["wrong"]]
    return "\n".join([*lines, ""])


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
