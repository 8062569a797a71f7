"""Golden files: values as other projects' own code writes and reads them; each names where it was checked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from extender.plugins.formats import ContainerResources

FOLDER = Path(__file__).parent / "golden"


def golden(name: str) -> Any:
    """A golden file's content."""
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes())


def cases(name: str, of: str = "cases") -> Iterator[tuple[str, Any]]:
    """The cases of a golden file, with their names."""
    for case in golden(name)[of]:
        yield str(case["name"]), case


def containers_of(case: Any) -> list[ContainerResources]:
    """A case's containers."""
    return [ContainerResources(item["resources"], item.get("init", False)) for item in case["containers"]]
