"""What the pages link to is there, and no page is left alone."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, README, ROOT, anchors, links, pages, tracked

INDEX = DOCS / "README.md"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page.read_text()):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(ROOT):
            broken.append(f"{link}: no such file")
        elif anchor and (target.suffix != ".md" or anchor not in anchors(target.read_text())):
            broken.append(f"{link}: no such heading")
    assert not broken


def test_every_page_of_docs_is_in_the_index_and_the_index_in_the_readme() -> None:
    """Or in the README.md of its own folder, which is in the index."""
    found = {path for path in pages() if path.is_relative_to(DOCS)} - {INDEX}
    listed = _linked(INDEX)
    listed |= {path for path in found if (own := path.parent / "README.md") in listed and path in _linked(own)}
    missing = found - listed
    assert not missing
    assert INDEX in _linked(README)


def _linked(page: Path) -> set[Path]:
    """The files that a page links to."""
    return {(page.parent / link.partition("#")[0]).resolve() for link in links(page.read_text()) if "://" not in link}


def test_pages_that_code_and_manifests_name_are_there() -> None:
    """`docs/reference/telemetry.md` in a message or a comment; with an anchor, that too."""
    broken = []
    for path in tracked("*.py", "*.yaml", "*.tpl", "*.txt", "Makefile"):
        for name, anchor in re.findall(r"\bdocs/([\w/-]+\.md)(?:#([\w-]+))?", path.read_text()):
            page = DOCS / name
            if not page.is_file() or (anchor and anchor not in anchors(page.read_text())):
                broken.append(f"{path.relative_to(ROOT)}: docs/{name}{'#' + anchor if anchor else ''}")
    assert not broken
