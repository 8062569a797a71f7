"""The report of a replay as one HTML page for managers: the verdict, three figures, and its reliability.

The page is self-contained and has no scripts. Texts from the history are escaped.
"""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final

from model.evaluation import history_charts as charts
from model.pasts.trust import (
    DELAY_OFF_FRAC,
    DELAY_OFF_S,
    GPUS_OFF_FRAC,
    LEAST_CORRELATION,
    LEAST_JOBS,
    REPLAYED,
    spell,
)
from model.pasts.verdicts import SIZE_WORDS, label

_TEMPLATE: Final = Path(__file__).with_name("history_page.html")
_HAPPENED: Final = "what happened"
_EPOCH_AFTER_S: Final = 1e9
"""Later times are dates; traces begin at 0."""
_NONE: Final = "\u2013"
_NUM_STYLES: Final = 6
Report = Mapping[str, Any]


def page(report: Report) -> str:
    """Return the page for a report of `replays.replay`."""
    headline, *sentences = (_text(sentence) for sentence in report["verdict"])
    history = report["history"]
    parts = {
        "title": escape(report["verdict"][0]),
        "about": escape(_about(history)),
        "headline": headline,
        "lead": "".join(f'<p class="lead">{sentence}</p>' for sentence in sentences),
        "figures": _figures(report),
        "chart": _chart(report),
        "waiting": _waiting(report),
        "costs": _costs(report),
        "trust": _trust(report),
        "details": _details(report),
        "footer": f"Made by Kerf from a history of {history['pods']:,} pods. This page needs no network.",
    }
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(parts)


def _about(history: Report) -> str:
    first = history["since_s"]
    when = f"{history['days']:,.0f} days" if history["days"] >= 2 else f"{24 * history['days']:,.0f} hours"
    if first > _EPOCH_AFTER_S:
        begin, end = (
            datetime.fromtimestamp(at_s, UTC).strftime("%-d %B %Y") for at_s in (first, first + 86400 * history["days"])
        )
        when = f"{begin} to {end}"
    return f"{when}: {history['pods']:,} pods, {history['gpus']:,} GPUs on {history['nodes']:,} nodes"


def _rows(report: Report) -> dict[str, tuple[str, str, Report]]:
    """Return label, style and results by policy, and of what happened."""
    found = {
        name: (label(name), f"c{number % _NUM_STYLES}", row)
        for number, (name, row) in enumerate(report["policies"].items())
    }
    return found | ({"actual": (_HAPPENED, "c-actual", report["actual"])} if report["actual"] else {})


def _first(report: Report) -> str:
    """Return the policy that the page is about."""
    return next((name for name in report["policies"] if name != REPLAYED), REPLAYED)


def _figures(report: Report) -> str:
    first = _first(report)
    row, beside = report["policies"][first], report["policies"].get(REPLAYED) or report["actual"]
    if report["error"]["trusted"] is False:
        tiles = _error_tiles(report["error"])
    else:
        tiles = [_needed(report, first), _compared("mean wait with all GPUs", row, beside, "gpu_delay_s", spell)]
        saved = _saved(report, first)
        tiles.append(saved or _compared("idle GPUs that a typical pod can't use", row, beside, "fragments", _whole))
    html = "".join(f"<div><b>{_text(value)}</b>{_text(about)}</div>" for value, about in tiles)
    return f'<div class="figures">{html}</div>'


def _error_tiles(error: Report) -> list[tuple[str, str]]:
    gpus, delay = error["gpus"], error["gpu_delay_s"]
    return [
        (_signed(gpus["off_frac"]), f"GPUs in use in the replay ({gpus['replayed']:,.0f}), versus actual"),
        (spell(delay["actual"]), "actual mean wait for GPUs"),
        (spell(delay["replayed"]), "mean wait in the replay"),
    ]


def _needed(report: Report, policy: str) -> tuple[str, str]:
    if report["fewer"] and report["fewer"]["policies"][policy]["served"]:
        found = report["fewer"]
        return f"{found['policies'][policy]['gpus']:,}", f"GPUs would have been enough, of {found['gpus']:,}"
    row = report["policies"][policy]
    return _whole(row["allocated_gpus"]), f"GPUs in use, of {report['history']['gpus']:,}"


