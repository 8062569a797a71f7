"""The claims that are made for pods which asked by an extended resource."""

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
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u-a", "controller": True}
    first, second = (
        {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
        for device_class, count in (("gpu", 1), ("mig", 2))
    )
    requests = [{"name": "container-0", "exactly": first}, {"name": "container-1", "exactly": second}]
    assert _manifest_of(asked, waiting) == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": NAME, "namespace": "team", "ownerReferences": [owner]},
        "spec": {"devices": {"requests": requests}},
    }


def test_what_a_pod_may_ask_for_is_bounded() -> None:
    text = json.dumps({"name": NAME, "requests": [GPU]})
    for asking, made in (
        (pod("a", "default", None, {**GPU, "count": MAX_DEVICES}), True),
        (pod("a", "default", None, {**GPU, "count": MAX_DEVICES + 1}), False),
        (pod(text=text + " " * (8192 - len(text))), True),
        (pod(text=text + " " * (8193 - len(text))), False),
        (decode_pod({"metadata": {"name": "a", "uid": "u-a"}}), False),
    ):
        assert (_asked_of(asking, ["gpu"]) is not None) is made


class Server:
    """An API server that creates claims, except in namespaces that are at their quota."""

    def __init__(self, *full: str, status: int = 403) -> None:
        self.full, self.status = full, status
        self.asked: list[str] = []
        self.created = asyncio.Event()

    async def post(self, path: str, body: bytes) -> bytes:
        namespace = path.split("/")[5]
        self.asked.append(namespace)
        if namespace in self.full:
            raise ApiError(self.status, "", "exceeded quota")
        self.created.set()
        return body


class Making:
    def __init__(self, server: Server, *pods: Pod) -> None:
        self.now, self.known, self.fault = 0.0, set[str](), ""
        entries = [Entry(one, 0.0, 0.0) for one in pods]
        self.maker = ClaimMaker(
            cast(Transport, server),
            ["gpu"],
            lambda: entries,
            exists=lambda one, name: one.metadata.name in self.known and name == NAME,
            fault=lambda: self.fault,
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
    (message,) = caplog.messages
    assert "full/a" in message and "exceeded quota" in message
    making.look(9.9)
    assert server.asked == ["full", "free"]
    making.look(10.0)
    assert sorted(server.asked[2:]) == ["free", "full"], "one of each"


def test_the_leader_makes_missing_claims_once() -> None:
    server = Server("team-b", status=409)  # one that exists is none that fails
    making = Making(server, pod("a", "team-a"), pod("b", "team-b"), pod("c", "team-b"))
    making.known, making.fault = {"a"}, "standby"
    making.look(0.0)
    assert server.asked == []
    making.fault = ""
    for at in (1.0, 2.0):  # until the watch reports them
        making.look(at)
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
    assert len(caplog.messages) == 1
