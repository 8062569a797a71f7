"""The command line: what it prints, and with which exit status."""

import os
import re
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

import extender
from extender.cli.demo import port_of
from extender.cli.main import _ELSEWHERE, _OWN, app
from extender.core.faces import Heading
from extender.settings.load import load_settings
from extender.settings.tree import PARTS
from tests.controlplane.processes import clean_environment

COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|4[0-7]|9[0-7]|38|48)(?:;[0-9;]*)?m")
"""A colour on a terminal; bold and dim are none."""


NOBODY = """\
apiVersion: v1
kind: Config
current-context: nobody
clusters: [{name: nobody, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: nobody, user: {token: none}}]
contexts: [{name: nobody, context: {cluster: nobody, user: nobody}}]
"""
"""A kubeconfig of an API server at which nobody answers."""


def kerf(*arguments: str, **environment: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, arguments, env=environment)


def kerf_process(
    *arguments: str, cwd: Path, environment: dict[str, str], options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, without the caller's credentials."""
    return subprocess.run(
        [sys.executable, *options, "-m", "extender", *arguments],
        check=False,
        cwd=cwd,
        env=clean_environment(HOME=str(cwd), **environment),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["expain", "default/p"], "explain"),
        (["whatif"], "what-if"),
        (["simulat"], "simulate"),
        (["config", "chek"], "check"),
        (["install", "chck"], "check"),
    ],
)
def test_a_misspelt_command_is_told_what_it_was_meant_to_be(arguments: list[str], meant: str) -> None:
    result = kerf(*arguments)
    assert result.exit_code == 2
    assert f"do you mean {meant}?" in result.output


def test_a_command_that_is_close_to_none_gets_no_suggestion() -> None:
    result = kerf("xyzzy")
    assert (result.exit_code, "do you mean" in result.output) == (2, False)


def test_help_groups_the_commands_as_the_reference_does() -> None:
    page = (Path(extender.__file__).parents[1] / "docs" / "reference" / "cli.md").read_text()
    heading, groups = "", dict[str, set[str]]()
    for line in page.partition("## Exit status")[0].splitlines():
        if found := re.match(r"\| \*\*(.+?)\*\*", line):
            heading = found[1]
        elif line.startswith("| `kerf "):
            commands = re.findall(r"`kerf ([a-z-]+)", line.split("|")[1])
            groups.setdefault(heading, set()).update(commands)
    assert set(groups) == set(Heading)
    headings = [heading for heading in Heading if heading]
    told = {command: heading for heading, commands in groups.items() for command in commands}
    assert told == {name: command.heading for name, command in _OWN.items()} | _ELSEWHERE
    printed = kerf("--help").output
    assert [heading for heading in headings if f" {heading} " in printed] == headings


def test_config_check_names_files_that_are_not_there(tmp_path: Path) -> None:
    result = kerf("config", "check", "--set", "model.path=/nope", "--set", f"history.path={tmp_path}/made")
    assert result.exit_code == 0
    assert "model.path: there is no /nope on this machine" in result.output
    assert "history" not in result.output
    assert kerf("config", "check").output == "settings are valid\n"


def test_help_names_the_commands() -> None:
    result = kerf("--help")
    assert result.exit_code == 0
    for command in ("serve", "demo", "version", "config", "bench", "chaos"):
        assert f" {command} " in result.stdout


@pytest.mark.parametrize("arguments", [[], ["config"]], ids=["kerf", "kerf config"])
def test_no_command_shows_help(arguments: list[str]) -> None:
    result = kerf(*arguments)
    assert result.exit_code == 2
    assert "Usage" in result.output


def test_version() -> None:
    result = kerf("version")
    assert (result.exit_code, result.stdout) == (0, f"{extender.__version__}\n")


def test_config_show_gives_what_config_takes(tmp_path: Path) -> None:
    path = tmp_path / "kerf.yaml"
    path.write_text("models: {aliases: {big: [H100]}}")
    shown = kerf("config", "show", "--config", str(path), "--set", "server.port=9000", KERF_LOG__FORMAT="json")
    assert (shown.exit_code, shown.stderr) == (0, "")
    path.write_text(shown.stdout)
    settings = load_settings(path)
    assert (settings.server.port, settings.log.format, settings.models.aliases) == (9000, "json", {"big": ["H100"]})
    assert kerf("config", "show", "-c", str(path)).stdout == shown.stdout
    assert kerf("config", "show", KERF_CONFIG=str(path)).stdout == shown.stdout


def test_config_show_has_what_is_not_at_its_default_first() -> None:
    given = ("--set", "queue.order=fifo", "--set", "queue.enabled=true", "--set", "usage.budgets={a: 1}")
    shown = kerf("config", "show", *given).stdout
    kernel, *of_parts = shown.split("\n# Part ")
    assert kernel.startswith("# The kernel\nqueue:\n  enabled: true\n  order: fifo\n  extender: true\n")
    assert [part.split("\n")[1] for part in of_parts] == [f"{part.name}:" for part in PARTS]
    (usage,) = (part for part in of_parts if part.startswith("usage\n"))
    assert usage.startswith("usage\nusage:\n  budgets:\n    a: 1.0\n  enabled: true\n")


