"""The mover is built from the settings and the service's kernel."""

import asyncio
import time
from typing import Any, cast

import pytest

from extender.parts.defrag.checks import RoomError
from extender.parts.defrag.mover import build_mover
from extender.parts.defrag.settings import DefragSettings
from extender.parts.defrag.steps import Limits
from tests.parts.defrag.rigs import MOVE_V, WANTED, scattered


def test_no_pod_is_moved_without_a_queue_or_a_record() -> None:
    kernel = scattered().kernel()
    assert build_mover(kernel, DefragSettings()) is None
    cast(Any, kernel).queue = None
    assert build_mover(kernel, WANTED) is None


def test_the_settings_are_limits_of_the_mover() -> None:
    wanted = DefragSettings(record="a/b", replace_s=70, start_s=80, target_s=90, budget_s=5, moves_an_hour=7)
    tools = scattered().tools(wanted)
    assert tools.follower.limits == tools.targets.limits == Limits(70.0, 80.0, 90.0, 5.0)
    assert (tools.most_an_hour, tools.records.namespace, tools.records.name) == (7, "a", "b")
    defrag = scattered(wanted=WANTED.model_copy(update={"exempt_namespaces": ["x", "ns"]}))
    with pytest.raises(RoomError, match="namespace ns is exempt"):
        defrag.begin(MOVE_V)


def test_the_times_of_a_plan_are_unix_times() -> None:
    mover, began = build_mover(scattered().kernel(), WANTED), time.time()
    assert mover is not None
    asyncio.run(mover.begin(MOVE_V))
    assert began <= mover.state().begun <= time.time()


def test_no_plan_begins_while_the_queue_is_not_synced() -> None:
    defrag = scattered()
    for reflector in defrag.rig.queue.reflectors.values():
        reflector.num_lists = 0
    with pytest.raises(RoomError, match="waiting pods of the queue are not synced yet"):
        defrag.begin(MOVE_V)
