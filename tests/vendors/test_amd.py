"""GPUs of another vendor, brought by the package of docs/examples/kerf-amd."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.example import broken
from tests.docs.pages import ROOT

HERE = Path(__file__).parent


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of a folder."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_what_kerf_does_with_it(amd_site: Path) -> None:
    """The tests of `with_amd.py` here and of parts."""
    tests = (HERE / "with_amd.py", *sorted(HERE.parent.glob("parts/*/with_amd.py")))
    done = python(amd_site, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, tests))
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-10_000:]


FAULTS = {
    "raise ImportError('no')": "vendor acme of package kerf-broken could not be loaded",
    "ACME = 'acme'": "vendor acme could not be loaded: TypeError: it is not a Vendor",
    "from extender.core.vendors.vendor import Vendor\n"
    "ACME = Vendor(name='acme', title='Acme', domain='acme.com', words=('acme',), resource='nvidia.com/gpu')": (
        "vendor acme could not be loaded: ValueError: nvidia.com/gpu belongs to another vendor"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", FAULTS)
def test_one_that_can_not_be_loaded_keeps_kerf_from_starting(tmp_path: Path, source: str) -> None:
    broken(tmp_path, "[kerf.vendors]\nacme = kerf_broken:ACME", source)
    done = python(tmp_path, "-m", "extender", "config", "check")
    assert done.returncode != 0
    assert FAULTS[source] in " ".join((done.stdout + done.stderr).split())
