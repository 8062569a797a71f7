"""Claims of pods that asked by an extended resource: which are made, and of whom while others can't be."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from extender.core.annotations import CLAIM
from extender.kube.client import ApiError, Transport
from extender.kube.objects import Pod
from extender.parts.dra.maker import MAX_DEVICES, ClaimMaker, _asked_of, _manifest_of
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import decode_pod

NAME = "kerf-0123456789abcdef"
GPU = {"name": "container-0", "class": "gpu", "count": 1}


def pod(name: str = "a", namespace: str = "default", text: str | None = None, *requests: Mapping[str, Any]) -> Pod:
    """A pod as the webhook has written it, or with another text."""
    asked = json.dumps({"name": NAME, "requests": list(requests) or [GPU]})
    metadata = {"name": name, "namespace": namespace, "uid": f"u-{name}", "annotations": {CLAIM: text or asked}}
    claims = [{"name": "devices", "resourceClaimName": NAME}]
    gates = [{"name": "kerf.dev/queue"}]
    return decode_pod({"metadata": metadata, "spec": {"resourceClaims": claims, "schedulingGates": gates}})


def test_a_claim_is_what_the_api_server_takes_and_goes_with_its_pod() -> None:
    waiting = pod("a", "team", None, GPU, {"name": "container-1", "class": "mig", "count": 2})
    asked = _asked_of(waiting, ["gpu", "mig"])
    assert asked is not None
    exactly = {"allocationMode": "ExactCount"}
    assert _manifest_of(asked, waiting) == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": NAME,
            "namespace": "team",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u-a", "controller": True}],
        },
        "spec": {
            "devices": {
                "requests": [
                    {"name": "container-0", "exactly": {"deviceClassName": "gpu", "count": 1, **exactly}},
                    {"name": "container-1", "exactly": {"deviceClassName": "mig", "count": 2, **exactly}},
                ]
            }
        },
    }


@pytest.mark.parametrize(("num_devices", "made"), [(MAX_DEVICES, True), (MAX_DEVICES + 1, False)])
def test_a_claim_has_as_many_devices_as_the_api_server_allows(num_devices: int, made: bool) -> None:
    waiting = pod("a", "default", None, {**GPU, "count": num_devices})
    assert (_asked_of(waiting, ["gpu"]) is not None) is made


@pytest.mark.parametrize(("num_chars", "made"), [(8192, True), (8193, False)])
def test_what_is_too_long_is_not_read(num_chars: int, made: bool) -> None:
    text = json.dumps({"name": NAME, "requests": [GPU]})
    assert (_asked_of(pod(text=text + " " * (num_chars - len(text))), ["gpu"]) is not None) is made


def test_a_pod_that_asks_nothing_gets_none() -> None:
    assert _asked_of(decode_pod({"metadata": {"name": "a", "uid": "u-a"}}), ["gpu"]) is None


class Server:
    """An API server that creates claims, but in namespaces that are at their quota."""

    def __init__(self, *full: str) -> None:
        self.full = full
        self.asked: list[str] = []
        self.created = asyncio.Event()

    async def post(self, path: str, body: bytes) -> bytes:
        namespace = path.split("/")[5]
        self.asked.append(namespace)
        if namespace in self.full:
            raise ApiError(403, "Forbidden", "exceeded quota")
        self.created.set()
        return body


class Making:
    """Claims of some pods are made."""

    def __init__(self, server: Server, *pods: Pod) -> None:
        self.now, self.known = 0.0, set[str]()
        entries = [Entry(one, 0.0, 0.0) for one in pods]
        self.maker = ClaimMaker(
            cast(Transport, server),
            ["gpu"],
            lambda: entries,
            exists=lambda one, name: one.metadata.name in self.known and name == NAME,
            fault=lambda: "",
            clock=lambda: self.now,
        )

    def look(self, at: float) -> None:
        self.now = at
        asyncio.run(self.maker.look())


def test_a_namespace_at_its_quota_keeps_no_other_waiting(caplog: pytest.LogCaptureFixture) -> None:
    server = Server("full")
    making = Making(server, pod("a", "full"), pod("b", "full"), pod("c", "free"))
    making.look(0.0)
    assert server.asked == ["full", "free"]
    assert caplog.messages == ["no ResourceClaim was created for pod full/a: 403 Forbidden: exceeded quota"]
    making.look(9.9)
    assert server.asked == ["full", "free"]
    making.look(10.0)
    assert sorted(server.asked[2:]) == ["free", "full"], "one of each"


def test_a_claim_that_is_there_keeps_no_other_from_being_made() -> None:
    server = Server()
    making = Making(server, pod("a", "team-a"), pod("b", "team-b"), pod("c", "team-b"))
    making.known = {"a"}
    making.look(0.0)
    assert server.asked == ["team-b", "team-b"]


def test_claims_are_made_in_the_background_whatever_fails_once(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    making, faults = Making(server, pod()), ["broken"]

    def fault() -> str:
        if faults:
            raise ValueError(faults.pop())
        return ""

    async def run() -> None:
        work = asyncio.create_task(making.maker.run())
        async with asyncio.timeout(5.0):
            await server.created.wait()
        work.cancel()

    making.maker.fault = fault
    asyncio.run(run())
    assert server.asked == ["default"]
    assert caplog.messages == ["creating ResourceClaims failed"]
