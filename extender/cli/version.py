"""`kerf version`."""

from extender import __version__
from extender.cli.printing import echo


def version() -> None:
    """Print the version."""
    echo(__version__)
