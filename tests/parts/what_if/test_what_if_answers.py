"""What a what-if question takes from Kerf to the process that answers it: the cluster as it is, and no more."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from extender.core.policies.registry import POLICIES
from extender.explain.processes import ParentPipe, QuestionQueue
from extender.kube.client import Query
from extender.kube.memory import MemoryCluster
from extender.ledger.ledger import Ledger
from extender.ledger.mirror import Mirror
from extender.parts.what_if.answers import WhatIfAnswers
from extender.parts.what_if.inputs import WhatIfInputs
from extender.parts.what_if.process import _answer
from extender.parts.what_if.questions import Question, needs_of, read_question
from extender.parts.what_if.waiting import PendingState
from extender.plugins.holdings import whole_gpus
from extender.plugins.set_aside import SET_ASIDE, Note, text_of
from extender.queueing.pods.objects import decode_node, decode_pod
from tests.dra.owned_rig import OwnedRig
from tests.parts.what_if.test_what_if_process import four_at_once
from tests.parts.what_if.what_if_facts import Manifest, node, pod
from tests.plugins.claims import resource_claim

ONE = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
RDMA = "rdma/hca"
CONFIGURED = ("tightest", "bestfit", "kerf")


class Process:
    """The process, in this one: what it is told goes the same way, and is kept."""

    def __init__(self, told: list[WhatIfInputs]) -> None:
        self._told, self._question = told, list[Question]()

    async def ask(self, content: bytes) -> bytes:
        if not self._question:
            self._question.append(read_question(content))
            return msgspec.json.encode(needs_of(self._question[0]))
        facts: WhatIfInputs = pickle.loads(content)  # noqa: S301
        self._told.append(facts)
        return msgspec.json.encode(_answer(self._question[0], facts))


class Here(QuestionQueue):
    """Turns for such processes."""

    def __init__(self) -> None:
        super().__init__(max_s=7.0)
        self.told: list[WhatIfInputs] = []
        self.modules: list[str] = []

    @asynccontextmanager
    async def process(self, module: str) -> AsyncIterator[ParentPipe]:
        self.modules.append(module)
        yield Process(self.told)  # type: ignore[misc]


class Api(MemoryCluster):
    """That keeps what was asked of it."""

    def __init__(self, objects: Iterable[Manifest]) -> None:
        super().__init__(objects)
        self.asked: list[tuple[str, str | None]] = []

    async def get(self, path: str, query: Query | None = None) -> bytes:
        self.asked.append((path, (query or {}).get("fieldSelector")))
        return await super().get(path, query)


class Asked:
    """A cluster, and what-if on it."""

    def __init__(self, *objects: Manifest, ledger: Ledger | None = None, **options: Any) -> None:
        self.api = Api([{"kind": "Pod" if "containers" in item["spec"] else "Node"} | item for item in objects])
        self.now = 100.0
        self.ledger = Ledger(reservation_ttl_s=30.0) if ledger is None else ledger
        mirror = Mirror(self.api, self.ledger, lambda: self.now, max_age_s=60.0, ignored_resources=["ignored/one"])
        for item in objects:
            if "containers" not in item["spec"]:
                self.ledger.upsert_node(decode_node(item))
            elif "nodeName" in item["spec"]:
                self.ledger.upsert_pod(decode_pod(item), self.now)
                mirror.bound_pods.upsert_pod(decode_pod(item))
        self.turns = Here()
        self.what_if = WhatIfAnswers(
            transport=self.api,
            ledger=self.ledger,
            mirror=mirror,
            clock=lambda: self.now,
            policy="tightest",
            policies=lambda: {name: POLICIES[name] for name in CONFIGURED},
            turns=self.turns,
            **options,
        )

    def tell(self, **question: Any) -> tuple[Any, WhatIfInputs]:
        """The answer, and what it was made on."""
        answer = asyncio.run(self.what_if.answer(msgspec.json.encode(question)))
        return msgspec.json.decode(answer), self.turns.told[-1]

    def gets(self) -> list[tuple[str, str | None]]:
        """What was asked of the API server, by its last part and the selector of fields."""
        return [(path.rpartition("/")[2], selector) for path, selector in self.api.asked]


def test_a_question_about_pods_takes_the_nodes_and_what_is_held_of_them() -> None:
    asked = Asked(node("a", 8), node("b", 4), pod("x", 3, on="a"), pod("y", 1, on="a"))
    answer, facts = asked.tell(pods=[pod("p", 4), pod("q", 5)])
    assert [entry["pod"] for entry in answer["unassigned"]] == ["ns/q"]
    assert [(entry["pod"], entry["node"]) for entry in answer["assignments"]] == [("ns/p", "a")]
    assert asked.gets() == [("nodes", None)]
    assert asked.turns.modules == ["extender.parts.what_if.process"]
    assert [item["metadata"]["name"] for item in msgspec.json.decode(facts.nodes)["items"]] == ["a", "b"]
    assert (facts.pods_on, facts.pending, facts.ledger, facts.devices, facts.stranding) == ({}, None, None, None, None)
    assert facts.num_pods == {"a": 2, "b": 0}
    assert (facts.default_policy, facts.max_s, facts.waiting) == ("tightest", 7.0, PendingState())
    assert facts.ignored == {"ignored/one"}
    assert facts.cluster.node_names == ("a", "b")
    assert facts.cluster.devices is None
    assert {
        name: (policy.name, policy.by_state, policy.apart, policy.terms, policy.breakdown)
        for name, policy in facts.policies.items()
    } == {name: (name, POLICIES[name].by_state, None, None, None) for name in CONFIGURED}


def test_a_quarantined_node_takes_no_pods_but_a_new_copy_of_it_does() -> None:
    ledger = Ledger(reservation_ttl_s=30.0)
    ledger.enable_quarantine()
    quarantined = node("a", 4)
    quarantined["metadata"]["annotations"] = {SET_ASIDE: text_of(Note(7, 3, 1_700_000_000, 2_000_000_000))}
    asked = Asked(quarantined, ledger=ledger)
    assert asked.tell(pods=[pod("p", 2)])[0]["placed"] == 0
    answer, _ = asked.tell(pods=[pod("p", 2)], addNodes=[{"template": "a"}])
    assert [entry["node"] for entry in answer["assignments"]] == ["a+1"]


def test_a_node_that_is_drained_tells_its_pods_if_it_is_known() -> None:
    moved = pod("x", 3, on="a")
    asked = Asked(node("a", 8), node("b", 4), node("c", 4), moved)
    asked.ledger.remove_node("c")
    answer, facts = asked.tell(drain=["a", "a", "c"])
    assert (answer["moved"], [entry["node"] for entry in answer["assignments"]]) == (["ns/x"], ["b"])
    assert asked.gets() == [("nodes", None), ("pods", "spec.nodeName=a")]
    assert facts.pods_on.keys() == {"a"}
    assert "ns/x" in {decode_pod(item).key for item in msgspec.json.decode(facts.pods_on["a"])["items"]}


def test_what_is_stranded_as_a_node_is_drained_is_told_where_the_service_counts() -> None:
    runs = pod("x", 1, on="a", assigned_gpus="0")
    asked: Asked = Asked(
        node("a", 4), node("b", 4), runs, stranding=lambda: four_at_once(asked.ledger.snapshot(asked.now))
    )
    answer, facts = asked.tell(drain=["a"])
    assert (answer["strandedBefore"], answer["stranded"]) == (0.375, 0.375)
    assert facts.stranding is not None
    assert facts.stranding.tables is None, "they are large, and made anew"


def test_those_that_wait_are_listed_with_what_the_queue_knows_of_them() -> None:
    waits = pod("w", 2)
    asked = Asked(node("a", 8), waits, waiting=lambda: PendingState({"other": "over quota"}, []))
    answer, facts = asked.tell(waiting=True)
    assert [entry["pod"] for entry in answer["assignments"]] == ["ns/w"]
    assert asked.gets() == [("nodes", None), ("pods", "spec.nodeName=,status.phase=Pending")]
    assert facts.waiting == PendingState({"other": "over quota"}, [])
    assert asked.tell(pods=[pod("p", 1)])[1].waiting == PendingState()


def test_rows_go_along_where_nodes_are_added_without_what_is_not_held_any_more() -> None:
    asked = Asked(node("a", 8))
    asked.ledger.reserve("u", "a", whole_gpus(8, tuple(range(8))), asked.now)
    adds: Any = {"pods": [pod("p", 8)], "replicas": 2, "addNodes": [{"template": "a"}]}
    answer, facts = asked.tell(**adds)
    assert facts.ledger is not None
    assert [entry["node"] for entry in answer["assignments"]] == ["a+1"]
    asked.now += 60
    assert sorted(entry["node"] for entry in asked.tell(**adds)[0]["assignments"]) == ["a", "a+1"]


def test_who_runs_where_goes_along_as_far_as_it_matters() -> None:
    plain, takes = pod("plain", 1, on="a"), pod("takes", 1, on="a")
    takes["spec"]["containers"][0]["resources"]["limits"][RDMA] = "1"
    asked = Asked(node("a", 8), plain, takes)

    def uids(facts: WhatIfInputs) -> set[str]:
        return {one.uid for portion in facts.crowd for one in pickle.loads(portion)}  # noqa: S301

    assert uids(asked.tell(pods=[pod("p", 1)])[1]) == {"takes"}
    spread = {
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
    }
    assert uids(asked.tell(pods=[pod("p", 1, spec=spread)])[1]) == {"plain", "takes"}


def claiming(name: str, claim: str) -> Manifest:
    return pod(name, spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]})


def owned(*names: str, **options: Any) -> tuple[OwnedRig, Asked]:
    """A cluster of a GPU on each of two nodes, which Kerf allocates, and claims of which those named exist."""
    rig = OwnedRig(gpus=1)
    rig.publish("m", 1)
    for name in names:
        rig.ledger.upsert_device(resource_claim(name, ONE))
    return rig, Asked(node("n", 0), node("m", 0), ledger=rig.ledger, **options)


def in_default(manifest: Manifest) -> Manifest:
    return manifest | {"metadata": manifest["metadata"] | {"namespace": "default"}}


def test_devices_go_along_where_a_pod_names_a_claim_and_each_inventory_is_packed_once() -> None:
    rig, asked = owned("mine", "other")
    answer, facts = asked.tell(pods=[in_default(claiming("p", "mine"))])
    assert answer["placed"] == 1
    assert facts.devices is not None
    assert facts.devices.devices.keys() == {"n", "m"}
    assert facts.devices.claims.keys() == {"default/mine"}
    assert facts.devices.classes == dict(rig.owned.classes)
    assert facts.cluster.devices is None
    again = asked.tell(pods=[in_default(claiming("p", "mine"))])[1].devices
    assert again is not None
    assert again.devices == facts.devices.devices
    taken = resource_claim("has", ONE, devices=("gpu-0",), pool="n", pods=("x",))
    rig.ledger.upsert_device(taken)
    answer, facts = asked.tell(pods=[in_default(claiming(name, name)) for name in ("mine", "other")])
    assert answer["placed"] == 1
    assert facts.devices is not None
    assert [facts.devices.devices[name][1] for name in ("n", "m")] == [1, 0]
    assert facts.devices.claims.keys() == {"default/mine", "default/other"}


def test_without_a_claim_that_matters_no_devices_go_along() -> None:
    rig, asked = owned("mine")
    assert asked.tell(pods=[pod("p")])[1].devices is None
    assert asked.tell(drain=["n"])[1].devices is None
    rig.ledger.upsert_device(resource_claim("has", ONE, devices=("gpu-0",), pool="n", pods=("x",)))
    told = asked.tell(drain=["n"])[1].devices
    assert told is not None
    assert told.claims.keys() == {"default/has"}
    assert asked.tell(drain=["m"])[1].devices is None
    unknown = asked.tell(pods=[in_default(claiming("p", "gone"))])[1].devices
    assert unknown is not None
    assert unknown.claims == {}


def test_claims_of_those_that_wait_matter_too() -> None:
    _, asked = owned("mine", waiting=lambda: PendingState({}, ["default/mine"]))
    told = asked.tell(waiting=True)[1].devices
    assert told is not None
    assert told.claims.keys() == {"default/mine"}
    assert asked.tell(pods=[pod("p")])[1].devices is None


def test_nodes_without_devices_of_kerf_tell_none() -> None:
    rig, asked = owned("mine")
    rig.ledger.upsert_node(decode_node(node("plain", 2)))
    told = asked.tell(pods=[in_default(claiming("p", "mine"))])[1].devices
    assert told is not None
    assert told.devices.keys() == {"n", "m"}
