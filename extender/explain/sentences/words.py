"""Names in sentences: text of others, so on one line and of bounded length."""

from collections.abc import Collection, Sequence
from typing import Final

from extender.core.resources.requests import named
from extender.core.texts import printable

_MAX_NAMES: Final = 3
_MAX_SENTENCE: Final = 1000


def listed(names: Sequence[str], more: str = "more") -> str:
    """A few names: "a", "a and b", "a, b, c and 3 more"."""
    shown = [named(name) for name in names[:_MAX_NAMES]]
    others = names[_MAX_NAMES:]
    if others:  # a name takes no more room than "1 more"
        shown.append(named(others[0]) if len(others) == 1 else f"{len(others)} {more}")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def bounded(sentence: str) -> str:
    """A sentence on one line that is not longer than anybody reads."""
    line = printable(sentence)
    return line if len(line) <= _MAX_SENTENCE else f"{line[: _MAX_SENTENCE - 4]} ..."


def of_stopped_agent(node: str, silent: Collection[str]) -> str:
    """What is added to a sentence about a node, where it is one of those whose agent has stopped."""
    if not node or node not in silent:
        return ""
    return f". The agent of {named(node)} has stopped: what is told of its GPUs is not kept up to date"