def _saved(report: Report, policy: str) -> tuple[str, str] | None:
    """Return the tile with the cost of the GPUs not needed."""
    if not report["price"] or not report["fewer"] or not report["fewer"]["policies"][policy]["served"]:
        return None
    cost = report["fewer"]["policies"][policy]["month_cost"]
    return _money(cost, report["price"]), "a month for GPUs that were not needed"


def _compared(about: str, row: Report, beside: Report | None, measure: str, say: Any) -> tuple[str, str]:
    if beside is None or beside[measure] is None or beside is row:
        return say(row[measure]), about
    return say(row[measure]), f"{about}, instead of {say(beside[measure])}"


def _chart(report: Report) -> str:
    timeline = report["timeline"]
    series = [
        charts.Line(name, style, timeline["gpus"][key]) for key, (name, style, _) in _rows(report).items()
    ]  # fmt: skip
    days = timeline["bin_s"] * len(timeline["capacity"]) / 86400
    body = charts.lines(series, timeline["capacity"], days)
    return f"<section><h2>GPUs in use</h2>{body}</section>"


def _waiting(report: Report) -> str:
    compared = [row for name, row in _rows(report).items() if name in (_first(report), REPLAYED, "actual")]
    on_fewest = _on_fewest(report)
    groups = {}
    for size, words in SIZE_WORDS.items():
        rows = [(name, style, row["waiting"][size]) for name, style, row in compared if size in row["waiting"]]
        if rows:
            waits = [(name, style, found["mean_delay_s"]) for name, style, found in rows]
            waits[1:1] = [(name, style, delays[size]) for name, style, delays in on_fewest]
            groups[f"{words}: {rows[0][2]['jobs']:,} jobs"] = [(*wait, spell(wait[2])) for wait in waits]
    words = "Mean time from submission to start. Pods that start together count as one job."
    return f'<section><h2>How long jobs waited</h2><p class="quiet">{words}</p>{charts.bars(groups)}</section>'


def _on_fewest(report: Report) -> list[tuple[str, str, Mapping[str, float]]]:
    """Return label, style and mean waits by job size of the first policy on the fewest GPUs."""
    first = _first(report)
    found = report["fewer"]["policies"][first] if report["fewer"] else None
    if not found or found["gpus"] == report["fewer"]["gpus"] or report["error"]["trusted"] is False:
        return []
    return [(f"{label(first)}, {found['gpus']:,} GPUs", "c0 fewer", found["waited"]["waiting"])]


def _costs(report: Report) -> str:
    price = report["price"]
    kinds = {"booked": "in use", "idle": "idle", "stranded": "stranded"}
    body = []
    for name, _, row in _rows(report).values():
        month = row["month"]
        hours = [_whole(month[f"{kind}_gpu_hours"]) for kind in kinds]
        costs = [_money(month[f"{kind}_cost"], price) if price else "" for kind in kinds]
        body.append([name, *("\n".join(cell) for cell in zip(hours, costs, strict=True))])
    cost_text = f", and their cost at {price['amount']:g} {price['currency']} each" if price else ""
    table = _table(["scheduler", *kinds.values()], body)
    words = f"Per month of 30 days{cost_text}. Stranded: idle, but too scattered for a typical pod."
    return f'<section><h2>GPU-hours</h2><p class="quiet">{_text(words)}</p>{table}</section>'


def _trust(report: Report) -> str:
    error, history = report["error"], report["history"]
    refused = error["trusted"] is False
    parts = []
    if error["trusted"] is None:
        parts.append("<p>The actual start times of these pods are unknown, so the replay could not be checked.</p>")
    else:
        parts.append(
            f"<p>The same pods were replayed under {escape(label(REPLAYED))}, which most clusters run, and compared "
            f"with what happened. The replay is {'too inaccurate' if refused else 'accurate enough'} to be trusted.</p>"
        )
        parts += [_list(error["faults"]), _errors(error)]
    parts += ["<h3>Missing from the history</h3>", _list(history["missing"] or ["nothing"])]
    parts += ["<h3>Assumptions</h3>", _list(_assumptions(report))]
    return f"<section{' class=refused' if refused else ''}><h2>How far to trust this</h2>{''.join(parts)}</section>"


