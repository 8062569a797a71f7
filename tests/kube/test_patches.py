"""An object is changed as it is known, or not at all."""

import asyncio
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError
from extender.kube.commit import FencedError, Outcome
from extender.kube.decoding import Decoder
from extender.kube.memory import MemoryCluster
from extender.kube.objects import Pod
from extender.kube.patches import Patch, read, write
from tests.kube.test_commit import LOST, UNAVAILABLE, Term
from tests.ledger.builders import pod_manifest

POD = "/api/v1/namespaces/default/pods/p"
DECODER = Decoder(Pod)


class Server(MemoryCluster):
    """A pod, and an API server that answers once in place of doing what it is asked to."""

    def __init__(self) -> None:
        super().__init__([pod_manifest("p", 1)])
        self.instead: Exception | None = None
        self.bodies: list[Any] = []

    @property
    def version(self) -> str:
        return str(self.pod("default", "p")["metadata"]["resourceVersion"])

    def replace(self) -> None:
        """By another pod of that name."""
        manifest = pod_manifest("p", 1)
        manifest["metadata"]["uid"] = "another"
        self.apply(manifest)

    async def patch(self, path: str, body: bytes) -> bytes:
        self.bodies.append(msgspec.json.decode(body))
        if (error := self.instead) is not None:
            self.instead = None
            raise error
        return await super().patch(path, body)


def note(server: Server, uid: str = "uid-p", **fields: Any) -> Patch[Pod]:
    return Patch(server, POD, DECODER, uid=uid, part="/status", metadata={"annotations": {"a": "b"}}, **fields)


def test_an_object_is_read_by_its_name_and_its_uid() -> None:
    server = Server()
    for uid, found in (("", True), ("uid-p", True), ("another", False)):
        assert (asyncio.run(read(server, POD, DECODER, uid)) is not None) is found
    pod = asyncio.run(read(server, POD, DECODER))
    assert pod is not None
    assert pod.metadata.uid == "uid-p"
    assert asyncio.run(read(server, "/api/v1/namespaces/default/pods/q", DECODER)) is None


def test_what_keeps_an_object_from_being_read_is_told() -> None:
    class Starting(Server):
        async def get(self, path: str, query: Any = None) -> bytes:
            raise UNAVAILABLE

    with pytest.raises(ApiError, match="starting"):
        asyncio.run(read(Starting(), POD, DECODER))


def test_a_patch_names_the_object_and_the_version_that_it_is_of() -> None:
    server, term = Server(), Term()
    known = server.version
    patch = note(server, status={"nominatedNodeName": "n"})
    found = asyncio.run(write(patch, term, known))
    assert found is not None
    assert (found.metadata.annotations, found.status.nominated_node_name) == ({"a": "b"}, "n")
    assert server.bodies == [
        {
            "metadata": {"uid": "uid-p", "annotations": {"a": "b"}, "resourceVersion": known},
            "status": {"nominatedNodeName": "n"},
        }
    ]
    assert term.confirmed == [("uid-p", known)]
    assert patch.words == f"writing {POD}/status"
    assert asyncio.run(write(note(server), None, known)) is None, "it has changed since"


def test_what_is_found_to_be_done_is_gone_on_with_only_by_who_leads_still() -> None:
    """An answer tells the version that was written; what is read may have been changed by a successor since."""

    class Found(Patch[Pod]):
        def judge(self, found: Pod | None, *, sealed: bool) -> Outcome | None:
            return Outcome.DONE

    def another_leads() -> None:
        term.others = "b leads"

    server, term = Server(), Term()
    patch = Found(server, POD, DECODER, uid="uid-p", part="/status")
    assert asyncio.run(write(patch, term, server.version)) is not None
    assert term.confirmed == [("uid-p", patch.version)], "it was answered"
    server.instead = LOST
    assert asyncio.run(write(patch, term, server.version)) is not None
    assert term.confirmed[1:] == [("uid-p", patch.version), ("", "now")]
    server.instead, term.meanwhile = LOST, another_leads
    with pytest.raises(FencedError):
        asyncio.run(write(patch, term, server.version))
    server.instead = LOST
    assert asyncio.run(write(patch, None, server.version)) is not None, "whoever may write it goes on"


def test_a_patch_of_whatever_has_a_name_asks_for_no_uid() -> None:
    server = Server()
    assert asyncio.run(write(note(server, uid=""), None, server.version)) is not None
    assert server.bodies[0]["metadata"].keys() == {"annotations", "resourceVersion"}


def test_a_patch_may_change_nothing_but_a_part() -> None:
    server = Server()
    patch: Patch[Pod] = Patch(server, POD, DECODER, part="/status", status={"phase": "Failed"})
    found = asyncio.run(write(patch, None, server.version))
    assert found is not None
    assert found.finished


def test_an_object_that_is_gone_is_not_written_on() -> None:
    server = Server()
    version = server.version
    server.replace()
    assert asyncio.run(write(note(server), None, version)) is None, "of that name is another one"
    server.delete(server.pod("default", "p"))
    assert asyncio.run(write(note(server), None, version)) is None
    assert asyncio.run(write(note(server), None, "")) is None
    assert len(server.bodies) == 2


def test_what_a_patch_rests_on_may_have_fallen() -> None:
    class Fallen(Patch[Pod]):
        def stands(self) -> str:
            return "its node is gone"

    server = Server()
    assert asyncio.run(write(Fallen(server, POD, DECODER, uid="uid-p"), None, server.version)) is None
    assert server.bodies == []


@pytest.mark.parametrize(
    "error",
    [
        ApiError(422, "Invalid", "denied by a webhook"),
        ApiError(404, "NotFound", "no such part"),
        ApiError(403, "Forbidden", "not allowed"),
        UNAVAILABLE,
        LOST,
    ],
)
def test_a_write_that_is_refused_or_unknown_says_so(error: Exception) -> None:
    server = Server()
    server.instead = error
    with pytest.raises(type(error)) as raised:
        asyncio.run(write(note(server), None, server.version))
    assert raised.value is error


def test_a_refusal_says_so_whether_or_not_the_object_has_gone_since() -> None:
    server, error = Server(), ApiError(403, "Forbidden", "not allowed")
    version = server.version
    server.instead = error
    server.replace()
    with pytest.raises(ApiError, match="not allowed"):
        asyncio.run(write(note(server), None, version))


def test_a_write_of_a_term_that_has_ended_says_so() -> None:
    server, term = Server(), Term()
    term.others = "another one leads"
    with pytest.raises(FencedError, match="another one leads"):
        asyncio.run(write(note(server), term, server.version))


def test_a_lost_patch_of_an_object_that_is_gone_came_to_nothing() -> None:
    server = Server()
    patch, version = note(server), server.version
    server.instead = LOST
    server.replace()
    assert asyncio.run(write(patch, None, version)) is None
    assert patch.judge(asyncio.run(patch.read()), sealed=False) is Outcome.GONE
