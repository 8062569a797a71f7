"""YAML as Kubernetes reads it, in time that grows with the text alone.

A date is text, and so is a number in base 60, which YAML 1.2 has no more. Other numbers have 64 bits at most: longer
ones take the square of their length, and as keys they could be chosen so that each is compared with all others.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
import yaml
from yaml.constructor import ConstructorError

_MAX_CHARS: Final = 100
_LEAST, _MOST = -(2**63), 2**64 - 1
_TAG: Final = "tag:yaml.org,2002:"
_Construct = Callable[[Any, Any], Any]


class Loader(yaml.CSafeLoader):
    """Reads what becomes JSON: a key that looks like a number is text, too."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping, its keys as JSON has them."""
        found = super().construct_mapping(node, deep)
        return {key if isinstance(key, str) else _key(key): value for key, value in found.items()}


def _key(key: object) -> str:
    return msgspec.json.encode(key).decode() if key is None or isinstance(key, bool) else str(key)


def _text(loader: Loader, node: yaml.ScalarNode) -> Any:
    return loader.construct_scalar(node)


def _checked(construct: _Construct, what: str) -> _Construct:
    """A way to construct a value, which may be tagged as what it is not."""

    def checked(loader: Loader, node: yaml.ScalarNode) -> Any:
        text = _text(loader, node)
        if ":" in text:
            return text
        if len(text) > _MAX_CHARS:
            raise ConstructorError(None, None, f"{what} of more than {_MAX_CHARS} characters", node.start_mark)
        try:
            value = construct(loader, node)
        except (ValueError, LookupError):
            raise ConstructorError(None, None, f"{what} that can't be read", node.start_mark) from None
        if isinstance(value, int) and not _LEAST <= value <= _MOST:
            raise ConstructorError(None, None, f"{what} of more than 64 bits", node.start_mark)
        return value

    return checked


Loader.add_constructor(f"{_TAG}timestamp", _text)
Loader.add_constructor(f"{_TAG}int", _checked(Loader.construct_yaml_int, "a number"))
Loader.add_constructor(f"{_TAG}float", _checked(Loader.construct_yaml_float, "a number"))
Loader.add_constructor(f"{_TAG}bool", _checked(Loader.construct_yaml_bool, "true or false"))
