"""Golden files: values as the peers' own code writes and reads them; each names where it was checked."""

from pathlib import Path
from typing import Any

import msgspec

from extender.plugins.formats import ContainerResources

_FOLDER = Path(__file__).parent / "golden"


def golden(name: str) -> Any:
    """A golden file's content."""
    return msgspec.json.decode((_FOLDER / f"{name}.json").read_bytes())


def golden_names() -> list[str]:
    """All golden files."""
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def cases(name: str, of: str = "cases") -> list[Any]:
    """The cases of a golden file."""
    return list(golden(name)[of])


def case_name(case: Any) -> str:
    """What a case shows."""
    return str(case["name"])


def containers_of(case: Any) -> list[ContainerResources]:
    """A case's containers."""
    return [ContainerResources(item["resources"], item.get("init", False)) for item in case["containers"]]
