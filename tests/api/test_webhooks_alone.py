"""A Kerf that serves webhooks and nothing else: what it answers, and what it holds."""

import json
from typing import Any

import pytest

from extender.kube.memory import MemoryCluster
from extender.kube.transport import PODS_PATH
from tests.api import bodies
from tests.api.bodies import pod
from tests.api.services import running

ALONE: dict[str, Any] = {"webhook__alone": True, "leader_election__mode": "never", "queue__enabled": True}


class Counting(MemoryCluster):
    """Counts who asks for pods."""

    num_asked = 0

    async def get(self, path: str, query: object = None) -> bytes:
        self.num_asked += path.startswith(PODS_PATH)
        return await super().get(path)


def test_it_answers_the_api_server_probes_and_prometheus() -> None:
    with running(**ALONE) as kerf:
        assert kerf.get("/syncz").status == kerf.get("/healthz").status == 200
        assert b"\nkerf_nodes " in kerf.get("/metrics").content
        review = {"request": {"uid": "1", "object": pod("p", annotations={"kerf.dev/gpu-count": "1"})}}
        for path in ("/mutate", "/gate"):
            assert json.loads(kerf.post(path, json.dumps(review).encode()).content)["response"]["allowed"] is True


@pytest.mark.parametrize("path", ["/", "/nodes", "/explain/pod/a/b", "/live", "/version", "/telemetry", "/docs"])
def test_it_tells_nobody_what_it_does_not_know(path: str) -> None:
    with running(**ALONE) as kerf:
        answer = kerf.get(path)
        assert answer.status == 404
        assert "webhook.alone" in answer.json()["detail"]


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind", "preempt", "others/filter", "what-if"])
def test_it_decides_nothing(verb: str) -> None:
    with running(**ALONE) as kerf:
        assert kerf.post(f"/{verb}", bodies.args(pod(gpus=1), ["t4-0"])).status == 404


@pytest.mark.parametrize("mode", ["never", "off", "own"])
def test_it_asks_for_no_pods(mode: str) -> None:
    cluster = Counting(bodies.CLUSTER)
    with running(cluster, **ALONE | {"leader_election__mode": mode}) as kerf:
        assert kerf.get("/readyz").status == 503
        assert kerf.metric("kerf_nodes") > 0
        names = {name for tasks in kerf.service.tasks for name in tasks.names}
    assert cluster.num_asked == 0
    assert "mirror nodes" in names
    assert not [name for name in names if "pod" in name or "telemetry" in name or "rank" in name]
