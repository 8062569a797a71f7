"""What filter and prioritize answer: modes, policies, pods without GPUs, reasons."""

import json
from typing import Any

import pytest

from tests.api import bodies
from tests.api.bodies import CLUSTER, NAMES, SHARED_GPU, node, pod
from tests.api.cut_off import CutOff
from tests.api.services import Kerf, Shared, running

GPU_NODES = ["a100-0", "a100-1", "a100-40-0", "t4-0", "t4-1"]

PREFERRED = [{"weight": 1, "preference": {}}]
Spec = dict[str, Any]
PREFERRED_NODE: Spec = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": PREFERRED}}}
PREFERRED_POD: Spec = {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": PREFERRED}}}
PREFERRED_APART: Spec = {
    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": PREFERRED}}
}
REQUIRED_NODE: Spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}
NONE_PREFERRED: Spec = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}
SPREAD_ANYWAY: Spec = {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]}
SPREAD_STRICTLY: Spec = {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]}


@pytest.fixture
def kerf(shared: Shared) -> Kerf:
    return shared()


# Decisive and scores mode


def test_decisive_filter_returns_the_best_node_and_reserves_it(kerf: Kerf) -> None:
    assert kerf.filter(pod(gpus=1), NAMES)["NodeNames"] == ["t4-0"]
    assert kerf.num_reservations == 1


def test_best_fit_prefers_the_small_node_with_one_gpu_left(shared: Shared) -> None:
    # T4: 2-1-1 = 0 GPUs left over on `small`, 8-4-1 = 3 on `large`.
    held = [pod("a", 1, node_name="small"), pod("b", 4, node_name="large")]
    kerf = shared([node("large", 8), node("small", 2), *held])
    assert kerf.filter(pod(gpus=1), ["large", "small"])["NodeNames"] == ["small"]


@pytest.mark.parametrize("order", [list, reversed], ids=["as named", "reversed"])
def test_ties_break_by_node_name_in_any_order(kerf: Kerf, order: Any) -> None:
    assert kerf.filter(pod(gpus=8), list(order(["a100-0", "a100-1"])))["NodeNames"] == ["a100-0"]


def test_scores_filter_returns_all_that_fit_and_prioritize_reserves(shared: Shared) -> None:
    kerf = shared(decisions__mode="scores")
    assert kerf.filter(pod(gpus=2), NAMES)["NodeNames"] == GPU_NODES
    assert kerf.num_reservations == 0
    # Left over: t4 2-2 = 0, a100-40 4-2 = 2, a100 8-2 = 6: three levels from the top.
    scores = {"a100-0": 8, "a100-1": 8, "a100-40-0": 9, "t4-0": 10, "t4-1": 10, "shared-0": 0, "cpu-0": 0}
    assert kerf.prioritize(pod(gpus=2), NAMES) == scores
    assert kerf.num_reservations == 1


def test_scores_filter_reserves_when_one_node_is_left(shared: Shared) -> None:
    # kube-scheduler takes a single feasible node without asking for scores.
    kerf = shared(decisions__mode="scores")
    assert kerf.filter(pod(gpus=4), ["a100-40-0", "t4-0"])["NodeNames"] == ["a100-40-0"]
    assert kerf.num_reservations == 1


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        pytest.param(PREFERRED_NODE, ["t4-0", "t4-1", "a100-40-0"], id="preferred node affinity"),
        pytest.param(PREFERRED_POD, ["t4-0", "t4-1", "a100-40-0"], id="preferred pod affinity"),
        pytest.param(PREFERRED_APART, ["t4-0", "t4-1", "a100-40-0"], id="preferred pod anti-affinity"),
        pytest.param(SPREAD_ANYWAY, ["t4-0", "t4-1", "a100-40-0"], id="ScheduleAnyway"),
        pytest.param(REQUIRED_NODE, ["t4-0"], id="required node affinity"),
        pytest.param(NONE_PREFERRED, ["t4-0"], id="empty list of preferences"),
        pytest.param(SPREAD_STRICTLY, ["t4-0"], id="DoNotSchedule"),
        pytest.param({}, ["t4-0"], id="none"),
    ],
)
def test_soft_preferences_get_the_near_best_few(spec: Spec, chosen: list[str], shared: Shared) -> None:
    kerf = shared(decisions__near_best_nodes=3)
    manifest = pod(gpus=1, **spec)
    assert kerf.filter(manifest, NAMES)["NodeNames"] == chosen
    assert kerf.num_reservations == (1 if len(chosen) == 1 else 0)
    assert max(kerf.prioritize(manifest, chosen).values()) == 10
    assert kerf.num_reservations == 1


