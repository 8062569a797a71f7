"""GPU models: one canonical name per product, and all the names by which a pod may ask for it.

The same card is `NVIDIA-A100-SXM4-80GB` to GPU Feature Discovery, `NVIDIA A100-SXM4-80GB` to DCGM and
`A100-SXM4-40GB` to an older driver; sharing adds `-SHARED`, MIG `-MIG-1g.5gb`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

_BRANDS: Final = re.compile(r"^(?:(?:nvidia|tesla|geforce|quadro)-)+")  # "NVIDIA-Tesla-T4" has two
_SHARING_SUFFIX: Final = re.compile(r"-(?:shared|mig-[0-9]+g\.[0-9]+gb.*)$")
_SEPARATORS: Final = re.compile(r"[\s_-]+")


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


UNKNOWN_MODEL: Final = GpuModel("", ())


def canonical_name(product: str) -> str:
    """A product's name without brand and sharing suffix: "NVIDIA-A100-SXM4-80GB-SHARED" is "a100-sxm4-80gb"."""
    return _BRANDS.sub("", _label(product))


def describe_model(product: str, aliases: Mapping[str, Iterable[str]]) -> GpuModel:
    """The model behind a product label, with its aliases.

    `aliases` maps a name that users may ask by to the products it stands for, in any spelling. A pattern is tried
    on the label lower-cased (what Genius does), the same with spaces, the canonical name, and the aliases.
    """
    canonical = canonical_name(product)
    if not canonical:
        return UNKNOWN_MODEL
    label = _label(product)
    asked_by = [
        alias.lower() for alias, products in aliases.items() if canonical in {canonical_name(name) for name in products}
    ]
    names = (label, label.replace("-", " "), canonical, canonical.replace("-", " "), *sorted(asked_by))
    return GpuModel(canonical, tuple(dict.fromkeys(names)))


def _label(product: str) -> str:
    return _SHARING_SUFFIX.sub("", _SEPARATORS.sub("-", product.strip().lower()))


def models_allowed(
    models: Iterable[GpuModel], include: ModelPattern | None, exclude: ModelPattern | None
) -> npt.NDArray[np.bool_]:
    """Which models a pod accepts, one boolean per model.

    A GPU of unknown model satisfies no `include` and, to be on the safe side, no `exclude` either.
    """
    return np.array(
        [
            (include is None or include.matches(model.names))
            and (exclude is None or (bool(model.names) and not exclude.matches(model.names)))
            for model in models
        ],
        dtype=np.bool_,
    )
