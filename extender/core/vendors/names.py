"""How names of GPU products are compared."""

import re
from typing import Final

_SHARING_SUFFIX: Final = re.compile(r"-(?:shared|mig-[0-9]+g\.[0-9]+gb.*)$")
_SEPARATORS: Final = re.compile(r"[\s_-]+")


def as_label(product: str) -> str:
    """In lower case, with hyphens between the words and without what sharing adds."""
    return _SHARING_SUFFIX.sub("", _SEPARATORS.sub("-", product.strip().lower()))


def brands_pattern(brands: str) -> re.Pattern[str]:
    """Finds the brands, alternatives of a regular expression, that a label of `as_label` begins with."""
    return re.compile(f"^(?:(?:{brands})-)+")
