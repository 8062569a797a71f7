"""Kerf's command line in the tests' own process."""

from pathlib import Path

from typer.testing import CliRunner, Result

from extender.cli.main import app


def kerf(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
