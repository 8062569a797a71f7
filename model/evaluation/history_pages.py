"""The report of a replay as one page of HTML that a manager reads: the answer, three figures, and how far to trust it.

It needs nothing from outside. What the history names is escaped, and the page runs no scripts.
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
"""Times are dates from there on; traces begin at 0."""
_NONE: Final = "\u2013"
_NUM_STYLES: Final = 6
Report = Mapping[str, Any]


def page(report: Report) -> str:
    """The page of what `replays.replay` told."""
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
    """By policy, and for what happened: how it is called, its style, its figures."""
    found = {
        name: (label(name), f"c{number % _NUM_STYLES}", row)
        for number, (name, row) in enumerate(report["policies"].items())
    }
    return found | ({"actual": (_HAPPENED, "c-actual", report["actual"])} if report["actual"] else {})


def _first(report: Report) -> str:
    """The policy that the page is about."""
    return next((name for name in report["policies"] if name != REPLAYED), REPLAYED)


def _figures(report: Report) -> str:
    first = _first(report)
    row, beside = report["policies"][first], report["policies"].get(REPLAYED) or report["actual"]
    if report["error"]["trusted"] is False:
        tiles = _error_tiles(report["error"])
    else:
        tiles = [_needed(report, first), _compared("wait on all GPUs, in the mean", row, beside, "gpu_delay_s", spell)]
        saved = _saved(report, first)
        tiles.append(saved or _compared("idle GPUs that a usual pod can't use", row, beside, "fragments", _whole))
    told = "".join(f"<div><b>{_text(value)}</b>{_text(about)}</div>" for value, about in tiles)
    return f'<div class="figures">{told}</div>'


def _error_tiles(error: Report) -> list[tuple[str, str]]:
    gpus, delay = error["gpus"], error["gpu_delay_s"]
    return [
        (_signed(gpus["off_frac"]), f"GPUs in use in the replay, {gpus['replayed']:,.0f}, by what they were"),
        (spell(delay["actual"]), "was the wait for GPUs, in the mean"),
        (spell(delay["replayed"]), "is the wait in the replay"),
    ]


def _needed(report: Report, policy: str) -> tuple[str, str]:
    if report["fewer"] and report["fewer"]["policies"][policy]["served"]:
        found = report["fewer"]
        return f"{found['policies'][policy]['gpus']:,}", f"GPUs would have done, of {found['gpus']:,}"
    row = report["policies"][policy]
    return _whole(row["allocated_gpus"]), f"GPUs in use, of {report['history']['gpus']:,}"


def _saved(report: Report, policy: str) -> tuple[str, str] | None:
    """What fewer GPUs cost less."""
    if not report["price"] or not report["fewer"] or not report["fewer"]["policies"][policy]["served"]:
        return None
    cost = report["fewer"]["policies"][policy]["month_cost"]
    return _money(cost, report["price"]), "a month is what the GPUs cost that were not needed"


def _compared(about: str, row: Report, beside: Report | None, measure: str, say: Any) -> tuple[str, str]:
    if beside is None or beside[measure] is None or beside is row:
        return say(row[measure]), about
    return say(row[measure]), f"{about}, instead of {say(beside[measure])}"


def _chart(report: Report) -> str:
    timeline = report["timeline"]
    drawn = [
        charts.Line(name, style, timeline["gpus"][key]) for key, (name, style, _) in _rows(report).items()
    ]  # fmt: skip
    days = timeline["bin_s"] * len(timeline["capacity"]) / 86400
    body = charts.lines(drawn, timeline["capacity"], days)
    return f"<section><h2>GPUs in use</h2>{body}</section>"


def _waiting(report: Report) -> str:
    shown = [row for name, row in _rows(report).items() if name in (_first(report), REPLAYED, "actual")]
    on_fewest = _on_fewest(report)
    groups = {}
    for size, words in SIZE_WORDS.items():
        known = [(name, style, row["waiting"][size]) for name, style, row in shown if size in row["waiting"]]
        if known:
            waits = [(name, style, found["mean_delay_s"]) for name, style, found in known]
            waits[1:1] = [(name, style, delays[size]) for name, style, delays in on_fewest]
            groups[f"{words}: {known[0][2]['jobs']:,} jobs"] = [(*wait, spell(wait[2])) for wait in waits]
    words = "From being asked for to the start, in the mean. Pods that start together are one job."
    return f'<section><h2>How long jobs waited</h2><p class="quiet">{words}</p>{charts.bars(groups)}</section>'


def _on_fewest(report: Report) -> list[tuple[str, str, Mapping[str, float]]]:
    """What the first policy is called on as few GPUs as would have done, its style, and how long sizes wait there."""
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
    said = f" and what they cost at {price['amount']:g} {price['currency']} each" if price else ""
    table = _table(["scheduler", *kinds.values()], body)
    words = f"In a month of 30 days{said}. Stranded: idle, but scattered so that a usual pod can't use it."
    return f'<section><h2>GPU-hours</h2><p class="quiet">{_text(words)}</p>{table}</section>'


def _trust(report: Report) -> str:
    error, history = report["error"], report["history"]
    refused = error["trusted"] is False
    parts = []
    if error["trusted"] is None:
        parts.append("<p>Nothing is known of when these pods really started: the replay could not be checked.</p>")
    else:
        parts.append(
            f"<p>The same pods were replayed under {escape(label(REPLAYED))}, which most clusters run, and compared "
            f"with what happened: {'too far off to judge by' if refused else 'near enough to judge by'}.</p>"
        )
        parts += [_list(error["faults"]), _errors(error)]
    parts += ["<h3>What the history does not tell</h3>", _list(history["missing"] or ["nothing that it should"])]
    parts += ["<h3>What is taken for granted</h3>", _list(_assumptions(report))]
    return f"<section{' class=refused' if refused else ''}><h2>How far to trust this</h2>{''.join(parts)}</section>"


def _errors(error: Report) -> str:
    gpus = error["gpus"]
    body = [["GPUs in use", _whole(gpus["actual"]), _whole(gpus["replayed"]), _signed(gpus["off_frac"])]]
    delays = {"wait for GPUs": error["gpu_delay_s"]}
    delays |= {f"wait of {SIZE_WORDS[size]}": row for size, row in error["waiting"].items()}
    for words, row in delays.items():
        sign = "+" if row["off_s"] >= 0 else "-"
        off = f"{sign}{spell(abs(row['off_s']))}{'' if row['trusted'] else ', too much'}"
        body.append([words, spell(row["actual"]), spell(row["replayed"]), off])
    if error["daily_correlation"] is not None:
        body.append(
            [f"GPUs in use over {error['days']} days, correlation", "", "", f"{error['daily_correlation']:.2f}"]
        )
    return _table(["mean", "happened", "replay", "difference"], body)


def _assumptions(report: Report) -> list[str]:
    history = report["history"]
    said = [
        "Pods come when they came and run as long as they ran, on any node that has room; the oldest go first, and who "
        "does not fit is skipped.",
        "Quotas, evictions, other schedulers and the time to pull images are not in a replay.",
        f"No verdict is given where GPUs in use differ by more than {100 * GPUS_OFF_FRAC:.0f} %, where the mean wait "
        f"differs by more than {100 * DELAY_OFF_FRAC:.0f} % and {DELAY_OFF_S:.0f} s, where days correlate by less than "
        f"{LEAST_CORRELATION:g}, or where fewer than {LEAST_JOBS} jobs asked for GPUs.",
    ]
    if history["duration_guessed"]:
        said.append(f"{history['duration_guessed']:,} pods had not ended: how long they run was guessed.")
    if history["left_out"]:
        said.append(f"{history['left_out']:,} pods fit no node that is known, and are left out.")
    if report["fewer"]:
        said.append(
            "Fewer GPUs: nodes of each kind are taken away by lot until jobs wait longer in the mean, all together, or "
            "those of one size more than twice as long as they did and ten minutes. Another lot gives another number, "
            "and nothing is kept for outages."
        )
    return said


def _details(report: Report) -> str:
    heads = ["scheduler", "GPUs in use", "wait, mean", "wait, 1 of 100 longer than", "of several GPUs", "stranded GPUs",
             "starts that needed a move", "not started"]  # fmt: skip
    fewer = report["fewer"]["policies"] if report["fewer"] else {}
    body = []
    for key, (name, _, row) in _rows(report).items():
        waits = (spell(row[measure]) for measure in ("mean_delay_s", "p99_delay_s", "large_delay_s"))
        cells = [_tenth(row["allocated_gpus"]), *waits, _tenth(row["fragments"])]
        cells += [_whole(row["blocked_starts"]), _whole(row["never_started"])]
        if fewer:
            found = fewer.get(key)
            cells.append(
                f"{found['gpus']:,} (on {found['too_few_gpus']:,} not)" if found and found["served"] else _NONE
            )
        body.append([name, *cells])
    table = _table([*heads, *(["fewest GPUs"] if fewer else [])], body)
    return f"<section><h2>In detail</h2>{table}</section>"


def _table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    rows = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(text: str) -> str:
    """What is on a second line is small."""
    first, _, second = text.partition("\n")
    return _text(first) + (f"<br><small>{_text(second)}</small>" if second else "")


def _text(text: str) -> str:
    """Escaped, a number and its unit on one line."""
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
