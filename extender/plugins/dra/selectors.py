"""Selectors of devices in CEL, as `k8s.io/dynamic-resource-allocation/cel` evaluates them."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

from extender.core.dra.asks import Selector, SelectorFault
from extender.core.dra.devices import Device
from extender.plugins.dra.cel.code import Code
from extender.plugins.dra.cel.compiling import Compiler
from extender.plugins.dra.cel.errors import AbortError, EvaluationError, RefusedError
from extender.plugins.dra.cel.lexing import tokens_of
from extender.plugins.dra.unhandled import UnhandledError

MAX_CHARS: Final = 10 * 1024
"""`CELSelectorExpressionMaxLength`."""
_MAX_REMEMBERED: Final = 1024
_MAX_PARTS: Final = 16
_OPENING: Final = ("(", "[", "{")
_CLOSING: Final = (")", "]", "}")


def compile_selector(expression: str) -> Selector:
    """A selector. Raises UnhandledError where it can't be evaluated exactly as kube-scheduler does, in bounded time."""
    found = _compiled(expression) if len(expression) <= MAX_CHARS else UnhandledError("is too long", "CEL: length")
    if isinstance(found, UnhandledError):
        raise UnhandledError(str(found), found.kind)
    return found


@lru_cache(maxsize=_MAX_REMEMBERED)
def _compiled(expression: str) -> Selector | UnhandledError:
    compiler = Compiler()
    try:
        code = compiler.compile(expression)
    except RefusedError as error:
        return UnhandledError(str(error), f"CEL: {error.kind}")
    reads = None if compiler.read is None else frozenset(compiler.read)
    return Selector(expression, _matcher(code, compiler.num_slots), reads, partial(_parts_of, expression))


def _matcher(code: Code, num_slots: int) -> Callable[[Device], bool]:
    def matches(device: Device) -> bool:
        scope = [device, *[None] * (num_slots - 1)]
        try:
            value = code.run(scope)
        except (EvaluationError, AbortError) as error:
            raise SelectorFault(f"on device {device.id.device}: {error}") from None
        if value is not True and value is not False:
            raise SelectorFault(f"on device {device.id.device}: gives no bool")
        return bool(value)

    return matches


@lru_cache(maxsize=_MAX_REMEMBERED)
def _parts_of(expression: str) -> tuple[Selector, ...]:
    """The conditions that an expression joins by `&&` outside of all brackets; none where it is a single one."""
    texts, depth, begin = list[str](), 0, 0
    for token in tokens_of(expression):
        depth += (token.kind in _OPENING) - (token.kind in _CLOSING)
        if depth == 0 and token.kind in ("||", "?"):
            return ()
        if depth == 0 and token.kind in ("&&", "end"):
            texts.append(expression[begin : token.position].strip())
            begin = token.position + len(token.kind)
    found = [_compiled(text) for text in texts[:_MAX_PARTS]] if len(texts) > 1 else []
    parts = tuple(part for part in found if isinstance(part, Selector))
    return parts if len(parts) == len(texts) else ()
