from fractions import Fraction
from typing import Any

import pytest

from extender.dra.results import amount_of


@pytest.mark.parametrize(
    ("quantity", "amount"),
    [
        ("1Gi", 2**30),
        (4000, 4000),
        ("500m", Fraction(1, 2)),
        ("1e3", 1000),
        ("0.0000000001", Fraction(1, 10**9)),  # to a billionth, away from zero
        ("-0.0000000015", Fraction(-2, 10**9)),
        ("100Ei", 2**63 - 1),  # powers of 1024 are capped,
        ("-100Ei", 1 - 2**63),
        ("100E", 10**20),  # those of 1000 are not
    ],
)
def test_quantities_are_what_kubernetes_keeps_of_them(quantity: Any, amount: Any) -> None:
    assert amount_of(quantity) == amount


def test_whole_amounts_are_integers() -> None:
    assert type(amount_of("1500m")) is Fraction
    assert type(amount_of("2000m")) is int


@pytest.mark.parametrize("text", ["", "much", "1Zi", "1 Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|suffix"):
        amount_of(text)
