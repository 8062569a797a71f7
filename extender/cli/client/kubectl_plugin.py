"""`kubectl kerf`: the commands that ask a running Kerf, as a kubectl plugin, which kubectl finds by its name in PATH.

It reaches Kerf in the cluster of the kubeconfig's context through a port-forward.
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
    help="Ask Kerf in a cluster: why pods are placed or pending, what-if questions, and GPU use.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _kubectl(context: typer.Context) -> None:
    """Ask Kerf in a cluster: why pods are placed or pending, what-if questions, and GPU use."""
    context.obj = app


def main() -> None:
    """The entry point, `kubectl-kerf`."""
    app(prog_name="kubectl kerf")
