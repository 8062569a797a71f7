"""The judge of devices: each promise is found broken where it was, and nothing where it was not."""

from collections.abc import Iterable
from typing import Any

import pytest

from tests.controlplane.objects import cpu_node
from tests.tools.chaos.checker import Violation
from tests.tools.chaos.devices import checker, manifests
from tests.tools.chaos.devices.books import Books
from tests.tools.chaos.devices.plans import DRIVERS, Ask, ClaimPlan, PoolKind, PoolPlan, RequestPlan
from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.journals import Journal
from tests.tools.chaos.stories import Story

PARTED = PoolPlan("n", PoolKind.PARTED, 2)
NETWORK = PoolPlan("n", PoolKind.NETWORK, 1)
OTHER = PoolPlan("n", PoolKind.OTHER, 1)
GPU = RequestPlan((Ask.GPU,))


class Allocating(Story):
    """Pools of devices, and claims that get some."""

    def __init__(self, *pools: PoolPlan) -> None:
        super().__init__(Journal())
        for pool in pools or (PARTED, NETWORK, OTHER):
            for index, made in enumerate(manifests.slices(pool, 1)):
                self.tell("slices", f"{pool.name}-{index}", spec=made["spec"])

    def tell(self, kind: str, name: str, *, metadata: Manifest | None = None, uid: str = "", **parts: Any) -> None:
        known = {"namespace": "default", "uid": uid or name}
        super().tell(kind, name, metadata=known | dict(metadata or {}), **parts)

    def claim(
        self,
        name: str,
        *devices: str,
        pool: PoolPlan = PARTED,
        pods: Iterable[str] = (),
        gbit: int = 0,
        by: str = "kerf",
        asked: RequestPlan = GPU,
        **metadata: Any,
    ) -> None:
        """A claim, with what it has."""
        consumed = {"consumedCapacity": {"gbit": str(gbit)}} if gbit else {}
        named = {"driver": DRIVERS[pool.kind], "pool": pool.name}
        results = [{"request": "r0", "device": device, **named, **consumed} for device in devices]
        reserved = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved} if devices else {}
        fields = [{"manager": by, "fieldsV1": {"f:status": {"f:allocation": {}}}}] if devices else []
        _, made = manifests.claim(ClaimPlan(name, (asked,)))
        self.tell("claims", name, metadata={"managedFields": fields, **metadata}, spec=made["spec"], status=status)

    def pod(
        self,
        name: str,
        *claims: str,
        node: str = "",
        gated: bool = False,
        gang: str = "",
        phase: str = "Pending",
        let_go: bool = False,
    ) -> None:
        """A pod that names claims."""
        named = [{"name": claim, "resourceClaimName": claim} for claim in claims]
        spec: dict[str, Any] = {"containers": [{}], "resourceClaims": named} | ({"nodeName": node} if node else {})
        if gated:
            spec["schedulingGates"] = [{"name": "kerf.dev/queue"}]
        annotations = {"kerf.dev/gang": gang, "kerf.dev/gang-size": "2"} if gang else {}
        annotations |= {"kerf.dev/planned-by": "greedy"} if let_go else {}
        self.tell("pods", name, metadata={"annotations": annotations}, spec=spec, status={"phase": phase})

    def violations(self, touched: Iterable[str] = ()) -> list[str]:
        return promises(checker.replay(self.journal, set(touched))[1])

    @property
    def books(self) -> Books:
        return checker.state(self.journal)


def promises(found: Iterable[Violation]) -> list[str]:
    return [violation.promise for violation in found]


def test_what_is_as_it_has_to_be_is_no_violation() -> None:
    story = Allocating()
    story.claim("a")
    story.pod("p", "a", gated=True)
    story.claim("a", "gpu-0", pods=["p"])
    story.pod("p", "a", node="n")
    story.claim("b", "gpu-1-1g5gb-0", "gpu-1-3g20gb-4")
    story.claim("c", "card-0", pool=NETWORK, gbit=60)
    story.claim("d", "card-0", pool=NETWORK, gbit=40)
    story.claim("e", "other-0", pool=OTHER, by="kube-scheduler")
    assert story.violations() == []


