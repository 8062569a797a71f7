"""`kerf version`."""

import typer

from extender import __version__


def version() -> None:
    """Print the version."""
    typer.echo(__version__)
