"""The page of a replay: what is read first, that it needs nothing else, and that texts are escaped."""

import copy
import re
from html import unescape
from typing import Any

import pytest

from extender.history.records import History
from extender.ranking import files
from model.evaluation.history_charts import Line, lines
from model.evaluation.history_pages import page
from model.pasts.replays import Asked, replay
from model.pasts.usages import Price
from tests.history.builders import history, nodes, pods
from tests.model.happenings import as_it_happened
from tests.model.pasts.test_accounts import random_rows

HOSTILE = "</style><script>alert(1)</script>\"'><img src=x onerror=alert(1)>${chart}"


def past_of(late_s: float = 0.0) -> History:
    """So few pods that what is expected is priced once in a replay; Kerf needs fewer nodes for them."""
    plain = history(pods(*random_rows(15, 31, (1, 1, 8))), nodes(*(8,) * 4), until_s=216_000.0)
    return as_it_happened(plain, "kube-default", seed=3, late_s=late_s)


def report_of(found: History, **asked: Any) -> dict[str, Any]:
    return replay(found, Asked(["kerf", "fgd", "kube-default"], **asked), files.read(files.RELEASED), lambda _: None)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return report_of(past_of(5.0), fewer=True, price=Price(2.5, "EUR"))


def words(text: str) -> str:
    """What is read of a page."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", text.partition("</style>")[2]))).replace("\u00a0", " ")


def test_it_stands_alone(report: dict[str, Any]) -> None:
    text = page(report)
    outside = r"<(script|link|img|iframe|object|form|base)\b|\s(on\w+|src|href)=|https?://|url\(|@import"
    assert not re.search(outside, text)
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text
    for tag in ("div", "table", "svg"):
        assert len(re.findall(rf"<{tag}\b", text)) == text.count(f"</{tag}>")


def test_what_is_read_first(report: dict[str, Any]) -> None:
    told = words(page(report))
    first = told[: told.index("GPUs in use")]
    assert all(sentence in told for sentence in report["verdict"])
    kerf = report["fewer"]["policies"]["kerf"]
    assert f"{kerf['gpus']:,} GPUs would have been enough, of {report['fewer']['gpus']:,}" in first
    assert f"{kerf['month_cost']:,.0f} EUR" in first
    assert not [jargon for jargon in ("p99", "fragment", "bestfit", "policy", "JSON") if jargon in first]
    assert "accurate enough to be trusted" in told and "what happened" in told
    assert told.count("8 or more GPUs") == 2  # waiting, and its error


def test_a_refusal_is_what_is_read_first() -> None:
    told = words(page(report_of(past_of(100_000.0), fewer=True)))
    assert "No verdict" in told and "too inaccurate to be trusted" in told
    assert "would have needed" not in told and "would have been enough" not in told


def test_what_can_not_be_checked_says_so() -> None:
    plain = history(pods(*random_rows(2, 31)), nodes(8, 8, 8), missing=("when pods started: unknown", HOSTILE))
    text = page(report_of(plain))
    told = words(text)
    assert "could not be checked" in told and "when pods started: unknown" in told and "what happened " not in told
    assert "<script" not in text and "<img" not in text


def test_hostile_names_stay_words(report: dict[str, Any]) -> None:
    hostile = copy.deepcopy(report)
    hostile["history"] |= {"source": HOSTILE, "missing": [HOSTILE]}
    hostile["price"]["currency"] = HOSTILE
    hostile["verdict"] = [HOSTILE, HOSTILE]
    hostile["error"]["faults"] = [HOSTILE]
    hostile["policies"] = {HOSTILE: report["policies"]["kerf"], **report["policies"]}
    hostile["timeline"]["gpus"][HOSTILE] = report["timeline"]["gpus"]["kerf"]
    hostile["fewer"]["policies"][HOSTILE] = report["fewer"]["policies"]["kerf"]
    text = page(hostile)
    assert "<script" not in text and "<img" not in text and "\"'>" not in text
    assert text.count("</style>") == 1
    assert "${chart}" in text  # not filled in again


def test_lines_end_where_their_values_do() -> None:
    text = lines([Line("a", "c0", [0.0, 50.0, 100.0])], [100.0, 100.0, 100.0], 3.0)
    # Thirds of 1000, through their middles; 0 is at the bottom (300), 50 halfway, 100 at the top.
    assert 'class="c0" d="M166.7 300.0L500.0 150.0L833.3 0.0"' in text
    assert re.findall(r"day \d+", text) == ["day 0", "day 1", "day 2", "day 2", "day 3"]
