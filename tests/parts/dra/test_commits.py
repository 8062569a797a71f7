"""The fence's promises, for the allocation of a claim: as of tests/queueing/test_commits.py."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from extender.parts.dra.keeper import _Allocation
from tests.parts.dra.rigs import ClaimRig
from tests.queueing.test_commits import Case, Process, takes_effect_once_or_never


def allocation(process: Process) -> _Allocation | None:
    if process.slow.server.claims.claims["a"]["status"]:
        return None  # it has its devices
    rig = ClaimRig(gpus=1, api=process.slow.server.claims, transport=process.line)
    rig.tell("a")
    pod = rig.pod(process.name, "a").pod
    assert rig.decide(pod)
    (hold,) = rig.owned.holds.values()
    rig.keeper.resolver = process.resolver
    return _Allocation(rig.keeper, "u-a", hold, "")


async def seal_claims(process: Process) -> None:
    rig = ClaimRig(gpus=1, api=process.slow.server.claims, transport=process.line)
    await rig.keeper.catch_up()


CASE = Case("a claim's allocation", allocation, seal_claims)


@settings(max_examples=2 * settings().max_examples)
@given(seed=st.integers(0, 2**32))
@example(seed=3)  # what is unknown has to be sealed
@example(seed=31)  # whoever takes over has to change it
@example(seed=137)  # that nobody else leads has to be confirmed
@example(seed=143)  # anew for a version that is new
def test_an_allocation_takes_effect_once_or_never_and_it_is_known_which(seed: int) -> None:
    takes_effect_once_or_never(CASE, seed)