def test_config_check_of_good_settings() -> None:
    result = kerf("config", "check", "--set", "decisions.mode=scores", "--set", "log.level=debug")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "settings are valid\n", "")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["config", "check"], 1), (["config", "show"], 2), (["serve"], 2), (["demo"], 2)],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_faults_are_reported_all_at_once(arguments: list[str], status: int) -> None:
    bad = ["--set", "server.drain_s=-1", "--set", "sever.port=1", "--set", "port", "--set", "log.level={"]
    result = kerf(*arguments, *bad, KERF_LOG__FORMAT="xml")
    assert (result.exit_code, result.stdout) == (status, "")
    head, *lines = result.stderr.splitlines()
    assert head == "5 errors in the settings:"
    for place in (
        "server.drain_s: ",
        "sever: ",
        "--set port: write section.name=value",
        "--set log.level: ",
        "log.f",
    ):
        assert any(line.startswith(f"  {place}") for line in lines)


def test_one_fault_is_one_line_however_long() -> None:
    result = kerf("config", "check", "--config", f"/{'x' * 200}[bold]", TERM="dumb", COLUMNS="80")
    assert result.stderr.splitlines() == [
        "1 error in the settings:",
        f"  /{'x' * 200}[bold]: [Errno 2] No such file or directory: '/{'x' * 200}[bold]'",
    ]


@pytest.mark.parametrize(
    ("kubeconfig", "environment"),
    [
        # KERF_PORT as Kubernetes sets it for a Service named kerf: it does not matter to serve.
        pytest.param(None, {"KERF_PORT": "tcp://10.0.0.1:8888"}, id="none anywhere"),
        pytest.param("junk.yaml", {}, id="file of something else"),
    ],
)
def test_serve_without_credentials_says_what_to_do(
    tmp_path: Path, kubeconfig: str | None, environment: dict[str, str]
) -> None:
    (tmp_path / "junk.yaml").write_text("junk")
    flags = ["--kubeconfig", str(tmp_path / kubeconfig)] if kubeconfig else []
    result = kerf_process("serve", "--port", "0", *flags, cwd=tmp_path, environment=environment)
    assert (result.returncode, result.stdout) == (1, "")
    said = result.stderr.splitlines()[-1]
    assert said.startswith("no usable credentials for an API server (")
    assert said.endswith("give a kubeconfig with --kubeconfig or KUBECONFIG, or run in a pod with a service account")
    assert "Traceback" not in result.stderr


def test_bench_outside_a_checkout_says_where_to_run_it(tmp_path: Path) -> None:
    # What a wheel installs: the package, without tests/ beside it. -S leaves the editable install out.
    (tmp_path / "extender").symlink_to(Path(extender.__file__).parent)
    environment = {"PYTHONPATH": sysconfig.get_path("purelib")}
    result = kerf_process("bench", "calls", cwd=tmp_path, environment=environment, options=("-S",))
    assert (result.returncode, result.stdout) == (2, "")
    assert "needs a source checkout (No module named 'tests')" in result.stderr
    assert "run it there, as .venv/bin/kerf bench" in result.stderr
    assert "Traceback" not in result.stderr


def test_shell_completion_names_commands(tmp_path: Path) -> None:
    """As bash asks for it, by the script that --show-completion prints."""
    asked = os.environ | {"_KERF_COMPLETE": "complete_bash", "COMP_WORDS": "kerf in", "COMP_CWORD": "1"}
    script = Path(sysconfig.get_path("scripts")) / "kerf"
    shown = subprocess.run(
        [script], check=False, env={**os.environ, **asked}, capture_output=True, text=True, timeout=60
    )
    assert shown.stdout.split() == ["install"]


def test_no_colour_where_none_is_wanted() -> None:
    """Of help, faults and tables, on what says that it is a terminal with colours."""
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    fault = ["config", "check", "--set", "server.port=x"]
    assert "\x1b[" in kerf("--help", **terminal).output
    for arguments in (["--help"], fault, ["install", "check", "--kubeconfig", "/none"]):
        assert not COLOUR.search(kerf(*arguments, NO_COLOR="1", **terminal).output)


@pytest.mark.parametrize("command", ["demo", "serve"])
def test_a_port_that_is_taken_is_one_sentence_that_says_what_to_type(command: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        config = tmp_path / "config"
        config.write_text(NOBODY)
        options = ("--kubeconfig", str(config)) if command == "serve" else ()
        result = kerf_process(command, "--port", port, *options, cwd=tmp_path, environment={})
    assert result.returncode == 1
    (line,) = (line for line in result.stderr.splitlines() if "is taken" in line)
    assert f"port {port} of 127.0.0.1 is taken (address already in use)" in line and "--port" in line
    assert "Traceback" not in result.stderr


def test_the_demo_does_not_take_a_services_address_for_its_port() -> None:
    assert port_of("tcp://10.0.12.7:8888") == 8888
    assert port_of("9000") == 9000
    for wrong in ("http", "70000", "-1", ""):
        with pytest.raises(typer.BadParameter, match="is not a port"):
            port_of(wrong)
