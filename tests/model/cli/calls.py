"""Kerf's command line in the tests' own process."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from extender.cli.main import app


def kerf(*arguments: str | Path, **environment: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env=environment)


def figures(*arguments: str | Path) -> Any:
    """The JSON that a command writes; it has to succeed."""
    done = kerf(*arguments, "--json", "-")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def refused(message: str, *arguments: str | Path) -> None:
    """A command ends with exit status 2, and its output has the message."""
    done = kerf(*arguments)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.split()) and "Traceback" not in done.output
