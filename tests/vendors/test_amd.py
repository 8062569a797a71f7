"""GPUs of another vendor, brought by the package of docs/examples/kerf-amd."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.example import broken
from tests.docs.pages import ROOT

HERE = Path(__file__).parent


@pytest.mark.slow
def test_what_kerf_does_with_it(amd_site: Path) -> None:
    """The tests of `with_amd.py` here and of parts, in a process in which the package is installed."""
    tests = (HERE / "with_amd.py", *sorted(HERE.parent.glob("parts/*/with_amd.py")))
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, tests))
    environment = {**os.environ, "PYTHONPATH": str(amd_site)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-10_000:]
    assert " passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "told"),
    [
        pytest.param("raise ImportError('no')", "vendor acme of package kerf-broken could not be loaded", id="fails"),
        pytest.param("ACME = 'acme'", "vendor acme could not be loaded: TypeError: it is not a Vendor", id="no vendor"),
        pytest.param(
            "from extender.core.vendors.vendor import Vendor\n"
            "ACME = Vendor(name='acme', title='Acme', domain='acme.com', words=('acme',), resource='nvidia.com/gpu')",
            "vendor acme could not be loaded: ValueError: nvidia.com/gpu is another vendor's",
            id="somebody else's resource",
        ),
    ],
)
def test_one_that_can_not_be_loaded_keeps_kerf_from_starting(tmp_path: Path, source: str, told: str) -> None:
    broken(tmp_path, "[kerf.vendors]\nacme = kerf_broken:ACME", source)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = (sys.executable, "-m", "extender", "config", "check")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert told in " ".join((done.stdout + done.stderr).split())
