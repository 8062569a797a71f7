"""Pods that ask by an extended resource are made to ask by a ResourceClaim, which Kerf then creates."""

import asyncio
import copy
import json
from typing import Any, cast

import msgspec
import pytest

from extender.kube.client import ApiError, Transport
from extender.kube.objects import Pod
from extender.parts.dra.extended_resources import Rewriting
from extender.parts.dra.maker import ClaimMaker, _asked_of, _manifest_of
from extender.queueing.pods.entries import Entry
from tests.api.bodies import Manifest, pod

CLASSES = {"nvidia.com/gpu": "gpu.nvidia.com", "deviceclass.resource.kubernetes.io/mig": "mig"}
ANNOTATION = "kerf.dev/claim"


def asking(*containers: dict[str, str], init: dict[str, str] | None = None, **metadata: Any) -> Manifest:
    """A pod whose containers have these limits, as the API server completes them: requests are the same."""
    manifest = pod("p")
    manifest["metadata"] = {"name": "p", "namespace": "default", "uid": "u", **metadata}
    manifest["spec"]["containers"] = [
        {"name": f"c{index}", "resources": {"limits": dict(limits), "requests": dict(limits)}}
        for index, limits in enumerate(containers)
    ]
    if init is not None:
        manifest["spec"]["initContainers"] = [{"name": "init", "resources": {"limits": init}}]
    return manifest


def patched(manifest: Manifest, classes: dict[str, str] | None = None) -> tuple[Manifest, list[str]]:
    """The pod as the API server makes it of the answer, and the warnings."""
    rewriting = Rewriting(CLASSES if classes is None else classes)
    operations, warnings = rewriting.operations(msgspec.Raw(msgspec.json.encode(manifest)), annotated=False)
    found = copy.deepcopy(manifest)
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        at: Any = found
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if operation["op"] == "remove":
            del at[last]
        elif isinstance(at, list):
            assert last == "-"
            at.append(operation["value"])
        else:
            at[last] = operation["value"]
    return found, warnings


def claim_of(found: Manifest) -> Manifest:
    """What Kerf creates for a pod, or {}."""
    read = msgspec.convert(found, Pod)
    asked = _asked_of(read, CLASSES.values())
    return {} if asked is None else _manifest_of(asked, read)


def test_containers_ask_by_requests_of_one_claim() -> None:
    found, warnings = patched(asking({"nvidia.com/gpu": "2", "cpu": "4"}, {"cpu": "1"}, {"nvidia.com/gpu": "1"}))
    assert not warnings
    (entry,) = found["spec"]["resourceClaims"]
    name = entry["resourceClaimName"]
    assert [container["resources"] for container in found["spec"]["containers"]] == [
        {"limits": {"cpu": "4"}, "requests": {"cpu": "4"}, "claims": [{"name": name, "request": "container-0"}]},
        {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
        {"limits": {}, "requests": {}, "claims": [{"name": name, "request": "container-2"}]},
    ]
    assert entry["name"] == name
    claim = claim_of(found)
    assert claim["metadata"]["name"] == name
    assert claim["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}
    ]
    assert claim["spec"]["devices"]["requests"] == [
        {
            "name": request,
            "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": count},
        }
        for request, count in (("container-0", 2), ("container-2", 1))
    ]


def test_names_are_never_the_same() -> None:
    manifest = asking({"nvidia.com/gpu": "1"})
    names = {patched(manifest)[0]["spec"]["resourceClaims"][0]["name"] for _ in range(20)}
    assert len(names) == 20


def test_what_is_there_already_stays() -> None:
    manifest = asking({"deviceclass.resource.kubernetes.io/mig": "1"}, annotations={"a": "b"})
    manifest["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimName": "nic"}]
    manifest["spec"]["containers"][0]["resources"]["claims"] = [{"name": "nic"}]
    manifest["spec"]["schedulingGates"] = [{"name": "kerf.dev/queue"}]
    found, _ = patched(manifest)
    assert found["spec"]["resourceClaims"][0]["name"] == "nic"
    assert found["spec"]["containers"][0]["resources"]["claims"][0]["name"] == "nic"
    assert len(found["spec"]["resourceClaims"]) == len(found["spec"]["containers"][0]["resources"]["claims"]) == 2
    assert found["metadata"]["annotations"]["a"] == "b"
    assert claim_of(found)["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "mig"


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        (asking({"nvidia.com/gpu": "1"}, init={"nvidia.com/gpu": "1"}), "init containers"),
        (asking({"nvidia.com/gpu": "1", "deviceclass.resource.kubernetes.io/mig": "1"}), "a container requests"),
        (asking({"nvidia.com/gpu": "20"}, {"nvidia.com/gpu": "13"}), "more than 32"),
        (asking({"nvidia.com/gpu": "many"}), "not a number"),
        (asking({"nvidia.com/gpu": "1"}, annotations={ANNOTATION: "{}"}), "exists already"),
        (asking({"nvidia.com/gpu": "0"}), ""),
        (asking({"example.com/fpga": "1"}), ""),
    ],
)
def test_what_can_not_ask_so_asks_as_it_did(manifest: Manifest, told: str) -> None:
    found, warnings = patched(manifest)
    assert (len(warnings), told in "".join(warnings)) == (bool(told), True)
    assert found["spec"].get("resourceClaims") is None
    assert found["spec"]["containers"] == manifest["spec"]["containers"]
    assert claim_of(found) == {}


