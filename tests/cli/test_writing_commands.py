"""A command that writes says first to which cluster and as whom; and it means the cluster that kubectl means."""

import json
import os
import re
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from extender.cli.client.port_forwards import Cluster
from extender.cli.main import app
from tests.controlplane.processes import free_port
from tests.kube.test_kubeconfigs import kubeconfig, plugin, written


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two kubeconfigs, each with a current-context; the first acts as somebody else."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    port = free_port()
    team = kubeconfig("team", cluster={"server": f"http://127.0.0.1:{port}"}, user={"token": "t", "as": "jane"})
    production = kubeconfig("production", cluster={"server": f"http://127.0.0.2:{port}"})
    return [written(tmp_path / "team", team), written(tmp_path / "production", production)]


def kerf(paths: list[Path], *arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"KUBECONFIG": os.pathsep.join(map(str, paths))})


@pytest.mark.parametrize(
    "arguments",
    [["install", "dra", "--driver", "gpu.example.com"], ["plan", "--apply"]],
    ids=" ".join,
)
def test_server_context_and_user_are_named_first(paths: list[Path], arguments: list[str]) -> None:
    for order, where in (
        (paths, r"http://127.0.0.1:\d+, context team, user team, acting as jane"),
        (paths[::-1], r"http://127.0.0.2:\d+, context production, user production"),
    ):
        result = kerf(order, *arguments)
        assert result.exit_code == 1
        assert re.fullmatch(f"writes to {where}", result.stderr.splitlines()[0])
        assert result.stdout == ""


def test_what_only_reads_says_nothing_of_it(paths: list[Path]) -> None:
    for arguments in (["plan"], ["install", "check"], ["install", "dra", "--driver", "x.example.com", "--dry-run"]):
        assert "writes to" not in kerf(paths, *arguments).output


def test_a_model_is_handed_in_to_a_cluster_that_is_named(paths: list[Path]) -> None:
    model = Path(__file__).parents[2] / "extender" / "ranking" / "released"
    result = kerf(paths, "hand-in", "--model", str(model), "--to", "kerf-system/kerf-model")
    assert result.stderr.startswith("writes to http://127.0.0.1:")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_a_kerf_behind_a_port_forward_is_named_by_the_cluster_of_kubectl(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, paths)))
    told = Cluster(None, None, None).told()
    assert told.endswith(", context team, user team, acting as jane")
    assert Cluster(None, "production", None).told().endswith(", context production, user production")


@pytest.mark.parametrize(
    "arguments", [["defrag", "--gpus", "8", "--apply"], ["defrag", "--stop"], ["drain", "n", "--apply"]]
)
def test_a_kerf_that_is_to_move_pods_is_named_first(arguments: list[str]) -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            body = json.dumps({"detail": "no"}).encode()
            self.send_response(409)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nowhere."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        result = CliRunner().invoke(app, arguments, env={"KERF_SERVER_URL": address})
        server.shutdown()
    assert result.stderr == f"writes through Kerf at {address}\nno\n"
    assert len(asked) == 1


def test_a_plugin_that_fails_ends_a_command_with_its_words(paths: list[Path], tmp_path: Path) -> None:
    user = plugin(tmp_path / "plugin", "sys.exit('session expired: run `corp login` ä\\x1b[2J')")
    failing = written(tmp_path / "failing", kubeconfig("x", user=user))
    for arguments in (["install", "check"], ["plan"], ["doctor"]):
        result = kerf([failing, *paths], *arguments)
        assert result.exit_code == 1
        assert "session expired: run `corp login` ä\\x1b[2J" in result.stderr
        assert "anonymous" not in result.output
