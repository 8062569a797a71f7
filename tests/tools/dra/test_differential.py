"""What Kerf finds possible is what kube-scheduler's allocator finds possible; the long run is a command."""

from collections.abc import Iterator

import pytest

from tests.tools.dra.__main__ import Figures, check
from tests.tools.dra.cases import case_of
from tests.tools.dra.differential import Found, compare, confirm, find, pinned
from tests.tools.dra.oracle import Oracle
from tests.tools.dra.table import table_cases

pytestmark = pytest.mark.controlplane

DEFAULT_FEATURES = {
    "DRAAdminAccess",
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions+DRAResourceClaimDeviceStatus",
    "DRADeviceTaints",
    "DRAFractionalCapacityRange",
    "DRAPartitionableDevices",
    "DRAPrioritizedList",
}


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as oracle:
        yield oracle


def test_cases_made_by_chance_differ_nowhere_and_few_are_refused(oracle: Oracle) -> None:
    figures = Figures()
    for seed in range(1000, 1500):
        check(oracle, f"seed {seed}", case_of(seed), figures)
    assert not figures.differences, "\n".join(figures.lines())
    assert figures.outcomes["possible", "possible"] >= 100
    assert figures.refused.total() <= 0.05 * figures.num_nodes, "\n".join(figures.lines())


def test_the_tables_of_kube_schedulers_allocator_differ_nowhere(oracle: Oracle) -> None:
    """Those that need features which are off by default are tried as well: without them."""
    figures = Figures()
    cases = table_cases()
    for number, case in enumerate(cases):
        check(oracle, f"case {number}", case, figures)
    assert not figures.differences, "\n".join(figures.lines())
    handled = [case for case in cases if set(case["features"]) <= DEFAULT_FEATURES]
    assert len(cases) > 250
    assert figures.num_nodes - figures.refused.total() > 0.8 * len(handled)


def test_an_allocation_of_others_devices_is_a_difference(oracle: Oracle) -> None:
    """The comparison itself: what is allocated to somebody else, or twice, is noticed."""
    seeds = (seed for seed in range(500) if _possible(oracle, seed))
    case = case_of(next(seeds))
    node = case["nodes"][0]
    found = find(case, node["metadata"]["name"])
    assert found.allocation
    theirs = oracle.ask(case)[0]
    assert not confirm(theirs, oracle.ask(pinned(case, node, found))[0], found, case)
    nothing = {"outcome": "impossible"}
    assert compare(nothing, found).startswith("Kerf allocates what is impossible")
    assert compare(theirs, Found("impossible")) == "Kerf finds nothing"
    assert confirm(theirs, nothing, found, case).startswith("what Kerf allocates is impossible")


def _possible(oracle: Oracle, seed: int) -> bool:
    return bool(oracle.ask(case_of(seed))[0]["outcome"] == "possible")
