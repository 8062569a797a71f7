"""What evaluates expressions, made once and kept in bounded memory."""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final

from extender.dra.cel.code import Run
from extender.dra.cel.compiling import Compiler
from extender.dra.cel.errors import RefusedError

MAX_SAID_CHARS: Final = 200
"""Of what is wrong with an expression."""


@dataclass(frozen=True, slots=True)
class Program:
    """What evaluates an expression."""

    run: Run
    num_slots: int
    cost: int
    reads: frozenset[str] | None


class Programs:
    """Programs by expression, those that were used last; and why there is none. Thread-safe."""

    def __len__(self) -> int:
        return len(self._found)

    def __init__(self, max_chars: int) -> None:
        """`max_chars` is the length of all expressions that are kept: programs take thirty times as many bytes."""
        self._max_chars = max_chars
        self._num_chars = 0
        self._lock = Lock()
        self._found: OrderedDict[str, Program | RefusedError] = OrderedDict()

    def of(self, expression: str) -> Program:
        """The program of an expression. Raises RefusedError."""
        with self._lock:
            found = self._found.get(expression)
            if found is None:
                try:
                    found = self._found[expression] = _compiled(expression)
                except RecursionError:  # whoever asks is deep in the stack already: not to be remembered
                    raise RefusedError("nested too deep", "nesting") from None
                self._num_chars += len(expression)
                while self._num_chars > self._max_chars and len(self._found) > 1:
                    self._num_chars -= len(self._found.popitem(last=False)[0])
            else:
                self._found.move_to_end(expression)
        if isinstance(found, RefusedError):
            raise RefusedError(str(found), found.kind)
        return found


def _compiled(expression: str) -> Program | RefusedError:
    compiler = Compiler()
    try:
        code = compiler.compile(expression)
    except RefusedError as error:
        return RefusedError(str(error)[:MAX_SAID_CHARS], error.kind[:MAX_SAID_CHARS])
    return Program(code.run, compiler.num_slots, code.cost, None if compiler.read is None else frozenset(compiler.read))
