"""What a queue that allocates devices does besides its rounds."""

import asyncio
from functools import partial
from typing import cast

from extender.kube.client import Transport
from extender.kube.watches import PODS
from extender.ledger.mirror import Mirror
from extender.parts.dra.for_queue import allocating
from extender.parts.dra.keeper import ClaimKeeper
from extender.parts.dra.writer import _FINALIZER
from extender.queueing.devices import MakesAllocation
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.fence import Fence
from tests.parts.dra.rigs import ClaimRig
from tests.queueing.rigs import Rig


def keeper_of(claims: ClaimRig) -> MakesAllocation:
    """What allocates by the claims of that rig."""
    made = partial(
        ClaimKeeper,
        transport=cast(Transport, claims.api),
        mirror=cast(Mirror, claims.mirror),
        ledger=claims.ledger,
        owned=claims.owned,
        fence=cast(Fence, claims.fence),
        resolver=claims.resolver,
        clock=lambda: claims.now,
        max_age_s=float("inf"),
    )
    return lambda **of_queue: allocating(made(**of_queue))


def test_what_goes_on_besides_is_what_takes_devices_back() -> None:
    async def story() -> None:
        names = []
        for keeper in (None, keeper_of(ClaimRig())):
            queue = Rig(keeper=keeper).queue
            queue.start()
            names.append(set(queue.tasks.names))
            await queue.stop()
        assert names[1] - names[0] == {"queue's ResourceClaims"}
        assert names[0] < names[1]

    asyncio.run(story())


def test_a_new_leader_that_allocates_devices_has_others_writes_fail_first() -> None:
    claims = ClaimRig()
    claims.api.add("c")["metadata"]["finalizers"] = [_FINALIZER]
    before = claims.api.claims["c"]["metadata"]["resourceVersion"]
    rig = Rig(keeper=keeper_of(claims))
    rig.pod("a", 1)
    asyncio.run(rig.queue.catch_up())
    assert claims.api.claims["c"]["metadata"]["resourceVersion"] != before
    assert not rig.queue.backlog.entries


def test_why_claims_keep_a_pod_from_being_planned_is_said_on_it() -> None:
    claims = ClaimRig()
    rig = Rig(keeper=keeper_of(claims), hub=claims.mirror.hub)
    for reflector in claims.keeper.reflectors.values():
        reflector.num_lists = 1
    claims.api.add("shared")
    claims.tell("shared")
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
