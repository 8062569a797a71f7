"""The fence: shut unless a term is certain, and what it lets through is confirmed."""

import asyncio

import pytest

from extender.kube.commit import FencedError
from extender.kube.leadership import Election, Unelected
from extender.kube.objects import Metadata
from extender.scheduling.fence import Fence
from tests.ledger.builders import Clock

KEY = "kerf.dev/epoch-kerf"


def leading(clock: Clock, until: float = 1010.0, election: Election | None = None) -> Fence:
    fence = Fence(clock, election)
    fence.take_over("taking over", lambda: until, lambda: "not renewed")
    fence.open("2-aa")
    return fence


def pod(version: str = "7", epoch: str | None = None) -> Metadata:
    return Metadata(uid="u", resource_version=version, annotations={KEY: epoch} if epoch else None)


def test_a_new_fence_is_shut() -> None:
    fence = Fence(Clock())
    assert fence.standby() == fence.fault() == "standby: not started"


def test_a_take_over_is_no_standby_and_gives_nothing_away() -> None:
    fence = Fence(Clock())
    fence.take_over("taking over", lambda: 1010.0, lambda: "not renewed")
    assert (fence.standby(), fence.fault()) == ("", "taking over")
    with pytest.raises(FencedError, match="taking over"):
        fence.enter()


def test_the_deadline_shuts_it_without_anybody_noticing() -> None:
    clock = Clock()
    fence = leading(clock)
    epoch = fence.enter()
    fence.check(epoch)
    clock.now = 1010.0
    with pytest.raises(FencedError, match="standby: not renewed"):
        fence.check(epoch)


def test_what_began_in_one_epoch_does_not_end_in_another() -> None:
    fence = leading(Clock())
    epoch = fence.enter()
    fence.shut(lambda: "b leads")
    fence.take_over("", lambda: 1010.0, str)
    fence.open("4-bb")
    with pytest.raises(FencedError, match="the leader's term in which it was decided has ended"):
        fence.check(epoch)


class Requests(Unelected):
    """An election whose requests the test counts."""

    def __init__(self) -> None:
        self.num_asked = 7
        self.num_hurries = 0
        self.since: list[int] = []

    def hurry(self) -> None:
        self.num_hurries += 1

    async def confirm(self, since: int) -> bool:
        self.since.append(since)
        return since < 9


def test_a_version_is_confirmed_by_a_request_sent_after_it_was_known() -> None:
    requests = Requests()
    fence = leading(Clock(), election=requests)
    fence.note(pod("6"))
    requests.num_asked = 8
    fence.note(pod("6"))  # known all along
    asyncio.run(fence.confirm("u", "6"))
    fence.note(pod("7"))
    asyncio.run(fence.confirm("u", "7"))
    requests.num_asked = 9
    with pytest.raises(FencedError, match="this process can't be sure that it still leads"):
        asyncio.run(fence.confirm("u", "another that was read just now"))
    with pytest.raises(FencedError):
        asyncio.run(fence.confirm_now())
    assert requests.since == [7, 8, 9, 9]
    assert requests.num_hurries == 2, "what may be bound soon is confirmed beforehand"


@pytest.mark.parametrize(("metadata", "version"), [(pod(), "7"), (pod(epoch="3-bb"), "7"), (pod(version=""), "")])
def test_the_versions_that_a_binding_may_carry(metadata: Metadata, version: str) -> None:
    fence = leading(Clock())
    fence.note(pod("6"))
    fence.note(metadata)
    assert fence.version_of("u") == version


def test_what_is_kept_is_bounded() -> None:
    fence = leading(Clock())
    for number in range(20_001):
        fence.note(Metadata(uid=str(number), resource_version="1"))
    assert (fence.version_of("0"), fence.version_of("1"), fence.version_of("20000")) == ("", "1", "1")
