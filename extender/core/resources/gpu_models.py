"""GPU models: one canonical name per product, and all names by which a pod may request it.

Labels, exporters and drivers spell the same card differently: with or without brand, with `-SHARED` for time slices, or
with `-MIG-1g.5gb`.
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
"""Raises ValueError when the text is not a regular expression."""


@dataclass(frozen=True, slots=True)
class ModelPattern:
    """A pattern for GPU models; equality depends only on the text."""

    text: str
    compiled: Pattern = field(compare=False, repr=False)

    def matches(self, names: Iterable[str]) -> bool:
        """Whether the pattern matches any of a model's names."""
        return any(self.compiled.search(name) is not None for name in names)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU product."""

    name: str
    """Canonical name."""
    names: tuple[str, ...]
    """All names that patterns are matched against."""
    vendor: int = 0
    """Vendor's number in the registry."""


UNKNOWN_MODEL: Final = GpuModel("", ())


def canonical_name(product: str) -> str:
    """A product's name without brand and sharing suffix: "A100-SXM4-80GB-SHARED" is "a100-sxm4-80gb"."""
    return _BRANDS.sub("", as_label(product))


def describe_model(product: str, aliases: Mapping[str, Iterable[str]], vendor: int | None = None) -> GpuModel:
    """The model of a product label. Without `vendor`, it is derived from the product.

    `aliases` maps a name that users may request to the products it stands for, in any spelling. Patterns match the
    lower-cased label (like in Genius), the label with spaces, the canonical name, and the aliases.
    """
    canonical = canonical_name(product)
    if not canonical:
        return UNKNOWN_MODEL
    label = as_label(product)
    own_aliases = [
        alias.lower() for alias, products in aliases.items() if canonical in {canonical_name(name) for name in products}
    ]
    names = (label, label.replace("-", " "), canonical, canonical.replace("-", " "), *sorted(own_aliases))
    if vendor is None:
        vendor = next((at for at, each in enumerate(VENDORS) if canonical in each.products), 0)
    return GpuModel(canonical, tuple(dict.fromkeys(names)), vendor)


def attributes(models: Sequence[GpuModel]) -> npt.NDArray[np.float64]:
    """(5, M + 1) multiprocessors, decoders, encoders, bandwidth in GB/s and power limit in W of each model.

    NaN where the vendor's table lacks the model, and in the last column, for "no GPU" (-1).
    """
    table = np.full((5, len(models) + 1), np.nan)
    for index, model in enumerate(models):
        if product := PRODUCTS.get(model.name):
            table[:, index] = product[:5]
    return table


def models_allowed(
    models: Iterable[GpuModel], include: ModelPattern | None, exclude: ModelPattern | None, vendor: int = 0
) -> npt.NDArray[np.bool_]:
    """(M,) which models a pod that requests a vendor's GPUs accepts.

    A GPU of unknown model satisfies no `include` and, to be safe, no `exclude` either.
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
