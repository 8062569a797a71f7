"""The table of checks: the check that rejects a node explains it, and its relaxation passes it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from extender.core.clusters import Cluster
from extender.core.fit import fits
from extender.core.fit.checks import (
    BUILT_IN,
    TABLE,
    Change,
    Check,
    _counted,
    _do,
    _each,
    _found,
    _needs,
    _of_memory,
    _Table,
    _words,
    could_fit,
    resolvable,
)
from extender.core.fit.device_fits import DeviceFitting, SearchResult
from extender.core.fit.reasons import Kind, Reason, Remedy
from extender.core.fit.relaxations import _numbers, obstacles
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.explain.sentences.nearest import nearest_of
from tests.core.builders import T4, NodeState, all_rows, cluster_of, node, pattern, verdict
from tests.core.fit.claims import ask, asked, owned
from tests.core.fit.test_fits import node_states, requests

NAMELESS, UNMEASURED = ("", 15360), ("Tesla-T4", 0)
SHARE, TWO_SHARES = GpuRequest(1, AskedUnit.WHOLE, milli=500), GpuRequest(2, AskedUnit.WHOLE, 4096, milli=500)


def smaller(check: Check, cluster: Cluster, request: GpuRequest, number: int) -> GpuRequest | None:
    """The request that a check relaxes to, None for none; fewer GPUs with the same total memory ask more of each."""
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
def test_the_check_that_rejects_explains_and_its_relaxation_passes_it(state: NodeState, request: GpuRequest) -> None:
    code, number = verdict(state, request)
    cluster, check = cluster_of({"n": state}), TABLE[code]
    rows = all_rows(cluster)
    found = nearest_of(cluster, request, None, rows)
    assert found.fits == (code == Reason.FITS)
    if code == Reason.FITS:
        return
    of_one, _ = verdict(state, replace(request, count=1, memory_total_mib=min(request.memory_total_mib, 1)))
    if found.missing:
        assert check.missing is not None
    else:
        assert found.reason in {code, of_one} - {Reason.FITS}
        assert found.reason >= code
    fitting, lost = fits.exclusion_codes(cluster, request, rows)
    assert (lost[0] > 0).tolist() == [bool(text) for text in obstacles(cluster, request, rows)[0]]
    if check.of_kind and fitting.num_installed[0] >= fitting.needed:
        assert (lost[lost > 0] <= code).any()
    less = smaller(check, cluster, request, number)
    if less is not None:
        later, _ = verdict(state, less)
        assert later == Reason.FITS or later > code


OF_A100, OF_OTHER_UUID = GpuRequest(1, include=pattern("a100")), GpuRequest(1, uuids=frozenset({"GPU-b"}))
OF_40_GIB = GpuRequest(1, memory_each_mib=40960)
FAIL_BOTH = [
    (Reason.NO_GPUS, Reason.NOT_THIS_KIND, node(), GpuRequest(1)),
    (Reason.NOT_THIS_KIND, Reason.TOO_FEW_INSTALLED, node(T4), GpuRequest(2, AskedUnit.SHARED)),
    (Reason.TOO_FEW_INSTALLED, Reason.UNHEALTHY, node(T4, broken=[0]), GpuRequest(2)),
    (Reason.UNHEALTHY, Reason.WRONG_UUID, node(T4, broken=[0], uuids=["GPU-a"]), OF_OTHER_UUID),
    (Reason.WRONG_UUID, Reason.WRONG_MODEL, node(T4, uuids=["GPU-a"]), replace(OF_OTHER_UUID, include=pattern("a100"))),
    (Reason.WRONG_MODEL, Reason.TOO_SMALL, node(T4), replace(OF_A100, memory_each_mib=40960)),
    (Reason.MODEL_UNKNOWN, Reason.TOO_SMALL, node(NAMELESS), replace(OF_A100, memory_each_mib=40960)),
    (Reason.TOO_SMALL, Reason.SET_ASIDE, node(T4, aside=3), OF_40_GIB),
    (Reason.TOTAL_TOO_SMALL, Reason.SET_ASIDE, node(T4, aside=3), GpuRequest(1, memory_total_mib=40960)),
    (Reason.MEMORY_UNKNOWN, Reason.SET_ASIDE, node(UNMEASURED, aside=3), OF_40_GIB),
    (Reason.SET_ASIDE, Reason.KEPT_APART, node(T4, aside=3, picks=True, served=1), SHARE),
    (Reason.KEPT_APART, Reason.COMPUTE_BUSY, node(T4, picks=True, served=1, used={0: (600, 0)}), SHARE),
    (Reason.COMPUTE_BUSY, Reason.MEMORY_BUSY, node(T4, used={0: (600, 15000)}), replace(SHARE, memory_each_mib=4096)),
    (Reason.MEMORY_BUSY, Reason.BUSY, node(T4, T4, used={0: (100, 15000)}, untracked=1), TWO_SHARES),
    (Reason.BUSY, Reason.TOTAL_BUSY, node(T4, T4, untracked=1), GpuRequest(2, memory_total_mib=20000)),
]
"""Nodes that fail two checks, and for which request."""


def test_the_earlier_of_two_failing_checks_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the other one where their order is swapped."""
    for first, second, state, request in FAIL_BOTH:
        assert verdict(state, request)[0] == first
        swapped: dict[int, Reason] = {first: second, second: first}
        table = _Table(replace(check, reason=swapped.get(check.reason, check.reason)) for check in BUILT_IN)
        with monkeypatch.context() as patch:
            patch.setattr(fits, "TABLE", table)
            assert table[verdict(state, request)[0]].name == second.name


