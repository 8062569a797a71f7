"""Texts of others, and numbers, as they may be shown."""

from collections.abc import Sequence
from typing import Final

_MOST_DECIMALS: Final = 9


def printable(text: str) -> str:
    """On one line and without control characters: what an author writes ends up in logs, events and terminals."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def in_figures(values: Sequence[float], least: int = 1) -> list[str]:
    """Numbers beside each other, with `least` decimals or as many as it takes to tell different ones apart: "-62.2"."""
    return [figure(value, decimals_of(values, least)) for value in values]


def decimals_of(values: Sequence[float], least: int = 1) -> int:
    """How many decimals these are."""
    num_different = len(set(values))
    for decimals in range(least, _MOST_DECIMALS):
        if len({figure(value, decimals) for value in values}) == num_different:
            return decimals
    return _MOST_DECIMALS


def figure(value: float, decimals: int) -> str:
    """A number with so many decimals at most: no zeros at its end, and no "-0"."""
    text = f"{value:.{decimals}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
