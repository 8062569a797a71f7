"""`kerf chaos` itself, as its user runs it. `make test` has four runs; the more the better."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane import wait_until

FIRST = 11
QUEUED = 100
DEVICES = 4
MOVES = 22

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


def test_no_promise_is_broken_in_two_runs_of_which_the_second_was_killed(tmp_path: Path) -> None:
    account = tmp_path / "account.jsonl"
    options = ("--runs=2", f"--seed={FIRST}", f"--resume={account}")
    command = [sys.executable, "-m", "extender", "chaos", *options]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as killed:
        wait_until(account.exists, 400.0, "the first run is over")
        killed.kill()
    assert [json.loads(line)["seed"] for line in account.read_text().splitlines()] == [FIRST]
    report = chaos(tmp_path, *options)
    assert report["runs"] == 2
    assert report["seeds"] == [FIRST, FIRST + 1]
    assert report["pods"] >= 400
    assert 300 < report["pods_bound"] <= report["pods"]
    assert sum(report["faults"].values()) > 0
    assert [json.loads(line)["seed"] for line in account.read_text().splitlines()] == [FIRST, FIRST + 1]


def test_no_promise_is_broken_when_pods_and_gangs_wait_in_the_queue(tmp_path: Path) -> None:
    account = chaos(tmp_path, "--queue", "--runs=1", f"--seed={QUEUED}")
    assert account["pods_bound"] > 150
    assert sum(account["faults"].values()) > 0


def test_no_promise_is_broken_while_room_is_made(tmp_path: Path) -> None:
    account = chaos(tmp_path, "--defrag", "--runs=1", f"--seed={MOVES}")
    assert account["pods_bound"] > 5
    assert sum(account["faults"].values()) > 0


def test_no_promise_is_broken_with_devices_that_kerf_allocates(tmp_path: Path) -> None:
    account = chaos(tmp_path, "--dra", "--runs=1", f"--seed={DEVICES}")
    assert account["pods_bound"] > 80
    assert sum(account["faults"].values()) > 0
