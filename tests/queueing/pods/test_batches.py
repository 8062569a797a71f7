"""Pods and nodes as planners see them: restrictions, gangs, priorities."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.clusters import Mask
from extender.core.resources.quantities import MIB
from extender.core.resources.requests import RequestError
from extender.kube.objects import Node, NodeSelector, Pod, PodSpec
from extender.ledger.ledger import Ledger
from extender.plugins.pod_resources import read_compute, requested
from extender.plugins.pods import read_pod_request
from extender.queueing.node_view import view_of
from extender.queueing.pods.batches import (
    _FUNCTION_SPEC,
    GANG,
    GANG_SIZE,
    POD_GROUP_LABEL,
    Room,
    asked_of,
    gang_of,
    plan_pod,
    room_of,
)
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.queueing.pods.restrictions import Kinds, Terrain
from tests.planning.oracles import allows


def pod(spec: dict[str, Any] | None = None, **metadata: Any) -> Pod:
    return decode_pod({"metadata": {"name": "p", "namespace": "ns", **metadata}, "spec": spec or {}})


def asking(cpu: str, memory: str, **spec: Any) -> Pod:
    return pod({"containers": [{"resources": {"requests": {"cpu": cpu, "memory": memory}}}], **spec})


def node(name: str = "n", *, spec: dict[str, Any] | None = None, labels: dict[str, str] | None = None) -> Node:
    allocatable = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    return decode_node(
        {"metadata": {"name": name, "labels": labels or {}}, "spec": spec or {}, "status": {"allocatable": allocatable}}
    )


def test_m6_the_function_spec_beats_the_requests() -> None:
    found = asking("2", "1Gi")
    assert asked_of(found) == Room(2000, 1024, 1)
    found.metadata.annotations = {_FUNCTION_SPEC: '{"limits": {"cpu": "200m", "memory": "128Mi"}}'}
    assert asked_of(found) == Room(200, 128, 1)
    found.metadata.annotations = {_FUNCTION_SPEC: '{"limits": {"memory": "1"}}'}
    assert asked_of(found) == Room(0, 1, 1)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"limits": 3}', '{"limits": {"cpu": "x"}}', "[" * 5000])
def test_m6_what_can_not_be_read_says_so(text: str) -> None:
    with pytest.raises(RequestError, match=r"com\.openfaas\.function\.spec: can't be read"):
        asked_of(pod(annotations={_FUNCTION_SPEC: text}))
    with pytest.raises(RequestError, match="negative"):
        asked_of(pod(annotations={_FUNCTION_SPEC: '{"limits": {"cpu": "-1"}}'}))


def test_m7_usage_and_reserve_are_taken_off() -> None:
    running = pod(
        {
            "nodeName": "n",
            "containers": [{"resources": {"requests": {"cpu": "1500m", "memory": "2Gi"}}}],
        },
        uid="runs",
    )
    done = decode_pod(
        {"metadata": {"uid": "done"}, "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Succeeded"}}
    )
    ledger = Ledger(reservation_ttl_s=1)
    ledger.upsert_node(node())
    ledger.upsert_pod(running, 0)
    ledger.upsert_pod(done, 0)
    view = view_of(ledger.snapshot(0), [node()], Kinds(), num_pods={"n": 1}, reserve_frac=0.2)
    assert view.cpu_allocatable_milli.tolist() == [8000]
    assert view.cpu_free_milli.tolist() == [8000 - 1500 - 1600]
    assert view.memory_free_mib.tolist() == [16384 - 2048 - 3277]  # 20 % of 16384 is 3276.8
    assert view.pods_free.tolist() == [109]


def test_init_containers_and_sidecars_count_as_kube_scheduler_counts_them() -> None:
    found = pod(
        {
            "containers": [{"resources": {"requests": {"cpu": "1"}}}],
            "initContainers": [
                {"resources": {"requests": {"cpu": "500m"}}, "restartPolicy": "Always"},
                {"resources": {"requests": {"cpu": "3"}}},
            ],
            "overhead": {"cpu": "100m"},
        }
    )
    assert asked_of(found).cpu_milli == 3600  # max(1 + 0.5, 0.5 + 3) + 0.1


@pytest.mark.parametrize(
    ("of_pod", "asked"),
    [
        pytest.param({"requests": {"cpu": "8", "memory": "2Gi"}}, (8100, 2048), id="said for the pod, overhead on top"),
        pytest.param({"requests": {"cpu": "500m"}}, (600, 1024), id="less than the containers, whose memory counts"),
        pytest.param({"limits": {"cpu": "8"}}, (1100, 1024), id="a limit, where containers request: they count"),
        pytest.param({}, (1100, 1024), id="nothing said for the pod"),
    ],
)
def test_resources_of_the_pod_as_a_whole_are_the_same_everywhere(
    of_pod: dict[str, Any], asked: tuple[int, int]
) -> None:
    """Planner, ledger, evictions and reservations count by one rule: `PodRequests` of kube-scheduler."""
    spec = {"containers": [{"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}], "resources": of_pod}
    found = pod({**spec, "overhead": {"cpu": "100m"}}, annotations={"kerf.dev/gpu-count": "1"})
    request = read_pod_request(found)
    assert (asked_of(found).cpu_milli, asked_of(found).memory_mib) == asked
    assert read_compute(found.spec) == (request.cpu_milli, request.memory_mib) == asked
    assert (requested(found.spec, "cpu") * 1000, requested(found.spec, "memory") / MIB) == asked


def test_a_limit_of_the_pod_alone_is_its_request_as_the_api_server_defaults_it() -> None:
    found = pod({"containers": [{}], "resources": {"limits": {"cpu": "2", "nvidia.com/gpu": "1"}}})
    assert read_compute(found.spec) == (2000, 0)
    assert requested(found.spec, "nvidia.com/gpu") == 0  # not for a pod as a whole


def test_absurd_sizes_stay_within_an_array() -> None:
    assert asked_of(asking("1e30", "999999999E")).cpu_milli < 2**51
    strange = decode_node({"status": {"allocatable": {"cpu": "nonsense", "memory": "1e30", "pods": "-4"}}})
    room = room_of(strange)
    assert (room.cpu_milli, room.pods) == (0, 0)
    assert room.memory_mib < 2**51


def test_gangs_by_annotation_and_by_pod_group() -> None:
    assert gang_of(pod()) == ("", 0)
    assert gang_of(pod(annotations={GANG: "train", GANG_SIZE: "4"})) == ("ns/train", 4)
    assert gang_of(pod(labels={POD_GROUP_LABEL: "train"})) == ("ns/train", 0)
    for size in ("", "0", "many", "-1", "1_0", "9999999999999"):
        with pytest.raises(RequestError, match="is not a gang size"):
            gang_of(pod(annotations={GANG: "train", GANG_SIZE: size}))


def _affinity(*expressions: dict[str, Any], field: str = "matchExpressions") -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{field: list(expressions)}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


TAINTED = {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}


@pytest.mark.parametrize(
    ("spec", "node_spec", "expected"),
    [
        pytest.param({}, {}, True, id="nothing said"),
        pytest.param({}, {"unschedulable": True}, False, id="cordoned"),
        pytest.param({"tolerations": [{"operator": "Exists"}]}, {"unschedulable": True}, True, id="tolerates all"),
        pytest.param({}, TAINTED, False, id="tainted"),
        pytest.param({}, {"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}, True, id="soft taint"),
        pytest.param({"tolerations": [{"key": "gpu", "value": "yes"}]}, TAINTED, True, id="tolerates it"),
        pytest.param({"tolerations": [{"key": "gpu", "value": "no"}]}, TAINTED, False, id="tolerates another value"),
        pytest.param(
            {"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]},
            TAINTED,
            False,
            id="tolerates another effect",
        ),
        pytest.param({"nodeSelector": {"zone": "a"}}, {}, True, id="selected"),
        pytest.param({"nodeSelector": {"zone": "b"}}, {}, False, id="not selected"),
        pytest.param(_affinity({"key": "zone", "operator": "In", "values": ["a", "b"]}), {}, True, id="In"),
        pytest.param(_affinity({"key": "zone", "operator": "NotIn", "values": ["a"]}), {}, False, id="NotIn"),
        pytest.param(_affinity({"key": "size", "operator": "Gt", "values": ["3"]}), {}, True, id="Gt"),
        pytest.param(_affinity({"key": "size", "operator": "Lt", "values": ["3"]}), {}, False, id="Lt"),
        pytest.param(_affinity({"key": "zone", "operator": "Lt", "values": ["3"]}), {}, False, id="Lt of no number"),
        pytest.param(_affinity({"key": "x", "operator": "DoesNotExist"}), {}, True, id="DoesNotExist"),
        pytest.param(_affinity({"key": "x", "operator": "Exists"}), {}, False, id="Exists"),
        pytest.param(_affinity(), {}, False, id="an empty term matches nothing"),
        pytest.param(
            _affinity({"key": "metadata.name", "operator": "In", "values": ["n"]}, field="matchFields"),
            {},
            True,
            id="by name",
        ),
    ],
)
def test_restrictions(spec: dict[str, Any], node_spec: dict[str, Any], expected: bool) -> None:
    found = node(spec=node_spec, labels={"zone": "a", "size": "4"})
    assert allows(pod(spec).spec, found) is expected
    assert terrain_of(found).allowed(pod(spec).spec).tolist() == [expected]


def terrain_of(*nodes: Node) -> Terrain:
    ledger = Ledger(reservation_ttl_s=1)
    for item in nodes:
        ledger.upsert_node(item)
    return Terrain(ledger.snapshot(0), nodes)


WORDS = st.sampled_from(["a", "b", "3", "7", "n1"])
KEYS = st.sampled_from(["zone", "size", "metadata.name", "nowhere"])
OPERATORS = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Like"])
EXPRESSION = st.fixed_dictionaries({"key": KEYS, "operator": OPERATORS, "values": st.lists(WORDS, max_size=3)})
TERM = st.fixed_dictionaries(
    {}, optional={name: st.lists(EXPRESSION, max_size=2) for name in ("matchExpressions", "matchFields")}
)
EFFECTS = st.sampled_from(["", "NoSchedule", "NoExecute", "PreferNoSchedule"])
TOLERATION = st.fixed_dictionaries(
    {"key": st.sampled_from(["", "gpu", "disk"]), "value": WORDS, "effect": EFFECTS},
    optional={"operator": st.sampled_from(["Exists", "Equal"])},
)
TAINT = st.fixed_dictionaries({"key": st.sampled_from(["gpu", "disk"]), "value": WORDS, "effect": EFFECTS})
SPEC = st.fixed_dictionaries(
    {},
    optional={
        "nodeSelector": st.dictionaries(KEYS, WORDS, max_size=2),
        "tolerations": st.lists(TOLERATION, max_size=2),
        "affinity": st.lists(TERM, max_size=2).map(
            lambda terms: {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            }
        ),
    },
)
NODE = st.tuples(
    st.dictionaries(st.sampled_from(["zone", "size"]), WORDS),
    st.fixed_dictionaries({"taints": st.lists(TAINT, max_size=2), "unschedulable": st.booleans()}),
)


@settings(max_examples=3 * settings().max_examples)
@given(SPEC, st.lists(NODE, max_size=5))
def test_where_a_kind_may_run_is_what_a_look_at_every_node_says(spec: dict[str, Any], described: list[Any]) -> None:
    nodes = [node(f"n{number}", labels=labels, spec=given) for number, (labels, given) in enumerate(described)]
    asked = pod(spec).spec
    assert terrain_of(*nodes).allowed(asked).tolist() == [allows(asked, item) for item in nodes]


def test_a_kind_is_worked_out_once_for_a_terrain() -> None:
    kinds, asked = Kinds(), []

    class Counting(Terrain):
        def allowed(self, spec: PodSpec, selectors: Sequence[NodeSelector] = ()) -> Mask:
            asked.append(spec.node_selector)
            return super().allowed(spec, selectors)

    terrain = Counting(terrain_of(node()).cluster, [node(labels={"a": "1"})])
    for value in "112":
        kinds.kind_of(pod({"nodeSelector": {"a": value}}).spec)
        kinds.masks(terrain)
    assert (asked, kinds.masks(terrain).tolist()) == ([None, {"a": "1"}, {"a": "2"}], [[True], [True], [False]])
    kinds.masks(Counting(terrain.cluster, [node()]))
    assert len(asked) == 6


def test_equal_restrictions_are_one_kind() -> None:
    kinds = Kinds()
    assert kinds.kind_of(pod().spec) == 0
    first = kinds.kind_of(pod({"nodeSelector": {"zone": "a", "b": "c"}}).spec)
    assert kinds.kind_of(pod({"nodeSelector": {"b": "c", "zone": "a"}}).spec) == first == 1
    assert kinds.kind_of(pod({"nodeSelector": {"zone": "b"}}).spec) == 2


def test_plan_pod_reads_all_of_it() -> None:
    found = pod(
        {"containers": [{"image": "train:1", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "3"}}}]},
        annotations={GANG: "g", GANG_SIZE: "2", "kerf.dev/gang-topology": "rack", "kerf.dev/policy": "spread"},
        labels={"genius/priority": "5"},
    )
    planned = plan_pod(found, Kinds())
    assert (planned.key, planned.gang, planned.topology, planned.image) == ("ns/p", "ns/g", "rack", "train:1")
    assert (planned.cpu_milli, planned.priority, planned.policy) == (3000, 5, "spread")
    assert planned.gpus is not None
    assert planned.gpus.count == 2
