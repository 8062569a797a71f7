"""The command line, `kerf`. Each command has a file, imported when it runs."""

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup

from extender import __version__
from extender.cli.printing import echo
from extender.core.faces import Command, Heading, faces

OTHER_COMMANDS: Final = "kerf.commands"
"""Entry points: commands of other packages, each a `typer.Typer`."""
_OWN: Final = {
    "serve": Command("Run the scheduler extender for a cluster."),
    "demo": Command("Serve an embedded sample cluster: no Kubernetes needed, try it with curl."),
    "explain": Command("Explain why a pod is on its node or pending, and what would make it fit.", Heading.ASK),
    "top": Command("Show the cluster as a running Kerf sees it: nodes, GPUs, bookings and load.", Heading.ASK),
    "pending": Command("List pending GPU pods: where each waits, and why.", Heading.ASK),
    "workloads": Command(
        "List pods that have or request GPUs: running, pending or gated; idle ones first.", Heading.ASK
    ),
    "plan": Command("Plan pods jointly; --apply carries out the plan.", Heading.PLAN),
    "install": Command("Check whether a cluster has what Kerf needs.", Heading.LOOK),
    "doctor": Command("Find Prometheus, read it once, and report what was found.", Heading.LOOK),
    "config": Command("Show or check settings.", Heading.LOOK),
    "version": Command("Print the version."),
}
"""The kernel's commands. A command NAME is the function NAME of `extender.cli.NAME`, or of the module that it names;
a group is `app` in its module."""
COMMANDS: Final[Mapping[str, Command]] = MappingProxyType(
    _OWN | {name: command for face in faces().values() for name, command in face.commands.items()}
)
"""Kerf's own commands, including those of its parts."""

_ELSEWHERE: Final = {
    **dict.fromkeys(
        ("simulate", "traces", "evaluate", "report", "train", "history", "replay", "fit"), Heading.SIMULATE
    ),
    "verify": Heading.SIMULATE,
    **dict.fromkeys(("bench", "chaos"), Heading.TEST),
}
"""Help headings of the commands that a source checkout adds."""


class Group(TyperGroup):
    """A group of commands that suggests a name for a misspelt one."""

    # Untyped, since typer may bring its own copy of click.
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = str(args[0])
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            close = get_close_matches(name, self.list_commands(ctx), 1)
            ctx.fail(f"No such command {name!r}{f'; do you mean {close[0]}?' if close else '.'}")
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group whose commands are imported only when they run, not to list or complete them."""

    own: ClassVar[Mapping[str, Command]] = COMMANDS
    others: str = OTHER_COMMANDS
    """Entry-point group of more commands, "" for none."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.own, *sorted(entry_points(group=self.others).names)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.own:
            return TyperCommand(
                cmd_name, help=self.own[cmd_name].help, rich_help_panel=self.own[cmd_name].heading or None
            )
        if cmd_name in entry_points(group=self.others).names:
            return TyperCommand(cmd_name, help="") if ctx.resilient_parsing else _loaded(cmd_name, self.own)
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and _loaded(str(name), self.own), rest


def _loaded(name: str, own: Mapping[str, Command]) -> Any:
    """Import a command; one that can't be imported reports that when it runs."""
    try:
        app = _own(name, own[name]) if name in own else entry_points(group=OTHER_COMMANDS)[name].load()
    except ModuleNotFoundError as error:
        if name in own:
            raise
        return _not_installed(name, str(error))
    command: Any = typer.main.get_command(app)
    heading = own[name].heading if name in own else _ELSEWHERE.get(name, Heading.FIRST)
    command.name, command.rich_help_panel = name, heading or None
    return command


def _own(name: str, command: Command) -> typer.Typer:
    """A command or group of this package."""
    function = name.replace("-", "_")
    module = importlib.import_module(command.module or f"extender.cli.{function}")
    if hasattr(module, "app"):
        return cast(typer.Typer, module.app)
    alone = typer.Typer(add_completion=False)
    alone.command()(getattr(module, function))
    return alone


def _not_installed(name: str, why: str) -> Any:
    def complain() -> None:
        echo(f"kerf {name} needs a source checkout ({why}): run it there, as .venv/bin/kerf {name}", err=True)
        raise typer.Exit(2)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return TyperCommand(name, help="Needs a source checkout.", callback=complain, context_settings=anything)


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(__version__)
        raise typer.Exit


@app.callback()
def _kerf(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Kerf: a kube-scheduler extender that puts GPU pods on the right GPUs."""


def main() -> None:
    """The entry point."""
    app()
