"""`kerf chaos` itself, as its user runs it. `make test` has three runs; the more the better."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e, pytest.mark.slow]


def chaos(tmp_path: Path, *options: str) -> dict[str, Any]:
    """The account of runs in which no promise was broken."""
    target = tmp_path / "account.json"
    command = [sys.executable, "-m", "extender", "chaos", *options, f"--json={target}"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # logs of what went wrong stay there
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=570, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    account: dict[str, Any] = json.loads(target.read_text())
    assert account["violations"] == 0
    return account


def test_no_promise_is_broken_in_two_runs(tmp_path: Path) -> None:
    account = chaos(tmp_path, "--runs=2", "--seed=11")
    assert account["runs"] == 2
    assert account["seeds"] == [11, 12]
    assert account["pods"] >= 400
    assert 300 < account["pods_bound"] <= account["pods"]
    assert sum(account["faults"].values()) > 0


def test_no_promise_is_broken_when_pods_and_gangs_wait_in_the_queue(tmp_path: Path) -> None:
    account = chaos(tmp_path, "--queue", "--runs=1", "--seed=100")
    assert account["pods_bound"] > 150
    assert sum(account["faults"].values()) > 0
