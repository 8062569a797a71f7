"""The process that asks Prometheus one question: it comes on standard input, the answer goes to standard output."""

import os
import sys
from typing import Final

import msgspec

from extender.telemetry.errors import SourceError
from extender.telemetry.sources.prometheus_client import Prometheus, to_float
from extender.usage.questions import LABELS, OF_HOLDERS, OF_MODELS, Answer, Question, query, series_name

_NICE: Final = 10


def ask(question: Question) -> Answer:
    """What Prometheus answers, or why it does not."""
    prometheus = Prometheus(question.url, question.access)
    try:
        return _asked(prometheus, question)
    except SourceError as error:
        return Answer(fault=str(error))
    finally:
        prometheus.close()


def _asked(prometheus: Prometheus, question: Question) -> Answer:
    rows: dict[str, list[float]] = {}
    for number, what in enumerate(OF_HOLDERS):
        for item in prometheus.counted(query(question, what)):
            name = item.metric.get(LABELS[question.by], "")
            if question.by == "owner":
                name = f"{item.metric.get('namespace', '')}/{name}"
            rows.setdefault(name, [0.0] * len(OF_HOLDERS))[number] = to_float(item.value[1])
    totals = [0.0] * len(OF_MODELS)
    known = False
    for number, what in enumerate(OF_MODELS):
        for item in prometheus.counted(query(question, what)):
            totals[number], known = to_float(item.value[1]), True
    if not known:
        name = series_name("capacity")
        return Answer(
            fault=f"{question.url} has no {name} of that time: does it scrape Kerf, and for a minute or more?"
        )
    return Answer(rows, totals)


def main() -> None:
    """Be the process."""
    os.nice(_NICE)
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.json.encode(ask(question)))


if __name__ == "__main__":
    main()
