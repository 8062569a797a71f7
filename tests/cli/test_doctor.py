"""`kerf doctor`: which Prometheus, which names and units, and which nodes were not matched and why."""

import asyncio
import io
import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from extender.cli.doctor import _examine, _print
from extender.cli.main import app
from extender.demo.cluster import sample_cluster
from extender.demo.metrics import SampleFeed
from extender.kube.memory import MemoryCluster
from extender.settings.load import load_settings
from tests.api.bodies import node
from tests.api.services import Kerf, running
from tests.telemetry.servers import serving

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: it
contexts: [{{name: it, context: {{cluster: it, user: it}}}}]
clusters: [{{name: it, cluster: {{server: "{server}"}}}}]
users: [{{name: it, user: {{token: t}}}}]
"""
GOLDEN = Path(__file__).parents[1] / "telemetry" / "golden" / "dcgm-exporter-4.8.prom"


def examined(**flags: Any) -> dict[str, Any]:
    settings = load_settings(flags={name.replace("__", "."): value for name, value in flags.items()})
    cluster = MemoryCluster([node("gpu-node-1", 2), node("gpu-node-2", 2), node("cpu")])
    told, _ = asyncio.run(_examine(settings, cluster))
    _print(told, Console(file=io.StringIO()))
    return told


def test_everything_found_and_one_node_silent() -> None:
    with serving(lambda *_: (200, GOLDEN.read_bytes())) as server:
        told = examined(telemetry__exporters=[f"{server.url}/metrics"])
    assert told["state"] == "ok"
    assert told["nodes"] == {"missing": 1, "stale": 0, "fresh": 1}
    assert (told["gpus"], told["gpusMatched"]) == (2, 2)
    assert told["series"]["DCGM_FI_DEV_FB_USED"] == 2
    assert told["findings"] == ["node gpu-node-2: no series"]


def test_a_name_that_only_its_source_knows_is_listed_without_unit() -> None:
    with serving(lambda *_: (200, GOLDEN.read_bytes())) as server:
        told = examined(telemetry__exporters=[f"{server.url}/metrics"])
    told["series"] = {"my_exporter_gpu_load": 3}
    out = io.StringIO()
    _print(told, Console(file=out))
    assert "my_exporter_gpu_load" in out.getvalue()


def test_a_host_that_is_no_node_is_told_with_the_reason() -> None:
    page = GOLDEN.read_bytes().replace(b"gpu-node-1", b"renamed")
    with serving(lambda *_: (200, page)) as server:
        told = examined(telemetry__exporters=[f"{server.url}/metrics"])
    assert told["gpusMatched"] == 0
    address = server.url.removeprefix("http://")
    assert f"renamed at {address}: matches no node by name, exporter pod or address" in told["findings"]


def test_a_dead_prometheus_is_told() -> None:
    told = examined(telemetry__url="http://127.0.0.1:9")
    assert told["state"] == "degraded"
    assert "http://127.0.0.1:9: no connection" in told["findings"][0]


def test_from_outside_the_cluster_the_command_from_inside_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = examined(telemetry__url="http://127.0.0.1:9")
    assert outside["findings"][-1] == (
        "Services can rarely be reached from outside the cluster; from inside: "
        "kubectl -n NAMESPACE exec deploy/kerf -c kerf -- kerf doctor"
    )
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    inside = examined(telemetry__url="http://127.0.0.1:9")
    assert "kubectl" not in str(inside["findings"])


def test_a_clock_that_nobody_has_read_is_not_told() -> None:
    told = examined(telemetry__url="http://127.0.0.1:9")
    out = io.StringIO()
    _print(told, Console(file=out))
    assert "clock" not in out.getvalue()


def test_a_prometheus_that_sends_to_a_login_elsewhere_is_told() -> None:
    class Login(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", "https://sso.example.com/login?next=x")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Login) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        told = examined(telemetry__url=f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    assert "redirects to sso.example.com, perhaps a login: set telemetry.url" in told["findings"][0]


def test_no_prometheus_at_all_is_told() -> None:
    told = examined()
    assert told["state"] == "absent"
    assert "no Prometheus: none is configured" in told["findings"][0]
    assert examined(telemetry__source="off")["findings"] == ["telemetry is off (setting telemetry.source)"]


def test_the_demos_numbers_move() -> None:
    cluster = MemoryCluster(sample_cluster())
    now = [0.0]
    with running(cluster, feed=SampleFeed(cluster, lambda: now[0]), telemetry__interval_s=3600) as kerf:
        first = loads(kerf)
        now[0] += 10
        kerf.clock.now += 10
        second = loads(kerf)
        told = kerf.get("/telemetry").json()
    assert told["state"] == "ok"
    assert told["gpus"] == told["gpusMatched"] > 100
    assert first.keys() == second.keys()
    assert first != second


def told_of_ranks(
    tmp_path: Path, model: bytes, status: int = 200, ready: bytes = b'{"status": "ok"}'
) -> tuple[Result, Result]:
    """The command, as JSON and for people, where telemetry is off and a Kerf answers `GET /model` and /readyz so."""
    pages = {"/model": (status, model), "/readyz": (200, ready)}
    with serving(lambda path, *_: pages.get(path, (404, b"{}"))) as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG.format(server=server.url))
        arguments = "doctor", "--kubeconfig", str(kubeconfig), "--set", "telemetry.source=off", "--server", server.url
        return CliRunner().invoke(app, [*arguments, "-o", "json"]), CliRunner().invoke(app, [*arguments])


def test_which_rank_serves_is_told_with_the_trial_that_chose_it(tmp_path: Path) -> None:
    with running([node("n", 2)], decisions__policy="auto", model__mode="serve") as kerf:
        model = kerf.get("/model").json()
    model |= {"served": "model", "reason": None, "fault": None, "auto": "fgd"}
    model["evidence"] |= {"tried": 2, "ageSeconds": 7200.0, "reason": "2.84 ± 1.08 points better than kerf: fgd 63 %"}
    data, table = told_of_ranks(tmp_path, json.dumps(model).encode())
    assert json.loads(data.stdout)["rank"] == {
        key: model[key] for key in ("mode", "served", "reason", "auto", "evidence")
    }
    said = "rank: auto uses fgd: 2.84 ± 1.08 points better than kerf: fgd 63 % (trial 2, 2.0 h ago)\n"
    assert table.stdout.startswith(said)


def test_of_a_rank_that_was_not_tried_it_is_told_why(tmp_path: Path) -> None:
    with running([node("n", 2)], decisions__policy="auto", model__mode="serve") as kerf:
        fresh = kerf.get("/model").json()
    served = fresh | {"reason": None, "auto": "kerf"}
    for model, said in (
        (fresh, "tightest serves: the expected mix of pods is not known yet"),
        (served, "auto uses kerf; other ranks have not been tried yet"),
        (served | {"evidence": None}, "auto uses kerf; other ranks are not tried"),
    ):
        data, table = told_of_ranks(tmp_path, json.dumps(model).encode())
        assert table.stdout.startswith(f"rank: {said}\n")
        assert json.loads(data.stdout)["findings"] == ["telemetry is off (setting telemetry.source)"]


def test_a_rank_that_is_not_as_it_should_be_is_found(tmp_path: Path) -> None:
    with running([node("n", 2)], decisions__policy="auto", model__mode="serve") as kerf:
        model = kerf.get("/model").json() | {"fault": "model /m is refused; tightest ranks instead"}
    model["evidence"] |= {"fault": "did not finish within 1800 s"}
    data, _ = told_of_ranks(tmp_path, json.dumps(model).encode())
    assert data.exit_code == 1
    assert json.loads(data.stdout)["findings"][1:] == [
        "rank: model /m is refused; tightest ranks instead", "rank: did not finish within 1800 s",
    ]  # fmt: skip
    data, _ = told_of_ranks(tmp_path, b'{"detail": "a token, please"}', 401)
    assert json.loads(data.stdout)["findings"][1:] == ["GET /model: a token, please"]
    assert json.loads(data.stdout)["rank"] is None


def test_a_kube_scheduler_that_does_not_ask_is_found(tmp_path: Path) -> None:
    with running([node("n", 2)]) as kerf:
        model = json.dumps(kerf.get("/model").json()).encode()
    unasked = "kube-scheduler: has not asked Kerf about a pod with GPUs for 6 min, and 3 pods wait for it"
    ready = json.dumps({"status": "ok", "degraded": [unasked, "telemetry: down"]}).encode()
    data, table = told_of_ranks(tmp_path, model, ready=ready)
    assert data.exit_code == 1
    assert json.loads(data.stdout)["findings"][1:] == [unasked, "telemetry: down"]
    assert f"- {unasked}" in table.stdout


def loads(kerf: Kerf) -> Mapping[str, float]:
    """Load of each node's first GPU."""
    observer = kerf.service.observer
    assert observer is not None
    kerf.run(observer.round())
    cluster = kerf.service.placer.snapshot()
    assert cluster.observed is not None
    return {name: float(cluster.observed.value[0, row, 0]) for name, row in cluster.row_of.items()}
