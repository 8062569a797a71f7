"""The table of checks: the row that refuses a node is the row that explains it, and what it relaxes gets past it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from extender.core.clusters import Cluster
from extender.core.fit import fits
from extender.core.fit.checks import BUILT_IN, TABLE, Change, Check, _Table
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Reason
from extender.core.fit.relaxations import _numbers, obstacles
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.explain.sentences.nearest import nearest_of
from tests.core.builders import NodeState, all_rows, cluster_of, node, pattern
from tests.core.fit.test_fits import node_states, requests

T4 = ("Tesla-T4", 15360)
NAMELESS, UNMEASURED = ("", 15360), ("Tesla-T4", 0)
SHARE = GpuRequest(1, AskedUnit.WHOLE, milli=500)


def refused(state: NodeState, request: GpuRequest) -> tuple[Cluster, int, int]:
    """A cluster of one node, the code of the check that it fails, and the number with that."""
    cluster = cluster_of({"n": state})
    checked = fit(cluster, request, all_rows(cluster))
    return cluster, int(checked.reason[0]), int(checked.available[0])


def smaller(check: Check, cluster: Cluster, request: GpuRequest, number: int) -> GpuRequest | None:
    """What a row of the table would have asked instead, None where no less of that would do; fewer GPUs for as much
    memory in total ask more of each."""
    if check.change == Change.COUNT and request.memory_total_mib:
        return None
    if relaxed := check.relaxed(request):
        return relaxed[1]
    for one in _numbers(cluster, request, all_rows(cluster)):
        if one.change == check.change and one.limits and number > 0:
            return one.smaller(one.limits[0] if check.reason == Reason.TOO_SMALL else number)
    return None


@settings(max_examples=10 * settings().max_examples)
@given(node_states(), requests())
def test_the_row_that_refuses_explains_and_what_it_relaxes_gets_past_it(state: NodeState, request: GpuRequest) -> None:
    cluster, code, number = refused(state, request)
    rows, check = all_rows(cluster), TABLE[code]
    found = nearest_of(cluster, request, None, rows)
    assert found.fits == (code == Reason.FITS)
    if code == Reason.FITS:
        return
    _, of_one, _ = refused(state, replace(request, count=1, memory_total_mib=min(request.memory_total_mib, 1)))
    if found.missing:
        assert check.missing is not None
    else:
        assert found.reason in {code, of_one} - {Reason.FITS}
        assert found.reason >= code
    fitting, lost = fits.lost(cluster, request, rows)
    assert (lost[0] > 0).tolist() == [bool(text) for text in obstacles(cluster, request, rows)[0]]
    if check.of_kind and fitting.num_installed[0] >= fitting.needed:
        assert (lost[lost > 0] <= code).any()
    less = smaller(check, cluster, request, number)
    if less is not None:
        _, later, _ = refused(state, less)
        assert later == Reason.FITS or later > code


FAIL_BOTH = {
    (Reason.NO_GPUS, Reason.NOT_THIS_KIND): (node(), GpuRequest(1)),
    (Reason.NOT_THIS_KIND, Reason.TOO_FEW_INSTALLED): (node(T4), GpuRequest(2, AskedUnit.SHARED)),
    (Reason.TOO_FEW_INSTALLED, Reason.UNHEALTHY): (node(T4, broken=[0]), GpuRequest(2)),
    (Reason.UNHEALTHY, Reason.WRONG_UUID): (
        node(T4, broken=[0], uuids=["GPU-a"]),
        GpuRequest(1, uuids=frozenset({"GPU-b"})),
    ),
    (Reason.WRONG_UUID, Reason.WRONG_MODEL): (
        node(T4, uuids=["GPU-a"]),
        GpuRequest(1, include=pattern("a100"), uuids=frozenset({"GPU-b"})),
    ),
    (Reason.WRONG_MODEL, Reason.TOO_SMALL): (
        node(T4),
        GpuRequest(1, memory_each_mib=40960, include=pattern("a100")),
    ),
    (Reason.MODEL_UNKNOWN, Reason.TOO_SMALL): (
        node(NAMELESS),
        GpuRequest(1, memory_each_mib=40960, include=pattern("a100")),
    ),
    (Reason.TOO_SMALL, Reason.SET_ASIDE): (node(T4, aside=3), GpuRequest(1, memory_each_mib=40960)),
    (Reason.TOTAL_TOO_SMALL, Reason.SET_ASIDE): (node(T4, aside=3), GpuRequest(1, memory_total_mib=40960)),
    (Reason.MEMORY_UNKNOWN, Reason.SET_ASIDE): (node(UNMEASURED, aside=3), GpuRequest(1, memory_each_mib=40960)),
    (Reason.SET_ASIDE, Reason.KEPT_APART): (node(T4, aside=3, picks=True, served=1), SHARE),
    (Reason.KEPT_APART, Reason.COMPUTE_BUSY): (node(T4, picks=True, served=1, used={0: (600, 0)}), SHARE),
    (Reason.COMPUTE_BUSY, Reason.MEMORY_BUSY): (
        node(T4, used={0: (600, 15000)}),
        GpuRequest(1, AskedUnit.WHOLE, 4096, milli=500),
    ),
    (Reason.MEMORY_BUSY, Reason.BUSY): (
        node(T4, T4, used={0: (100, 15000)}, untracked=1),
        GpuRequest(2, AskedUnit.WHOLE, 4096, milli=500),
    ),
    (Reason.BUSY, Reason.TOTAL_BUSY): (node(T4, T4, untracked=1), GpuRequest(2, memory_total_mib=20000)),
}
"""Nodes that fail two checks, and for which request."""


@pytest.mark.parametrize(
    ("both", "case"), FAIL_BOTH.items(), ids=lambda one: one[0].name if isinstance(one[0], Reason) else ""
)
def test_of_two_that_fail_the_earlier_one_tells(
    both: tuple[Reason, Reason], case: tuple[NodeState, GpuRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the other one where the order is another."""
    first, second = both
    assert refused(*case)[1] == first
    swapped: dict[int, Reason] = {first: second, second: first}
    table = _Table(replace(check, reason=swapped.get(check.reason, check.reason)) for check in BUILT_IN)
    monkeypatch.setattr(fits, "TABLE", table)
    assert table[refused(*case)[1]].name == second.name


