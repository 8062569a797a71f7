"""Groups of commands, which say what a misspelt command was meant to be."""

from difflib import get_close_matches
from typing import Any

from typer.core import TyperGroup


class Group(TyperGroup):
    """A group of commands."""

    # Typer's own names and, since it may or may not bring its own copy of click, no types of that.
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = str(args[0])
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            close = get_close_matches(name, self.list_commands(ctx), 1)
            ctx.fail(f"No such command {name!r}{f'; do you mean {close[0]}?' if close else '.'}")
        return super().resolve_command(ctx, args)
