"""Quantities are exact, whatever spelling the API server's canonical form takes."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.resources.quantities import MIB, format_mib, is_plain_number, mib_of_bytes, parse_quantity

SUFFIXES = {
    "": Fraction(1),
    "n": Fraction(1, 1000**3),
    "u": Fraction(1, 1000**2),
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    "M": Fraction(1000**2),
    "G": Fraction(1000**3),
    "T": Fraction(1000**4),
    "P": Fraction(1000**5),
    "E": Fraction(1000**6),
    "Ki": Fraction(1024),
    "Mi": Fraction(1024**2),
    "Gi": Fraction(1024**3),
    "Ti": Fraction(1024**4),
    "Pi": Fraction(1024**5),
    "Ei": Fraction(1024**6),
}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_suffix_scales_the_number(suffix: str) -> None:
    assert parse_quantity(f"3{suffix}") == 3 * SUFFIXES[suffix]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("4k", 4 * 1000, id="4000 as the API server writes it"),
        pytest.param("1e3", 1000, id="small exponent letter"),
        pytest.param("1E3", 1000, id="E with digits is an exponent"),
        pytest.param("1E", 10**18, id="E without digits is exa"),
        pytest.param("12e-1", Fraction(12, 10), id="negative exponent"),
        pytest.param("1e+2", 100, id="signed exponent"),
        pytest.param("500m", Fraction(1, 2), id="milli"),
        pytest.param("1.5Gi", 3 * 2**29, id="decimals with a binary suffix"),
        pytest.param("0.1", Fraction(1, 10), id="no float is involved"),
        pytest.param(".5", Fraction(1, 2), id="no digits before the point"),
        pytest.param("5.", 5, id="no digits after the point"),
        pytest.param("-2", -2, id="negative"),
        pytest.param("+2", 2, id="signed"),
        pytest.param("007", 7, id="leading zeros"),
        pytest.param("9007199254740993", 2**53 + 1, id="more digits than a float holds"),
        pytest.param("1e30", 10**30, id="largest exponent"),
        pytest.param("9" * 64, 10**64 - 1, id="longest"),
    ],
)
def test_value(text: str, value: Fraction | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(".", id="only a point"),
        pytest.param("-", id="only a sign"),
        pytest.param("k", id="only a suffix"),
        pytest.param("e3", id="only an exponent"),
        pytest.param(" 5", id="space before"),
        pytest.param("5 ", id="space after"),
        pytest.param("5\n", id="newline after"),
        pytest.param("5 Gi", id="space within"),
        pytest.param("1.2.3", id="two points"),
        pytest.param("--1", id="two signs"),
        pytest.param("1,000", id="thousands separator"),
        pytest.param("1_000", id="underscore"),
        pytest.param("0x10", id="hexadecimal"),
        pytest.param("16GB", id="GB is no suffix"),
        pytest.param("16gi", id="suffixes have their case"),
        pytest.param("1K", id="kilo is a small k"),
        pytest.param("1e", id="e without digits"),
        pytest.param("1e3Gi", id="exponent and suffix"),
        pytest.param("1e31", id="exponent out of range"),
        pytest.param("1e-31", id="negative exponent out of range"),
        pytest.param("1e999", id="three digits of exponent"),
        pytest.param("1e999999999", id="absurd exponent"),
        pytest.param("9" * 65, id="absurd length"),
        pytest.param("1" * 100_000, id="very absurd length"),
        pytest.param("nan", id="nan"),
        pytest.param("inf", id="inf"),
        pytest.param("٣", id="digit of another script"),
        pytest.param("１６Gi", id="full-width digits"),
        pytest.param("5µ", id="micro sign"),
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a quantity|unknown suffix|exponent out of range"):
        parse_quantity(text)
    assert not is_plain_number(text) or "e" in text


@given(
    whole=st.integers(0, 10**20),
    decimals=st.text("0123456789", max_size=12),
    negative=st.booleans(),
    suffix=st.sampled_from(sorted(SUFFIXES)),
)
def test_suffixed_numbers_are_exact(whole: int, decimals: str, negative: bool, suffix: str) -> None:
    # Digits and place value by hand: "12.050Gi" is 12050 / 10**3 * 2**30.
    value = Fraction(int(f"{whole}{decimals}"), 10 ** len(decimals)) * SUFFIXES[suffix]
    text = f"{'-' if negative else ''}{whole}{'.' if decimals else ''}{decimals}{suffix}"
    assert parse_quantity(text) == (-value if negative else value)


@given(whole=st.integers(0, 10**12), exponent=st.integers(-30, 30), letter=st.sampled_from("eE"))
def test_exponents_are_exact(whole: int, exponent: int, letter: str) -> None:
    expected = Fraction(whole * 10**exponent) if exponent >= 0 else Fraction(whole, 10**-exponent)
    assert parse_quantity(f"{whole}{letter}{exponent}") == expected


@given(st.text() | st.text("0123456789.+-eEkMGiu", max_size=12))
def test_any_text_gives_a_value_or_a_value_error(text: str) -> None:
    try:
        value = parse_quantity(text)
    except ValueError:
        return
    assert isinstance(value, Fraction)


@pytest.mark.parametrize(
    ("text", "plain"),
    [("16384", True), ("1e3", True), ("1E3", True), ("1.5", True), ("1E", False), ("16Gi", False), ("500m", False)],
)
def test_plain_numbers_have_no_unit(text: str, plain: bool) -> None:
    assert is_plain_number(text) is plain


@given(st.fractions(min_value=0, max_value=2**50))
def test_bytes_round_up_to_mib(quantity: Fraction) -> None:
    mib = mib_of_bytes(quantity)
    assert mib * MIB >= quantity > (mib - 1) * MIB


@pytest.mark.parametrize(
    ("mib", "text"),
    [
        pytest.param(40960, "40 GiB", id="whole GiB: 40 * 1024"),
        pytest.param(1024, "1 GiB", id="one GiB"),
        pytest.param(11000, "11000 MiB", id="not whole: 10.74 GiB"),
        pytest.param(512, "512 MiB", id="below one GiB"),
        pytest.param(0, "0 MiB", id="nothing"),
    ],
)
def test_memory_in_words(mib: int, text: str) -> None:
    assert format_mib(mib) == text
