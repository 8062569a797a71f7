"""The service as tests run it: ready at each call, however busy the machine is."""

import asyncio

from extender.kube.client import Query
from extender.kube.memory import MemoryCluster
from tests.api import bodies
from tests.api.bodies import pod
from tests.api.services import running


class Slow(MemoryCluster):
    """A slow API server."""

    async def get(self, path: str, query: Query | None = None) -> bytes:
        await asyncio.sleep(0.05)
        return await super().get(path, query)


def test_a_call_finds_the_service_ready_and_the_watch_taken_in() -> None:
    with running(Slow(bodies.CLUSTER)) as kerf:
        assert kerf.filter(pod("asking", 1), ["t4-0"])["NodeNames"] == ["t4-0"]
        for number in range(2_000):
            kerf.cluster.apply(pod(f"p{number}", 1))
        assert kerf.cluster.num_untold
        kerf.settle()
        assert not kerf.cluster.num_untold
