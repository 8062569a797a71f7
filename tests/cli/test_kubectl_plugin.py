"""`kubectl kerf`, with a kubectl that says what it is told to: a real port-forward needs a real kubelet."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from extender.cli.client import kubectl_plugin
from extender.cli.main import app
from tests.api.demos import demo_here

KUBECTL = """#!{python}
import json, pathlib, signal, sys
here = pathlib.Path(__file__).parent
with (here / "asked").open("a") as asked:
    asked.write(" ".join(sys.argv[1:]) + "\\n")
words = [word for word in sys.argv[1:] if not word.startswith("--")]
if words[:2] == ["config", "view"]:
    print("team-a", end="")
elif words[0] == "get":
    print((here / "pods.json").read_text())
elif "port-forward" in words:
    port = (here / words[words.index("port-forward") + 1].removeprefix("pod/")).read_text()
    print(f"Forwarding from 127.0.0.1:{{port}} -> 8888", flush=True)
    signal.pause()
"""

FAILED = 1


def kerf_pod(name: str, namespace: str = "kerf-system", ready: str = "True") -> dict[str, Any]:
    """As the API server lists one."""
    conditions = [{"type": "Ready", "status": ready}]
    return {"metadata": {"name": name, "namespace": namespace}, "status": {"conditions": conditions}}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the pods of Kerf that kubectl lists, and what answers in each, by port."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL.format(python=sys.executable))
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def holds(pods: list[dict[str, Any]], **ports: int) -> None:
        (tmp_path / "pods.json").write_text(json.dumps({"items": pods}))
        for name, port in ports.items():
            (tmp_path / name).write_text(str(port))

    return holds


def kubectl_kerf(*arguments: str) -> Result:
    return CliRunner().invoke(kubectl_plugin.app, [*arguments])


@pytest.fixture(scope="module")
def port() -> Any:
    """Of a demo."""
    with demo_here() as server:
        yield server.port


def test_the_ready_pod_that_leads_is_asked(cluster: Callable[..., None], port: int, tmp_path: Path) -> None:
    pods = [kerf_pod("starting", ready="False"), kerf_pod("standby"), kerf_pod("leader")]
    cluster(pods, standby=1, leader=port)
    result = kubectl_kerf("top", "--once", "--context", "prod", "--kubeconfig", "/k")
    assert result.exit_code == 0, result.output
    assert " GPUs booked" in result.output
    asked = (tmp_path / "asked").read_text().splitlines()
    assert all("--context=prod" in line and "--kubeconfig=/k" in line for line in asked)
    assert [line.split()[-2] for line in asked if "port-forward" in line] == ["pod/standby", "pod/leader"]


def test_pods_are_of_the_context_s_namespace(cluster: Callable[..., None], port: int) -> None:
    cluster([kerf_pod("leader")], leader=port)
    assert "no recent decision about pod team-a/nobody" in kubectl_kerf("explain", "nobody").output
    assert "no recent decision about pod default/nobody" in kubectl_kerf("explain", "nobody", "-n", "default").output


def test_plain_kerf_follows_a_context_that_is_named(cluster: Callable[..., None], port: int) -> None:
    cluster([kerf_pod("leader")], leader=port)
    result = CliRunner().invoke(app, ["top", "--once", "--context", "prod"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        pytest.param([], "no Kerf pod in the cluster", id="none"),
        pytest.param([kerf_pod("a", ready="False")], "no Kerf pod in kerf-system is ready", id="not ready"),
        pytest.param([kerf_pod("a"), kerf_pod("a", "evil")], "choose with --kerf-namespace", id="two namespaces"),
        pytest.param([kerf_pod("a"), kerf_pod("b")], "none of the 2 Kerf pods is ready to decide", id="no leader"),
    ],
)
def test_a_cluster_without_a_kerf_to_ask(cluster: Callable[..., None], pods: list[Any], said: str) -> None:
    cluster(pods, a=1, b=1)
    result = kubectl_kerf("top", "--once")
    assert result.exit_code == FAILED
    assert said in result.output
    assert "--server" in result.output


def test_a_missing_server_s_hint_is_of_the_kerf_that_is_installed(cluster: Callable[..., None]) -> None:
    cluster([kerf_pod("kerf-node-1", "kube-system")])
    result = CliRunner().invoke(app, ["top", "--once", "--server", "http://127.0.0.1:1"])
    assert result.exit_code == FAILED
    assert "kubectl -n kube-system port-forward pod/kerf-node-1 8888" in result.output


def test_a_hint_names_no_namespace_that_nobody_has_seen(cluster: Callable[..., None]) -> None:
    cluster([])
    asked = ["top", "--once", "--server", "http://127.0.0.1:1"]
    found = CliRunner().invoke(app, asked)
    assert found.exit_code == FAILED
    assert "kubectl -n NAMESPACE-OF-KERF port-forward POD-OF-KERF 8888" in found.output
    told = CliRunner().invoke(app, [*asked, "--kerf-namespace", "gpu-ops", "--context", "prod"])
    assert "kubectl --context=prod -n gpu-ops port-forward POD-OF-KERF 8888" in told.output


def test_a_token_goes_to_no_kerf_that_nobody_named(
    cluster: Callable[..., None], port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERF_SERVER_TOKEN_FILE", str(tmp_path / "none"))  # whoever sends it would miss it
    cluster([kerf_pod("leader")], leader=port)
    assert kubectl_kerf("top", "--once").exit_code == 0
    named = kubectl_kerf("top", "--once", "--kerf-namespace", "kerf-system")
    assert "KERF_SERVER_TOKEN_FILE" in named.output
