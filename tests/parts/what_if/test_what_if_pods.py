"""The pods of a question as planners take them: faults, what is not looked at, and what admission adds to them."""

from collections.abc import Mapping

from extender.explain.manifests.objects import GivenObjects, Workload
from extender.kube.objects import Pod
from extender.parts.what_if.claims import AskedClaims
from extender.parts.what_if.pods import NewPods, PodReader
from extender.parts.what_if.questions import Objects
from extender.planning.demands import Demands
from extender.planning.plans import PlanPod
from extender.planning.reports import PlanReport
from extender.queueing.pods.objects import decode_node, decode_pod
from tests.parts.what_if.what_if_facts import Manifest, asking, node, pod

CLAIMS = "its ResourceClaims, which Kerf doesn't allocate"
RUNTIME = "what its RuntimeClass adds to it"
RDMA = "rdma/hca"


def reader() -> PodReader:
    return PodReader("bestfit", AskedClaims(None, {}, {}))


def test_a_pod_that_cannot_be_understood_is_told_and_the_others_are_planned() -> None:
    pods = [decode_pod(one) for one in (pod("a", 1), pod("odd", 1, gpu_count="lots"), pod("b", 2, policy="tightest"))]
    batch, faults = reader().planned(pods)
    assert [(one.metadata.name, planned.key, planned.num_gpus, planned.policy) for one, planned in batch] == [
        ("a", "ns/a", 1, "bestfit"),
        ("b", "ns/b", 2, "tightest"),
    ]
    assert faults.keys() == {"ns/odd"}
    assert "lots" in faults["ns/odd"]


