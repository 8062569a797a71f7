"""Dependencies: locked with hashes, and under licences that go with Kerf's."""

import re

import pytest

from tests.install.licences import PAGE, ROOT, allowed, licence_of, locked

FILES = ("serve", "dev", "build", "bootstrap")


@pytest.mark.parametrize("name", FILES)
def test_everything_is_locked_with_hashes(name: str) -> None:
    found = locked(ROOT / "requirements" / f"{name}.txt")
    assert found
    assert not [item.name for item in found if not item.num_hashes]


@pytest.mark.parametrize("name", FILES)
def test_licences_are_of_the_list(name: str) -> None:
    found = {item.name: licence_of(item.name) for item in locked(ROOT / "requirements" / f"{name}.txt")}
    known = {package: licence for package, licence in found.items() if licence is not None}
    # Those that are not installed are for other platforms.
    assert len(known) >= 0.8 * len(found), f"not installed: {sorted(found.keys() - known.keys())}"
    refused = {package: licence for package, licence in known.items() if not allowed(licence)}
    assert not refused, f"{refused}: look at each, then enter it in tests/install/licences.py or do without it"


def test_the_page_is_written_from_what_is_locked() -> None:
    """`make licences` writes it."""
    written = set(re.findall(r"^\| ([\w.-]+) \| \S", PAGE.read_text(), re.MULTILINE)) - {"package"}
    names = {item.name for item in locked(ROOT / "requirements" / "serve.txt")}
    assert written <= names, "what is not locked any more is still there"
    # With another Python, or on another platform, not all are installed, and their versions may differ.
    assert {name for name in names if licence_of(name) is not None} <= written


@pytest.mark.parametrize(
    ("expression", "good"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR Apache-2.0) AND BSD-3-Clause", True),
        ("GPL-3.0-only", False),
        ("", False),
        ("GNU General Public License v3 (GPLv3)", False),
    ],
)
def test_what_the_list_allows(expression: str, good: bool) -> None:
    assert allowed(expression) == good
