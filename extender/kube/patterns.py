"""Regular expressions written by pods' authors, with bounded time and memory.

A pod keeps its pattern's text only. A small shared cache holds the compiled automata and the results, and patterns are
evaluated on demand, never for pods that have a node.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import re2

_MAX_AUTOMATON_BYTES: Final = 1 << 16
"""About 2,000 instructions; a pattern with hundreds of product names takes a tenth of that."""
_MAX_UNICODE_CLASSES: Final = 4
"""Product names are ASCII, and each `\\pL` costs as much as a hundred letters."""
_MAX_AUTOMATA: Final = 64
_MAX_RESULTS: Final = 16_384


_RE2_OPTIONS: Final = re2.Options()
_RE2_OPTIONS.log_errors = False
_RE2_OPTIONS.max_mem = _MAX_AUTOMATON_BYTES


@dataclass(frozen=True, slots=True)
class LazyPattern:
    """A pattern by its text; an invalid one matches nothing."""

    text: str

    def search(self, name: str, /) -> object | None:
        """Return a truthy object if the pattern is found in a name, else None."""
        return _matches(self.text, name) or None


def compile_pattern(text: str) -> LazyPattern:
    """Return a pattern in Go's syntax (RE2), which Genius uses; matching takes linear time.

    Raises ValueError for an invalid pattern.
    """
    automaton = _automaton(text)
    if isinstance(automaton, str):
        raise ValueError(automaton)
    return LazyPattern(text)


def pattern_reader(node: str | None) -> Callable[[str], LazyPattern]:
    """Return the pattern parser for a pod on `node`; with a node its pattern is not validated, since it is not used."""
    return LazyPattern if node else compile_pattern


@lru_cache(maxsize=_MAX_AUTOMATA)
def _automaton(text: str) -> "re2._Regexp | str":
    """Return the compiled pattern, or why it is invalid."""
    if text.count("\\p") + text.count("\\P") > _MAX_UNICODE_CLASSES:
        return f"more than {_MAX_UNICODE_CLASSES} Unicode classes"
    try:
        return re2.compile(text, _RE2_OPTIONS)
    except re2.error as error:
        fault = error.args[0] if error.args else "unreadable"
        return fault.decode(errors="replace") if isinstance(fault, bytes) else str(fault)


@lru_cache(maxsize=_MAX_RESULTS)
def _matches(text: str, name: str) -> bool:
    automaton = _automaton(text)
    return not isinstance(automaton, str) and automaton.search(name) is not None
