"""A Kerf that serves webhooks and nothing else: what it answers, and what it holds."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from extender.core.resources.quantities import MIB
from extender.kube.memory import MemoryCluster
from extender.kube.transport import PODS_PATH
from tests.api import bodies
from tests.api.bodies import pod, review
from tests.api.processes import Server, demo, request
from tests.api.services import Kerf, running
from tests.server.test_bodies import half_sent, resident_mib

ALONE: dict[str, Any] = {"webhook__alone": True, "leader_election__mode": "never", "queue__enabled": True}


class Counting(MemoryCluster):
    """Counts who asks for pods."""

    num_asked = 0

    async def get(self, path: str, query: object = None) -> bytes:
        self.num_asked += path.startswith(PODS_PATH)
        return await super().get(path)


@pytest.fixture(name="kerf", scope="module")
def kerf_fixture() -> Iterator[Kerf]:
    """One for all questions."""
    with running(**ALONE) as kerf:
        yield kerf


def test_it_answers_the_api_server_probes_and_prometheus(kerf: Kerf) -> None:
    assert kerf.get("/syncz").status == kerf.get("/healthz").status == 200
    assert b"\nkerf_nodes " in kerf.get("/metrics").content
    review = {"request": {"uid": "1", "object": pod("p", annotations={"kerf.dev/gpu-count": "1"})}}
    for path in ("/mutate", "/gate"):
        assert json.loads(kerf.post(path, json.dumps(review).encode()).content)["response"]["allowed"] is True


def test_it_tells_and_decides_nothing(kerf: Kerf) -> None:
    for path in ("/", "/nodes", "/explain/pod/a/b", "/live", "/version", "/telemetry", "/docs"):
        answer = kerf.get(path)
        assert (answer.status, "webhook.alone" in answer.json()["detail"]) == (404, True)
    for verb in ("filter", "prioritize", "bind", "preempt", "others/filter", "what-if"):
        assert kerf.post(f"/{verb}", bodies.args(pod(gpus=1), ["t4-0"])).status == 404


def test_it_asks_for_no_pods() -> None:
    for mode in ("never", "off", "own"):
        cluster = Counting(bodies.CLUSTER)
        with running(cluster, **ALONE | {"leader_election__mode": mode}) as kerf:
            assert kerf.get("/readyz").status == 503
            assert kerf.metric("kerf_nodes") > 0
            names = {name for tasks in kerf.service.tasks for name in tasks.names}
        assert cluster.num_asked == 0
        assert "mirror nodes" in names
        assert not [name for name in names if "pod" in name or "telemetry" in name or "rank" in name]


@pytest.mark.slow
def test_half_sent_bodies_to_a_webhook_take_little_memory_and_pods_are_gated_all_the_while(tmp_path: Path) -> None:
    log = tmp_path / "log"
    settings = ["--set=webhook.alone=true", "--set=queue.enabled=true", "--set=server.request_s=60"]
    with demo(log, settings) as process:
        server = Server(process, log)
        server.wait_for(lambda: server.get("/syncz").status == 200)
        before_mib = resident_mib(server)
        body = json.dumps(review(pod("p", gpus=1, labels={"kerf.dev/queue": "enabled"}))).encode()
        body += b" " * (3 * MIB - len(body))
        with ExitStack() as opened:
            for number in range(240):
                address = f"127.0.1.{1 + number % 12}"
                opened.enter_context(half_sent(server, "/gate", 4 * MIB - 2048, address))
                if number % 40 == 39:
                    with server.connection() as api_server:
                        answer = request(api_server, "POST", "/gate", body).json()["response"]
                    assert answer["allowed"] is True
                    assert answer["patch"]
        assert resident_mib(server) - before_mib < 160
        assert "Traceback" not in server.log
