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


def test_tables(url: str) -> None:
    for arguments, words in (
        ((), ("(by Kerf, since it began to count)", "NAMESPACE", "BUDGET", "booked, ", "stranded, ")),
        (("--by", "owner"), ("OWNER",)),
        (("--by", "model"), ("MODEL",)),
        (("--since", "1h", "--step", "10m"), ("(by Kerf itself); times are UTC", "FROM", "OUT")),
        (("--since", "7d"), ("no Prometheus is configured", "showing what Kerf itself has counted since ")),
        (("--idle",), ("no pod has been idle for 30 min",)),
    ):
        result = ask(url, *arguments)
        assert result.exit_code == 0, result.output
        assert [word for word in words if word not in result.output] == []


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


def test_names_do_nothing_to_the_terminal() -> None:
    item = {"pod": "a/p", "owner": NASTY, "node": "n", "gpus": 1.0, "idleSeconds": 93_784}
    idle = {"afterSeconds": 60, "pods": 1, "gpus": 1.0, "items": [item]}
    told = {"rows": [{"namespace": "a", "owner": NASTY} | HOURS], "budgets": {}, "idle": idle}
    for arguments in (("--by", "owner"), ("--by", "owner", "-o", "csv"), ("--idle",)):
        result = of_a_server(told, *arguments)
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.output and "\x07" not in result.output
        assert "\\x1b" in result.output and "[red]" in result.output
    assert "1d2h" in of_a_server(told, "--idle").output


def test_a_replica_tells_of_the_past_and_not_which_pods_are_idle() -> None:
    told = {"rows": [{"namespace": "a", "owner": "Job/x"} | HOURS], "budgets": None, "idle": None}
    assert "Job/x" in of_a_server(told, "--by", "owner", "--since", "7d").output
    result = of_a_server(told, "--since", "7d", "--idle")
    assert (result.exit_code, "another replica leads" in result.output) == (FAILED, True)


def test_what_can_not_be_answered(url: str) -> None:
    steps = ("--step", "1d")
    for arguments, status, said in (
        (("--since", "soon"), USAGE, "--since soon: 'soon' is not a duration"),
        (("--since", "7d", "--source", "prometheus"), FAILED, "no Prometheus is configured"),
        (("--by", "pod"), USAGE, "pod"),
        (("-o", "xml"), USAGE, "xml"),
        (steps, USAGE, "--step needs --since"),
        (("--since", "7d", *steps, "--by", "owner"), USAGE, "--by"),
        (("--since", "7d", *steps, "--idle"), USAGE, "--idle"),
        (("--since", "7d", "--step", "1m"), USAGE, "--step: 7d in steps of 1m is 10080 steps"),
        (("--since", "7", *steps), USAGE, "--since: '7' is not a duration"),
    ):
        result = ask(url, *arguments)
        assert result.exit_code == status
        assert said in result.output


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


def test_as_json_and_csv(url: str) -> None:
    told = json.loads(ask(url, "-o", "json").output)
    assert told["totals"]["capacityGpuHours"] > told["totals"]["bookedGpuHours"] > 0 < told["rows"][0]["bookedGpuHours"]
    (row,) = csv.DictReader(io.StringIO(ask(url, "--by", "owner", "-o", "csv").output))
    assert list(row)[:3] == ["namespace", "owner", "bookedGpuHours"]
    assert float(row["bookedGpuHours"]) > 0
    assert json.loads(ask(url, "--idle", "-o", "json").output)["rows"] == []
    steps = ("--since", "1h", "--step", "1m", "-o")
    told = json.loads(ask(url, *steps, "json").stdout)
    assert told["totals"]["capacityGpuHours"] == pytest.approx(sum(row["capacityGpuHours"] for row in told["rows"]))
    rows = list(csv.DictReader(io.StringIO(ask(url, *steps, "csv").stdout)))
    assert rows[0]["from"] == datetime.fromtimestamp(told["rows"][0]["at"], UTC).isoformat()
    assert float(rows[0]["capacityGpuHours"]) >= told["rows"][0]["capacityGpuHours"]