def test_claims_of_others_are_not_looked_at_beside_all_else_that_is_wanted() -> None:
    claims = {"resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]}
    plain, demanding = pod("a", 1, spec=claims), asking("b", 0, {"nvidia.com/gpu": "1", RDMA: "2"})
    demanding["spec"] |= claims
    batch, faults = reader().planned(decode_pod(one) for one in (plain, demanding, pod("c", 1)))
    assert not faults
    assert [planned.demands for _, planned in batch] == [
        Demands(unchecked=(CLAIMS,)),
        Demands(resources=((RDMA, 2),), unchecked=(CLAIMS,)),
        None,
    ]


def tainted(*taints: tuple[str, str]) -> Manifest:
    return node("n", 8) | {"spec": {"taints": [{"key": key, "effect": effect} for key, effect in taints]}}


NODE = tainted((RDMA, "NoSchedule"), ("nvidia.com/gpu", "NoSchedule"), ("cpu", "NoSchedule"), ("x/y", "NoExecute"))


def added(one: Pod) -> list[tuple[str, str | None, str | None, str | None]]:
    return [(item.key, item.operator, item.value, item.effect) for item in one.spec.tolerations or ()]


def admitted(*pods: Manifest, assume: bool = True) -> tuple[list[Pod], NewPods]:
    new = NewPods([decode_node(NODE), decode_node(node("plain", 1))], assume=assume)
    return new.as_admitted([decode_pod(one) for one in pods]), new


def noted(new: NewPods, key: str) -> tuple[str, ...]:
    demands = new.noted(PlanPod(key)).demands
    return () if demands is None else demands.unchecked


def test_tolerations_of_the_resources_that_a_pod_asks_for_are_added_and_told() -> None:
    both = asking("p", 0, {"nvidia.com/gpu": "1", RDMA: "1", "x/y": "1"})
    own = [{"key": "team", "operator": "Exists"}, {"key": RDMA, "operator": "Equal", "value": "1"}]
    both["spec"]["tolerations"] = own
    (found,), new = admitted(both)
    assert [key for key, *_ in added(found)] == ["team", RDMA, "nvidia.com/gpu", RDMA]
    assert added(found)[2:] == [(key, "Exists", "", "NoSchedule") for key in ("nvidia.com/gpu", RDMA)]
    words = (
        "the toleration of taint {}: assumed to be added at admission, as ExtendedResourceToleration, GKE and AKS do"
    )
    assert noted(new, "ns/p") == (words.format("nvidia.com/gpu"), words.format(RDMA))
    assert new.tolerate_more


def test_tolerations_are_not_added_where_that_is_not_assumed_but_it_is_known_that_some_would_be() -> None:
    for assume in (True, False):
        (found, cpu), new = admitted(pod("p", 1), pod("cpu"), assume=assume)
        assert (bool(added(found)), bool(added(cpu)), bool(noted(new, "ns/p"))) == (assume, False, assume)
        assert new.tolerate_more
    tolerant = pod("p", 1, spec={"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]})
    (found, _), new = admitted(tolerant, pod("cpu"))
    assert ([key for key, *_ in added(found)], new.tolerate_more) == (["nvidia.com/gpu"], False)


def test_what_an_init_container_asks_for_counts_too() -> None:
    late = pod("p")
    late["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {RDMA: "1"}}}]
    (found,), _ = admitted(late)
    assert [key for key, *_ in added(found)] == [RDMA]


def test_what_a_runtime_class_adds_is_not_looked_at_and_nothing_of_others_is_noted() -> None:
    for assume in (False, True):
        _, new = admitted(pod("p", spec={"runtimeClassName": "nvidia"}), pod("q"), assume=assume)
        assert noted(new, "ns/p") == (RUNTIME,)
        assert new.noted(PlanPod("ns/q")) == PlanPod("ns/q")
        assert not new.tolerate_more
        demands = Demands(resources=((RDMA, 1),), unchecked=("before",))
        beside = new.noted(PlanPod("ns/p", demands=demands)).demands
        assert beside == Demands(((RDMA, 1),), unchecked=("before", RUNTIME))
    _, new = admitted(pod("p", 1, spec={"runtimeClassName": "nvidia"}))
    assert noted(new, "ns/p")[0] == RUNTIME
    assert len(noted(new, "ns/p")) == 2


# Of objects


def workload(name: str, *pods: Manifest, copy: int = 0, notes: tuple[str, ...] = ()) -> Workload:
    return Workload(f"Job ns/{name}", f"objects[{copy}]", [decode_pod(one) for one in pods], notes, copy)


def report(assigned: Mapping[str, str], unassigned: Mapping[str, str]) -> PlanReport:
    found: PlanReport = {
        "assignments": [{"pod": key, "node": name, "gpus": []} for key, name in assigned.items()],
        "unassigned": [{"pod": key, "reason": why} for key, why in unassigned.items()],
    }  # type: ignore[typeddict-item]  # an object reads no more of it
    return found


def test_each_object_is_told_with_its_pods_by_node_and_why_others_have_none() -> None:
    first = workload("a", pod("x"), pod("y"), pod("z"), pod("w"), notes=("as written",))
    objects = Objects.of(GivenObjects([first, workload("b", pod("x"))]), ["ns/y"])
    assert [one.key for one in objects.pods] == ["ns/x", "ns/y.2", "ns/z", "ns/w", "ns/x.2"]
    placed = report({"ns/z": "n", "ns/x": "n", "ns/y.2": "m", "ns/y": "n"}, {"ns/w": "busy", "ns/x.2": "full"})
    a = {"object": "Job ns/a", "place": "objects[0]", "pods": 4, "placed": 3, "reasons": {"busy": 1}}
    nodes = [{"node": "n", "pods": ["ns/x", "ns/z"]}, {"node": "m", "pods": ["ns/y.2"]}]
    b = {"object": "Job ns/b", "place": "objects[0]", "pods": 1, "placed": 0, "reasons": {"full": 1}}
    assert objects.report(placed, {"ns/z": "of z", "ns/y": "of another"}) == [
        a | {"nodes": nodes, "notes": ["as written", "of z"]},
        b | {"nodes": [], "notes": []},
    ]
    many = {"ns/x": "seldom", "ns/z": "often", "ns/w": "often"}
    reasons = [list(one["reasons"].items()) for one in objects.report(report({}, many), {})]
    assert reasons == [[("often", 2), ("seldom", 1)], []]


def test_each_copy_of_an_object_is_a_gang_of_its_own_and_what_is_no_gang_stays_so() -> None:
    manifests = [pod(name) for name in ("one", "two", "single")]
    for number, manifest in enumerate(manifests):
        manifest["metadata"]["uid"] = f"u{number}"
    copies = [workload("a", manifest, copy=number) for number, manifest in zip((1, 2, 0), manifests, strict=True)]
    objects = Objects.of(GivenObjects(copies), [])
    pods = [pod for one in copies for pod in one.pods]
    in_gang, alone = PlanPod("ns/one", gang="ns/g"), PlanPod("ns/one")
    assert [objects.copied(one, in_gang).gang for one in pods] == ["ns/g, copy 1", "ns/g, copy 2", "ns/g"]
    assert [objects.copied(one, alone) for one in pods] == [alone] * 3
