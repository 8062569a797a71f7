"""The mover as the settings want it: each of them means what the reference says."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from extender.api.contributions import Kernel
from extender.kube.client import ApiError, Transport
from extender.kube.commit import Resolver
from extender.kube.events import EventRecorder
from extender.ledger.mirror import Mirror
from extender.parts.defrag.checks import RoomError
from extender.parts.defrag.mover import Mover, build_mover
from extender.parts.defrag.settings import DefragSettings
from extender.scheduling.build import Foundation
from extender.settings.load import load_settings
from extender.settings.tree import Settings
from tests.parts.defrag.rigs import MOVE_V, Defrag
from tests.parts.defrag.test_steps import unheard
from tests.parts.defrag.test_surprises import BUDGET
from tests.parts.defrag.test_without_gate import comes

RECORD = "kerf/kerf-defrag"


def settings_of(**defrag: Any) -> Settings:
    return load_settings(flags={"queue.enabled": True, **{f"defrag.{name}": value for name, value in defrag.items()}})


class Built(Defrag):
    """A cluster whose mover is the service's own."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings_of(record=RECORD, **settings)
        self.wanted: DefragSettings = self.settings.defrag  # type: ignore[attr-defined]
        super().__init__()
        for name in "ab":
            self.node(name, 2)
        self.runs("v", "a")
        self.runs("w", "b", controller="other")
        self.waits("big", 2, controller="")
        self.tick()

    @property
    def foundation(self) -> Foundation:
        rig = self.rig
        return Foundation(
            transport=cast(Transport, self.api),
            clock=lambda: rig.now,
            ledger=rig.ledger,
            mirror=cast(Mirror, SimpleNamespace(hub=rig.hub)),
            events=cast(EventRecorder, SimpleNamespace(emit=self._emit, emit_about_config_map=self._emit_map)),
            election=rig.election,
            fence=rig.fence,
            resolver=Resolver(rig.fence, lambda: rig.now),
        )

    def kernel(self, **others: Any) -> Kernel:
        """What a mover is made of; `others` instead of the cluster's own."""
        rig = self.rig
        known = {"settings": self.settings, "base": self.foundation, "placer": rig.placer, "queue": rig.queue}
        return cast(Kernel, SimpleNamespace(**known | others))

    def _mover(self) -> Mover:
        mover = build_mover(self.kernel(), self.wanted)
        assert mover is not None
        return mover

    def refusal(self) -> str:
        """Why a plan is not begun."""
        with pytest.raises(RoomError) as error:
            self.begin(MOVE_V)
        return str(error.value)

    def evicts(self) -> "Built":
        """v is asked to go."""
        self.begin(MOVE_V)
        self.tick()
        assert self.api.evicted == ["v"]
        return self


def test_no_pod_is_moved_without_a_queue_or_a_record() -> None:
    built = Built()
    assert build_mover(built.kernel(queue=None), built.wanted) is None
    assert build_mover(built.kernel(), DefragSettings()) is None


def test_a_plan_is_carried_out_from_its_beginning_to_its_end() -> None:
    began = time.time()
    built = Built()
    mover = build_mover(built.kernel(), built.wanted)
    assert mover is not None
    built.mover = built.rig.kept_places = mover
    built.evicts()
    state = built.mover.state()
    assert began <= state.begun <= time.time()
    assert state.kept == ["a", "b"]
    assert built.about == [("ns", "big", "big"), ("ns", "v", "v")]
    built.leaves("v")
    pod = comes(built, "v2")
    assert built.rig.queue.place_kept(pod) == "b"
    built.bind("v2", "b")
    built.tick()
    entries = list(built.rig.queue.backlog.entries.values())
    assert [entry.uid for entry in mover.others(entries)] == []
    built.tick()
    assert built.node_of("big") == "a"
    built.bind("big")
    built.tick()
    assert (built.phase, built.why, built.api.record.phase) == ("done", "", "done")
    assert began <= built.mover.state().ended <= time.time()


def test_an_evicted_pod_has_its_time_to_end_and_to_be_replaced() -> None:
    built = Built(replace_s=70).evicts()
    built.tick(69.0)
    assert built.why == ""
    built.tick(2.0)
    assert built.why == "pod ns/v is still on node a after 70 s"


