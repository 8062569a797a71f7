"""The report of a replay: what a manager reads first, that it stands alone, and that no name gets out of its place."""

import copy
import re
from html import unescape
from html.parser import HTMLParser
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
VOID = {"meta", "br", "line", "path"}


class Tags(HTMLParser):
    """Names and attributes of all tags, of which each is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def past_of(late_s: float = 0.0) -> History:
    """So few pods that what is expected is priced once in a replay; Kerf needs fewer nodes for them."""
    plain = history(pods(*random_rows(15, 31, (1, 1, 8))), nodes(*(8,) * 4), until_s=216_000.0)
    return as_it_happened(plain, "kube-default", seed=3, late_s=late_s)


def report_of(found: History, **asked: Any) -> dict[str, Any]:
    return replay(found, Asked(["kerf", "fgd", "kube-default"], **asked), files.read(files.RELEASED), lambda _: None)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """One with all there is."""
    return report_of(past_of(5.0), fewer=True, price=Price(2.5, "EUR"))


def words(text: str) -> str:
    """What is read of a page."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", text.partition("</style>")[2]))).replace("\u00a0", " ")


def test_it_stands_alone(report: dict[str, Any]) -> None:
    text = page(report)
    tags = Tags(text)
    assert not tags.seen & {"script", "link", "img", "iframe", "object", "form", "base"}
    assert not {name for name in tags.attributes if name.startswith("on")} | tags.attributes & {"src", "href"}
    assert "http://" not in text and "https://" not in text and "url(" not in text and "@import" not in text
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text


def test_what_is_read_first(report: dict[str, Any]) -> None:
    told = words(page(report))
    first = told[: told.index("GPUs in use")]
    assert all(sentence in told for sentence in report["verdict"])
    kerf = report["fewer"]["policies"]["kerf"]
    assert f"{kerf['gpus']:,} GPUs would have been enough, of {report['fewer']['gpus']:,}" in first
    assert f"{kerf['month_cost']:,.0f} EUR" in first
    for jargon in ("p99", "fragment", "bestfit", "policy", "JSON"):
        assert jargon not in first
    assert "</i>what happened</li>" in page(report)
    assert "accurate enough to be trusted" in told and "what happened" in told
    assert told.count("8 or more GPUs") == 2  # waiting, and how far off it is


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
    """Whatever of a report is text, and may be from a history or a command line."""
    hostile = copy.deepcopy(report)
    hostile["history"] |= {"source": HOSTILE, "missing": [HOSTILE]}
    hostile["price"]["currency"] = HOSTILE
    hostile["verdict"] = [HOSTILE, HOSTILE]
    hostile["error"]["faults"] = [HOSTILE]
    hostile["policies"] = {HOSTILE: report["policies"]["kerf"], **report["policies"]}
    hostile["timeline"]["gpus"][HOSTILE] = report["timeline"]["gpus"]["kerf"]
    hostile["fewer"]["policies"][HOSTILE] = report["fewer"]["policies"]["kerf"]
    text = page(hostile)
    tags = Tags(text)
    assert not tags.seen & {"script", "img"} and "onerror" not in tags.attributes
    assert text.count("</style>") == 1
    assert "${chart}" in text  # not filled in again


def test_lines_end_where_their_values_do() -> None:
    text = lines([Line("a", "c0", [0.0, 50.0, 100.0])], [100.0, 100.0, 100.0], 3.0)
    # Thirds of 1000, through their middles; 0 is at the bottom (300), 50 halfway, 100 at the top.
    assert 'class="c0" d="M166.7 300.0L500.0 150.0L833.3 0.0"' in text
    assert re.findall(r"day \d+", text) == ["day 0", "day 1", "day 2", "day 2", "day 3"]
