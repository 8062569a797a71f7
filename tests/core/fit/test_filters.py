"""Checks of other packages: the example's as pip installs it, and what a filter may do and may not."""

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
from extender.ledger.arrays import Held
from extender.settings.load import SettingsError, load_settings
from tests.api.bodies import node, pod
from tests.api.services import running
from tests.core import builders
from tests.core.builders import NodeState, all_rows, arrays_of, cluster_of
from tests.core.fit.claims import ask, asked, gpus, owned
from tests.core.fit.test_fits import CLUSTERS, requests
from tests.docs.example import broken, example_on_path
from tests.docs.recipe_uses import annotated

T4, A100 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-80GB", 81920)
WHY = "needs 2 GPUs, GPUs of several models here"


@pytest.fixture(autouse=True)
def own_checks_alone() -> Iterator[None]:
    yield
    TABLE.only(BUILT_IN)


def add(passes: Callable[[Cluster, GpuRequest, Rows], Mask], **more: object) -> None:
    TABLE.add(_check("OTHER", Filter(passes, "no: {number}", **more)))  # type: ignore[arg-type]


def test_the_service_refuses_by_it_and_says_so_everywhere(example: Path) -> None:
    load_settings()
    gpus = [{"index": 0, "model": "Tesla-T4"}, {"index": 1, "model": "A100-SXM4-40GB"}]
    with running([annotated(node("mixed", 2), gpus=json.dumps(gpus))]) as kerf:
        asking = pod("two", 2)
        kerf.create(asking)
        answer = kerf.filter(asking, ["mixed"])
        assert (answer["NodeNames"], answer["FailedAndUnresolvableNodes"]) == ([], {"mixed": WHY})
        told = kerf.get("/explain/pod/default/two").json()
        assert [(one["reason"], one["text"], one["busy"]) for one in told["nodes"]] == [("MIXED_MODELS", WHY, False)]
        assert told["sentence"].endswith("mixed is nearest: GPUs of several models here")
        assert [(one["change"], one["text"]) for one in told["wouldFit"]][:1] == [("count", "1 GPU instead of 2")]
        assert ("filter", "one GPU") in [(one["change"], one["text"]) for one in told["wouldFit"]]
        assert "put GPUs of different models on different nodes" in [one["text"] for one in told["remedies"]]
        assert 'kerf_rejections_total{reason="mixed_models"} 1.0' in kerf.get("/metrics").content.decode()
        kerf.create(pod("one", 1))
        assert kerf.filter(pod("one", 1), ["mixed"])["NodeNames"] == ["mixed"]


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import no_such_module", "ModuleNotFoundError"),
        ("FILTER = 1", "it is not a Filter but 1"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_one_that_cannot_be_loaded_keeps_kerf_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, fault: str
) -> None:
    """Else pods would go where it was to keep them from."""
    broken(tmp_path, "[kerf.filters]\nODD = kerf_broken:FILTER", source)
    with example_on_path(tmp_path):
        with pytest.raises(SettingsError, match=f"filter ODD.*{fault}"):
            load_settings()
        sys.modules.pop("kerf_broken", None)
    load_settings()


def test_each_process_that_makes_checks_has_them(site: Path) -> None:
    """Also what-if's and that of making room, which read no settings."""
    asked = "import extender.core.fit.fits; from extender.core.fit.checks import TABLE; print(*TABLE.names)"
    known = os.pathsep.join((str(site), os.environ.get("PYTHONPATH", "")))
    environment = os.environ | {"PYTHONPATH": known}
    told = subprocess.run([sys.executable, "-c", asked], env=environment, check=True, capture_output=True, text=True)
    assert "MIXED_MODELS" in told.stdout.split()


def test_one_that_fails_refuses_all_and_says_so() -> None:
    def fails(cluster: Cluster, request: GpuRequest, rows: Rows) -> Mask:
        raise KeyError("rack")

    add(fails)
    cluster = cluster_of({"a": builders.node(T4)})
    checked = fit(cluster, GpuRequest(1), all_rows(cluster))
    words = TABLE[int(checked.reason[0])].says(GpuRequest(1), 0)
    assert words == "needs 1 GPU, filter OTHER has failed: KeyError: 'rack'"


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        pytest.param(np.ones(3, np.bool_), "it returned bool of shape (3,) for 1 rows", id="rows"),
        pytest.param(np.ones(1), "it returned float64 of shape (1,) for 1 rows", id="floats"),
        pytest.param(1, "it returned int64 of shape () for 1 rows", id="a number"),
    ],
)
def test_what_is_no_mask_of_its_rows_refuses_all_until_it_is_one(wrong: Mask, fault: str) -> None:
    given = [wrong]
    add(lambda cluster, request, rows: given[0])
    cluster = cluster_of({"a": builders.node(T4)})
    assert TABLE[64].says(GpuRequest(1), 3) == "needs 1 GPU, no: 3"
    assert not fit(cluster, GpuRequest(1), all_rows(cluster)).fits.any()
    assert TABLE[64].says(GpuRequest(1), 3) == f"needs 1 GPU, filter OTHER has failed: ValueError: {fault}"
    given[0] = np.ones(1, np.bool_)
    assert fit(cluster, GpuRequest(1), all_rows(cluster)).fits.all()
    assert TABLE[64].says(GpuRequest(1), 3) == "needs 1 GPU, no: 3"


