"""Compiled expressions with their types and cost bounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from extender.dra.cel.parsing import Node, RefusedError
from extender.dra.cel.values import Type, Value

Scope = list[Any]
"""The device in slot 0, then the values of variables by slot."""
Run = Callable[[Scope], Value]
_MAX_COST: Final = 5_000
"""Per evaluation, in steps of about a microsecond. Kubernetes allows 1,000,000 of its own, at most 30 per step here."""


@dataclass(frozen=True, slots=True)
class Code:
    """A compiled expression."""

    run: Run
    """Raises EvaluationError, AbortError."""
    kind: Type
    cost: int = 1
    """Upper bound in steps; reading ten characters of a string is one step."""
    chars: int = 0
    """Upper bound of the length of the longest string in the value."""
    items: int = 0
    """Upper bound of the length of the longest list or map in the value."""
    path: tuple[str, ...] | None = None
    """Path within the device, for the device itself and its maps; None for any other value."""
    constant: bool = False
    """Whether it is a literal or a list of literals."""


Names = Mapping[str, Code]
"""Variables by name."""


class Compiling(Protocol):
    """The compiler's interface for macros."""

    def value(self, node: Node, names: Names) -> Code:
        """Compile an expression whose whole value is used. Raises RefusedError."""

    def part(self, node: Node, names: Names) -> Code:
        """Compile an expression of which only a part may be used, if it is the device or a map in it.

        Raises RefusedError.
        """

    def slot(self) -> int:
        """Allocate a slot for a variable."""

    def reads(self, name: str) -> None:
        """Record that an attribute or capacity is read."""


def check_cost(cost: int) -> int:
    """Return `cost`. Raises RefusedError if it exceeds the limit."""
    if cost > _MAX_COST:
        raise RefusedError(f"may take more than {_MAX_COST} steps", "cost")
    return cost


def refuse_types(operation: str, *codes: Code) -> RefusedError:
    kinds = ", ".join(str(code.kind) for code in codes)
    return RefusedError(f"{operation} on {kinds} is invalid or not supported", "types")
