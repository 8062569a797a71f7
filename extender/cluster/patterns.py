"""Patterns that pods' authors write, compiled so that none of them can hold Kerf up."""

from typing import Final

import re2


def _quiet_options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    return options


_RE2_OPTIONS: Final = _quiet_options()


def compile_pattern(text: str) -> "re2._Regexp":
    """A pod author's pattern, by RE2: linear time whatever the pattern, and the syntax of Go, which Genius uses.

    Raises ValueError when it is none.
    """
    try:
        return re2.compile(text, _RE2_OPTIONS)
    except re2.error as error:
        fault = error.args[0] if error.args else "unreadable"
        raise ValueError(fault.decode(errors="replace") if isinstance(fault, bytes) else str(fault)) from None
