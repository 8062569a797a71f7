"""Formatting of untrusted text and of numbers for display."""

from collections.abc import Sequence
from typing import Final

_MOST_DECIMALS: Final = 9


def printable(text: str) -> str:
    """The text with unprintable characters escaped, safe for logs, events and terminals."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def in_figures(values: Sequence[float], least: int = 1) -> list[str]:
    """The numbers as text, with the decimals (at least `least`) needed to tell different ones apart: "-62.2"."""
    return [figure(value, decimals_of(values, least)) for value in values]


def decimals_of(values: Sequence[float], least: int = 1) -> int:
    """The number of decimals that `in_figures` uses for these values."""
    num_different = len(set(values))
    for decimals in range(least, _MOST_DECIMALS):
        if len({figure(value, decimals) for value in values}) == num_different:
            return decimals
    return _MOST_DECIMALS


def figure(value: float, decimals: int) -> str:
    """The number with at most `decimals` decimals, without trailing zeros or "-0"."""
    text = f"{value:.{decimals}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
