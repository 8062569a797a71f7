"""Every test that docs/reference/guarantees.md names is there."""

import re

import pytest

from tests.docs.pages import DOCS, ROOT, tracked

PAGE = (DOCS / "reference" / "guarantees.md").read_text()
SOURCES = "\n".join(path.read_text() for path in tracked("tests/**/test_*.py"))


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)`", PAGE))))
def test_named_tests_exist(name: str) -> None:
    assert f"def {name}(" in SOURCES


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(tests/[\w/.]+)`", PAGE))))
def test_named_files_exist(path: str) -> None:
    assert (ROOT / path).exists()