def test_the_nearest_reason_is_the_latest_or_of_those_that_pass_the_most_frequent() -> None:
    table = _Table([*BUILT_IN, Check(reason=64, name="OTHER", says=lambda request, number: "")])
    for reasons, nearest in (
        ([Reason.NO_GPUS, Reason.WRONG_MODEL, Reason.TOO_FEW_INSTALLED], Reason.WRONG_MODEL),
        ([Reason.TOTAL_TOO_SMALL, Reason.WRONG_MODEL], Reason.TOTAL_TOO_SMALL),
        ([Reason.SET_ASIDE, Reason.TOO_SMALL], Reason.SET_ASIDE),
        ([64, Reason.TOO_SMALL], 64),  # another package's
        ([64] * 3 + [Reason.BUSY], Reason.BUSY),
        ([Reason.MODEL_UNKNOWN] * 3 + [Reason.BUSY], Reason.BUSY),
        ([Reason.SET_ASIDE, Reason.SET_ASIDE, Reason.BUSY], Reason.BUSY),
        ([Reason.TOTAL_TOO_SMALL, Reason.KEPT_APART], Reason.KEPT_APART),
        ([Reason.KEPT_APART, Reason.KEPT_APART, Reason.BUSY], Reason.KEPT_APART),
        ([Reason.BUSY, Reason.OCCUPIED, Reason.BUSY], Reason.BUSY),
    ):
        assert table.nearest(np.array(reasons, np.uint8)) == nearest


def test_reasons_that_pass_when_pods_end() -> None:
    by_pods = {Reason.COMPUTE_BUSY, Reason.MEMORY_BUSY, Reason.BUSY, Reason.TOTAL_BUSY, Reason.KEPT_APART}
    every = np.array([Reason], np.uint8)  # (1, R)
    assert resolvable(every).tolist() == [[reason in by_pods for reason in Reason]]
    assert could_fit(every).tolist() == [[reason in by_pods | {Reason.FITS} for reason in Reason]]


def test_two_checks_of_one_code_are_refused_and_names_are_those_of_the_codes() -> None:
    with pytest.raises(ValueError, match="same code"):
        _Table([*BUILT_IN, BUILT_IN[3]])
    assert [reason for reason in Reason if TABLE[reason].name != reason.name] == [Reason.NOT_COUNTED]
    assert TABLE.names == [reason.name for reason in Reason if reason not in (Reason.FITS, Reason.NOT_COUNTED)]


# A check as the recipe in CONTRIBUTING.md makes it

TWO, OF_CLAIM = GpuRequest(2), GpuRequest(1, AskedUnit.CLAIM, devices=asked(ask()))


def test_what_a_new_check_says_and_advises() -> None:
    of_model = "best here: 1 of one model"
    for says, of_gpus, of_devices in (
        (_counted("of one model"), of_model, of_model),
        (_counted("of one model", "no such devices"), of_model, "no such devices"),
        (_of_memory("free"), "best here: 1 MiB free", "best here: 1 MiB free"),
        (_words("it rains"), "it rains", "it rains"),
    ):
        assert [says(TWO, 1), says(OF_CLAIM, 1)] == [f"needs {TWO}, {of_gpus}", f"needs {OF_CLAIM}, {of_devices}"]
    needs = _needs(lambda request, number: f"{request.count} and {number}", "none", joint=";")
    assert [needs(TWO, 1), needs(OF_CLAIM, 1)] == [f"needs {TWO}; 2 and 1", f"needs {OF_CLAIM}; none"]
    name, shown = "n" * 100, f"{'n' * 77}..."
    assert list(_do(Kind.POD, "ask {0}")(TWO, name, 1)) == [Remedy(Kind.POD, f"ask {shown}", f"kerf top {name}")]
    assert list(_do(Kind.WAIT, "{0}", "kerf {0} wait")(TWO, name, 1)) == [Remedy(Kind.WAIT, shown, f"kerf {name} wait")]


def test_the_defaults_and_numbers_of_a_new_check() -> None:
    plain = Check(reason=64, name="OTHER", says=_words(""))
    assert (plain.name, plain.relaxed(TWO), list(plain.remedies(TWO, "n1", 1))) == ("OTHER", None, [])
    assert Check(reason=Reason.BUSY, says=_words("")).name == "BUSY"
    missing = _each(lambda request: request.count)(GpuRequest(3), np.zeros((4, 2), np.int32))
    assert (missing.tolist(), missing.dtype.type) == ([3] * 4, np.int64)
    cluster = owned(dict.fromkeys("abcd")).snapshot()
    fitting = DeviceFitting(cluster, OF_CLAIM, all_rows(cluster))
    fitting.found = np.array(
        [SearchResult.ALL, SearchResult.NO_DEVICES, SearchResult.UNDECIDED, SearchResult.TAKEN], np.uint8
    )
    for found in SearchResult:
        failed, number = _found(found)(fitting)
        assert failed.tolist() == [one == found for one in fitting.found]
        assert (number.tolist(), number.dtype.type) == ([0] * 4, np.int64)
