"""What a queue that allocates devices does besides its rounds."""

import asyncio

from extender.kube.watches import PODS
from extender.parts.dra.writer import _FINALIZER
from extender.queueing.pods.objects import decode_pod
from tests.parts.dra.rigs import ClaimRig
from tests.queueing.rigs import Rig


def test_the_task_that_takes_devices_back_runs_beside_the_others() -> None:
    async def tasks() -> list[set[str]]:
        names = []
        for keeper in (None, ClaimRig().make_allocation):
            queue = Rig(keeper=keeper).queue
            queue.start()
            names.append(set(queue.tasks.names))
            await queue.stop()
        return names

    without, with_devices = asyncio.run(tasks())
    assert without
    assert with_devices - without == {"queue's ResourceClaims"}


def test_a_new_leader_that_allocates_devices_has_others_writes_fail_first() -> None:
    claims = ClaimRig()
    claims.api.add("c")["metadata"]["finalizers"] = [_FINALIZER]
    before = claims.version("c")
    rig = Rig(keeper=claims.make_allocation)
    rig.pod("a", 1)
    asyncio.run(rig.queue.catch_up())
    assert claims.version("c") != before
    assert not rig.queue.backlog.entries


def test_why_claims_keep_a_pod_from_being_planned_is_said_on_it() -> None:
    claims = ClaimRig()
    rig = Rig(keeper=claims.make_allocation, hub=claims.mirror.hub)
    claims.add("shared")
    rig.node("n", 2)
    for name in "ab":
        rig.pod(name, 0, gang="g", gang_size="2")
        pod = rig.api.pods[name]
        pod["metadata"]["namespace"] = "default"
        pod["spec"]["resourceClaims"] = [{"name": "shared", "resourceClaimName": "shared"}]
        rig.hub.cache(PODS).upsert(decode_pod(pod))
    rig.round(2.0)
    for name in "ab":
        assert "share ResourceClaim shared" in rig.note(name)
