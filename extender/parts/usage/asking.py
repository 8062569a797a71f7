"""A process that queries Prometheus: reads a `Question` from standard input, writes an `Answer` to standard output."""

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from extender.parts.usage.lines import OTHER
from extender.parts.usage.questions import (
    COUNTED,
    LABELS,
    OF_HOLDERS,
    OF_MODELS,
    PrometheusAnswer,
    PrometheusQuery,
    Step,
    query,
    series_name,
    step_query,
)
from extender.telemetry.errors import SourceError
from extender.telemetry.sources.prometheus import Prometheus, to_float

_NICE: Final = 10
_NO_HOLDERS: Final = (0.0,) * len(OF_HOLDERS)


def _ask(question: PrometheusQuery) -> PrometheusAnswer:
    """The answer of Prometheus, or one that says why there is none."""
    prometheus = Prometheus(question.url, question.access)
    try:
        return _steps(prometheus, question) if question.step_s else _totals(prometheus, question)
    except SourceError as error:
        return PrometheusAnswer(fault=str(error))
    finally:
        prometheus.close()


def _totals(prometheus: Prometheus, question: PrometheusQuery) -> PrometheusAnswer:
    rows: dict[str, list[float]] = {}
    for number, what in enumerate(OF_HOLDERS):
        for item in prometheus.counted(query(question, what)):
            name = item.metric.get(LABELS[question.by], "")
            if question.by == "owner":
                name = f"{item.metric.get('namespace', '')}/{name}"
            if math.isfinite(amount := to_float(item.value[1])):
                rows.setdefault(name, [*_NO_HOLDERS])[number] = amount
    totals = [0.0] * len(OF_MODELS)
    known = False
    for number, what in enumerate(OF_MODELS):
        for item in prometheus.counted(query(question, what)):
            if math.isfinite(amount := to_float(item.value[1])):
                totals[number], known = amount, True
    return PrometheusAnswer(_limited(rows, question), totals) if known else _nothing(question)


def _limited(rows: dict[str, list[float]], question: PrometheusQuery) -> dict[str, list[float]]:
    """The `most` rows that booked most; the others are summed as OTHER, as users choose the names of owners."""
    names = sorted(rows, key=lambda name: (-rows[name][0], name))
    kept = {name: rows[name] for name in names[: question.most]}
    if question.by == "namespace":
        kept |= {name: rows[name] for name in question.always if name in rows}
    if rest := [rows[name] for name in names[question.most :] if name not in kept]:
        other = f"{OTHER}/{OTHER}" if question.by == "owner" else OTHER
        kept[other] = [sum(amounts) for amounts in zip(kept.get(other, _NO_HOLDERS), *rest, strict=True)]
    return kept


def _nothing(question: PrometheusQuery) -> PrometheusAnswer:
    name = series_name("capacity")
    return PrometheusAnswer(
        fault=f"{question.url} has no {name} of that time: has it scraped Kerf for a minute or more?"
    )


def _steps(prometheus: Prometheus, question: PrometheusQuery) -> PrometheusAnswer:
    """The counts by step; a sample belongs to the step that ends at its time."""
    step_s, begins = question.step_s, range(question.first, question.last, question.step_s)
    names = (*OF_MODELS, *OF_HOLDERS)

    def samples(name: str, by: str = "") -> Iterator[tuple[str, int, float]]:
        for item in prometheus.counted_over(
            step_query(question, name, by), begins[0] + step_s, begins[-1] + step_s, step_s
        ):
            for ended, text in item.values:
                if math.isfinite(amount := to_float(text)):
                    yield item.metric.get(by, ""), round(ended) - step_s, amount

    now = time.time()
    steps = {at: Step(at, min(step_s, max(now - at, 0)), [0.0] * len(names), {}) for at in begins}
    known = set[int]()
    for number, what in enumerate(OF_MODELS):
        for _, at, amount in samples(series_name(what)):
            if at in steps:
                steps[at].amounts[number] = amount
                known.add(at)
    for number, what in enumerate(OF_HOLDERS, len(OF_MODELS)):
        for namespace, at, amount in samples(series_name(what), "namespace"):
            if at in known:
                steps[at].amounts[number] += amount
                if what == "booked" and amount:
                    steps[at].booked[namespace] = amount
    for _, at, seconds in samples(COUNTED):
        if at in known:
            steps[at].seconds = seconds
    found = [steps[at] for at in sorted(known)]
    _limit_namespaces(found, question.most)
    return PrometheusAnswer(steps=found) if known else _nothing(question)


def _limit_namespaces(steps: Sequence[Step], most: int) -> None:
    """Keep the `most` namespaces that booked most in all steps; sum the others as OTHER."""
    sums: dict[str, float] = {}
    for step in steps:
        for name, amount in step.booked.items():
            sums[name] = sums.get(name, 0.0) + amount
    kept = set(sorted(sums, key=lambda name: (-sums[name], name))[:most])
    for step in steps:
        if rest := [amount for name, amount in step.booked.items() if name not in kept]:
            step.booked = {name: amount for name, amount in step.booked.items() if name in kept}
            step.booked[OTHER] = step.booked.get(OTHER, 0.0) + sum(rest)


def main() -> None:
    """Answer the question on standard input."""
    os.nice(_NICE)
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=PrometheusQuery)
    sys.stdout.buffer.write(msgspec.json.encode(_ask(question)))


if __name__ == "__main__":
    main()
