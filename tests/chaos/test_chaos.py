"""`kerf chaos` itself, as its user runs it. `make test` has two runs; the more the better."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e, pytest.mark.slow]


def test_no_promise_is_broken_in_two_runs(tmp_path: Path) -> None:
    target = tmp_path / "account.json"
    command = [sys.executable, "-m", "extender", "chaos", "--runs=2", "--seed=11", f"--json={target}"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # logs of what went wrong stay there
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=570, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    account = json.loads(target.read_text())
    assert account["runs"] == 2
    assert account["seeds"] == [11, 12]
    assert account["violations"] == 0
    assert account["pods"] >= 400
    assert 300 < account["pods_bound"] <= account["pods"]
    assert sum(account["faults"].values()) > 0
