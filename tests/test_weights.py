"""What does not need a library does not load it: commands begin at once, and processes of their own stay small."""

import subprocess
import sys

import pytest

from tests.docs.pages import ROOT

_LOADS = (
    "import importlib, sys; importlib.import_module(sys.argv[1]); print(*(n for n in sys.argv[2:] if n in sys.modules))"
)


@pytest.mark.parametrize(
    ("module", "without"),
    [
        pytest.param("extender.api.app", ["cryptography", "pyarrow", "scipy", "torch"], id="the service"),
        pytest.param("extender.server.run", ["cryptography"], id="its server"),
        pytest.param("extender.cli.main", ["msgspec", "numpy", "pydantic", "rich", "yaml"], id="the command line"),
        pytest.param("extender.telemetry.reader.reader", ["aiohttp", "fastapi", "pydantic"], id="reading telemetry"),
        pytest.param("extender.parts.usage.asking", ["aiohttp", "fastapi", "pydantic"], id="asking of the past"),
    ],
)
def test_it_is_loaded_without(module: str, without: list[str]) -> None:
    assert loaded_by(module, without) == []


def loaded_by(module: str, libraries: list[str]) -> list[str]:
    """Of these the ones that a process loads with a module."""
    done = subprocess.run(
        [sys.executable, "-c", _LOADS, module, *libraries], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.split()
