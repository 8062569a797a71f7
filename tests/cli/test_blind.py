"""Commands that ask a Kerf that can't see the cluster: they say so first, and exit 1; data stays data."""

import json
import re
import signal
from collections.abc import Iterator

import pytest
import yaml
from typer.testing import CliRunner, Result

from extender.cli.client import kubectl_plugin
from extender.cli.main import app
from extender.demo.cluster import sample_cluster
from tests.api.cut_off import CutOff
from tests.api.demos import Demo, demo_here
from tests.api.processes import Server, demo

FAILED = 1
COMMANDS = {
    "top": ("--once",),
    "explain": ("default/train-0",),
    "pending": (),
    "workloads": (),
    "usage": (),
    "what-if": ("--waiting",),
    "defrag": ("--free-nodes", "1"),
    "drain": ("a100-0",),
}
ANSWERED_FROM_THE_PAST = ("top", "explain", "pending", "workloads", "usage")
SENTENCE = re.compile(r"Kerf has heard nothing from the API server for \d+ s and decides nothing \(kerf doctor\)")


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It was synced, and its API server is away for longer than cluster.max_age_s."""
    log = tmp_path_factory.mktemp("stale") / "log"
    with demo(log, module="tests.page.blind") as process:
        server = Server(process, log)
        server.wait_for(lambda: server.get("/readyz").status == 200)
        process.send_signal(signal.SIGUSR1)
        server.wait_for(lambda: "staleSeconds" in server.get("/nodes").json())
        yield server
        assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def unsynced() -> Iterator[Demo]:
    """It has heard nothing since its start."""
    cluster = CutOff(sample_cluster())
    cluster.reachable = False
    with demo_here(cluster, ready=False) as server:
        yield server


def kerf(server: Server | Demo, *arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"KERF_SERVER_URL": f"http://127.0.0.1:{server.port}"})


def test_every_command_that_asks_is_tried() -> None:
    told = CliRunner().invoke(kubectl_plugin.app, ["--help"]).output
    assert set(re.findall(r"^[^\w-]*([a-z][a-z-]+) {2,}", told, re.MULTILINE)) == COMMANDS.keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_first_that_kerf_is_blind_and_exits_1(stale: Server, command: str) -> None:
    result = kerf(stale, command, *COMMANDS[command])
    assert result.exit_code == FAILED, result.output
    assert SENTENCE.fullmatch(result.stderr.splitlines()[0])
    assert SENTENCE.match(result.output), "before anything else"
    assert bool(result.stdout) == (command in ANSWERED_FROM_THE_PAST)
    assert len(SENTENCE.findall(result.output)) == 1


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("command", ["top", "explain", "pending"])
def test_data_stay_data_and_carry_how_old_they_are(stale: Server, command: str, form: str) -> None:
    result = kerf(stale, command, *COMMANDS[command], "-o", form)
    told = json.loads(result.stdout) if form == "json" else yaml.safe_load(result.stdout)
    assert result.exit_code == FAILED
    assert told["staleSeconds"] > 3
    assert "ago" in told["notReady"]


@pytest.mark.parametrize("command", COMMANDS)
def test_before_the_first_sync_nothing_is_told(unsynced: Demo, command: str) -> None:
    result = kerf(unsynced, command, *COMMANDS[command])
    assert (result.exit_code, result.stdout) == (FAILED, "")
    first, second = result.stderr.splitlines()
    assert first == "Kerf has heard nothing from the API server yet and decides nothing (kerf doctor)"
    assert "not synced yet" in second


def test_the_log_says_once_that_the_api_server_is_away(stale: Server) -> None:
    stale.wait_for(lambda: stale.get("/nodes").json()["staleSeconds"] > 8)
    lines = [line for line in stale.log.splitlines() if "WARNING" in line]
    assert 1 <= sum("mirror of /api/v1/nodes interrupted" in line for line in lines) <= 2  # the watch, then lists
    assert len(lines) == len({line.partition(" WARNING ")[2] for line in lines})
