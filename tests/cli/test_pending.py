"""`kerf pending`, against a demo, and its table of answers that it might get."""

import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner, Result

from extender.cli.client import kubectl_plugin
from extender.cli.consoles import age, shortened
from extender.cli.main import app
from extender.cli.pending import _print
from tests.api.bodies import args, pod
from tests.api.demos import Demo, demo_here
from tests.api.processes import request


@pytest.fixture(scope="module")
def server() -> Iterator[Demo]:
    """A demo that has rejected a pod."""
    with demo_here() as server:
        with server.connection() as connection:
            body = args(pod("large", 9), ["a100-0", "t4-1", "cpu-0"])
            assert request(connection, "POST", "/filter", body).status == 200
        yield server


def kerf(server: Demo, *arguments: str, group: Any = app) -> Result:
    environment = {"KERF_SERVER_URL": f"http://127.0.0.1:{server.port}"}
    return CliRunner().invoke(group, ["pending", *arguments], env=environment)


@pytest.mark.parametrize(("program", "group"), [("kerf", app), ("kubectl kerf", kubectl_plugin.app)])
def test_a_table_with_the_reason_and_the_next_command(server: Demo, program: str, group: Any) -> None:
    result = kerf(server, group=group)
    assert result.exit_code == 0, result.output
    assert "rejected by Kerf" in result.output
    assert "needs 9 GPUs; a100-0 is nearest with 8 installed" in result.output
    assert f"What would help: {program} explain " in result.output


def test_as_data(server: Demo) -> None:
    as_json, as_yaml = (kerf(server, "-o", form).output for form in ("json", "yaml"))
    told = json.loads(as_json)
    assert told == yaml.safe_load(as_yaml)
    assert {"pods", "total", "more", "atLeast"} == set(told)
    assert any(item["pod"] == "default/large" for item in told["pods"])


def test_a_namespace_where_nobody_waits(server: Demo) -> None:
    result = kerf(server, "-n", "nowhere")
    assert (result.exit_code, result.output) == (0, "no pod is waiting for GPUs in namespace nowhere\n")


@pytest.mark.parametrize("arguments", [("-n", "n" * 64), ("--limit", "0"), ("-o", "xml")])
def test_wrong_usage(server: Demo, arguments: tuple[str, ...]) -> None:
    assert kerf(server, *arguments).exit_code == 2


def test_nobody_answers() -> None:
    result = CliRunner().invoke(app, ["pending", "--server", "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "can't reach Kerf" in result.output


def waiting(name: str, where: str, sentence: str, gang: str | None = None) -> dict[str, Any]:
    return {
        **{"pod": name, "request": "8 GPUs", "where": where, "why": "", "nearest": None, "priority": 0},
        **{"gang": gang, "since": time.time() - 7260, "explain": f"kerf explain {name}"},
        **{"sentence": sentence, "remedy": None},
    }


def table(*pods: dict[str, Any], width: int = 80, more: int = 0) -> str:
    text = io.StringIO()
    told: Any = {"pods": list(pods), "total": len(pods) + more, "more": more, "atLeast": False}
    _print(told, Console(file=text, width=width, highlight=False), None, "kerf")
    return text.getvalue()


def test_each_pod_has_its_sentence() -> None:
    short = "needs 8 GPUs; n has 2 free, default/a holds 6"
    assert short in table(waiting("a/b", "kerf", short), width=200)
    assert "requests 8 GPUs" in table(waiting("a/b", "scheduler", ""), width=200)


def test_hidden_pods_are_counted_and_no_line_is_wider_than_the_terminal() -> None:
    long = waiting("research-language/" + "pretraining-" * 6 + "0", "queue", "w" * 300, "research/ring")
    printed = table(long, more=12)
    assert max(map(len, printed.splitlines())) <= 80
    assert "2h01m" in printed and "and 12 more" in printed and "13 pods" in printed


def test_what_authors_write_can_not_drive_the_terminal() -> None:
    assert "\x1b" not in table(waiting("a/b", "queue", "\x1b[2J[red]"))
    assert "[red]" in table(waiting("a/b", "queue", "[red]"))
    assert "\x1b" not in table(waiting("a/b", "queue", "", gang="\x1b[2J"))


@pytest.mark.parametrize(
    ("seconds", "words"), [(-5, "0s"), (59, "59s"), (720, "12m"), (11_220, "3h07m"), (187_200, "2d4h")]
)
def test_ages(seconds: float, words: str) -> None:
    assert age(seconds) == words


@pytest.mark.parametrize(("width", "text"), [(20, "gpu-node-0123"), (9, "gpu-…0123"), (2, "…3"), (1, "…"), (0, "…")])
def test_names_are_shortened_in_the_middle(width: int, text: str) -> None:
    assert shortened("gpu-node-0123", width) == text