def test_a_replacement_has_its_time_to_start() -> None:
    built = Built(start_s=80).evicts()
    built.leaves("v")
    built.waits("v2")
    built.tick()
    built.tick(79.0)
    assert built.why == ""
    built.tick(2.0)
    assert built.why == "pod ns/v has a replacement without a node after 80 s"


def test_the_target_has_its_time_to_get_its_nodes() -> None:
    built = Built(target_s=90).evicts()
    built.is_replaced("v", "v2")
    built.tick()
    built.tick()
    assert (built.phase, built.node_of("big")) == ("placing", "a")
    built.tick(89.0)
    assert built.phase == "placing"
    built.tick(2.0)
    assert built.why == "pod ns/big has no node after 90 s"


def test_an_eviction_that_a_budget_refuses_is_tried_again_for_no_longer_than_it_may() -> None:
    built = Built(budget_s=0)
    built.api.refuse = lambda name: BUDGET
    built.begin(MOVE_V)
    built.tick()
    assert built.why == f"pod ns/v can't be evicted now: {BUDGET.message}"


def test_pods_of_exempt_namespaces_stay() -> None:
    assert Built(exempt_namespaces=["other", "ns"]).refusal() == "pod ns/v is left alone: namespace ns is exempt"
    Built(exempt_namespaces=["other"]).evicts()


def test_no_more_pods_are_moved_in_an_hour_than_may_be() -> None:
    built = Built(moves_an_hour=1).evicts()
    built.mover.give_up("enough")
    built.is_replaced("v", "v2")
    built.tick()
    built.bind("big")
    built.runs("v", "a", 0)
    built.waits("other", 2, controller="")
    assert built.phase == "stopped"
    built.leaves("big")
    built.leaves("v2")
    built.runs("v", "a")
    built.waits("big", 2, controller="")
    assert built.refusal() == "the plan has 1 moves, and 1 of 1 per hour are used up"


def test_nobody_is_moved_while_the_queue_does_not_know_its_pods() -> None:
    built = Built()
    for reflector in built.rig.queue.reflectors.values():
        reflector.num_lists = 0
    assert built.refusal() == "waiting pods of the queue are not synced yet"


def test_the_record_is_the_config_map_of_the_setting() -> None:
    built = Built()
    asked: list[str] = []
    get = built.api.get

    async def noted(path: str, query: object = None) -> bytes:
        asked.append(path)
        return await get(path, query)

    built.api.get = noted  # type: ignore[method-assign]
    built.begin(MOVE_V)
    assert asked[0] == "/api/v1/namespaces/kerf/configmaps/kerf-defrag"
    built.mover.give_up("asked to")
    assert built.about[-1] == ("kerf", "kerf-defrag", "")


def test_an_eviction_whose_fate_nobody_knows_is_given_to_what_finds_out() -> None:
    built = Built()
    foundation = built.foundation
    mover = build_mover(built.kernel(base=foundation), built.wanted)
    assert mover is not None
    built.mover = mover
    built.api.refuse = lambda name: ApiError(500, "", "broken")
    built.api.fail = lambda name, part: ApiError(500, "", "broken")
    version = built.api.pods["v"]["metadata"]["resourceVersion"]
    built.begin(MOVE_V)
    built.tick()
    built.api.fail = lambda name, part: None
    asyncio.run(foundation.resolver.resolve_round())
    assert built.api.pods["v"]["metadata"]["resourceVersion"] != version  # a late one is refused


def test_nobody_is_evicted_where_it_is_not_sure_who_leads() -> None:
    built = Built()
    built.begin(MOVE_V)
    built.rig.election.sure = False
    built.tick()
    assert (built.api.evicted, built.stages) == ([], ["left"])


def test_a_replacement_that_no_watch_tells_of_is_looked_at() -> None:
    built = Built().evicts()
    built.leaves("v")
    built.waits("v2")
    built.tick()
    unheard(built, phase="Succeeded")
    built.tick()
    built.tick(3.0)
    assert built.stages == ["done"]