def test_without_the_setting_nothing_is_rewritten() -> None:
    found, warnings = patched(asking({"nvidia.com/gpu": "1"}), {})
    assert (warnings, found["spec"].get("resourceClaims")) == ([], None)
    assert found["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


GOOD: Manifest = {"name": "kerf-0123456789abcdef", "requests": [{"name": "container-0", "class": "mig", "count": 1}]}


@pytest.mark.parametrize(
    "asked",
    [
        GOOD | {"name": "kerf-0123456789ABCDEF"},
        GOOD | {"name": "another"},
        GOOD | {"name": "kerf-fedcba9876543210"},  # a claim that the pod does not name
        GOOD | {"requests": []},
        GOOD | {"requests": [{"name": "container-0", "class": "secret", "count": 1}]},
        GOOD | {"requests": [{"name": "container-0", "class": "mig", "count": 0}]},
        GOOD | {"requests": [{"name": "container-0", "class": "mig", "count": -1}] * 2},
        GOOD | {"requests": [{"name": "container-0", "class": "mig", "count": 33}]},
        GOOD | {"requests": GOOD["requests"] * 2},
        GOOD | {"requests": [{"name": "x" * 300, "class": "mig", "count": 1}]},
        GOOD | {"requests": [{"name": "container-0", "class": "mig", "count": 1, "adminAccess": True}]},
        {},
        [],
        None,
    ],
)
def test_an_author_gets_no_claim_that_the_webhook_would_not_ask_for(asked: Any) -> None:
    def claim(value: str) -> Manifest:
        manifest = asking({}, annotations={ANNOTATION: value})
        names = ("kerf-0123456789abcdef", "kerf-0123456789ABCDEF", "another")
        manifest["spec"]["resourceClaims"] = [{"name": name.lower(), "resourceClaimName": name} for name in names]
        return claim_of(manifest)

    assert claim(json.dumps(GOOD))
    assert claim(json.dumps(asked)) == {}
    assert claim(json.dumps(asked)[:-1]) == {}


class Server:
    """An API server that answers as told, and keeps what was created."""

    def __init__(self, status: int = 201) -> None:
        self.status = status
        self.created: list[Manifest] = []
        self.num_tries = 0

    async def post(self, path: str, body: bytes) -> bytes:
        self.num_tries += 1
        if self.status >= 400:
            raise ApiError(self.status, "", "no")
        self.created.append(json.loads(body) | {"path": path})
        return b"{}"


def maker(server: Server, *, leads: bool = True, known: bool = False) -> tuple[ClaimMaker, list[float]]:
    """Of one pod that lacks its claim, and the clock that it goes by."""
    waiting = msgspec.convert(patched(asking({"nvidia.com/gpu": "2"}))[0], Pod)
    other = msgspec.convert(asking({"cpu": "1"}), Pod)
    entries = [Entry(waiting, 0.0, 0.0), Entry(other, 0.0, 0.0)]
    now = [0.0]
    made = ClaimMaker(
        cast(Transport, server),  # the rest of an API server is not asked
        frozenset(CLASSES.values()),
        lambda: entries,
        exists=lambda pod, name: known,
        fault=lambda: "" if leads else "standby",
        clock=lambda: now[0],
    )
    return made, now


def test_the_leader_creates_what_is_missing_once() -> None:
    server = Server()
    made, _ = maker(server)
    for _ in range(3):  # until the watch tells
        asyncio.run(made.look())
    (created,) = server.created
    assert created["path"] == "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    assert created["metadata"]["ownerReferences"][0]["uid"] == "u"


@pytest.mark.parametrize("options", [{"leads": False}, {"known": True}])
def test_who_stands_by_and_who_knows_the_claim_creates_none(options: dict[str, bool]) -> None:
    server = Server()
    asyncio.run(maker(server, **options)[0].look())
    assert server.created == []


@pytest.mark.parametrize("status", [403, 409, 500])
def test_what_is_refused_is_tried_again_later(status: int) -> None:
    server = Server(status)
    made, now = maker(server)
    asyncio.run(made.look())
    server.status = 201
    now[0] = 9.0
    asyncio.run(made.look())
    assert server.created == []
    now[0] = 10.5
    asyncio.run(made.look())
    assert len(server.created) == 1


@pytest.mark.parametrize(("status", "num_tries"), [(403, 1), (409, 2)])
def test_a_namespace_that_refuses_a_claim_is_not_asked_for_each_of_its_pods(status: int, num_tries: int) -> None:
    server = Server(status)
    made, _ = maker(server)
    first, *_ = made.entries()
    metadata = msgspec.structs.replace(first.pod.metadata, uid="u-2", name="p-2")
    made.entries = lambda: [first, Entry(msgspec.structs.replace(first.pod, metadata=metadata), 0.0, 0.0)]
    asyncio.run(made.look())
    assert server.num_tries == num_tries
