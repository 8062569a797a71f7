"""Pods and nodes as planners see them: restrictions, gangs, priorities."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.clusters import Mask
from extender.core.dra.asks import ClaimSpec, DeviceClaims, DeviceSpec, RequestSpec
from extender.core.resources.quantities import MIB
from extender.core.resources.requests import AskedUnit, GpuRequest, RequestError
from extender.dra.objects import Allocation, ClaimMetadata, ResourceClaim, ResourceClaimStatus
from extender.dra.pod_claims import PodClaims
from extender.kube.objects import Expression, Node, NodeSelector, Pod, PodSpec, Term
from extender.ledger.ledger import Ledger
from extender.planning.plans import PlanPod
from extender.planning.wait_reasons import Code
from extender.plugins.pod_demands import read_demands
from extender.plugins.pod_resources import read_compute, requested
from extender.plugins.pods import read_pod_request
from extender.queueing.pods.batches import (
    _FUNCTION_SPEC,
    GANG,
    GANG_SIZE,
    GANG_TOPOLOGY,
    POD_GROUP_LABEL,
    Room,
    asked_of,
    by_gang,
    gang_of,
    plan_pod,
    room_of,
)
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.queueing.pods.restrictions import NodeRestrictions, RestrictionKinds, domain_of
from tests.planning.oracles import allows

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


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
    for limits, room in (
        ({"cpu": "200m", "memory": "128Mi"}, Room(200, 128, 1)),
        ({"memory": "1"}, Room(0, 1, 1)),
        ({"cpu": "1m"}, Room(1, 0, 1)),
    ):
        found.metadata.annotations = {_FUNCTION_SPEC: json.dumps({"limits": limits})}
        assert asked_of(found) == room


def test_m6_a_function_spec_that_can_not_be_read_says_what_to_write() -> None:
    for text in ("", "{", "[]", '{"limits": 3}', '{"limits": {"cpu": "x"}}', "[" * 5000):
        with pytest.raises(RequestError, match=r"com\.openfaas\.function\.spec: can't be read"):
            asked_of(pod(annotations={_FUNCTION_SPEC: text}))
    for name in ("cpu", "memory"):
        with pytest.raises(RequestError, match="negative"):
            asked_of(pod(annotations={_FUNCTION_SPEC: f'{{"limits": {{"{name}": "-1"}}}}'}))
    with pytest.raises(RequestError) as raised:
        asked_of(pod(annotations={_FUNCTION_SPEC: "{}"}))
    assert "(KeyError: 'limits')" in str(raised.value)
    example = str(raised.value).partition("JSON such as ")[2]
    assert asked_of(pod(annotations={_FUNCTION_SPEC: example})) == Room(200, 128, 1)


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
        ({"requests": {"cpu": "8", "memory": "2Gi"}}, (8100, 2048)),
        ({"requests": {"cpu": "500m"}}, (600, 1024)),  # less than the containers, whose memory counts
        ({"limits": {"cpu": "8"}}, (1100, 1024)),  # the containers' requests count
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
    for pods in ("-4", "many"):
        strange = decode_node({"status": {"allocatable": {"cpu": "nonsense", "memory": "1e30", "pods": pods}}})
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


def affinity(*terms: list[dict[str, Any]], field: str = "matchExpressions") -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{field: expressions} for expressions in terms]}
    return {"affinity": {"nodeAffinity": {REQUIRED: required}}}


def holds(key: str, operator: str, *values: str, field: str = "matchExpressions") -> dict[str, Any]:
    return affinity([{"key": key, "operator": operator, "values": list(values)}], field=field)


_MOST, _MORE, _LEAST = str(2**63 - 1), str(2**63), str(-(2**63))
TAINTED = {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}
HAS_ZONE, HAS_X = ({"key": key, "operator": "Exists"} for key in ("zone", "x"))


@pytest.mark.parametrize(
    ("spec", "node_spec", "expected"),
    [
        ({"tolerations": [{"operator": "Exists"}]}, {"unschedulable": True}, True),
        ({}, TAINTED, False),
        ({"tolerations": [{"key": "gpu", "value": "yes"}]}, TAINTED, True),
        ({"nodeSelector": {"zone": "a", "size": "3"}}, {}, False),
        ({"nodeSelector": {"zone": "b"}} | affinity([HAS_ZONE]), {}, False),
        (affinity([HAS_ZONE], [HAS_X]), {}, True),
        (affinity([HAS_ZONE, HAS_X]), {}, False),
        (affinity([]), {}, False),  # an empty term matches nothing
        (holds("size", "Gt", "3"), {}, True),
        (holds("size", "Lt", _MOST), {}, True),
        (holds("size", "Lt", _MORE), {}, False),
        (holds("size", "Gt", _LEAST), {}, True),
        (holds("most", "Gt", "4"), {}, True),
        (holds("more", "Gt", "4"), {}, False),
        (holds("odd", "Gt", "4"), {}, False),  # no number in Go
        (holds("metadata.name", "In", "n", field="matchFields"), {}, True),
        (holds("metadata.uid", "Exists", field="matchFields"), {}, False),
    ],
)
def test_restrictions(spec: dict[str, Any], node_spec: dict[str, Any], expected: bool) -> None:
    """One example of each rule, also for the oracle below."""
    found = node(spec=node_spec, labels={"zone": "a", "size": "4", "most": _MOST, "more": _MORE, "odd": "1_000"})
    assert allows(pod(spec).spec, found) is expected
    assert terrain_of(found).allowed(pod(spec).spec).tolist() == [expected]


def terrain_of(*nodes: Node) -> NodeRestrictions:
    ledger = Ledger(reservation_ttl_s=1)
    for item in nodes:
        ledger.upsert_node(item)
    return NodeRestrictions(ledger.snapshot(0), nodes)


WORDS = st.sampled_from(["a", "b", "3", "7", "1_0", "n1", _MOST, _MORE, _LEAST])
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
            lambda terms: {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
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
    kinds, asked = RestrictionKinds(), []

    class Counting(NodeRestrictions):
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
    kinds = RestrictionKinds()
    assert kinds.kind_of(pod().spec) == 0
    first = kinds.kind_of(pod({"nodeSelector": {"zone": "a", "b": "c"}}).spec)
    assert kinds.kind_of(pod({"nodeSelector": {"b": "c", "zone": "a"}}).spec) == first == 1
    assert kinds.kind_of(pod({"nodeSelector": {"zone": "b"}}).spec) == 2
    tolerates = pod({"tolerations": [{"operator": "Exists"}]}).spec
    selector = pod(affinity([HAS_ZONE])).spec
    other = pod(affinity([HAS_X])).spec
    devices = [NodeSelector([Term()])]
    assert [kinds.kind_of(spec) for spec in (tolerates, selector, other, tolerates, selector, other)] == [3, 4, 5] * 2
    assert [kinds.kind_of(pod().spec, places) for places in (devices, (), devices)] == [6, 0, 6]
    assert kinds.kind_of(pod({"affinity": {"nodeAffinity": {}}, "nodeSelector": {}, "tolerations": []}).spec) == 0
    assert kinds.count == 7


IN_GPU_POOL = NodeSelector([Term(match_expressions=[Expression("pool", "In", ["gpu"])])])


def pools(*described: tuple[str, list[str]]) -> list[Node]:
    """Nodes of a pool each, with taints by their keys."""
    return [
        node(f"n{at}", labels={"pool": pool}, spec={"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]})
        for at, (pool, taints) in enumerate(described)
    ]


def test_why_a_kind_may_run_nowhere_names_what_it_does_not_tolerate_on_the_nodes_it_chooses() -> None:
    tolerations = [{"key": "t", "operator": "Exists"}]
    for described, taints in (
        ([("gpu", ["b"]), ("gpu", ["a"]), ("cpu", []), ("cpu", ["z"])], "a, b"),
        ([("gpu", ["d", "c", "t", "b"]), ("gpu", ["a"])], "a, b, c, ..."),
        ([("gpu", ["c", "t", "b", "a"]), ("gpu", ["a"])], "a, b, c"),
        ([("cpu", []), ("cpu", ["z"])], ""),
    ):
        kinds, nodes = RestrictionKinds(), pools(*described)
        ledger = Ledger(reservation_ttl_s=1)
        for item in [*nodes, node("reported-later", labels={"pool": "gpu"})]:
            ledger.upsert_node(item)
        wanted = pod({"nodeSelector": {"pool": "gpu"}, "tolerations": tolerations}).spec
        numbers = kinds.kind_of(wanted), kinds.kind_of(pod({"tolerations": tolerations}).spec, [IN_GPU_POOL])
        assert not kinds.masks(NodeRestrictions(ledger.snapshot(0), nodes))[list(numbers)].any()
        why = Code.UNTOLERATED.reason(taints=taints, nodes=2) if taints else Code.FORBIDDEN.reason()
        assert [kinds.refusals()[kind] for kind in numbers] == [why] * 2


def test_where_many_kinds_may_run_is_the_same_worked_out_in_portions_and_at_once() -> None:
    kinds, terrain = RestrictionKinds(), terrain_of(*pools(("0", []), ("3", []), ("9", ["a"])))
    for number in range(10):
        kinds.kind_of(pod({"nodeSelector": {"pool": str(number)}}).spec)
    asyncio.run(kinds.work_out(terrain))
    expected = [[number in (0, 1), number in (0, 4), False] for number in range(11)]
    assert kinds.masks(terrain).tolist() == expected
    assert set(kinds.refusals()) == {2, 3, 5, 6, 7, 8, 9, 10}
    assert kinds.refusals()[10] == Code.UNTOLERATED.reason(taints="a", nodes=1)


def test_which_nodes_count_when_pods_of_a_kind_are_spread() -> None:
    kinds, terrain = RestrictionKinds(), terrain_of(*pools(("gpu", []), ("gpu", ["a"]), ("cpu", [])))
    by_pod = kinds.kind_of(pod({"nodeSelector": {"pool": "gpu"}}).spec)
    for number in (by_pod, kinds.kind_of(pod().spec, [IN_GPU_POOL])):
        for by_affinity, by_taints, expected in (
            (True, True, [True, False, False]),
            (True, False, [True, True, False]),
            (False, True, [True, False, True]),
            (False, False, [True, True, True]),
        ):
            found = kinds.eligible(terrain, number, by_affinity=by_affinity, by_taints=by_taints)
            assert found.tolist() == expected


def test_domains_are_told_apart_by_the_values_of_a_label() -> None:
    labels: list[dict[str, str]] = [{"rack": "b"}, {"rack": "a"}, {}, {"rack": "b"}]
    terrain = terrain_of(*(node(f"n{at}", labels=found) for at, found in enumerate(labels)))
    assert terrain.domains("rack").tolist() == [0, 1, -1, 0]
    assert terrain.domains("zone").tolist() == [-1] * 4


def test_the_label_that_keeps_a_gang_to_a_domain() -> None:
    for rack in ("a", ""):
        assert domain_of(node(labels={"rack": rack}), "rack") == {"rack": rack}
    assert domain_of(node(labels={"rack": "a"}), "zone") == domain_of(node(labels={"": "a"}), "") == {}
    assert domain_of(decode_node({"metadata": {"name": "n"}}), "rack") == domain_of(None, "rack") == {}


def test_pods_of_gangs_are_gathered_whatever_is_wrong_with_others() -> None:
    first, second = (pod(annotations={GANG: "a", GANG_SIZE: "2"}) for _ in range(2))
    other, alone = pod(labels={POD_GROUP_LABEL: "b"}), pod()
    odd = pod(annotations={GANG: "a", GANG_SIZE: "many"})
    assert by_gang([first, alone, odd, other, second]) == {"ns/a": [first, second], "ns/b": [other]}


def test_plan_pod_reads_all_of_it() -> None:
    kinds = RestrictionKinds()
    container = {
        "image": "train:1",
        "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "3", "memory": "4Gi"}},
        "ports": [{"hostPort": 80}],
    }
    gang = {GANG: "g", GANG_SIZE: "2", GANG_TOPOLOGY: " rack "}
    found = pod(
        {"containers": [container], "nodeSelector": {"pool": "gpu"}, "priority": 7},
        annotations={**gang, "kerf.dev/policy": "spread"},
        labels={"app": "train"},
    )
    planned = plan_pod(found, kinds)
    assert read_demands(found) is not None
    assert planned == PlanPod(
        key="ns/p",
        cpu_milli=3000,
        memory_mib=4096,
        gpus=planned.gpus,
        policy="spread",
        priority=7,
        gang="ns/g",
        topology="rack",
        kind=1,
        image="train:1",
        demands=read_demands(found),
    )
    assert planned.labels == {"app": "train"}
    assert planned.num_gpus == 2
    labelled = pod(labels={"genius/priority": "5"}, annotations={GANG_TOPOLOGY: "rack"})
    assert plan_pod(labelled, kinds) == PlanPod("ns/p", priority=5)
    assert plan_pod(pod(annotations={GANG: "g", GANG_SIZE: "1"}), kinds) == PlanPod("ns/p", gang="ns/g")
    with pytest.raises(RequestError) as raised:
        plan_pod(pod(annotations={"kerf.dev/policy": "x" * 90, "kerf.dev/gpu-count": "1"}), kinds)
    assert str(raised.value).startswith(f'kerf.dev/policy: "{"x" * 80}" is not a policy; use one of ')
    assert "spread" in str(raised.value)


def test_plan_pod_takes_what_its_resource_claims_ask_and_where_their_devices_are() -> None:
    asked = DeviceClaims((ClaimSpec((RequestSpec("gpu", (DeviceSpec("gpu", count=3),)),)),))
    allocated = ResourceClaim(status=ResourceClaimStatus(Allocation(node_selector=IN_GPU_POOL)))
    waits = ResourceClaim(metadata=ClaimMetadata(name="c", uid="u-c"))
    kinds, claims = RestrictionKinds(), PodClaims((allocated,), (waits,), asked)
    planned = plan_pod(pod(annotations={"kerf.dev/policy": "spread"}), kinds, claims)
    request = GpuRequest(3, AskedUnit.CLAIM, devices=asked)
    assert planned == PlanPod("ns/p", gpus=request, policy="spread", kind=1, claims=("u-c",))
    assert kinds.masks(terrain_of(*pools(("gpu", []), ("cpu", []))))[1].tolist() == [True, False]
    both = pod({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]})
    with pytest.raises(RequestError, match="requests GPUs by resource and devices by ResourceClaim: use only one"):
        plan_pod(both, kinds, claims)