@given(CLUSTERS, requests(), st.data())
def test_it_only_refuses_what_kerf_lets_pass(
    states: dict[str, NodeState], request: GpuRequest, data: st.DataObject
) -> None:
    cluster = cluster_of(states)
    rows, lasting = all_rows(cluster), data.draw(st.booleans())
    shape = data.draw(st.sampled_from([(len(rows),), cluster.gpu_model.shape]))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))))
    mask = mask.reshape(shape)
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
    other = after.reason == (64 if lasting else 160)
    assert (before.fits | (before.reason > (64 if lasting else 160)))[other].all()


def test_of_gpus_it_takes_those_away_that_do_not_pass() -> None:
    add(lambda cluster, request, rows: cluster.gpu_memory_mib[rows] > 20000, of_gpu="of too little memory")
    cluster = cluster_of({"a": builders.node(T4, A100, A100), "b": builders.node(T4)})
    checked = fit(cluster, GpuRequest(1), all_rows(cluster))
    assert checked.room.tolist() == [[False, True, True], [False, False, False]]
    assert checked.fits.tolist() == [True, False]
    assert fit(cluster, GpuRequest(2), all_rows(cluster)).fits.tolist() == [True, False]
    assert obstacles(cluster, GpuRequest(1), all_rows(cluster)) == [
        ["of too little memory", "", ""],
        ["of too little memory", "", ""],
    ]
    found = nearest_of(cluster, GpuRequest(3), None, all_rows(cluster))
    assert (found.words, found.reason) == ("needs 3 GPUs; a is nearest: no: 2", 64)


def test_what_passes_when_pods_go_makes_a_candidate_for_preemption() -> None:
    add(lambda cluster, request, rows: np.zeros(len(rows), np.bool_), lasting=False)
    cluster = cluster_of({"a": builders.node(T4), "b": builders.node(T4, held=[0]), "c": builders.node()})
    reasons = fit(cluster, GpuRequest(1), all_rows(cluster)).reason
    assert reasons.tolist() == [160, 160, Reason.NO_GPUS]
    assert [TABLE[code].name for code in reasons.tolist()] == ["OTHER", "OTHER", "NO_GPUS"]
    assert resolvable(reasons).tolist() == [True, True, False]
    assert resolvable(np.array([Reason.OCCUPIED, 160], np.uint8)).tolist() == [False, True]
    assert could_fit(np.array([Reason.OCCUPIED, 160, Reason.FITS], np.uint8)).tolist() == [False, True, True]


def test_what_does_not_pass_for_good_makes_none_and_helps_nobody() -> None:
    add(lambda cluster, request, rows: np.zeros(len(rows), np.bool_))
    cluster = cluster_of({"a": builders.node(T4), "b": builders.node(T4, held=[0]), "c": builders.node()})
    reasons = fit(cluster, GpuRequest(1), all_rows(cluster)).reason
    assert reasons.tolist() == [64, 64, Reason.NO_GPUS]
    assert not resolvable(reasons).any()
    assert relaxations(cluster, GpuRequest(1), all_rows(cluster)) == []
    assert list(TABLE[64].remedies(GpuRequest(1), "a", 0)) == []


@pytest.mark.parametrize("of_gpus", [False, True], ids=["of nodes", "of GPUs"])
def test_nodes_are_asked_about_for_mig_devices_and_resource_claims_too(of_gpus: bool) -> None:
    """Of their GPUs one has to pass."""

    requests: list[GpuRequest] = []

    def second(cluster: Cluster, request: GpuRequest, rows: Rows) -> Mask:
        requests.append(request)
        passes = np.zeros(cluster.gpu_model.shape, np.bool_)
        passes[1, -1] = True
        return passes[rows] if of_gpus else passes[rows, -1]

    add(second)
    states = {name: builders.node(T4, T4, mig={"1g.5gb": 1}) for name in "ab"}
    cluster = cluster_of(states)
    of_mig = GpuRequest(1, AskedUnit.MIG, mig=(("1g.5gb", 1),))
    checked = fit(cluster, of_mig, all_rows(cluster))
    assert (checked.reason.tolist(), checked.available.tolist()) == ([64, Reason.FITS], [0, 1])
    assert checked.available.dtype == np.int64
    claimed = owned({"a": gpus(2), "b": gpus(2)}).snapshot()
    checked = fit_devices(claimed, asked(ask()), all_rows(claimed))
    assert (checked.reason.tolist(), checked.available.tolist()) == ([64, Reason.FITS], [0, 1])
    assert requests == [of_mig, GpuRequest(1, AskedUnit.CLAIM, devices=asked(ask()))]


