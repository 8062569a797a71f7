"""Kubernetes quantities, parsed exactly.

kube-scheduler sends canonical quantities (a limit of 4000 arrives as "4k"), so every suffix and exponent of
`k8s.io/apimachinery/pkg/api/resource/quantity.go` is supported, with rational numbers instead of floats.
"""

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final

MIB: Final = 1024 * 1024

_SUFFIXES: Final[dict[str, Fraction]] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{suffix: Fraction(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}
# "1E" is one exa and "1E3" a thousand: the exponent is tried first and needs its digits.
_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:[eE](?P<exponent>[+-]?[0-9]{1,3})|(?P<suffix>[a-zA-Z]{0,2}))",
    re.ASCII,
)
_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgtpe])i?(?:b|bytes?)?\s*", re.ASCII | re.IGNORECASE)
"""Common non-Kubernetes spellings of a size in bytes."""
_MAX_CHARS: Final = 64
_MAX_EXPONENT: Final = 30


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Fraction:
    """The value of a Kubernetes quantity such as "16Gi", "4k", "1e3", "500m" or "0.5".

    Raises ValueError when `text` is not a quantity.
    """
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_CHARS else None
    if match is None:
        raise ValueError("not a quantity")
    number = Fraction(match["number"])
    if match["exponent"]:
        exponent = int(match["exponent"])
        if abs(exponent) > _MAX_EXPONENT:
            raise ValueError("exponent out of range")
        return number * Fraction(10) ** exponent
    try:
        return number * _SUFFIXES[match["suffix"]]
    except KeyError:
        raise ValueError(f"unknown suffix {match['suffix']}") from None


def is_plain_number(text: str) -> bool:
    """Whether a quantity has no suffix ("16384", "1e3"), so that a caller may assume a unit."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_CHARS else None
    return match is not None and not match["suffix"]


def meant_size(text: str) -> str:
    """The quantity that a misspelt size probably means: "40Gi" for "40GB" or "40 gb"; "" for none."""
    match = _SIZE.fullmatch(text) if len(text) <= _MAX_CHARS else None
    return f"{match[1]}{match[2].upper()}i" if match else ""


def mib_of_bytes(quantity: Fraction) -> int:
    """Bytes as whole MiB, rounded up so that a request never shrinks."""
    return ceil(quantity / MIB)


def format_mib(mib: int) -> str:
    """A memory size for display: "40 GiB" where exact, else "11000 MiB"."""
    return f"{mib // 1024} GiB" if mib >= 1024 and mib % 1024 == 0 else f"{mib} MiB"
