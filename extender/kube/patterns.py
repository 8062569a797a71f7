"""Patterns that pods' authors write, compiled so that none of them can hold Kerf up.

What is kept of a pod is its pattern's text. Automata are few, small and shared, and what was found with them is
remembered: however many different patterns there are, they take a bounded memory, and each is worked out when
somebody asks about that pod, never for those that have their node.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import re2

_MAX_AUTOMATON_BYTES: Final = 1 << 16
"""About 2,000 instructions: hundreds of products by name take a tenth of that."""
_MAX_UNICODE_CLASSES: Final = 4
"""Products have ASCII names, and each `\\pL` costs as much as a hundred letters."""
_MAX_AUTOMATA: Final = 64
_MAX_FOUND: Final = 16_384


_RE2_OPTIONS: Final = re2.Options()
_RE2_OPTIONS.log_errors = False
_RE2_OPTIONS.max_mem = _MAX_AUTOMATON_BYTES


@dataclass(frozen=True, slots=True)
class LazyPattern:
    """A pattern by its text; one that is none finds nothing."""

    text: str

    def search(self, name: str, /) -> object | None:
        """Something where the pattern is found in a name, else None."""
        return _found(self.text, name) or None


def compile_pattern(text: str) -> LazyPattern:
    """A pod author's pattern, by RE2: linear time whatever the pattern, and the syntax of Go, which Genius uses.

    Raises ValueError when it is none.
    """
    automaton = _automaton(text)
    if isinstance(automaton, str):
        raise ValueError(automaton)
    return LazyPattern(text)


def pattern_reader(node: str | None) -> Callable[[str], LazyPattern]:
    """How the patterns of a pod on a node, or on none yet, are read: once it has one they choose nothing."""
    return LazyPattern if node else compile_pattern


@lru_cache(maxsize=_MAX_AUTOMATA)
def _automaton(text: str) -> "re2._Regexp | str":
    """What a text compiles to, or why it does not."""
    if text.count("\\p") + text.count("\\P") > _MAX_UNICODE_CLASSES:
        return f"more than {_MAX_UNICODE_CLASSES} Unicode classes"
    try:
        return re2.compile(text, _RE2_OPTIONS)
    except re2.error as error:
        fault = error.args[0] if error.args else "unreadable"
        return fault.decode(errors="replace") if isinstance(fault, bytes) else str(fault)


@lru_cache(maxsize=_MAX_FOUND)
def _found(text: str, name: str) -> bool:
    automaton = _automaton(text)
    return not isinstance(automaton, str) and automaton.search(name) is not None
