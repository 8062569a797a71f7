"""Disabled parts are not imported, and other packages add parts."""

import builtins
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from extender.api.app import create_app
from extender.api.contributions import PartError, prepared
from extender.core.faces import faces
from extender.kube.memory import MemoryCluster
from extender.parts import NAMES
from extender.settings import tree
from extender.settings.load import load_settings
from extender.settings.parts import Part
from extender.settings.section import Section
from extender.settings.tree import PARTS
from tests.docs import generated
from tests.docs.example import broken
from tests.docs.pages import ROOT
from tests.parts.pages import page_of

LISTS = """
import os, sys
from extender.api.app import create_app
from extender.kube.memory import MemoryCluster
from extender.settings.load import load_settings
for assignments in sys.argv[1:]:
    if os.fork() == 0:
        create_app(load_settings(assignments=assignments.split()), MemoryCluster([]))
        print(*sorted(name for name in sys.modules if name.startswith("extender.parts.")), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
"""Prints the modules of parts that a Kerf with each of these settings has imported, one line each."""
METRICS = """
import sys
from extender.api.app import create_app
from extender.kube.memory import MemoryCluster
from extender.settings.load import load_settings
for assignment in sys.argv[1:]:
    app = create_app(load_settings(assignments=[assignment]), MemoryCluster([]))
    print(app.state.service.metrics.render().decode())
"""
"""Prints the metrics of a Kerf with each of these settings."""
PACKAGE = """
from extender.settings.parts import Part
from extender.settings.section import Section


class Settings(Section):
    \"\"\"Of a package.\"\"\"

    level: int = 0
    \"\"\"How much.\"\"\"


def build(kernel, settings):
    from extender.api.contributions import Contribution  # can't be imported before the settings exist
    from extender.metrics.registry import gauge

    return Contribution(metrics=lambda: [gauge("acme_level", "How much.", settings.level)])


PART = Part(name="acme", settings=Settings, wanted=lambda acme: acme.level > 0, module=__name__)
"""

OFF_BY = {"set_aside": "set_aside.mode=off"}
"""Settings that disable parts without `enabled`."""


def run(*arguments: str, site: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run Python, with the packages in folder `site` installed."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{f':{site}' if site else ''}"}
    command = (sys.executable, *arguments)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)


def imported_by(*kerfs: str) -> list[set[str]]:
    """The modules of parts that Kerfs with these settings import."""
    done = run("-c", LISTS, *kerfs)
    assert done.returncode == 0, done.stderr
    return [set(line.split()) for line in done.stdout.splitlines()]


def modules_of(*assignments: str) -> set[str]:
    """The same for one Kerf."""
    (found,) = imported_by(" ".join(assignments))
    return found


def of_part(name: str, modules: Iterable[str]) -> set[str]:
    """The modules that belong to a part."""
    return {module for module in modules if module.split(".")[2] == name}


def off_by(part: Part) -> str:
    """The setting that disables a part that is enabled by default."""
    return OFF_BY.get(part.name, f"{part.name}.enabled=false")


@pytest.mark.slow
def test_only_the_settings_of_a_disabled_part_are_imported() -> None:
    """By default, and with each of the default parts disabled."""
    faces = {f"extender.parts.{name}" for name in NAMES} | {f"extender.parts.{part.name}.settings" for part in PARTS}
    on = [part for part in PARTS if part.wanted(part.settings())]
    shipped, *without = imported_by("", *map(off_by, on))
    for part in PARTS:
        assert of_part(part.name, shipped) == of_part(part.name, faces) or part in on
    for part, modules in zip(on, without, strict=True):
        assert of_part(part.name, modules) == of_part(part.name, faces) < of_part(part.name, shipped)


def test_no_import_of_a_disabled_part_is_attempted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also none of modules that are loaded already."""
    asked: set[str] = set()

    def note(name: str, *others: Any, to: Callable[..., Any]) -> Any:
        asked.add(name)
        return to(name, *others)

    monkeypatch.setattr(importlib, "import_module", partial(note, to=importlib.import_module))
    monkeypatch.setattr(builtins, "__import__", partial(note, to=builtins.__import__))
    on = [part for part in PARTS if part.wanted(part.settings())]
    create_app(load_settings(), MemoryCluster([]))
    assert {part.module for part in PARTS} & asked == {part.module for part in on}
    asked.clear()
    create_app(load_settings(assignments=map(off_by, on)), MemoryCluster([]))
    assert not {name for name in asked if name.startswith("extender.parts.")}


