"""Rich's console, for texts of others."""

import os
from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from extender.cli.printing import shown

_PLAIN_WIDTH: Final = 160
"""Columns of a table that goes to a file or a pipe."""


class PlainConsole(Console):
    """What it prints has no control characters but rich's own, whatever tables and texts it is made of."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """What is printed, piece by piece; rich's own commands for terminals are pieces of their own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)

    def render_str(self, text: str, **options: Any) -> Text:
        """A text with rich's markup, of the width that it will have."""
        return super().render_str(shown(text), **options)


def console() -> Console:
    """Standard output: in colour on a terminal only, and never with NO_COLOR."""
    found = PlainConsole(highlight=False, emoji=False, no_color=bool(os.environ.get("NO_COLOR")) or None)
    return found if found.is_terminal else PlainConsole(highlight=False, emoji=False, width=_PLAIN_WIDTH)