def test_soft_preferences_with_one_node_left_reserve_it(kerf: Kerf) -> None:
    assert kerf.filter(pod(gpus=4, **PREFERRED_NODE), ["a100-40-0", "t4-0"])["NodeNames"] == ["a100-40-0"]
    assert kerf.num_reservations == 1


# Pods without GPUs


@pytest.mark.parametrize("mode", ["decisive", "scores"])
@pytest.mark.parametrize(
    "names",
    [list(NAMES), list(reversed(NAMES)), ["cpu-0", "unknown", "t4-0"], ["t4-0", "t4-0"], []],
    ids=["all", "reversed", "unknown among them", "twice", "none"],
)
def test_a_pod_without_gpus_passes_untouched(mode: str, names: list[str], shared: Shared) -> None:
    kerf = shared(decisions__mode=mode)
    answer = kerf.filter(pod(), names)
    assert answer["NodeNames"] == names
    assert (answer["FailedNodes"], answer["FailedAndUnresolvableNodes"], answer["Error"]) == ({}, {}, "")
    assert kerf.num_reservations == 0


def test_pods_without_gpus_are_kept_off_gpu_nodes_by_score(kerf: Kerf) -> None:
    scores = {**dict.fromkeys(NAMES, 0), "cpu-0": 10, "unknown": 10}
    assert kerf.prioritize(pod(), [*NAMES, "unknown"]) == scores
    assert kerf.num_reservations == 0


# Policies


@pytest.mark.parametrize(
    ("policy", "best"),
    [
        # One GPU more. Left over: half 2-1-1 = 0, busy 8-6-1 = 1, empty 4-0-1 = 3.
        # Used after: half 2/2, busy 7/8, empty 1/4. So best fit and binpack agree here, and spread does not.
        pytest.param("tightest", "half", id="tightest"),
        pytest.param("bestfit", "half", id="its old name"),
        pytest.param("binpack", "half", id="binpack"),
        pytest.param("spread", "empty", id="spread"),
        pytest.param("", "half", id="empty means the deployment's"),
        pytest.param(" spread ", "empty", id="spaces around it"),
    ],
)
def test_a_pod_chooses_its_policy(policy: str, best: str, shared: Shared) -> None:
    held = [pod("a", 1, node_name="half"), pod("b", 6, node_name="busy")]
    kerf = shared([node("empty", 4), node("half", 2), node("busy", 8), *held])
    asking = pod(gpus=1, annotations={"kerf.dev/policy": policy})
    assert kerf.filter(asking, ["empty", "half", "busy"])["NodeNames"] == [best]


@pytest.mark.parametrize(
    ("policy", "best"),
    [
        # Left over: large 8-3-1 = 4, small 4-0-1 = 3. Used after: large 4/8, small 1/4.
        pytest.param("tightest", "small", id="tightest"),
        pytest.param("bestfit", "small", id="its old name"),
        pytest.param("binpack", "large", id="binpack"),
        pytest.param("spread", "small", id="spread"),
    ],
)
def test_a_deployment_chooses_its_policy(policy: str, best: str) -> None:
    cluster = [node("large", 8), node("small", 4), pod("a", 3, node_name="large")]
    with running(cluster, decisions__policy=policy) as kerf:
        assert kerf.filter(pod(gpus=1), ["large", "small"])["NodeNames"] == [best]
        assert kerf.prioritize(pod(gpus=1), ["large", "small"])[best] == 10