@pytest.mark.parametrize(
    ("first", "second", "promise"),
    [
        pytest.param({"devices": ["gpu-0"]}, {"devices": ["gpu-0"]}, "no device has two claims", id="a whole GPU"),
        pytest.param(
            {"devices": ["gpu-0-1g5gb-0"]}, {"devices": ["gpu-0-1g5gb-0"]}, "no device has two claims", id="a partition"
        ),
        pytest.param(
            {"devices": ["gpu-0"]},
            {"devices": ["gpu-0-1g5gb-6"]},
            "no counter above what a pool has",
            id="a GPU and its partition",
        ),
        pytest.param(
            {"devices": ["gpu-0-3g20gb-0"]},
            {"devices": ["gpu-0-2g10gb-2"]},
            "no counter above what a pool has",
            id="partitions that overlap",
        ),
        pytest.param(
            {"devices": ["card-0"], "pool": NETWORK, "gbit": 60},
            {"devices": ["card-0"], "pool": NETWORK, "gbit": 41},
            "no capacity above what a device has",
            id="bandwidth",
        ),
        pytest.param({}, {"devices": ["gpu-7"]}, "only devices that exist", id="one that never was"),
        pytest.param(
            {},
            {"devices": ["gpu-0"], "by": "kube-scheduler"},
            "devices are allocated by whoever owns them",
            id="theirs",
        ),
        pytest.param(
            {}, {"devices": ["other-0"], "pool": OTHER}, "devices are allocated by whoever owns them", id="by Kerf"
        ),
    ],
)
def test_devices_given_away_twice_and_by_others_are_found(
    first: dict[str, Any], second: dict[str, Any], promise: str
) -> None:
    story = Allocating()
    for name, given in (("a", first), ("b", second)):
        story.claim(name, *given.pop("devices", ()), **given)
    assert set(story.violations()) >= {promise}


def test_a_device_that_is_gone_is_taken_all_the_same_by_who_has_it() -> None:
    story = Allocating()
    story.claim("a", "gpu-1")
    story.gone("slices", f"{PARTED.name}-0")
    assert story.violations() == []
    story.claim("b", "gpu-1")
    assert story.violations() == ["no device has two claims"]


def test_a_claim_that_is_gone_has_its_devices_until_its_pod_has_ended() -> None:
    story = Allocating()
    story.claim("a", "gpu-0", pods=["p"])
    story.pod("p", "a", node="n")
    story.gone("claims", "a")
    story.claim("b", "gpu-0")
    assert "no device has two claims" in story.violations()


@pytest.mark.parametrize("ends", ["gone", "finished"])
def test_and_no_longer(ends: str) -> None:
    story = Allocating()
    story.claim("a", "gpu-0", pods=["p"])
    story.pod("p", "a", node="n")
    story.gone("claims", "a")
    if ends == "gone":
        story.gone("pods", "p")
    else:
        story.pod("p", "a", node="n", phase="Succeeded")
    story.claim("b", "gpu-0")
    assert story.violations() == []


@pytest.mark.parametrize(
    ("claim", "touched", "found"),
    [
        pytest.param({"devices": ["gpu-0"], "pods": ["p"]}, (), 0, id="all is well"),
        pytest.param({}, (), 1, id="without devices"),
        pytest.param({}, ("a",), 0, id="somebody else took them"),
        pytest.param({"deletionTimestamp": "now"}, (), 0, id="its author deletes it"),
        pytest.param({"devices": ["gpu-0"], "pods": ["q"]}, (), 1, id="for another pod"),
    ],
)
def test_a_pod_that_comes_to_a_node_has_all_its_devices_there(
    claim: dict[str, Any], touched: tuple[str, ...], found: int
) -> None:
    story = Allocating()
    story.claim("a", *claim.pop("devices", ()), **claim)
    story.pod("p", "a", node="n")
    story.claim("a")  # what becomes of it later changes nothing
    assert len(story.violations(touched)) == found


def test_devices_on_another_node_do_not_do() -> None:
    story = Allocating()
    story.claim("a", "gpu-0", pods=["p"])
    story.pod("p", "a", node="m")
    assert story.violations() == ["all claims of a bound pod have devices on its node"]


def test_what_was_not_told_is_not_judged() -> None:
    story = Allocating()
    story.claim("a")
    story.pod("p", "a", node="n")
    story.journal.listed("claims", "100", [])
    assert story.violations() == []


def test_watches_that_tell_late_are_put_in_order() -> None:
    story = Allocating()
    told = story.journal.told
    later: list[tuple[Any, ...]] = []
    story.journal.told = lambda *event: later.append(event)  # type: ignore[method-assign]
    story.claim("a", "gpu-0", pods=["p"])
    story.pod("p", "a", node="n")
    for event in reversed(later):
        told(*event)
    assert story.violations() == []


