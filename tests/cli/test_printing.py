"""Nothing of an author's reaches a terminal but what can be read: whatever command prints it, in whatever form."""

import ast
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from extender.cli.client.kerf import fail
from extender.cli.consoles import PlainConsole
from extender.cli.logs import _JsonFormatter, _TextFormatter
from extender.cli.main import COMMANDS, app
from extender.cli.printing import as_json, as_yaml, shown
from model.cli.console import console_on
from tests.api.bodies import args, pod
from tests.api.demos import Demo, demo_here
from tests.api.processes import request

EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\r\x08\x7f\x00\u202e\u2028[red][/blue]:smile:\\"
"""A clipboard, a screen, a colour in one character, the line's start; turned text; markup; an end that escapes."""
NAMED_BY_KERF = frozenset(
    ["verdict", "reason", "state", "where", "by", "source", "phase", "stage", "change", "since", "until", "kind"]
)
"""Keys whose values Kerf chooses, and commands go by."""


def unreadable(text: str) -> list[str]:
    """The characters of an output that no output has."""
    return sorted({char for char in text if not char.isprintable() and char != "\n"})


# The tools.


def test_lines_and_tabs_are_left() -> None:
    assert shown("a\n\tb") == "a\n\tb"
    assert shown(f"a{EVIL}b").startswith(
        "a\\x1b]52;c;ZXZpbA==\\x07\\x1b[2J\\x9b31m\\r\\x08\\x7f\\x00\\u202e\\u2028[red]"
    )
    assert unreadable(shown(EVIL)) == []
    assert shown("\ud800") == "\\ud800"


@pytest.mark.parametrize("value", [EVIL, {"a": [EVIL, {EVIL: 1}]}, "ü😀\U000e0001", "\ud800", "yes", "", "a\nb", 5])
def test_json_and_yaml_mean_what_they_say(value: Any) -> None:
    for indent in (None, 2):
        text = as_json(value, indent)
        assert unreadable(text) == []
        assert json.loads(text) == value
    if value != "\ud800":
        text = as_yaml(value)
        assert unreadable(text) == []
        assert yaml.safe_load(text) == value


@pytest.mark.parametrize("colours", [False, True])
def test_a_console_prints_nothing_of_others_but_text(colours: bool, capsys: pytest.CaptureFixture[str]) -> None:
    console = PlainConsole(force_terminal=colours, width=300, highlight=False)
    evil = EVIL.partition("[red]")[0]
    table = Table(evil, title=evil)
    table.add_row(evil)
    table.add_row(Text(evil, style="red"))
    for printed in (evil, Text(evil), table):
        console.print(printed)
        console.print(printed, soft_wrap=True)
    console.print(EVIL, markup=False)
    out = capsys.readouterr().out
    assert unreadable(re.sub(r"\x1b\[[0-9;]*m", "", out) if colours else out) == []
    assert out.count("\\x1b]52;c;ZXZpbA==\\x07") >= 9, "written out, and folded in tables"


def test_the_consoles_of_simulations_are_of_that_kind(capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    console_on(sys.stdout).print(EVIL, markup=False, soft_wrap=True)
    assert unreadable(capsys.readouterr().out) == []


def test_logs_are_of_that_kind() -> None:
    try:
        raise ValueError(f"pod {EVIL}\nline")
    except ValueError as error:
        made = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("a", logging.ERROR, "", 1, f"told {EVIL}", None, made)
    text = _TextFormatter("%(message)s").format(record)
    assert unreadable(text) == []
    told = _JsonFormatter().format(record)
    assert unreadable(told) == []
    assert json.loads(told)["message"] == f"told {EVIL}"


def test_everything_is_printed_by_them() -> None:
    """No module of the commands writes to a terminal by itself."""
    root = Path(__file__).parents[2]
    own = {"printing.py", "consoles.py"}
    found = []
    for path in sorted([*(root / "extender/cli").rglob("*.py"), *(root / "model/cli").rglob("*.py")]):
        if path.name in own:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                *("print", "typer.echo", "typer.secho", "click.echo", "Console", "rich.print", "sys.stderr.write"),
            }:
                found.append(f"{path.relative_to(root)}:{node.lineno}")
    assert found == []


