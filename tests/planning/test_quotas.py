"""Quotas and shares."""

import pytest

from extender.planning.quotas import Quotas
from extender.planning.wait_reasons import Code


@pytest.mark.parametrize(
    ("namespace", "used", "asked", "expected"),
    [
        ("team", 6, 2, ""),
        ("team", 7, 2, "quota of namespace team: 8 GPUs, 7 in use, 2 more requested"),
        ("team", 9, 0, ""),
        ("other", 1, 1, "quota of namespace other: 1 GPUs, 1 in use, 1 more requested"),
    ],
)
def test_quotas(namespace: str, used: float, asked: float, expected: str) -> None:
    excess = Quotas({"team": 8, "*": 1}).excess(namespace, used, asked)
    assert str(excess or "") == expected
    assert excess is None or excess.code is Code.OVER_QUOTA
    assert Quotas().excess(namespace, used, asked) is None


def test_shares_are_by_weight() -> None:
    quotas = Quotas(weights={"a": 2.0})
    assert (quotas.share("a", 8.0), quotas.share("b", 3.0)) == (4.0, 3.0)
