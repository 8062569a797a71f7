"""What Kerf's optional parts declare without importing their code: a `FACE` in `extender/parts/NAME/__init__.py`.

The command line and the manifest readers find commands and kinds this way without loading a part's libraries.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from extender import parts


class Heading(StrEnum):
    """Headings of `kerf --help` and docs/reference/cli.md."""

    FIRST = ""
    """Listed before all headings."""
    ASK = "Ask a running Kerf"
    LOOK = "Look at a cluster"
    PLAN = "Plan"
    SIMULATE = "Simulate and train"
    TEST = "Test the product"


class Command(NamedTuple):
    """A lazily imported command of `kerf`."""

    help: str
    """Help text."""
    heading: Heading = Heading.FIRST
    module: str = ""
    """Module with the Typer `app`, or with a function of the command's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """What one part declares."""

    commands: Mapping[str, Command] = field(default_factory=dict)
    """By name."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Reader ("module:function") of each kind of object that creates pods, as in `extender.explain.manifests.kinds`."""
    installs: Mapping[str, str] = field(default_factory=dict)
    """Commands of `kerf install`, by name: "module:function"."""
    checks: str = ""
    """"module:function" that returns the part's checks for `kerf install check`."""


def named(where: str) -> Any:
    """Import and return the object that "module:function" names."""
    module, _, function = where.partition(":")
    return getattr(importlib.import_module(module), function)


def faces() -> Mapping[str, Face]:
    """The `FACE` of each part that has one, by part name."""
    modules = {name: importlib.import_module(f"{parts.__name__}.{name}") for name in parts.NAMES}
    return {name: module.FACE for name, module in modules.items() if hasattr(module, "FACE")}
