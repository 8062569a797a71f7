"""Questions to Prometheus, and lengths of time."""

import pytest

from extender.parts.usage.questions import Question, query, seconds_of
from extender.telemetry.sources.source import Access


@pytest.mark.parametrize(
    ("text", "seconds"), [("7d", 604_800), ("36h", 129_600), ("90m", 5400), ("2w", 1_209_600), ("60s", 60)]
)
def test_a_length_of_time(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "7", "d", "-7d", "0d", "1.5d", "7D", "7 d", "30s", "367d", "9" * 40 + "d", "7d7d", "７d"]
)
def test_what_is_none_is_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(ValueError, match="write 7d, 36h or 90m"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("by", "what", "matchers", "expected"),
    [
        ("namespace", "booked", "", "sum by (namespace) (increase(kerf_booked_gpu_seconds_total[3600s]))"),
        ("owner", "used", "", "sum by (namespace, owner) (increase(kerf_used_gpu_seconds_total[3600s]))"),
        (
            "model",
            "idle",
            'cluster="a"',
            'sum by (gpu_model) (increase(kerf_idle_gpu_seconds_total{cluster="a"}[3600s]))',
        ),
        ("model", "sick", "", "sum (increase(kerf_sick_gpu_seconds_total[3600s]))"),
    ],
)
def test_what_prometheus_is_asked(by: str, what: str, matchers: str, expected: str) -> None:
    found = query(Question("http://p", Access(), 3600, by, matchers), what)
    assert found.replace("sum(", "sum (") == expected