def test_an_old_name_of_a_policy_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    told = "policy bestfit is now called tightest; the old name will be removed in the next version"
    with running(decisions__policy="bestfit") as kerf:
        assert caplog.messages.count(told) == 1
        assert kerf.get("/version").json()["policy"] == "bestfit"
    caplog.clear()
    with running(decisions__policy="tightest") as kerf:
        assert told not in caplog.messages
        for name in ("one", "two"):
            kerf.filter(pod(name, 1, annotations={"kerf.dev/policy": "bestfit"}), NAMES)
        assert caplog.messages.count(told) == 1


def test_an_unknown_policy_rejects_the_pod(kerf: Kerf) -> None:
    asking = pod(gpus=1, annotations={"kerf.dev/policy": "worst"})
    answer = kerf.filter(asking, ["t4-0", "cpu-0"])
    sentence = answer["FailedAndUnresolvableNodes"]["t4-0"]
    assert sentence.startswith('kerf.dev/policy: "worst" is not a policy; use one of tightest, binpack, spread, ')
    assert answer["FailedAndUnresolvableNodes"] == {"t4-0": sentence, "cpu-0": sentence}
    assert (answer["NodeNames"], answer["FailedNodes"], answer["Error"]) == ([], {}, "")
    refusal = kerf.post("/prioritize", bodies.args(asking, ["t4-0"]))
    assert (refusal.status, refusal.json()) == (400, {"Error": sentence})
    assert kerf.num_reservations == 0


def test_an_unknown_policy_does_not_hold_up_a_pod_without_gpus(kerf: Kerf) -> None:
    assert kerf.filter(pod(annotations={"kerf.dev/policy": "worst"}), ["t4-0"])["NodeNames"] == ["t4-0"]


# Candidates


def test_nodes_unknown_to_kerf_are_never_chosen(kerf: Kerf) -> None:
    answer = kerf.filter(pod(gpus=1), ["new-0", "a100-0", "new-1", "new-0"])
    assert answer["NodeNames"] == ["a100-0"]
    unknown = "node not known to Kerf yet"
    assert answer["FailedAndUnresolvableNodes"] == {"new-0": unknown, "new-1": unknown}
    assert kerf.prioritize(pod(gpus=1), ["new-0", "a100-0"]) == {"a100-0": 10, "new-0": 0}


def test_only_unknown_nodes_means_none(kerf: Kerf) -> None:
    answer = kerf.filter(pod(gpus=1), ["new-0"])
    assert (answer["NodeNames"], answer["FailedNodes"]) == ([], {})
    assert kerf.num_reservations == 0


def test_a_name_given_twice_counts_once(shared: Shared) -> None:
    kerf = shared(decisions__mode="scores")
    assert kerf.filter(pod(gpus=2), ["t4-1", "a100-0", "t4-1"])["NodeNames"] == ["t4-1", "a100-0"]
    answer = kerf.post("/prioritize", bodies.args(pod(gpus=2), ["t4-1", "a100-0", "t4-1"])).json()
    assert answer == [{"Host": "t4-1", "Score": 10}, {"Host": "a100-0", "Score": 9}]


