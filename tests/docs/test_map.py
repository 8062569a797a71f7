"""The map of folders in CONTRIBUTING.md is the tree: each folder is named once, and each that is named is there."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, sections, tracked

MAPPED = (Path(), Path("extender"), Path("extender/parts"), Path("model"), Path("tests"))
"""Whose folders the map names, all that are directly below."""


def folders(files: Iterable[Path]) -> set[str]:
    """The folders that have to be in the map, of files by their paths from the top."""
    parents = {parent for file in files for parent in file.parents}
    return {str(folder) for folder in parents if folder != Path() and folder.parent in MAPPED}


def named(text: str) -> Counter[str]:
    """How often the map of a page names each folder, in the first cell of its rows; each row says what it is for."""
    rows = re.findall(r"^\|([^|]*`[^|]*)\|([^|]*)\|$", sections(text)["The map"], re.MULTILINE)
    assert all(purpose.strip() for _, purpose in rows)
    return Counter(name for cell, _ in rows for name in re.findall(r"`([^`]+)`", cell))


def differences(text: str, files: Iterable[Path]) -> list[str]:
    """What the map of a page lacks, has too much, and has twice."""
    there, told = folders(files), named(text)
    lacking = [f"{name}: not in the map" for name in sorted(there - told.keys())]
    gone = [f"{name}: no such folder" for name in sorted(told.keys() - there)]
    return [*lacking, *gone, *(f"{name}: named twice" for name, number in told.items() if number > 1)]


def test_the_map_names_every_folder_once_and_none_that_is_gone() -> None:
    files = [path.relative_to(ROOT) for path in tracked()]
    assert len(folders(files)) > 50
    assert not differences((ROOT / "CONTRIBUTING.md").read_text(), files)


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ("a/x extender/b/c/x", []),
        ("a/x extender/b/c/x d/x", ["d: not in the map"]),
        ("a/x", ["extender: no such folder", "extender/b: no such folder"]),
    ],
)
def test_what_the_map_lacks_or_has_too_much_is_a_fault(files: str, fault: list[str]) -> None:
    text = "## The map\n|folder|what|\n|---|---|\n|`a`, `extender`|b|\n| `extender/b` | c |\n## Next\n|`e`|f|\n"
    assert differences(text, map(Path, ["x", *files.split()])) == fault


def test_a_folder_that_is_named_twice_is_a_fault() -> None:
    assert differences("## The map\n|`a`|b|\n|`a`|c|\n", [Path("a/x")]) == ["a: named twice"]
