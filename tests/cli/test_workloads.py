"""`kerf workloads`, against a demo, and its tables of answers that it might get."""

import csv
import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from extender.cli.client import kubectl_plugin
from extender.cli.main import app
from extender.cli.workloads import _print
from extender.explain.workloads import _STATES
from tests.api.demos import Demo, demo_here


@pytest.fixture(scope="module")
def server() -> Iterator[Demo]:
    """A demo."""
    with demo_here() as server:
        yield server


def kerf(server: Demo, *arguments: str, group: Any = app) -> Result:
    environment = {"KERF_SERVER_URL": f"http://127.0.0.1:{server.port}"}
    return CliRunner().invoke(group, ["workloads", *arguments], env=environment)


@pytest.mark.parametrize("group", [app, kubectl_plugin.app], ids=["kerf", "kubectl kerf"])
def test_a_table_of_pods_under_what_they_come_to(server: Demo, group: Any) -> None:
    result = kerf(server, group=group)
    assert result.exit_code == 0, result.output
    head, headings, *rows = result.output.splitlines()
    assert "GPUs booked" in head and "4 pending" in head
    assert headings.split() == ["POD", "OWNER", "STATE", "NODE", "GPUS", "LOAD", "IDLE", "AGE"]
    assert any(row.split()[:4] == ["default/train-1", "Pod/train", "pending", "-"] for row in rows)


def test_rows_by_owner_and_filters(server: Demo) -> None:
    by_owner = kerf(server, "--by", "owner")
    assert by_owner.exit_code == 0, by_owner.output
    assert by_owner.output.splitlines()[1].split()[:4] == ["NAMESPACE", "OWNER", "PODS", "RUN"]
    waiting = json.loads(kerf(server, "train", "--state", "pending", "--sort", "name", "-o", "json").output)
    assert [pod["pod"] for pod in waiting["pods"]] == ["default/train-0", "default/train-1", "default/train-2"]
    of_node = json.loads(kerf(server, "--node", "h100-0", "-o", "json").output)
    assert {pod["node"] for pod in of_node["pods"]} == {"h100-0"}
    page = kerf(server, "--limit", "2")
    assert "more (--limit, -n NAMESPACE)" in page.output


def test_as_csv_it_has_a_heading_and_a_line_for_each_row(server: Demo) -> None:
    pods = list(csv.DictReader(io.StringIO(kerf(server, "-o", "csv").output)))
    assert {"pod", "owner", "state", "gpus", "indices"} <= pods[0].keys()
    assert any(pod["indices"] == "0 1" for pod in pods)
    groups = list(csv.DictReader(io.StringIO(kerf(server, "--by", "namespace", "-o", "csv").output)))
    assert [group["namespace"] for group in groups] == ["default"]
    assert sum(int(groups[0][state]) for state in _STATES) == int(groups[0]["pods"]) == len(pods)


def test_nobody_of_that_name(server: Demo) -> None:
    result = kerf(server, "-n", "nowhere")
    assert (result.exit_code, result.output) == (0, "no matching pod has or requests GPUs\n")


@pytest.mark.parametrize(
    "arguments", [("-n", "n" * 64), ("--limit", "0"), ("-o", "xml"), ("--state", "dead"), ("--by", "gang")]
)
def test_wrong_usage(server: Demo, arguments: tuple[str, ...]) -> None:
    assert kerf(server, *arguments).exit_code == 2


def test_nobody_answers() -> None:
    result = CliRunner().invoke(app, ["workloads", "--server", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "can't reach Kerf" in result.output


def one(name: str, **more: Any) -> dict[str, Any]:
    return {
        **{"pod": name, "namespace": "research", "owner": "Job/train", "gang": None, "state": "running"},
        **{"node": "gpu-node-0123", "gpus": 8.0, "load": 0.5, "idleSeconds": None, "since": time.time() - 7260},
        **more,
    }


def printed(*pods: dict[str, Any], groups: tuple[dict[str, Any], ...] = (), width: int = 80, more: int = 0) -> str:
    text = io.StringIO()
    states = dict.fromkeys(_STATES, 0) | {"running": len(pods)}
    totals: dict[str, Any] = {"pods": len(pods) + more, "states": states, "gpusBooked": 8.5, "gpusAsked": 3.0}
    totals |= {"load": 0.25, "idlePods": 1, "idleGpus": 2.0}
    told: Any = {"by": "owner" if groups else "pod", "pods": list(pods), "groups": list(groups)}
    told |= {"totals": totals, "more": more, "idleAfterSeconds": 1800.0}
    told["total"] = len(pods) + len(groups) + more
    _print(told, Console(file=text, width=width, highlight=False))
    return text.getvalue()


LONG = "research-language/" + "pretraining-" * 6 + "0"


def test_at_80_columns_no_number_is_cut_and_no_line_is_longer() -> None:
    numbers = {"gpus": 1024.125, "load": 1.0, "idleSeconds": 187_200, "gang": "research/" + "ring" * 20}
    table = printed(one(LONG, **numbers, node="gpu-node-" * 8), one("a/b", state="starting"), more=12)
    assert max(map(len, table.splitlines())) <= 80
    assert all(text in table for text in ("1024.125", "100 %", "2d4h", "2h01m", "starting", "and 12 more"))
    assert "1 with 2 GPUs idle for 30 min or more (--idle)" in " ".join(table.split())
    states = dict.fromkeys(_STATES, 0) | {"running": 20_000, "gated": 10_000}
    group = {"namespace": "n" * 63, "owner": "Job/" + "o" * 100, "pods": 30_000, "states": states, "priority": 0}
    group |= {"gpusBooked": 12_345.5, "gpusAsked": 10_000.0, "load": 0.5, "idlePods": 3, "idleGpus": 1234.5}
    by_owner = printed(groups=(group | {"idleSeconds": 5.0, "since": time.time() - 187_200},))
    assert max(map(len, by_owner.splitlines())) <= 80
    assert all(text in by_owner for text in ("30000", "20000", "12345.5", "10000", "1234.5", "50 %", "2d4h"))


def test_owners_are_beside_their_pods_where_there_is_room() -> None:
    assert "Job/train" not in printed(one("a/b"))
    assert "Job/train" in printed(one("a/b"), width=120)


def test_what_nobody_knows_is_a_dash() -> None:
    row = printed(one("a/b", node=None, gpus=None, load=None, since=None)).splitlines()[-1]
    assert row.split() == ["a/b", "running", "-", "-", "-", "-", "-"]


def test_what_authors_write_can_not_drive_the_terminal_nor_a_spreadsheet() -> None:
    assert "\x1b" not in printed(one("a/\x1b[2J[red]"))
    assert "[red]" in printed(one("a/[red]"))