@pytest.mark.parametrize("gpus", [None, 1], ids=["without GPUs", "with GPUs"])
def test_no_candidates_no_answer(kerf: Kerf, gpus: int | None) -> None:
    answer = kerf.filter(pod(gpus=gpus), [])
    assert answer == {
        "Nodes": None,
        "NodeNames": [],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    assert kerf.prioritize(pod(gpus=gpus), []) == {}
    assert kerf.num_reservations == 0


def test_a_node_that_comes_or_goes_is_known_at_once(kerf: Kerf) -> None:
    new = node("new-0", 1)
    kerf.cluster.apply(new)
    kerf.settle()
    assert kerf.filter(pod(gpus=1), ["new-0", "t4-0"])["NodeNames"] == ["new-0"]
    kerf.cluster.delete(new)
    kerf.settle()
    assert kerf.filter(pod(gpus=1), ["new-0", "t4-0"])["NodeNames"] == ["t4-0"]


# Reasons

BUSY_CLUSTER = [*CLUSTER, pod("big", 7, node_name="a100-0"), pod("small", 2, node_name="t4-0")]
EACH, TOTAL, MODEL = "kerf.dev/gpu-memory-each", "kerf.dev/gpu-memory-total", "kerf.dev/gpu-model"
FREES_UP, STAYS = "FailedNodes", "FailedAndUnresolvableNodes"


@pytest.mark.parametrize(
    ("gpus", "annotations", "name", "bucket", "text"),
    [
        pytest.param(1, {}, "cpu-0", STAYS, "needs 1 GPU, no GPUs here", id="no GPUs"),
        pytest.param(1, {}, "shared-0", STAYS, "needs 1 GPU, only time-sliced GPUs here", id="time-sliced"),
        pytest.param(9, {}, "a100-0", STAYS, "needs 9 GPUs, best here: 8 installed", id="too few installed"),
        pytest.param(2, {}, "a100-0", FREES_UP, "needs 2 GPUs, best here: 1 free", id="busy"),
        pytest.param(1, {}, "t4-0", FREES_UP, "needs 1 GPU, best here: 0 free", id="full"),
        pytest.param(
            1, {MODEL: "h100"}, "t4-0", STAYS, "needs 1 GPU of model h100, best here: 0 of that model", id="model"
        ),
        # A T4 has 15360 MiB = 15 GiB.
        pytest.param(
            2, {EACH: "16Gi"}, "t4-0", STAYS, "needs 2 GPUs with 16 GiB, best here: 0 of that size", id="memory each"
        ),
        # Two T4s have 30 GiB; one A100 of 80 GiB is free.
        pytest.param(
            2,
            {TOTAL: "40Gi"},
            "t4-0",
            STAYS,
            "needs 2 GPUs with 40 GiB in total, best here: 30 GiB installed",
            id="memory total",
        ),
        pytest.param(
            None,
            {TOTAL: "100Gi"},
            "a100-0",
            FREES_UP,
            "needs GPUs with 100 GiB in total; this node serves nvidia.com/gpu pods, "
            "and the device plugin could hand out the same GPUs",
            id="beside pods that the plugin serves",
        ),
        pytest.param(
            2,
            {MODEL: "a100", EACH: "40000"},
            "a100-0",
            FREES_UP,
            "needs 2 GPUs of model a100 with 40000 MiB, best here: 1 free",
            id="everything",
        ),
    ],
)
def test_reasons_name_what_is_required_and_what_is_here(
    gpus: int | None, annotations: dict[str, str], name: str, bucket: str, text: str, shared: Shared
) -> None:
    kerf = shared(BUSY_CLUSTER)
    answer = kerf.filter(pod("asking", gpus, annotations=annotations), [name])
    assert answer.pop(bucket) == {name: text}
    other = STAYS if bucket == FREES_UP else FREES_UP
    assert answer == {"Nodes": None, "NodeNames": [], other: {}, "Error": ""}


def test_shared_gpus_have_reasons_of_their_own(kerf: Kerf) -> None:
    asking = pod()
    asking["spec"]["containers"][0]["resources"] = {"limits": {SHARED_GPU: "5"}}
    assert kerf.filter(asking, ["shared-0", "t4-0"])["FailedAndUnresolvableNodes"] == {
        "shared-0": "needs 5 GPU replicas, best here: 4 installed",
        "t4-0": "needs 5 GPU replicas, only whole GPUs here",
    }


def test_a_rejection_is_the_same_text_at_every_try(kerf: Kerf) -> None:
    body = bodies.args(pod(gpus=9), NAMES)
    first = kerf.post("/filter", body).content
    kerf.filter(pod("other", 1), NAMES)  # whatever happens in between that changes nothing for the pod
    kerf.clock.now += 5
    assert kerf.post("/filter", body).content == first


@pytest.mark.parametrize(
    ("num_names", "gpus", "num_reasons"),
    [
        pytest.param(100, 1, 99, id="few candidates, placed"),
        pytest.param(101, 1, 0, id="many candidates, placed: kube-scheduler reads no reasons then"),
        pytest.param(101, 3, 101, id="many candidates, rejected"),
    ],
)
def test_reasons_are_sent_only_where_they_are_read(num_names: int, gpus: int, num_reasons: int, shared: Shared) -> None:
    names = [f"cpu-{number}" for number in range(num_names - 1)]
    kerf = shared([*map(node, names), node("gpu", 2)])
    assert len(kerf.filter(pod(gpus=gpus), [*names, "gpu"])["FailedAndUnresolvableNodes"]) == num_reasons


# A mirror that is not fit for use


@pytest.mark.parametrize("state", ["unsynced", "too old"])
def test_a_mirror_that_is_not_current_decides_nothing_about_gpus(state: str) -> None:
    asking, plain = pod(gpus=1), pod("plain")
    cluster = CutOff([*CLUSTER, asking, plain])
    cluster.reachable = state == "too old"
    with running(cluster) as kerf:
        if cluster.reachable:
            assert kerf.filter(asking, ["t4-0"])["NodeNames"] == ["t4-0"]
            cluster.cut()
            kerf.settle()
            kerf.clock.now += 121
        why = kerf.service.fault()
        assert ("not synced yet" if state == "unsynced" else "were last current 121 s ago") in why
        sentence = f"Kerf can't tell which GPUs are free: {why}"

        answer = kerf.filter(asking, ["t4-0"])
        assert (answer["Error"], answer["NodeNames"]) == (sentence, None)
        refusal = kerf.post("/prioritize", bodies.args(asking, ["t4-0"]))
        assert (refusal.status, refusal.json()) == (503, {"Error": sentence})
        if state == "too old":
            assert kerf.bind(asking, "t4-0") == sentence

        assert kerf.filter(plain, ["t4-0", "cpu-0"])["NodeNames"] == ["t4-0", "cpu-0"]
        assert kerf.prioritize(plain, ["cpu-0"]) == {"cpu-0": 10}
        assert kerf.bind(plain, "cpu-0") == ""
        assert (kerf.get("/readyz").status, kerf.get("/readyz").json()) == (503, {"status": why})
        assert kerf.get("/healthz").status == 200


# Other routes


def test_while_draining_answers_close_the_connection() -> None:
    body = bodies.args(pod(gpus=1), NAMES)
    with running() as kerf:
        assert kerf.get("/readyz").json() == {"status": "ok"}
        assert "connection" not in kerf.post("/filter", body).headers
        kerf.service.draining = True
        assert (kerf.get("/readyz").status, kerf.get("/readyz").json()) == (503, {"status": "shutting down"})
        for path in ("/filter", "/prioritize", "/bind"):
            assert kerf.post(path, body).headers["connection"] == "close"
        assert kerf.filter(pod("other", gpus=1), NAMES)["NodeNames"] == ["t4-0"]


def test_version_says_how_kerf_decides() -> None:
    with running(decisions__mode="scores", decisions__policy="spread") as kerf:
        answer = kerf.get("/version").json()
    assert (answer["mode"], answer["policy"]) == ("scores", "spread")
    assert json.dumps(answer["version"]).count(".") == 2


def test_memory_in_total_is_held_to_a_quota_by_the_gpus_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many those are is known once a node is chosen."""
    asking = pod(annotations={"kerf.dev/gpu-memory-total": "30Gi"})
    with running() as kerf:
        refusal = lambda pod, request: "too many" if request.count > 1 else ""  # noqa: E731 - one expression
        monkeypatch.setattr(kerf.parts.rules, "over_quota", refusal)
        assert kerf.filter(asking, ["t4-0"])["FailedAndUnresolvableNodes"] == {"t4-0": "too many"}
        assert kerf.num_reservations == 0
        asking["metadata"]["annotations"]["kerf.dev/gpu-memory-total"] = "15Gi"
        assert kerf.filter(asking, ["t4-0"])["NodeNames"] == ["t4-0"]