@pytest.mark.parametrize(
    ("reasons", "nearest"),
    [
        pytest.param([Reason.SET_ASIDE, Reason.SET_ASIDE, Reason.BUSY], Reason.BUSY, id="set aside outvotes nothing"),
        pytest.param([Reason.SET_ASIDE, Reason.TOO_SMALL], Reason.SET_ASIDE, id="set aside is nearer than too small"),
        pytest.param([Reason.TOTAL_TOO_SMALL, Reason.WRONG_MODEL], Reason.TOTAL_TOO_SMALL, id="the total comes late"),
        pytest.param([Reason.TOTAL_TOO_SMALL, Reason.KEPT_APART], Reason.KEPT_APART, id="what passes is nearer"),
        pytest.param([Reason.MODEL_UNKNOWN] * 3 + [Reason.BUSY], Reason.BUSY, id="what is not known is no room"),
        pytest.param([64] * 3 + [Reason.BUSY], Reason.BUSY, id="a lasting one of another package outvotes nothing"),
        pytest.param([64, Reason.TOO_SMALL], 64, id="it comes after Kerf's own"),
    ],
)
def test_the_nearest_reason_goes_by_the_order_of_the_checks(reasons: list[int], nearest: int) -> None:
    table = _Table([*BUILT_IN, Check(reason=64, name="OTHER", says=lambda request, number: "")])
    found = np.array(reasons, np.uint8)
    assert table.nearest(found) == nearest


def test_two_rows_of_one_code_are_refused() -> None:
    with pytest.raises(ValueError, match="same code"):
        _Table([*BUILT_IN, BUILT_IN[3]])
