"""An eviction is a commit like any other."""

import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st

from extender.parts.defrag.evictions import _Eviction
from extender.parts.defrag.plan import PlannedMove
from tests.queueing.test_commits import Case, Process, World, mark

MOVE = PlannedMove("default/p", "uid-p", "n", "m", step=0, gpus=[0], cost_gpu_s=0.0, controller="c")


def eviction(process: Process) -> _Eviction:
    return _Eviction(process.line, process.resolver, MOVE, "")


@settings(max_examples=4 * settings().max_examples)
@given(seed=st.integers(0, 2**32))
@example(seed=3)  # an unknown outcome has to be sealed
@example(seed=31)  # a new leader has to change the pod
@example(seed=137)  # leadership has to be confirmed
@example(seed=143)  # again for each new resourceVersion
def test_it_takes_effect_once_or_never_and_it_is_known_which(seed: int) -> None:
    world = World(Case("an eviction", eviction, mark, shared=True), seed)
    asyncio.run(world.run())
    world.check()
