"""A patch applies to the version that is known, or not at all."""

import asyncio
from collections import deque
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError, ClusterError
from extender.kube.commit import FencedError, Outcome
from extender.kube.decoding import Decoder
from extender.kube.memory import MemoryCluster
from extender.kube.objects import Pod
from extender.kube.patches import Patch, read, write
from tests.kube.test_commit import LOST, UNAVAILABLE, Term
from tests.ledger.builders import Fault, FaultyTransport, pod_manifest

POD = "/api/v1/namespaces/default/pods/p"
DECODER = Decoder(Pod)


class Server(FaultyTransport):
    """A pod, and an API server whose next patches may fail."""

    def __init__(self, *errors: ClusterError) -> None:
        faults: deque[Fault | None] = deque(Fault(error) for error in errors)
        super().__init__(MemoryCluster([pod_manifest("p", 1)]), patches=faults)

    @property
    def version(self) -> str:
        return str(self.inner.pod("default", "p")["metadata"]["resourceVersion"])

    @property
    def bodies(self) -> list[Any]:
        """Of the patches."""
        return [msgspec.json.decode(body) for verb, _, body in self.calls if verb == "PATCH"]

    def fail(self, error: ClusterError) -> None:
        """The next patch fails."""
        self.patches.append(Fault(error))

    def replace(self) -> None:
        """Put another pod of that name in its place."""
        self.inner.apply(pod_manifest("p", 1, uid="another"))


def note(server: Server, uid: str = "uid-p", **fields: Any) -> Patch[Pod]:
    return Patch(server, POD, DECODER, uid=uid, part="/status", metadata={"annotations": {"a": "b"}}, **fields)


def send(patch: Patch[Pod], version: str, term: Term | None = None) -> Pod | None:
    return asyncio.run(write(patch, term, version))


def test_an_object_is_read_by_its_name_and_uid() -> None:
    server = Server()
    rows = ((POD, "", "uid-p"), (POD, "uid-p", "uid-p"), (POD, "another", None), (f"{POD}-missing", "", None))
    for path, uid, uid_read in rows:
        pod = asyncio.run(read(server, path, DECODER, uid))
        assert (pod and pod.metadata.uid) == uid_read

    server.gets.append(Fault(UNAVAILABLE))
    with pytest.raises(ApiError, match="starting"):
        asyncio.run(read(server, POD, DECODER))


def test_a_patch_names_the_object_and_its_version() -> None:
    server, term = Server(), Term()
    known = server.version
    patch = note(server, status={"nominatedNodeName": "n"})
    pod = send(patch, known, term)
    assert pod is not None
    assert (pod.metadata.annotations, pod.status.nominated_node_name) == ({"a": "b"}, "n")
    assert server.bodies == [
        {
            "metadata": {"uid": "uid-p", "annotations": {"a": "b"}, "resourceVersion": known},
            "status": {"nominatedNodeName": "n"},
        }
    ]
    assert term.confirmed == [("uid-p", known)]
    assert patch.description.endswith(f"{POD}/status")
    assert send(note(server), known) is None, "it has changed since"
    assert send(note(server, uid=""), server.version) is not None
    assert server.bodies[-1]["metadata"].keys() == {"annotations", "resourceVersion"}
    pod = send(Patch(server, POD, DECODER, part="/status", status={"phase": "Failed"}), server.version)
    assert pod is not None
    assert pod.finished


def test_an_outcome_that_was_read_needs_a_confirmation() -> None:
    """A response has the version that was written; what is read may have been changed by a successor since."""

    class Done(Patch[Pod]):
        def judge(self, found: Pod | None, *, sealed: bool) -> Outcome | None:
            return Outcome.DONE

    def another_leads() -> None:
        term.others = "b leads"

    server, term = Server(), Term()
    patch = Done(server, POD, DECODER, uid="uid-p", part="/status")
    assert send(patch, server.version, term) is not None
    assert term.confirmed == [("uid-p", patch.version)], "it was answered"
    server.fail(LOST)
    assert send(patch, server.version, term) is not None
    assert term.confirmed[1:] == [("uid-p", patch.version), ("", "now")]
    server.fail(LOST)
    term.meanwhile = another_leads
    with pytest.raises(FencedError):
        send(patch, server.version, term)
    server.fail(LOST)
    assert send(patch, server.version) is not None, "no term is needed"


def test_an_object_that_is_gone_is_not_written_on() -> None:
    class Fallen(Patch[Pod]):
        def failed_precondition(self) -> str:
            return "its node is gone"

    server = Server()
    assert send(Fallen(server, POD, DECODER, uid="uid-p"), server.version) is None
    assert server.bodies == []
    lost, version = note(server), server.version
    server.replace()
    assert send(note(server), version) is None, "another pod has that name"
    server.fail(LOST)
    assert send(lost, version) is None
    assert lost.judge(asyncio.run(lost.read()), sealed=False) is Outcome.GONE
    server.inner.delete(server.inner.pod("default", "p"))
    assert send(note(server), version) is None
    assert send(note(server), "") is None
    assert len(server.bodies) == 3


def test_a_write_that_is_refused_or_unknown_raises() -> None:
    forbidden = ApiError(403, "Forbidden", "not allowed")
    for error in (
        ApiError(422, "Invalid", "denied"),
        ApiError(404, "NotFound", "no part"),
        forbidden,
        UNAVAILABLE,
        LOST,
    ):
        server = Server(error)
        with pytest.raises(type(error)) as raised:
            send(note(server), server.version)
        assert raised.value is error
    server, term = Server(forbidden), Term()
    version = server.version
    server.replace()
    with pytest.raises(ApiError, match="not allowed"):
        send(note(server), version)
    term.others = "another one leads"
    with pytest.raises(FencedError, match="another one leads"):
        send(note(server), server.version, term)
