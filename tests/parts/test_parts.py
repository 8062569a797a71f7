"""Parts that are off are not there, and packages bring parts of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from extender.core.faces import faces
from extender.parts import NAMES
from extender.settings.load import _describe_section
from extender.settings.tree import PARTS
from tests.docs.example import broken
from tests.docs.pages import ROOT
from tests.parts.pages import page_of

LISTS = """
import sys
from extender.api.app import create_app
from extender.kube.memory import MemoryCluster
from extender.settings.load import load_settings
create_app(load_settings(assignments=sys.argv[1:]), MemoryCluster([]))
print(*sorted(name for name in sys.modules if name.startswith("extender.parts.")))
"""
"""Prints which modules of parts a Kerf with such settings has imported."""
PACKAGE = """
from extender.settings.parts import Part
from extender.settings.section import Section


class Settings(Section):
    \"\"\"Of a package.\"\"\"

    level: int = 0
    \"\"\"How much.\"\"\"


def build(kernel, settings):
    from extender.api.contributions import Contribution  # not to be had before there are settings
    from extender.metrics.registry import gauge

    return Contribution(metrics=lambda: [gauge("acme_level", "How much.", settings.level)])


PART = Part(name="acme", settings=Settings, wanted=lambda acme: acme.level > 0, module=__name__)
"""


def run(*arguments: str, site: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Python, with a package that is installed in a folder."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{f':{site}' if site else ''}"}
    command = (sys.executable, *arguments)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


def modules_of(*assignments: str) -> set[str]:
    """What is imported of parts."""
    done = run("-c", LISTS, *assignments)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_of_parts_that_are_off_nothing_is_imported_but_their_settings() -> None:
    on = {part.name for part in PARTS if part.wanted(part.settings())}
    faces = {f"extender.parts.{name}" for name in NAMES} | {f"extender.parts.{part.name}.settings" for part in PARTS}
    assert {module for module in modules_of() if module.split(".")[2] not in on} == {
        module for module in faces if module.split(".")[2] not in on
    }


def test_each_part_has_a_page_with_its_settings() -> None:
    for part in PARTS:
        if part.name in NAMES:
            assert page_of(part.name).endswith(_describe_section(part.name, part.settings).rstrip() + "\n")
            face = ROOT / "extender" / "parts" / part.name / "__init__.py"
            assert f"docs/parts/{part.name}.md" in face.read_text()


def test_each_command_of_a_part_is_on_its_page() -> None:
    for name, face in faces().items():
        assert f"docs/parts/{name}.md" in (ROOT / "extender" / "parts" / name / "__init__.py").read_text()
        assert all(f"`kerf {command}" in page_of(name) for command in face.commands)


@pytest.mark.slow
def test_a_package_brings_a_part(tmp_path: Path) -> None:
    broken(tmp_path, "[kerf.parts]\nacme = kerf_broken:PART", PACKAGE)
    shown = run("-m", "extender", "config", "show", "--set", "acme.level=3", site=tmp_path)
    assert shown.stdout.endswith("acme:\n  level: 3\n"), shown.stderr
    reads = LISTS.rpartition("print(")[0].replace("create_app(", "app = create_app(")
    metrics = "print(app.state.service.metrics.render().decode())"
    assert "acme_level 3.0" in run("-c", reads + metrics, "acme.level=3", site=tmp_path).stdout
    assert "acme_level" not in run("-c", reads + metrics, site=tmp_path).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "source", "told"),
    [
        pytest.param("acme", "raise ImportError('no')", "of package kerf-broken could not be loaded: ImportError: no"),
        pytest.param("acme", "PART = 1", "could not be loaded: it is not a Part of that name but 1"),
        pytest.param(
            "a-b", PACKAGE.replace('"acme"', '"a-b"'), "its name has to be one that a section of the settings can have"
        ),
        pytest.param("queue", PACKAGE.replace('"acme"', '"queue"'), "ValueError: Kerf already has a part of that name"),
    ],
    ids=["it fails", "no part", "no name of a section", "the kernel's section"],
)
def test_one_that_can_not_be_loaded_keeps_kerf_from_starting(tmp_path: Path, name: str, source: str, told: str) -> None:
    broken(tmp_path, f"[kerf.parts]\n{name} = kerf_broken:PART", source)
    done = run("-m", "extender", "config", "check", site=tmp_path)
    assert done.returncode != 0
    assert f"part {name}" in done.stderr and told in " ".join(done.stderr.split())


def of_a_package(name: str, of_part: str) -> str:
    """A part of PACKAGE's, by another name, of which something more is said."""
    made = f'PART_{name.upper()} = Part(name="{name}", settings=Settings, wanted=lambda one: one.level > 0, '
    return f"{made}module=__name__, {of_part})\n"


@pytest.mark.parametrize(
    ("of_part", "names", "told"),
    [
        ("alone=lambda one: True", ("one", "two"), "one and two: only one part can be all that is served"),
        ("allocates=lambda one: True", ("one",), "part one allocates devices, and its prepare() brings no MakesAlloc"),
    ],
)
def test_what_a_part_says_and_does_not_do_keeps_kerf_from_starting(
    tmp_path: Path, of_part: str, names: tuple[str, ...], told: str
) -> None:
    entries = "".join(f"{name} = kerf_broken:PART_{name.upper()}\n" for name in names)
    broken(tmp_path, f"[kerf.parts]\n{entries}", PACKAGE + "".join(of_a_package(name, of_part) for name in names))
    done = run("-c", LISTS, *(f"{name}.level=1" for name in names), site=tmp_path)
    assert done.returncode != 0
    assert told in " ".join(done.stderr.split())


def test_what_serves_beside_one_that_is_alone_lacks_nothing(tmp_path: Path) -> None:
    lacks = 'beside_one_alone=True, lacks=lambda settings: "there is no queue"'
    parts = of_a_package("one", "alone=lambda one: True") + of_a_package("two", lacks)
    broken(tmp_path, "[kerf.parts]\none = kerf_broken:PART_ONE\ntwo = kerf_broken:PART_TWO", PACKAGE + parts)
    assert run("-c", LISTS, "one.level=1", "two.level=1", site=tmp_path).returncode == 0
    refused = run("-c", LISTS, "two.level=1", site=tmp_path)
    assert "two: there is no queue" in refused.stderr
