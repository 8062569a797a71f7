"""Expressions that are ready to be evaluated, and what is known of them beforehand."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from extender.dra.cel.parsing import Node, RefusedError
from extender.dra.cel.values import Type, Value

Scope = list[Any]
"""The device, and the values of the variables by their slots."""
Run = Callable[[Scope], Value]
_MAX_COST: Final = 5_000
"""Of one evaluation, in steps of about a microsecond: Kubernetes allows 1,000,000 of its own, of which ours take at
most 30 each."""


@dataclass(frozen=True, slots=True)
class Code:
    """An expression that can be evaluated."""

    run: Run
    """Raises EvaluationError, AbortError."""
    kind: Type
    cost: int = 1
    """Steps at most; a tenth of a character of the texts that are looked at is one."""
    chars: int = 0
    """Characters of the longest text in its value at most."""
    items: int = 0
    """Items of the longest list or map in its value at most."""
    path: tuple[str, ...] | None = None
    """Where in the device it is, for the device itself and the maps in it."""
    constant: bool = False
    """Whether it is a literal, or a list of literals."""


Names = Mapping[str, Code]
"""Variables."""


class Compiling(Protocol):
    """What macros use of the compiler."""

    def value(self, node: Node, names: Names) -> Code:
        """An expression of which the value is wanted, whatever it is. Raises RefusedError."""

    def part(self, node: Node, names: Names) -> Code:
        """An expression that may be the device or a map in it, of which only a part is wanted. Raises RefusedError."""

    def slot(self) -> int:
        """Room for a variable."""

    def reads(self, name: str) -> None:
        """An attribute or capacity is looked at."""


def bounded(cost: int) -> int:
    """A cost. Raises RefusedError where it is too much."""
    if cost > _MAX_COST:
        raise RefusedError(f"may take more than {_MAX_COST} steps", "cost")
    return cost


def refuse_types(what: str, *codes: Code) -> RefusedError:
    kinds = ", ".join(str(code.kind) for code in codes)
    return RefusedError(f"{what} of {kinds} is no CEL, or not handled", "types")
