"""Each recipe of CONTRIBUTING.md, carried out in a copy of the checkout, and the example package, installed: they
work."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.example import install_example
from tests.docs.pages import ROOT
from tests.docs.recipe_uses import EXAMPLE, SKIPPED, USES

pytestmark = pytest.mark.nightly(of=("CONTRIBUTING.md", "docs/examples/", "extender/", "tests/docs/"))

COPIED = ("extender", "model", "pyproject.toml")
_FENCE = re.compile(r"^```(\w*)\n(?:(?:#|//) (\S+/\S+)\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One file of a recipe: new, or changed by a diff."""

    path: str
    text: str
    is_diff: bool

    def apply(self, checkout: Path) -> None:
        """Write it."""
        path = checkout / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        assert path.exists() == self.is_diff, f"{self.path}: a diff is of a file that is there, the others are new"
        path.write_text(changed(path.read_text(), self.text) if self.is_diff else self.text)


def recipes() -> dict[str, list[Block]]:
    """Every recipe of the page, by its name."""
    parts = re.split(r"^### Recipe: (.+)$", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    return {name: list(blocks(text)) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def blocks(text: str) -> Iterator[Block]:
    """The files of a recipe; a block of code that names none is a fault."""
    for language, path, code in _FENCE.findall(text):
        assert path, f"a block that names no file: {code[:80]!r}"
        yield Block(path, code, language == "diff")


def changed(text: str, diff: str) -> str:
    """A file after a diff whose hunks, apart by `@@`, are found by what they say and not by numbers."""
    for hunk in re.split(r"^@@\n", diff, flags=re.MULTILINE):
        lines = [(line[:1] or " ", line[1:] + "\n") for line in hunk.splitlines()]
        assert all(sign in " +-" for sign, _ in lines), hunk
        before = "".join(line for sign, line in lines if sign != "+")
        after = "".join(line for sign, line in lines if sign != "-")
        assert text.count(before) == 1, f"not there, or there more than once:\n{before}"
        text = text.replace(before, after)
    return text


@pytest.mark.parametrize("name", recipes())
def test_what_a_recipe_adds_works(name: str, tmp_path: Path) -> None:
    assert name in USES, "say in tests/docs/recipe_uses.py how to see that it works"
    for part in COPIED:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
        copy(ROOT / part, tmp_path / part)
    files = recipes()[name]
    assert files
    for block in files:
        block.apply(tmp_path)

    python = [block.path for block in files if block.path.endswith(".py")]
    for check in (["check", "--quiet"], ["format", "--check", "--quiet"]) if python else ():
        subprocess.run([Path(sys.executable).with_name("ruff"), *check, *python], check=True, cwd=tmp_path)
    use(name, tmp_path)


def use(name: str, folder: Path) -> None:
    """Use what is new, with the packages of a folder before all others."""
    path = {"PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT)))}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KERF_", "KUBE"))}
    result = subprocess.run(
        [sys.executable, "-m", "tests.docs.recipe_uses", name],
        check=False, cwd=folder, env=kept | path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if result.returncode == SKIPPED:
        pytest.skip(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_use_is_of_a_recipe() -> None:
    assert set(USES) == set(recipes())


def test_the_example_package_adds_a_policy_and_a_device_plugin_to_kerf_as_it_is(tmp_path: Path) -> None:
    install_example(tmp_path)
    use(EXAMPLE, tmp_path)


@pytest.mark.parametrize("diff", [" b\n+c\n", " a\n c\n+d\n"], ids=["there twice", "not there"])
def test_a_diff_that_fits_nowhere_is_a_fault(diff: str) -> None:
    with pytest.raises(AssertionError, match="not there, or there more than once"):
        changed("a\nb\nb\n", diff)