@pytest.mark.parametrize("page", list(generated.pages()), ids=lambda page: page.name)
def test_settings_are_on_the_page_of_their_part_or_of_the_kernel(page: Path) -> None:
    assert page.read_text() == generated.pages()[page], "`make goldens` rewrites it"


def test_each_command_of_a_part_is_on_its_page() -> None:
    for name, face in faces().items():
        assert f"docs/parts/{name}.md" in (ROOT / "extender" / "parts" / name / "__init__.py").read_text()
        assert all(f"`kerf {command}" in page_of(name) for command in face.commands)


@pytest.mark.slow
def test_a_package_brings_a_part(tmp_path: Path) -> None:
    broken(tmp_path, "[kerf.parts]\nacme = kerf_broken:PART", PACKAGE)
    shown = run("-m", "extender", "config", "show", "--set", "acme.level=3", site=tmp_path)
    assert shown.stdout.endswith("acme:\n  level: 3\n"), shown.stderr
    metrics = run("-c", METRICS, "acme.level=0", "acme.level=3", site=tmp_path).stdout
    assert [line for line in metrics.splitlines() if line.startswith("acme_level")] == ["acme_level 3.0"]


@pytest.mark.slow
def test_parts_that_can_t_be_loaded_keep_kerf_from_starting_and_all_are_reported(tmp_path: Path) -> None:
    entries = "acme = kerf_fails:PART\none = kerf_broken:ONE\na-b = kerf_broken:HYPHEN\nqueue = kerf_broken:PART"
    hyphen = PACKAGE.replace('"acme"', '"a-b"').rpartition("PART = ")[2]
    broken(tmp_path, f"[kerf.parts]\n{entries}", f"{PACKAGE}ONE = 1\nHYPHEN = {hyphen}")
    (tmp_path / "kerf_fails.py").write_text("raise ImportError('no')")
    done = run("-m", "extender", "config", "check", site=tmp_path)
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    for fault in (
        "part acme of package kerf-broken could not be loaded: ImportError: no",
        "part one could not be loaded: it is not a Part",
        "part a-b could not be loaded: its name is not valid",
        "part queue of package kerf-broken could not be loaded: ValueError: ",
    ):
        assert fault in said


Parted = Callable[..., Any]


@pytest.fixture
def parted(monkeypatch: pytest.MonkeyPatch) -> Parted:
    """Makes these the only parts, all of them enabled; returns the settings of such a Kerf."""

    def only(**parts: dict[str, Any]) -> Any:
        given: dict[str, Any] = {"settings": Section, "wanted": lambda _: True, "module": ""}
        made = [Part(name=name, **given | fields) for name, fields in parts.items()]
        monkeypatch.setattr(tree, "PARTS", tuple(made))
        return SimpleNamespace(**{name: Section() for name in parts})

    return only


def alone(_: Any) -> bool:
    """The part is to be served alone."""
    return True


def test_only_one_part_can_be_served_alone(parted: Parted) -> None:
    assert tree.lacking(parted(one={"alone": alone})) == []
    both = parted(one={"alone": alone}, two={"alone": alone})
    assert tree.lacking(both) == ["one and two: only one part can be served alone"]


def test_a_part_that_allocates_devices_has_to_offer_an_allocator(parted: Parted) -> None:
    settings: Any = parted(one={"allocates": lambda _: True})
    with pytest.raises(PartError, match=r"part one allocates devices, and its prepare\(\) brings no AllocatorFactory"):
        prepared(settings, Mock())


def test_a_part_beside_one_that_is_served_alone_lacks_nothing(parted: Parted) -> None:
    two = {"beside_one_alone": True, "lacks": lambda _: "there is no queue"}
    assert tree.lacking(parted(one={"alone": alone}, two=two)) == []
    assert tree.lacking(parted(two=two)) == ["two: there is no queue"]
