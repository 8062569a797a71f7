"""`kubectl kerf`: the commands that ask a running Kerf, as a kubectl plugin. kubectl finds it by its name in PATH."""

import typer

from extender.service.explain_command import explain
from extender.service.top_command import top
from extender.service.what_if_command import what_if

app = typer.Typer(
    name="kubectl kerf",
    help="Ask a running Kerf: why is a pod there, what if, and what is booked.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(explain)
app.command()(top)
app.command("what-if")(what_if)


def main() -> None:
    """The entry point, `kubectl-kerf`."""
    app(prog_name="kubectl kerf")