def _errors(error: Report) -> str:
    gpus = error["gpus"]
    body = [["GPUs in use", _whole(gpus["actual"]), _whole(gpus["replayed"]), _signed(gpus["off_frac"])]]
    delays = {"wait for GPUs": error["gpu_delay_s"]}
    delays |= {f"wait of {SIZE_WORDS[size]}": row for size, row in error["waiting"].items()}
    for words, row in delays.items():
        sign = "+" if row["off_s"] >= 0 else "-"
        off = f"{sign}{spell(abs(row['off_s']))}{'' if row['trusted'] else ' (too large)'}"
        body.append([words, spell(row["actual"]), spell(row["replayed"]), off])
    if error["daily_correlation"] is not None:
        body.append(
            [f"correlation of GPUs in use over {error['days']} days", "", "", f"{error['daily_correlation']:.2f}"]
        )
    return _table(["mean", "actual", "replay", "difference"], body)


def _assumptions(report: Report) -> list[str]:
    history = report["history"]
    lines = [
        "Pods arrive when they did and run as long as they did, on any node with room. The oldest go first; pods that "
        "do not fit are skipped.",
        "A replay has no quotas, evictions, other schedulers or image pulls.",
        f"There is no verdict if the GPUs in use differ by more than {100 * GPUS_OFF_FRAC:.0f} %, the mean wait by "
        f"more than {100 * DELAY_OFF_FRAC:.0f} % and {DELAY_OFF_S:.0f} s, the daily correlation is below "
        f"{LEAST_CORRELATION:g}, or fewer than {LEAST_JOBS} jobs requested GPUs.",
    ]
    if history["duration_guessed"]:
        lines.append(f"{history['duration_guessed']:,} pods had not ended: their durations are estimates.")
    if history["left_out"]:
        lines.append(f"{history['left_out']:,} pods fit no known node and are left out.")
    if report["fewer"]:
        lines.append(
            "Fewer GPUs: random nodes of each kind are removed until the mean wait grows, or that of one job size "
            "exceeds twice its value plus ten minutes. Another draw gives another number, and there is no reserve for "
            "outages."
        )
    return lines


def _details(report: Report) -> str:
    heads = ["scheduler", "GPUs in use", "mean wait", "1 of 100 waits longer than", "mean wait of multi-GPU jobs",
             "stranded GPUs", "jobs blocked by scattered GPUs", "not started"]  # fmt: skip
    fewer = report["fewer"]["policies"] if report["fewer"] else {}
    body = []
    for key, (name, _, row) in _rows(report).items():
        waits = (spell(row[measure]) for measure in ("mean_delay_s", "p99_delay_s", "large_delay_s"))
        cells = [_tenth(row["allocated_gpus"]), *waits, _tenth(row["fragments"])]
        cells += [_whole(row["blocked_starts"]), _whole(row["never_started"])]
        if fewer:
            found = fewer.get(key)
            cells.append(
                f"{found['gpus']:,} ({found['too_few_gpus']:,} are too few)" if found and found["served"] else _NONE
            )
        body.append([name, *cells])
    table = _table([*heads, *(["fewest GPUs"] if fewer else [])], body)
    return f"<section><h2>In detail</h2>{table}</section>"


def _table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    rows = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(text: str) -> str:
    """Return a cell; a second line is small."""
    first, _, second = text.partition("\n")
    return _text(first) + (f"<br><small>{_text(second)}</small>" if second else "")


def _text(text: str) -> str:
    """Escape a text, and keep numbers and units on one line."""
    return re.sub(r"(\d) (?=(?:s|min|h|days)\b|%)", "\\1\u00a0", escape(text))


def _list(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(item)}</li>' for item in items)}</ul>" if items else ""


def _whole(value: float | None) -> str:
    return _NONE if value is None or not math.isfinite(value) else f"{value:,.0f}"


def _tenth(value: float | None) -> str:
    return _NONE if value is None or not math.isfinite(value) else f"{value:,.1f}"


def _signed(frac: float) -> str:
    return f"{100 * frac:+.1f} %"


def _money(value: float | None, price: Report) -> str:
    return _NONE if value is None else f"{value:,.0f} {price['currency']}".rstrip()
