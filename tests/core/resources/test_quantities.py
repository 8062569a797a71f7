"""Quantities are exact in every spelling."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.resources.quantities import MIB, format_mib, is_plain_number, mib_of_bytes, parse_quantity

SUFFIXES = {"": Fraction(1), "n": Fraction(1, 1000**3), "u": Fraction(1, 1000**2), "m": Fraction(1, 1000)}
SUFFIXES |= {suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)}
SUFFIXES |= {suffix: Fraction(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}


@given(
    whole=st.integers(0, 10**20),
    decimals=st.text("0123456789", max_size=12),
    sign=st.sampled_from(["", "+", "-"]),
    suffix=st.sampled_from(sorted(SUFFIXES)),
)
def test_suffixed_numbers_are_exact(whole: int, decimals: str, sign: str, suffix: str) -> None:
    # Digits and place value by hand: "12.050Gi" is 12050 / 10**3 * 2**30.
    value = Fraction(int(f"{whole}{decimals}"), 10 ** len(decimals)) * SUFFIXES[suffix]
    text = f"{sign}{whole}{'.' if decimals else ''}{decimals}{suffix}"
    assert parse_quantity(text) == (-value if sign == "-" else value)


@given(whole=st.integers(0, 10**12), exponent=st.integers(-30, 30), letter=st.sampled_from("eE"))
def test_exponents_are_exact(whole: int, exponent: int, letter: str) -> None:
    expected = Fraction(whole * 10**exponent) if exponent >= 0 else Fraction(whole, 10**-exponent)
    assert parse_quantity(f"{whole}{letter}{exponent}") == expected


def test_values_at_the_bounds() -> None:
    for suffix, scale in SUFFIXES.items():
        assert parse_quantity(f"3{suffix}") == 3 * scale
    for text, value in (
        ("1E3", 1000),  # E with digits is an exponent, without it is exa
        ("1E", 10**18),
        ("1e+2", 100),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("007", 7),
        ("1e30", 10**30),
        ("9" * 64, 10**64 - 1),
    ):
        assert parse_quantity(text) == value


def test_what_is_no_quantity_is_refused() -> None:
    texts = ["", ".", "-", "k", "e3", " 5", "5 ", "5\n", "5 Gi", "1.2.3", "--1", "1,000", "1_000", "0x10", "16GB"]
    texts += ["16gi", "1K", "1e", "1e3Gi", "1e31", "1e-31", "1e999", "1e999999999", "nan", "inf"]
    texts += ["9" * 65, "1" * 100_000, "٣", "１６Gi", "5µ"]
    for text in texts:
        with pytest.raises(ValueError, match=r"not a quantity|unknown suffix|exponent out of range"):
            parse_quantity(text)
        assert not is_plain_number(text) or "e" in text


@given(st.text() | st.text("0123456789.+-eEkMGiu", max_size=12))
def test_any_text_gives_a_value_or_a_value_error(text: str) -> None:
    try:
        value = parse_quantity(text)
    except ValueError:
        return
    assert isinstance(value, Fraction)


def test_plain_numbers_have_no_unit() -> None:
    assert all(map(is_plain_number, ("16384", "1e3", "1E3", "1.5")))
    assert not any(map(is_plain_number, ("1E", "16Gi", "500m")))


@given(st.fractions(min_value=0, max_value=2**50))
def test_bytes_round_up_to_mib(quantity: Fraction) -> None:
    mib = mib_of_bytes(quantity)
    assert mib * MIB >= quantity > (mib - 1) * MIB


def test_memory_in_words() -> None:
    for mib, text in ((40960, "40 GiB"), (1024, "1 GiB"), (11000, "11000 MiB"), (512, "512 MiB"), (0, "0 MiB")):
        assert format_mib(mib) == text
