"""GPU models: one canonical name per product, and all the names by which a pod may ask for it.

Labels, exporters and drivers spell the same card differently, with its brand or without; sharing adds `-SHARED`, MIG
`-MIG-1g.5gb`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from extender.core.vendors.registry import PRODUCTS, VENDORS
from extender.core.vendors.vendor import as_label, brands_pattern

_BRANDS: Final = brands_pattern("|".join(vendor.brands for vendor in VENDORS if vendor.brands))


class Pattern(Protocol):
    """A compiled regular expression, of `re` or of a linear-time engine such as RE2."""

    def search(self, text: str, /) -> object | None: ...


CompilePattern = Callable[[str], Pattern]
"""Raises ValueError when the text is no regular expression."""


@dataclass(frozen=True, slots=True)
class ModelPattern:
    """A pod's wish for a model: equal when the text is equal, whatever engine compiled it."""

    text: str
    compiled: Pattern = field(compare=False, repr=False)

    def matches(self, names: Iterable[str]) -> bool:
        """Whether any of a model's names satisfies the pattern."""
        return any(self.compiled.search(name) is not None for name in names)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU product under its canonical name, with every name that a pattern is tried on."""

    name: str
    names: tuple[str, ...]
    vendor: int = 0
    """By number in the registry."""


UNKNOWN_MODEL: Final = GpuModel("", ())


def canonical_name(product: str) -> str:
    """A product's name without brand and sharing suffix: "A100-SXM4-80GB-SHARED" is "a100-sxm4-80gb"."""
    return _BRANDS.sub("", as_label(product))


def describe_model(product: str, aliases: Mapping[str, Iterable[str]], vendor: int | None = None) -> GpuModel:
    """The model behind a product label, with its aliases; `vendor` is told by the product where nobody says it.

    `aliases` maps a name that users may ask by to the products it stands for, in any spelling. A pattern is tried
    on the label lower-cased (what Genius does), the same with spaces, the canonical name, and the aliases.
    """
    canonical = canonical_name(product)
    if not canonical:
        return UNKNOWN_MODEL
    label = as_label(product)
    asked_by = [
        alias.lower() for alias, products in aliases.items() if canonical in {canonical_name(name) for name in products}
    ]
    names = (label, label.replace("-", " "), canonical, canonical.replace("-", " "), *sorted(asked_by))
    if vendor is None:
        vendor = next((at for at, each in enumerate(VENDORS) if canonical in each.products), 0)
    return GpuModel(canonical, tuple(dict.fromkeys(names)), vendor)


def attributes(models: Sequence[GpuModel]) -> npt.NDArray[np.float64]:
    """(5, M + 1) multiprocessors, decoders, encoders, bandwidth in GB/s and power limit in W of each model; NaN where
    the vendor's table has it not. The last column, for "no GPU" (-1), is NaN."""
    table = np.full((5, len(models) + 1), np.nan)
    for index, model in enumerate(models):
        if product := PRODUCTS.get(model.name):
            table[:, index] = product[:5]
    return table


def models_allowed(
    models: Iterable[GpuModel], include: ModelPattern | None, exclude: ModelPattern | None, vendor: int = 0
) -> npt.NDArray[np.bool_]:
    """Which models a pod that asks for a vendor's GPUs accepts, one boolean per model.

    A GPU of unknown model satisfies no `include` and, to be on the safe side, no `exclude` either.
    """
    return np.array(
        [
            (model.vendor == vendor or not model.names)
            and (include is None or include.matches(model.names))
            and (exclude is None or (bool(model.names) and not exclude.matches(model.names)))
            for model in models
        ],
        dtype=np.bool_,
    )
