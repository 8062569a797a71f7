"""Nothing but a vendor's own object knows its name."""

import re
from collections.abc import Iterator
from pathlib import Path

from extender.core.vendors.registry import VENDORS
from tests.docs.pages import ROOT

PACKAGES = ("extender", "model")
CODE = (".py", ".js", ".html", ".css")


def own_room(path: Path, name: str) -> bool:
    """Whether a file or one of its folders is called as a vendor."""
    return name in (*path.parts, path.stem)


def lines_that_name(vendor: str, words: tuple[str, ...], folder: Path) -> Iterator[str]:
    """Lines outside its room that name a vendor, but for imports of what is in it."""
    named, imported = (
        re.compile("|".join(words), re.IGNORECASE),
        re.compile(rf"from [a-z_.]+\.{vendor}[a-z_.]* import "),
    )
    for package in PACKAGES:
        for path in sorted((folder / package).rglob("*")):
            where = path.relative_to(folder)
            if path.suffix not in CODE or own_room(where, vendor):
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if named.search(line) and not imported.match(line.strip()):
                    yield f"{where}:{number}: {line.strip()}"


def test_no_code_outside_its_room_names_a_vendor() -> None:
    for vendor in VENDORS:
        assert list(lines_that_name(vendor.name, vendor.words, ROOT)) == []


def test_it_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "extender" / "acme").mkdir(parents=True)
    (tmp_path / "extender" / "acme" / "labels.py").write_text('LABEL = "acme.com/gpu"\n')
    (tmp_path / "extender" / "uses.py").write_text("from extender.acme.labels import LABEL\n# what Acme's is for\n")
    assert list(lines_that_name("acme", ("acme",), tmp_path)) == ["extender/uses.py:2: # what Acme's is for"]
