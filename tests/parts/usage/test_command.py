"""`kerf usage`, against a Kerf in this process."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from extender.cli.consoles import as_csv
from extender.cli.main import app
from extender.parts.usage.command import _steps_picture
from tests.api.services import running
from tests.parts.usage.rigs import passes, placed
from tests.telemetry.servers import Page, serving

FAILED, USAGE = 1, 2


@pytest.fixture(name="url", scope="module")
def url_fixture() -> Iterator[str]:
    """The address of a Kerf that has counted something."""
    with running(usage__budgets={"default": 0.0001}) as kerf:
        placed(kerf, "p", 2)
        passes(kerf, 1800.0)

        def answer(path: str, query: Mapping[str, str], _: Mapping[str, str]) -> Page:
            told = kerf.get(f"{path}?{urlencode(query)}")
            return told.status, told.content

        with serving(answer) as server:
            yield server.url


def ask(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["usage", *arguments], env={"KERF_SERVER_URL": url})


def test_a_table_by_namespace(url: str) -> None:
    result = ask(url)
    assert result.exit_code == 0, result.output
    assert "(by Kerf, since it began to count)" in result.output
    assert "NAMESPACE" in result.output and "BUDGET" in result.output
    assert "booked, " in result.output and "stranded, " in result.output


@pytest.mark.parametrize(("by", "heading"), [("owner", "OWNER"), ("model", "MODEL")])
def test_rows_of_something_else(url: str, by: str, heading: str) -> None:
    result = ask(url, "--by", by)
    assert result.exit_code == 0, result.output
    assert heading in result.output


def test_as_json_it_has_rows_and_totals(url: str) -> None:
    told = json.loads(ask(url, "-o", "json").output)
    assert {"rows", "totals"} <= told.keys()
    assert told["rows"][0]["bookedGpuHours"] > 0
    assert told["totals"]["capacityGpuHours"] > told["totals"]["bookedGpuHours"]


def test_as_csv_it_has_a_heading_and_a_line_for_each_row(url: str) -> None:
    rows = list(csv.DictReader(io.StringIO(ask(url, "--by", "owner", "-o", "csv").output)))
    assert list(rows[0])[:3] == ["namespace", "owner", "bookedGpuHours"]
    assert float(rows[0]["bookedGpuHours"]) > 0


def test_a_name_is_no_formula() -> None:
    text = as_csv(("owner", "bookedGpuHours"), [{"owner": "=HYPERLINK(1)", "bookedGpuHours": -1.0}])
    assert text == "owner,bookedGpuHours\n'=HYPERLINK(1),-1.0\n"


HOURS = {f"{name}GpuHours": 1.0 for name in ("booked", "used", "idle", "measured")}
TOTALS = HOURS | {f"{name}GpuHours": 1.0 for name in ("capacity", "free", "stranded", "sick")}
NASTY = "Job/\x1b]0;owned\x07[red]x"


def of_a_server(told: dict[str, Any], *arguments: str) -> Result:
    """The output where a server answers so."""
    body = {"source": "prometheus", "since": 0.0, "until": 1.0, "by": "owner", "totals": TOTALS} | told
    with serving(lambda *_: (200, json.dumps(body).encode())) as answering:
        return ask(answering.url, *arguments)


@pytest.mark.parametrize("arguments", [("--by", "owner"), ("--by", "owner", "-o", "csv"), ("--idle",)])
def test_names_do_nothing_to_the_terminal(arguments: tuple[str, ...]) -> None:
    item = {"pod": "a/p", "owner": NASTY, "node": "n", "gpus": 1.0, "idleSeconds": 93_784}
    idle = {"afterSeconds": 60, "pods": 1, "gpus": 1.0, "items": [item]}
    told = {"rows": [{"namespace": "a", "owner": NASTY} | HOURS], "budgets": {}, "idle": idle}
    result = of_a_server(told, *arguments)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output and "\x07" not in result.output
    assert "\\x1b" in result.output and "[red]" in result.output
    if "--idle" in arguments:
        assert "1d2h" in result.output


def test_who_follows_tells_of_the_past_and_not_who_is_idle() -> None:
    told = {"rows": [{"namespace": "a", "owner": "Job/x"} | HOURS], "budgets": None, "idle": None}
    assert "Job/x" in of_a_server(told, "--by", "owner", "--since", "7d").output
    result = of_a_server(told, "--since", "7d", "--idle")
    assert result.exit_code == FAILED
    assert "another replica leads, and only the leader knows which pods are idle" in result.output


def test_without_a_prometheus_it_says_since_when(url: str) -> None:
    result = ask(url, "--since", "7d")
    assert result.exit_code == 0, result.output
    assert (
        "no Prometheus is configured (setting telemetry.url): showing what Kerf itself has counted since "
        in result.output
    )


def test_kerf_itself_says_that_it_knows_no_other_time(url: str) -> None:
    result = ask(url, "--since", "7d", "--source", "kerf")
    assert result.exit_code == 0, result.output
    assert (
        "only Prometheus has figures for a given time, and source=kerf does not query it: showing what Kerf itself has "
        in result.output
    )


def test_nobody_is_idle_yet(url: str) -> None:
    result = ask(url, "--idle")
    assert result.exit_code == 0
    assert "no pod has been idle for 30 min, according to telemetry" in result.output
    assert json.loads(ask(url, "--idle", "-o", "json").output)["rows"] == []


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--since", "soon"], USAGE, "--since soon: 'soon' is not a duration from 1m to 366d: write 7d, 36h or 90m"),
        (["--since", "7d", "--source", "prometheus"], FAILED, "no Prometheus is configured"),
        (["--by", "pod"], USAGE, "pod"),
        (["-o", "xml"], USAGE, "xml"),
    ],
)
def test_what_can_not_be_answered(url: str, arguments: list[str], status: int, said: str) -> None:
    result = ask(url, *arguments)
    assert result.exit_code == status
    assert said in result.output


def test_step_by_step_as_a_table(url: str) -> None:
    result = ask(url, "--since", "1h", "--step", "10m")
    assert result.exit_code == 0, result.output
    assert "(by Kerf itself); times are UTC" in result.output
    headings = ["FROM", "ALL", "BOOKED", "USED", "IDLE", "FREE", "STRANDED", "OUT"]
    assert headings in [line.split() for line in result.output.splitlines()]


def test_no_number_of_a_large_cluster_is_cut_on_a_narrow_terminal() -> None:
    """40,000 GPUs for a day, and for a week."""
    names = ("capacity", "booked", "used", "idle", "free", "stranded", "sick")
    days = [960_000.0, 6_720_000.0]
    rows = [{f"{name}GpuHours": hours for name in names} | {"at": 0, "measuredGpuHours": 1.0} for hours in days]
    for step_s, date in ((604_800, ["1970-01-01"]), (900, ["01-01", "00:00"])):
        told: Any = {"source": "kerf", "since": 1.0, "until": 2.0, "stepSeconds": step_s, "steps": rows}
        text = io.StringIO()
        Console(width=80, file=text).print(_steps_picture(told))
        *_, day, week = (line.split() for line in text.getvalue().splitlines())
        assert (day, week) == ([*date, *["960,000"] * 7], [*date, *["6.72M"] * 7])


def test_step_by_step_as_json_and_csv(url: str) -> None:
    told = json.loads(ask(url, "--since", "1h", "--step", "1m", "-o", "json").stdout)
    totals = told["totals"]
    parts = sum(totals[f"{name}GpuHours"] for name in ("booked", "free", "stranded", "sick"))
    assert totals["capacityGpuHours"] == pytest.approx(parts, abs=1e-3)
    assert told["rows"][0]["bookedGpuHours"] > 0
    rows = list(csv.DictReader(io.StringIO(ask(url, "--since", "1h", "--step", "1m", "-o", "csv").stdout)))
    assert rows[0]["from"] == datetime.fromtimestamp(told["rows"][0]["at"], UTC).isoformat()
    assert float(rows[0]["capacityGpuHours"]) >= told["rows"][0]["capacityGpuHours"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--step", "1d"), "--step needs --since"),
        (("--since", "7d", "--step", "1d", "--by", "owner"), "can't be combined with --idle or --by"),
        (("--since", "7d", "--step", "1d", "--idle"), "can't be combined with"),
        (
            ("--since", "7d", "--step", "1m"),
            "--step: 7d in steps of 1m is 10080 steps, more than 750: use 15m or more",
        ),
        (("--since", "7", "--step", "1m"), "--since: '7' is not a duration"),
    ],
)
def test_a_step_that_makes_no_sense_is_wrong_usage(url: str, arguments: tuple[str, ...], said: str) -> None:
    result = ask(url, *arguments)
    assert result.exit_code == USAGE
    assert said in result.output
