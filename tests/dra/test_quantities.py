from fractions import Fraction

import pytest

from extender.core.dra.devices import Amount
from extender.dra.results import _format_quantity, amount_of


def test_quantities_are_read_as_kubernetes_keeps_them() -> None:
    cases: list[tuple[str | int, Amount]] = [
        ("1Gi", 2**30),
        (4000, 4000),
        ("500m", Fraction(1, 2)),
        ("1e3", 1000),
        ("0.0000000001", Fraction(1, 10**9)),  # to a billionth, away from zero
        ("-0.0000000015", Fraction(-2, 10**9)),
        ("100Ei", 2**63 - 1),  # powers of 1024 are capped,
        ("-100Ei", 1 - 2**63),
        ("100E", 10**20),  # those of 1000 are not
    ]
    for quantity, amount in cases:
        assert amount_of(quantity) == amount
    assert type(amount_of("1500m")) is Fraction
    assert type(amount_of("2000m")) is int


def test_an_invalid_quantity_is_refused() -> None:
    for text in ("", "much", "1Zi", "1 Gi"):
        with pytest.raises(ValueError, match=r"quantity|suffix"):
            amount_of(text)


def test_quantities_are_written_exactly() -> None:
    cases: list[tuple[Amount, str]] = [
        (0, "0"),
        (1500, "1500"),
        (1024, "1Ki"),
        (-1024, "-1Ki"),
        (1536 * 2**20, "1536Mi"),
        (2**71, "2048Ei"),
        (Fraction(1, 2), "500m"),
        (Fraction(3, 2_000_000), "1500n"),
    ]
    for amount, text in cases:
        assert _format_quantity(amount) == text
