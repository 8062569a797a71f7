"""How long the queue leaves others their time between two rounds."""

import asyncio
import time

import pytest

from extender.queueing.gangs import Unit
from extender.queueing.options import Options
from extender.queueing.round_planner import RoundPlanner
from tests.queueing.rigs import Rig

OPTIONS = Options(max_open=4, interval_s=0.01)


def rested_s(window: int, on_way: int, most_s: float) -> float:
    """How long a planner rests that might let go `window` of two pods that fit, while so many are on their way."""
    rig = Rig(max_open=4)
    rig.node("n", 8)
    for number in range(on_way):
        rig.pod(f"left{number}", 1)
    rig.round()
    for name in ("a", "b"):
        rig.pod(name, 1)
    backlog = rig.queue.backlog
    planner = RoundPlanner(OPTIONS, rig.ledger, rig.placer, backlog, rig.queue.nodes, dict, lambda: rig.now)
    units = [Unit(name, (backlog.entries[name],)) for name in ("a", "b")]

    async def rest() -> float:
        await planner.plan(units, window, {})
        began = time.monotonic()
        await planner.rest(most_s)
        return time.monotonic() - began

    return asyncio.run(rest())


@pytest.mark.parametrize("on_way", [0, 1])
def test_it_does_not_rest_while_few_are_on_their_way_and_more_might_go(on_way: int) -> None:
    assert rested_s(window=1, on_way=on_way, most_s=60.0) < 10.0


@pytest.mark.parametrize(
    ("window", "on_way"), [(1, 2), (3, 0)], ids=["enough are on their way", "there was no more to let go"]
)
def test_it_rests_as_long_as_it_may_otherwise(window: int, on_way: int) -> None:
    assert rested_s(window, on_way, most_s=0.1) >= 0.1


def test_it_ends_its_rest_once_few_are_on_their_way() -> None:
    rig = Rig(max_open=4)
    rig.node("n", 8)
    for name in ("a", "b", "c"):
        rig.pod(name, 1)
    backlog = rig.queue.backlog
    planner = RoundPlanner(OPTIONS, rig.ledger, rig.placer, backlog, rig.queue.nodes, dict, lambda: rig.now)

    async def rest() -> None:
        await planner.plan([Unit("c", (backlog.entries["c"],))], 1, {})
        await rig.queue.run_round()
        for name in ("a", "b"):
            asyncio.get_running_loop().call_later(0.05, rig.bind, name)
        await asyncio.wait_for(planner.rest(60.0), 10.0)

    asyncio.run(rest())
    assert set(backlog.entries) == {"c"}