@pytest.mark.parametrize(
    ("pods", "promise"),
    [
        ([], "no devices are left with claims of pods that are gone"),
        ([{"phase": "Failed", "node": "n"}], "no devices are left with claims of pods that are gone"),
        ([{"gated": True}], "no devices are kept for pods that wait"),
        ([{"gated": True}, {}], ""),
        ([{"node": "n"}], ""),
    ],
)
def test_devices_that_nobody_uses_are_found(pods: list[dict[str, Any]], promise: str) -> None:
    story = Allocating()
    story.claim("a", "gpu-0")
    for number, of in enumerate(pods):
        story.pod(f"p{number}", "a", **of)
    assert promises(checker.kept(story.books)) == ([promise] if promise else [])


STRANDED = ["placed after the faults end"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (GPU, STRANDED),
        (RequestPlan((Ask.GPU,), count=2), []),
        (RequestPlan((Ask.LARGE,), count=2), STRANDED),
        (RequestPlan((Ask.LARGE,), count=3), []),
        (RequestPlan((Ask.LARGE, Ask.GPU), count=1), STRANDED),
        (RequestPlan((Ask.NETWORK,), gbit=40), STRANDED),
        (RequestPlan((Ask.NETWORK,), gbit=41), []),
        (RequestPlan((Ask.OTHER,)), STRANDED),
    ],
)
def test_pods_that_could_have_devices_are_found_waiting(asked: RequestPlan, found: list[str]) -> None:
    story = Allocating()
    story.claim("a", "gpu-1", pods=["p"])
    story.claim("n", "card-0", pool=NETWORK, gbit=60)
    story.claim("b", asked=asked)
    story.pod("q", "b", gated=True)
    assert promises(checker.stranded(story.books, [cpu_node("n")])) == found
    cordoned = cpu_node("n") | {"spec": {"unschedulable": True}}
    assert checker.stranded(story.books, [cordoned]) == []


@pytest.mark.parametrize(("ask", "found"), [(Ask.GPU, []), (Ask.OTHER, STRANDED)])
def test_a_pod_without_a_gate_has_no_claim_to_devices_of_kerf(ask: Ask, found: list[str]) -> None:
    story = Allocating()
    story.claim("a", asked=RequestPlan((ask,)))
    story.pod("p", "a")
    assert promises(checker.stranded(story.books, [cpu_node("n")])) == found
    story.pod("q", "a", let_go=True)
    assert promises(checker.stranded(story.books, [cpu_node("n")]))[-1:] == STRANDED


@pytest.mark.parametrize(("taken", "found"), [([], STRANDED), (["gpu-1-1g5gb-0"], [])])
def test_gangs_wait_for_room_for_all_of_them(taken: list[str], found: list[str]) -> None:
    story = Allocating()
    story.claim("t", *taken)
    for name in ("a", "b"):
        story.claim(name)
        story.pod(f"p-{name}", name, gated=True, gang="g")
    assert promises(checker.stranded(story.books, [cpu_node("n")])) == found


def test_a_pod_of_which_one_claim_has_its_devices_can_go_there_alone() -> None:
    story = Allocating(PARTED, PoolPlan("m", PoolKind.WHOLE, 1))
    for device in ("gpu-0", "gpu-1"):
        story.claim(device, device)
    story.claim("b")
    story.pod("p", "gpu-0", "b", gated=True)
    nodes = [cpu_node("n"), cpu_node("m")]
    assert checker.stranded(story.books, nodes) == []
    story.pod("q", "b", gated=True)
    assert promises(checker.stranded(story.books, nodes)) == STRANDED


def test_claims_that_are_missing_or_going_keep_their_pods() -> None:
    story = Allocating()
    story.claim("a", deletionTimestamp="now")
    story.pod("p", "a", gated=True)
    story.pod("q", "missing", gated=True)
    assert checker.stranded(story.books, [cpu_node("n")]) == []


def test_a_pool_that_is_being_published_gives_nothing() -> None:
    story = Allocating()
    newer = manifests.slices(PARTED, 2)[0]
    story.tell("slices", "newer", spec=newer["spec"])
    story.claim("a")
    story.pod("p", "a", gated=True)
    assert checker.stranded(story.books, [cpu_node("n")]) == []
    story.tell("slices", "newer-counters", spec=manifests.slices(PARTED, 2)[1]["spec"])
    assert promises(checker.stranded(story.books, [cpu_node("n")])) == STRANDED
