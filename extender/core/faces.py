"""What Kerf's own parts say of themselves before anything of them is imported: a `FACE` in `extender/parts/NAME`.

The command line and the readers of manifests know parts by that: they load no library for it.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from extender import parts


class Heading(StrEnum):
    """Under which help lists a command, as docs/reference/cli.md has them."""

    FIRST = ""
    """Ahead of all headings."""
    ASK = "Ask a running Kerf"
    LOOK = "Look at a cluster"
    PLAN = "Plan"
    SIMULATE = "Simulate and train"
    TEST = "Test the product"


class Command(NamedTuple):
    """A command of `kerf`, imported when it runs."""

    help: str
    """What help says of it."""
    heading: Heading = Heading.FIRST
    module: str = ""
    """Its module, in which it is `app`, or else a function of its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """Of one part."""

    commands: Mapping[str, Command] = field(default_factory=dict)
    """By name."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Kinds of objects that make pods; each names the function that reads one, "module:function", as
    `extender.explain.manifests.kinds` has them."""
    installs: Mapping[str, str] = field(default_factory=dict)
    """Commands of `kerf install`, by name: "module:function"."""
    checks: str = ""
    """What `kerf install check` looks at of it: "module:function", which returns them, as
    `extender.cli.install.checks` has them."""


def named(where: str) -> Any:
    """What "module:function" names."""
    module, _, function = where.partition(":")
    return getattr(importlib.import_module(module), function)


def faces() -> Mapping[str, Face]:
    """Of the parts that there are, by name."""
    modules = {name: importlib.import_module(f"{parts.__name__}.{name}") for name in parts.NAMES}
    return {name: module.FACE for name, module in modules.items() if hasattr(module, "FACE")}
