"""Patterns of `matches()`: Go's package regexp and RE2 read the same language, but for what is refused here."""

import re
from collections.abc import Callable
from typing import Final

import re2

from extender.dra.cel.errors import RefusedError

_MAX_CHARS: Final = 256
_MAX_AUTOMATON_BYTES: Final = 1 << 18
_DIFFERENT: Final = re.compile(r"\\[CpPQzZ]|\(\?[^:imsU-]|[^\x20-\x7e]", re.ASCII)
"""What the two read or print differently, or may: single bytes, Unicode's classes, names of groups."""


def cost_of(pattern: str, chars: int) -> int:
    """Steps of a search in a text of so many characters."""
    return (chars // 10 + 1) * (len(pattern) // 4 + 1)


def search_of(pattern: str) -> Callable[[str], bool]:
    """Whether a pattern is found in a text. Raises RefusedError."""
    if len(pattern) > _MAX_CHARS:
        raise RefusedError(f"a pattern of more than {_MAX_CHARS} characters", "patterns")
    if found := _DIFFERENT.search(pattern):
        raise RefusedError(f"{found[0]!r} in a pattern", "patterns")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_AUTOMATON_BYTES
    try:
        automaton = re2.compile(pattern, options)
    except re2.error as error:
        raise RefusedError(f"pattern: {error}", "patterns") from None
    return lambda text: automaton.search(text) is not None
