"""docs/reference/annotations.md has every key of the code, and the pages name no key that is not there."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, pages, tracked

PAGE = (DOCS / "reference" / "annotations.md").read_text()

_KEY = re.compile(
    r"(?:kerf\.dev|genius|hami\.io|scheduling\.x-k8s\.io)/[a-z][\w.-]*|(?:nvidia|aliyun)\.com/[a-z][\w.-]*"
)
_UNPREFIXED = re.compile(r"ALIYUN_COM_\w+|com\.openfaas\.[a-z.]+")
_OWN = re.compile(r"\bkerf\.dev/[a-z][a-z0-9-]*")
_VERSION = re.compile(r"kerf\.dev/v\d\w*")
"""Of the API group."""
_PREFIXES = {"aliyun.com/gpu-", "kerf.dev/epoch", "nvidia.com/mig-", "kerf.dev/skipped"}
"""What keys begin with; the page names the keys."""


def keys_of(source: Path) -> set[str]:
    """Keys among the texts of a module; docstrings are none, since they are whole sentences."""
    texts = {
        node.value
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {text for text in texts if _KEY.fullmatch(text) or _UNPREFIXED.fullmatch(text)}


MODULES = tracked("extender/*.py", "model/*.py")
KEYS = {key for module in MODULES for key in keys_of(module)}


@pytest.mark.parametrize("key", sorted(KEYS))
def test_every_key_of_the_code_is_on_the_page(key: str) -> None:
    named = f"`{key}" if key in _PREFIXES else f"`{key}`"
    assert named in PAGE


def test_the_keys_are_found() -> None:
    assert {"kerf.dev/gpu-share", "kerf.dev/gang", "genius/priority", "hami.io/mutex.lock"} <= KEYS


@pytest.mark.parametrize(
    "path", [*pages(), *tracked("manifests", "scheduler-config")], ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_page_and_no_manifest_names_a_key_that_nobody_reads(path: Path) -> None:
    named = {key for key in _OWN.findall(path.read_text()) if not _VERSION.fullmatch(key)}
    named = {key.removesuffix("-") if key.removesuffix("-") in KEYS else key for key in named}  # as kubectl removes one
    begun = {key for key in named if key.endswith("-") and any(known.startswith(key) for known in KEYS)}
    unknown = {key for key in named - begun - KEYS if not key.startswith(tuple(f"{known}-" for known in _PREFIXES))}
    assert not unknown
