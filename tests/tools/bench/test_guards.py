"""Which ratios count as worse, and which files can be held against."""

from pathlib import Path

import pytest

from tests.tools.bench.guards import read, worse
from tests.tools.bench.servers import BenchError


@pytest.mark.parametrize(
    ("now", "before", "margin", "expected"),
    [
        ({"a": 1.25}, {"a": 1.0}, 0.25, []),  # 1.0 * 1.25, not beyond
        ({"a": 1.26}, {"a": 1.0}, 0.25, ["a"]),
        ({"a": 0.5}, {"a": 1.0}, 0.25, []),  # less is better
        ({"a": 1.01}, {"a": 1.0}, 0.0, ["a"]),
        ({"new": 9.0}, {"gone": 1.0}, 0.25, []),  # of one side only
        ({"a": 2.0, "b": 2.0}, {"a": 1.0, "b": 1.9}, 0.25, ["a"]),
    ],
)
def test_worse_is_what_is_beyond_the_margin(
    now: dict[str, float], before: dict[str, float], margin: float, expected: list[str]
) -> None:
    assert worse(now, before, margin) == expected


def test_a_report_is_read(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.write_text('{"ratios": {"a": 1, "b": 2.5}, "machine": {}}')
    assert read(path) == ({"a": 1.0, "b": 2.5}, {})
    path.write_text('{"ratios": {"a": 1}, "counts": {"c": 7}}')
    assert read(path) == ({"a": 1.0}, {"c": 7.0})


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"ratios": [1]}', '{"ratios": {"a": "much"}}', '{"ratios": null}'),
        '{"ratios": {}, "counts": []}',
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "before.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"before\.json has no ratios"):
        read(path)
