"""Nothing but a vendor's own object knows its name."""

import re
from collections.abc import Iterator
from pathlib import Path

from extender.core.vendors.registry import VENDORS
from tests.docs.pages import ROOT

PACKAGES = ("extender", "model")
CODE = (".py", ".js", ".html", ".css")


def lines_that_name(vendor: str, words: tuple[str, ...], folder: Path) -> Iterator[str]:
    """Lines that name a vendor, outside files and folders called after it, but for imports from them."""
    named = re.compile("|".join(words), re.IGNORECASE)
    imported = re.compile(rf"from [a-z_.]+\.{vendor}[a-z_.]* import ")
    for package in PACKAGES:
        for path in sorted((folder / package).rglob("*")):
            where = path.relative_to(folder)
            if path.suffix in CODE and vendor not in (*where.parts, where.stem):
                for number, line in enumerate(path.read_text().splitlines(), 1):
                    if named.search(line) and not imported.match(line.strip()):
                        yield f"{where}:{number}: {line.strip()}"


def test_no_code_outside_its_module_names_a_vendor(tmp_path: Path) -> None:
    for vendor in VENDORS:
        assert list(lines_that_name(vendor.name, vendor.words, ROOT)) == []
    (tmp_path / "extender" / "acme").mkdir(parents=True)
    (tmp_path / "extender" / "acme" / "labels.py").write_text('LABEL = "acme.com/gpu"\n')
    (tmp_path / "extender" / "uses.py").write_text("from extender.acme.labels import LABEL\n# what Acme's is for\n")
    assert list(lines_that_name("acme", ("acme",), tmp_path)) == ["extender/uses.py:2: # what Acme's is for"]