def test_what_it_relaxes_is_told_where_that_fits() -> None:
    add(
        lambda cluster, request, rows: np.full(len(rows), request.unit is AskedUnit.GPU),
        relax=lambda request: GpuRequest(request.count),
        relaxed="GPUs by nvidia.com/gpu",
    )
    cluster = cluster_of({"a": builders.node(T4)})
    (found,) = relaxations(cluster, GpuRequest(1, AskedUnit.WHOLE), all_rows(cluster))
    assert (found.change, found.text, found.rows.tolist()) == ("filter", "GPUs by nvidia.com/gpu", [0])


def test_what_it_relaxes_is_told_by_its_name_where_it_has_no_words_for_that() -> None:
    """Also of two that say the same."""
    for name, words, fewer in (("FIRST", "", 2), ("SECOND", "fewer GPUs", 1), ("THIRD", "fewer GPUs", 2)):
        of_two = Filter(
            lambda cluster, request, rows: np.full(len(rows), request.count < 3),
            "",
            relax=lambda request, fewer=fewer: GpuRequest(fewer) if request.count > 2 else None,  # type: ignore[misc]
            relaxed=words,
        )
        TABLE.add(_check(name, of_two))
    cluster = cluster_of({"a": builders.node(T4, T4, T4)})
    assert [one.text for one in relaxations(cluster, GpuRequest(3), all_rows(cluster))] == [
        "2 GPUs instead of 3",
        "as filter FIRST suggests",
        "fewer GPUs",
        "fewer GPUs",
    ]


def test_nodes_that_are_alike_are_told_apart_unless_it_says_that_they_need_not_be() -> None:
    """What is remembered of a node's state is not another node's, where a filter goes by names."""
    add(lambda cluster, request, rows: np.array([cluster.node_names[row] == "b" for row in rows.tolist()]))
    states = {"a": builders.node(T4, T4), "b": builders.node(T4, T4)}
    arrays, memo, request = arrays_of(states), Memo(), GpuRequest(1)
    memo.evaluate(arrays.snapshot(), request, POLICIES["tightest"])
    for held in ([0], [1], [0], []):
        for row, state in enumerate(states.values()):
            arrays.set_held(row, builders_held(state, held))
            cluster = arrays.snapshot()
            known = memo.evaluate(cluster, request, POLICIES["tightest"]).evaluation
            slow = evaluate(cluster, request, POLICIES["tightest"], all_rows(cluster))
            assert known.reason.tolist() == slow.reason.tolist()
            assert known.fits.tolist() == [False, True]


@pytest.mark.parametrize("by_state", [False, True])
def test_what_is_found_of_one_node_holds_for_those_alike_where_it_says_so(by_state: bool) -> None:
    looked: list[int] = []

    def passes(cluster: Cluster, request: GpuRequest, rows: Rows) -> Mask:
        looked.extend(rows.tolist())
        return np.ones(len(rows), np.bool_)

    add(passes, by_state=by_state)
    states = {"a": builders.node(T4, T4), "b": builders.node(T4, T4)}
    arrays, memo, request = arrays_of(states), Memo(), GpuRequest(1)
    memo.evaluate(arrays.snapshot(), request, POLICIES["tightest"])
    looked.clear()
    for row, state in enumerate(states.values()):
        arrays.set_held(row, builders_held(state, [0]))
        memo.evaluate(arrays.snapshot(), request, POLICIES["tightest"])
    assert set(looked) == ({0} if by_state else {0, 1})


def builders_held(state: NodeState, held: list[int]) -> Held:
    return Held(builders.wholly(state.offer, held), 0, (), 0, 0, {})


def test_there_is_room_for_so_many() -> None:
    for number in range(MAX_FILTERS):
        TABLE.add(_check(f"N{number}", Filter(lambda cluster, request, rows: np.ones(len(rows), np.bool_), "")))
    with pytest.raises(ValueError, match="filters of its kind"):
        _check("ONE_MORE", Filter(lambda cluster, request, rows: np.ones(len(rows), np.bool_), ""))
    assert filters.faults == {}
    assert Reason.SET_ASIDE == 64 + MAX_FILTERS
