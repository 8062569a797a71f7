"""Filters of other packages: the example as pip installs it, and what a filter can and cannot do."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster, Mask, Rows
from extender.core.evaluations import Memo, evaluate
from extender.core.fit import filters
from extender.core.fit.checks import BUILT_IN, TABLE, could_fit, resolvable
from extender.core.fit.filters import Filter, _check
from extender.core.fit.fits import fit, fit_devices
from extender.core.fit.reasons import MAX_FILTERS, Reason
from extender.core.fit.relaxations import obstacles, relaxations
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.explain.sentences.nearest import nearest_of
from extender.ledger.arrays import HeldAmounts
from extender.settings.load import SettingsError, load_settings
from tests.api import bodies
from tests.api.services import running
from tests.core.builders import A100, ONE, T4, NodeState, all_rows, arrays_of, cluster_of, fit_all, node, wholly
from tests.core.fit.claims import ask, asked, gpus, owned
from tests.core.fit.test_fits import CLUSTERS, requests
from tests.docs.example import broken, example_on_path
from tests.docs.recipe_uses import annotated

LASTING, PASSING = 64, 160
"""Codes of the first filter that fails permanently, and of the first that passes when other pods end."""


@pytest.fixture(autouse=True)
def own_checks_alone() -> Iterator[None]:
    yield
    TABLE.only(BUILT_IN)


def add(passes: Callable[[Cluster, GpuRequest, Rows], Mask], name: str = "OTHER", **more: object) -> None:
    TABLE.add(_check(name, Filter(passes, "no: {number}", **more)))  # type: ignore[arg-type]


def test_the_service_applies_it_and_reports_it_everywhere(example: Path) -> None:
    load_settings()
    models = [{"index": 0, "model": "Tesla-T4"}, {"index": 1, "model": "A100-SXM4-40GB"}]
    with running([annotated(bodies.node("mixed", 2), gpus=json.dumps(models))]) as kerf:
        asking = bodies.pod("two", 2)
        kerf.create(asking)
        answer = kerf.filter(asking, ["mixed"])
        (why,) = answer["FailedAndUnresolvableNodes"].values()
        assert (answer["NodeNames"], why) == ([], "needs 2 GPUs, GPUs of several models here")
        told = kerf.get("/explain/pod/default/two").json()
        assert [(one["reason"], one["text"], one["busy"]) for one in told["nodes"]] == [("MIXED_MODELS", why, False)]
        assert told["sentence"].endswith("mixed is nearest: GPUs of several models here")
        assert [one["change"] for one in told["wouldFit"]][:1] == ["count"]
        assert ("filter", "one GPU") in [(one["change"], one["text"]) for one in told["wouldFit"]]
        assert "put GPUs of different models on different nodes" in [one["text"] for one in told["remedies"]]
        assert 'kerf_rejections_total{reason="mixed_models"} 1.0' in kerf.get("/metrics").content.decode()
        kerf.create(bodies.pod("one", 1))
        assert kerf.filter(bodies.pod("one", 1), ["mixed"])["NodeNames"] == ["mixed"]


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import no_such_module", "ModuleNotFoundError"),
        ("FILTER = 1", "it is not a Filter but 1"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_kerf_does_not_start_without_a_filter_that_cannot_be_loaded(tmp_path: Path, source: str, fault: str) -> None:
    """Pods would go where it was to keep them from."""
    broken(tmp_path, "[kerf.filters]\nODD = kerf_broken:FILTER", source)
    with example_on_path(tmp_path):
        with pytest.raises(SettingsError, match=f"filter ODD.*{fault}"):
            load_settings()
        sys.modules.pop("kerf_broken", None)
    load_settings()


def test_each_process_that_runs_checks_has_the_filters(site: Path) -> None:
    """Also those of what-if and defrag, which read no settings."""
    program = "import extender.core.fit.fits; from extender.core.fit.checks import TABLE; print(*TABLE.names)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(site), os.environ.get("PYTHONPATH", "")))}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    assert "MIXED_MODELS" in ran.stdout.split()


def test_a_filter_that_fails_rejects_all_until_it_works_again() -> None:
    results: list[object] = []

    def passes(cluster: Cluster, request: GpuRequest, rows: Rows) -> Mask:
        if results[0] is None:
            raise KeyError("rack")
        return results[0]  # type: ignore[return-value]

    add(passes)
    assert TABLE[LASTING].says(ONE, 3) == "needs 1 GPU, no: 3"
    cluster = cluster_of({"a": node(T4)})
    for result, fault in (
        (None, "KeyError: 'rack'"),
        (np.ones(3, np.bool_), "ValueError: it returned bool of shape (3,) for 1 rows"),
        (np.ones(1), "ValueError: it returned float64 of shape (1,) for 1 rows"),
        (1, "ValueError: it returned int64 of shape () for 1 rows"),
    ):
        results[:] = [result]
        assert not fit_all(cluster).fits.any()
        assert TABLE[LASTING].says(ONE, 3) == f"needs 1 GPU, filter OTHER has failed: {fault}"
        results[:] = [np.ones(1, np.bool_)]
        assert fit_all(cluster).fits.all()
        assert TABLE[LASTING].says(ONE, 3) == "needs 1 GPU, no: 3"


@given(CLUSTERS, requests(), st.data())
def test_a_filter_only_rejects_what_kerf_lets_pass(
    states: dict[str, NodeState], request: GpuRequest, data: st.DataObject
) -> None:
    cluster = cluster_of(states)
    rows, lasting = all_rows(cluster), data.draw(st.booleans())
    shape = data.draw(st.sampled_from([(len(rows),), cluster.gpu_model.shape]))
    size = int(np.prod(shape))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size))).reshape(shape)
    before = fit(cluster, request, rows)
    add(lambda cluster, request, rows: mask[rows], lasting=lasting)
    try:
        after = fit(cluster, request, rows)
    finally:
        TABLE.only(BUILT_IN)
    assert not (after.fits & ~before.fits).any()
    if mask.ndim == 1:
        assert (after.fits == before.fits & mask).all()
    else:
        assert not (after.room & after.fits[:, None] & ~mask).any()
    code = LASTING if lasting else PASSING
    assert (before.fits | (before.reason > code))[after.reason == code].all()


def test_gpus_that_do_not_pass_are_excluded() -> None:
    add(lambda cluster, request, rows: cluster.gpu_memory_mib[rows] > 20000, of_gpu="of too little memory")
    cluster = cluster_of({"a": node(T4, A100, A100), "b": node(T4)})
    checked = fit_all(cluster)
    assert checked.room.tolist() == [[False, True, True], [False, False, False]]
    assert checked.fits.tolist() == fit_all(cluster, GpuRequest(2)).fits.tolist() == [True, False]
    assert obstacles(cluster, ONE, all_rows(cluster)) == [["of too little memory", "", ""]] * 2
    found = nearest_of(cluster, GpuRequest(3), None, all_rows(cluster))
    assert (found.words, found.reason) == ("needs 3 GPUs; a is nearest: no: 2", LASTING)


def test_only_a_filter_that_passes_when_pods_end_makes_nodes_candidates_for_preemption() -> None:
    cluster = cluster_of({"a": node(T4), "b": node(T4, held=[0]), "c": node()})
    for lasting, code in ((False, PASSING), (True, LASTING)):
        add(lambda cluster, request, rows: np.zeros(len(rows), np.bool_), lasting=lasting)
        reasons = fit_all(cluster).reason
        assert reasons.tolist() == [code, code, Reason.NO_GPUS]
        assert TABLE[code].name == "OTHER"
        assert resolvable(reasons).tolist() == could_fit(reasons).tolist() == [not lasting, not lasting, False]
        assert relaxations(cluster, ONE, all_rows(cluster)) == []
        assert list(TABLE[code].remedies(ONE, "a", 0)) == []
        TABLE.only(BUILT_IN)


@pytest.mark.parametrize("of_gpus", [False, True])
def test_for_mig_devices_and_claims_a_node_passes_if_one_of_its_gpus_does(of_gpus: bool) -> None:
    requests: list[GpuRequest] = []

    def second(cluster: Cluster, request: GpuRequest, rows: Rows) -> Mask:
        requests.append(request)
        passes = np.zeros(cluster.gpu_model.shape, np.bool_)
        passes[1, -1] = True
        return passes[rows] if of_gpus else passes[rows, -1]

    add(second)
    of_mig = GpuRequest(1, AskedUnit.MIG, mig=(("1g.5gb", 1),))
    claimed = owned({"a": gpus(2), "b": gpus(2)}).snapshot()
    for checked in (
        fit_all(cluster_of({name: node(T4, T4, mig={"1g.5gb": 1}) for name in "ab"}), of_mig),
        fit_devices(claimed, asked(ask()), all_rows(claimed)),
    ):
        assert (checked.reason.tolist(), checked.available.tolist()) == ([LASTING, Reason.FITS], [0, 1])
        assert checked.available.dtype == np.int64
    assert requests == [of_mig, GpuRequest(1, AskedUnit.CLAIM, devices=asked(ask()))]


def test_a_relaxed_request_is_described_by_the_filter_or_its_name() -> None:
    for name, words, fewer in (("FIRST", "", 2), ("SECOND", "fewer GPUs", 1), ("THIRD", "fewer GPUs", 2)):
        add(
            lambda cluster, request, rows: np.full(len(rows), request.count < 3),
            name,
            relax=lambda request, fewer=fewer: GpuRequest(fewer) if request.count > 2 else None,
            relaxed=words,
        )
    cluster = cluster_of({"a": node(T4, T4, T4)})
    found = relaxations(cluster, GpuRequest(3), all_rows(cluster))
    assert [(one.change, one.text, one.rows.tolist()) for one in found] == [
        ("count", "2 GPUs instead of 3", [0]),
        ("filter", "as filter FIRST suggests", [0]),
        ("filter", "fewer GPUs", [0]),
        ("filter", "fewer GPUs", [0]),
    ]


def test_results_are_not_cached_by_state_where_a_filter_depends_on_names() -> None:
    add(lambda cluster, request, rows: np.array([cluster.node_names[row] == "b" for row in rows.tolist()]))
    state, memo, tightest = node(T4, T4), Memo(), POLICIES["tightest"]
    arrays = arrays_of({"a": state, "b": state})
    memo.evaluate(arrays.snapshot(), ONE, tightest)
    for held in ([0], [1], [0], []):
        for row in (0, 1):
            arrays.set_held(row, HeldAmounts(wholly(state.offer, held), 0))
            cluster = arrays.snapshot()
            known = memo.evaluate(cluster, ONE, tightest).evaluation
            assert known.reason.tolist() == evaluate(cluster, ONE, tightest, all_rows(cluster)).reason.tolist()
            assert known.fits.tolist() == [False, True]


@pytest.mark.parametrize("by_state", [False, True])
def test_results_are_cached_by_state_where_the_filter_allows_it(by_state: bool) -> None:
    looked: list[int] = []

    def passes(cluster: Cluster, request: GpuRequest, rows: Rows) -> Mask:
        looked.extend(rows.tolist())
        return np.ones(len(rows), np.bool_)

    add(passes, by_state=by_state)
    state, memo = node(T4, T4), Memo()
    arrays = arrays_of({"a": state, "b": state})
    memo.evaluate(arrays.snapshot(), ONE, POLICIES["tightest"])
    looked.clear()
    for row in (0, 1):
        arrays.set_held(row, HeldAmounts(wholly(state.offer, [0]), 0))
        memo.evaluate(arrays.snapshot(), ONE, POLICIES["tightest"])
    assert set(looked) == ({0} if by_state else {0, 1})


def test_the_number_of_filters_is_bounded() -> None:
    for number in range(MAX_FILTERS):
        add(lambda cluster, request, rows: np.ones(len(rows), np.bool_), f"N{number}")
    with pytest.raises(ValueError, match="filters of its kind"):
        add(lambda cluster, request, rows: np.ones(len(rows), np.bool_), "ONE_MORE")
    assert filters.faults == {}
    assert Reason.SET_ASIDE == LASTING + MAX_FILTERS
