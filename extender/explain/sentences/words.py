"""Names in sentences: untrusted text, kept on one line and bounded in length."""

from collections.abc import Collection, Sequence
from typing import Final

from extender.core.resources.requests import named
from extender.core.texts import printable

_MAX_NAMES: Final = 3
_MAX_SENTENCE: Final = 1000


def listed(names: Sequence[str], more: str = "more") -> str:
    """A few names: "a", "a and b", "a, b, c and 3 more"."""
    parts = [named(name) for name in names[:_MAX_NAMES]]
    others = names[_MAX_NAMES:]
    if others:  # a single name instead of "1 more"
        parts.append(named(others[0]) if len(others) == 1 else f"{len(others)} {more}")
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def bounded(sentence: str) -> str:
    """A sentence on one line, cut at `_MAX_SENTENCE` characters."""
    line = printable(sentence)
    return line if len(line) <= _MAX_SENTENCE else f"{line[: _MAX_SENTENCE - 4]} ..."


def of_stopped_agent(node: str, silent: Collection[str]) -> str:
    """The suffix of a sentence about a node whose agent has stopped; "" for other nodes."""
    if not node or node not in silent:
        return ""
    return f". The agent of {named(node)} has stopped: what Kerf knows of its GPUs may be out of date"
