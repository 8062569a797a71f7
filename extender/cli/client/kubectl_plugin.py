"""`kubectl kerf`: the commands that ask a running Kerf, as a kubectl plugin. kubectl finds it by its name in PATH.

It finds Kerf by itself: in the cluster of the kubeconfig's context, by a port-forward.
"""

from typing import ClassVar

import typer

from extender.cli.main import COMMANDS, LazyGroup
from extender.core.faces import Heading


class _Asking(LazyGroup):
    own: ClassVar = {name: command for name, command in COMMANDS.items() if command.heading is Heading.ASK}
    others = ""


app = typer.Typer(
    cls=_Asking,
    name="kubectl kerf",
    help="Ask Kerf in a cluster: why a pod is where it is, which wait, what if, and what is booked.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _kubectl(context: typer.Context) -> None:
    """Ask Kerf in a cluster: why a pod is where it is, which wait, what if, and what is booked."""
    context.obj = app


def main() -> None:
    """The entry point, `kubectl-kerf`."""
    app(prog_name="kubectl kerf")
