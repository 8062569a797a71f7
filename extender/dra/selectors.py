"""Selectors of devices in CEL, as `k8s.io/dynamic-resource-allocation/cel` evaluates them.

What is kept of a claim is its expression's text and what it reads. What evaluates it takes thirty times as much memory:
that is shared, bounded, and made again where it is needed after it was given up.
"""

from dataclasses import dataclass
from typing import Final

from extender.core.dra.asks import Selector, SelectorFault
from extender.core.dra.devices import Device
from extender.core.texts import printable
from extender.dra.cel.errors import AbortError, EvaluationError, RefusedError
from extender.dra.cel.lexing import tokens_of
from extender.dra.cel.programs import MAX_SAID_CHARS, Program, Programs
from extender.dra.unhandled import UnhandledError

_MAX_CHARS: Final = 10 * 1024
"""`CELSelectorExpressionMaxLength`."""
_MAX_PARTS: Final = 16
_OPENING: Final = ("(", "[", "{")
_CLOSING: Final = (")", "]", "}")
_MAX_REMEMBERED_CHARS: Final = 512 * 1024
"""Of all expressions whose programs are kept: 16 MB of these."""


_PROGRAMS: Final = Programs(_MAX_REMEMBERED_CHARS)


@dataclass(frozen=True, slots=True)
class _Matches:
    """Whether a device meets an expression."""

    expression: str

    def __call__(self, device: Device) -> bool:
        program = _PROGRAMS.of(self.expression)
        try:
            value = program.run([device, *[None] * (program.num_slots - 1)])
        except (EvaluationError, AbortError) as error:
            raise _fault(device, str(error)) from None
        except RecursionError:
            raise _fault(device, "nested too deep") from None
        if value is not True and value is not False:
            raise _fault(device, "gives no bool")
        return bool(value)


def _fault(device: Device, what: str) -> SelectorFault:
    return SelectorFault(printable(f"on device {device.id.device}: {what[:MAX_SAID_CHARS]}"))


@dataclass(frozen=True, slots=True)
class _Parts:
    """The conditions that an expression joins by `&&` outside of all brackets; none where it is a single one."""

    expression: str

    def __call__(self) -> tuple[Selector, ...]:
        texts, depth, begin = list[str](), 0, 0
        for token in tokens_of(self.expression):
            depth += (token.kind in _OPENING) - (token.kind in _CLOSING)
            if depth == 0 and token.kind in ("||", "?"):
                return ()
            if depth == 0 and token.kind in ("&&", "end"):
                texts.append(self.expression[begin : token.position].strip())
                begin = token.position + len(token.kind)
        try:
            return tuple(map(compile_selector, texts)) if 1 < len(texts) <= _MAX_PARTS else ()
        except UnhandledError:
            return ()


def compile_selector(expression: str) -> Selector:
    """A selector. Raises UnhandledError where it can't be evaluated exactly as kube-scheduler does, in bounded time."""
    program = _program(expression)
    return Selector(expression, _Matches(expression), program.reads, _Parts(expression), program.cost)


def _program(expression: str) -> Program:
    if len(expression) > _MAX_CHARS:
        raise UnhandledError(f"has more than {_MAX_CHARS} characters", "CEL: length")
    try:
        return _PROGRAMS.of(expression)
    except RefusedError as error:
        raise UnhandledError(str(error), f"CEL: {error.kind}") from None
