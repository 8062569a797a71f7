"""The package of docs/examples/kerf-example, as pip installs it."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from extender.core.fit import filters
from extender.core.fit.checks import BUILT_IN, TABLE
from extender.core.policies import registry
from extender.plugins import pod_resources
from extender.plugins.pod_resources import _managed_resources
from extender.plugins.registry import plugins
from tests.docs.pages import DOCS


def install_example(folder: Path, name: str = "kerf-example") -> None:
    """Install a package of docs/examples into a folder, without a network."""
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    uv = Path(sys.executable).with_name("uv")
    where = ("--python", sys.executable, "--target", str(folder))
    subprocess.run([uv, "pip", "install", *offline, *where, DOCS / "examples" / name], check=True)


def broken(folder: Path, entries: str, source: str) -> None:
    """Another package in a folder, with these entry points: a module `kerf_broken`."""
    info = folder / "kerf_broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kerf-broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"{entries}\n")
    (folder / "kerf_broken.py").write_text(source)


@contextmanager
def example_on_path(folder: Path) -> Iterator[None]:
    """It is where Python looks for packages, and nothing of it is loaded yet, nor afterwards."""
    known = dict(registry.POLICIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        _forget()
        try:
            yield
        finally:
            registry.POLICIES.clear()
            registry.POLICIES.update(known)
            _forget()


def _forget() -> None:
    """Let policies and device plugins be looked for again."""
    registry.forget()
    filters._INSTALLED.forget()  # noqa: SLF001
    TABLE.only(BUILT_IN)
    for name in [name for name in sys.modules if name.partition(".")[0] in {"kerf_example", "kerf_broken"}]:
        del sys.modules[name]
    for remembered in (plugins, _managed_resources, pod_resources.managed_names):
        remembered.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed."""
    target = tmp_path_factory.mktemp("site")
    install_example(target)
    return target


@pytest.fixture
def example(site: Path) -> Iterator[Path]:
    """The package is installed, and nothing is loaded yet."""
    with example_on_path(site):
        yield site