# The commands, of a Kerf in which every text is an author's.


def poisoned(value: Any, key: str = "") -> Any:
    """An answer with a tail on every text that is not Kerf's own word."""
    if isinstance(value, dict):
        return {name: poisoned(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item, key) for item in value]
    return value + EVIL if isinstance(value, str) and value and key not in NAMED_BY_KERF else value


@contextmanager
def poisoning(server: Demo) -> Iterator[str]:
    """The address of what passes requests on to a Kerf, and poisons its answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on(None)

        def do_POST(self) -> None:
            self._pass_on(self.rfile.read(int(self.headers["content-length"])))

        def _pass_on(self, body: bytes | None) -> None:
            connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.request("GET" if body is None else "POST", self.path, body)
            answer = connection.getresponse()
            content = json.dumps(poisoned(json.loads(answer.read()))).encode()
            connection.close()
            self.send_response(answer.status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nowhere."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        thread = Thread(target=proxy.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}"
        finally:
            proxy.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a demo that has decided on two pods, behind what poisons its answers."""
    with demo_here() as server:
        with server.connection() as connection:
            for name, gpus in (("placed", 1), ("pending", 8)):
                body = args(pod(name, gpus), ["a100-0", "t4-1", "cpu-0"])
                assert request(connection, "POST", "/filter", body).status == 200
        with poisoning(server) as address:
            yield address


MANIFEST = json.dumps(pod("more", 2))
ASKED = [
    ["explain", "default/placed"],
    ["explain", "default/placed", "--policy", "binpack"],
    ["explain", "default/placed", "--policy", f"no{EVIL}"],
    ["explain", "default/pending"],
    ["explain", "default/train-0"],
    ["explain", "default/nowhere"],
    ["top", "--once"],
    ["top", "--node", "a100-0"],
    ["pending"],
    ["pending", "--limit", "1"],
    ["workloads"],
    ["workloads", "--by", "owner"],
    ["usage"],
    ["usage", "--by", "owner"],
    ["usage", "--by", "model"],
    ["usage", "--idle"],
    ["usage", "--over-time", "--since", "1h"],
    ["what-if", "-f", "-"],
    ["what-if", "--drain", "a100-0"],
    ["defrag", "--gpus", "8"],
    ["defrag", "--gpus", "2", "--nodes", "2"],
    ["defrag", "--heal"],
    ["defrag", "-f", "-"],
    ["defrag", "--free-nodes", "1", "--apply"],
    ["defrag", "--stop"],
    ["drain", "a100-0"],
]


@pytest.mark.usefixtures("answered_here")
@pytest.mark.parametrize("arguments", ASKED, ids=lambda arguments: shown(" ".join(arguments)))
def test_no_command_hands_a_terminal_what_an_author_wrote(address: str, arguments: list[str]) -> None:
    forms = ["table", "json", "csv" if arguments[0] in ("usage", "workloads") else "yaml"]
    for form in forms:
        more = [] if "--stop" in arguments else ["-o", form]
        result = CliRunner().invoke(app, [*arguments, *more], env={"KERF_SERVER_URL": address}, input=MANIFEST)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert unreadable(result.stdout) == [], form
        assert unreadable(result.stderr) == [], form
        assert result.output
        if form == "json" and more and result.exit_code in (0, 3):
            assert EVIL in json.dumps(json.loads(result.stdout), ensure_ascii=False) or "x1b" not in result.stdout


def test_all_commands_that_ask_kerf_are_driven() -> None:
    others = {"serve", "demo", "plan", "pipeline", "node-agent", "hand-in", "install", "doctor", "config", "version"}
    assert {arguments[0] for arguments in ASKED} == COMMANDS.keys() - others


def test_a_sentence_of_others_ends_a_command_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BaseException):  # noqa: B017 - typer's own way out
        fail(f"kubectl: {EVIL}", 1)
    assert unreadable(capsys.readouterr().err) == []
