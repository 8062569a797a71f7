"""Quotas and shares."""

import pytest

from extender.queueing.quotas import Quotas


@pytest.mark.parametrize(
    ("namespace", "used", "asked", "expected"),
    [
        ("team", 6, 2, ""),
        ("team", 7, 2, "quota of namespace team: 8 GPUs, 7 in use, 2 more asked"),
        ("team", 9, 0, ""),
        ("other", 1, 1, "quota of namespace other: 1 GPUs, 1 in use, 1 more asked"),
    ],
)
def test_quotas(namespace: str, used: float, asked: float, expected: str) -> None:
    assert Quotas({"team": 8, "*": 1}).excess(namespace, used, asked) == expected
    assert Quotas().excess(namespace, used, asked) == ""


def test_shares_are_by_weight() -> None:
    assert Quotas(weights={"a": 2.0}).shares({"a": 8.0, "b": 3.0}) == {"a": 4.0, "b": 3.0}
