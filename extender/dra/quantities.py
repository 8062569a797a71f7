"""Quantities as Kubernetes parses them: `ParseQuantity` of `k8s.io/apimachinery/pkg/api/resource`."""

from fractions import Fraction
from math import ceil
from typing import Final

from extender.core.dra.devices import Amount
from extender.core.resources.quantities import parse_quantity

_NANO: Final = 10**9
_LARGEST: Final = 2**63 - 1


def amount_of(quantity: str | int | float) -> Amount:
    """A quantity, exactly: to a billionth, rounded up as Kubernetes does, and in powers of 1024 no more than it keeps.

    Raises ValueError for what is none.
    """
    text = str(quantity)
    exact = parse_quantity(text)
    size = abs(exact)
    if size.denominator != 1:
        size = Fraction(ceil(size * _NANO), _NANO)
    if text.endswith("i"):
        size = min(size, Fraction(_LARGEST))
    amount = -size if exact < 0 else size
    return int(amount) if amount.denominator == 1 else amount
