"""Writes to pods that kube-scheduler binds by itself: by the leader only, on the version that was decided on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec
import pytest

from extender.kube.client import ApiError, ClusterError, Transport, UnreachableError
from extender.kube.commit import FencedError
from extender.kube.objects import Pod
from extender.queueing.direct.writer import DirectWriter, is_blank
from extender.queueing.pods.objects import decode_pod
from tests.kube.test_commit import Term
from tests.queueing.direct.rigs import VersionedApi
from tests.queueing.rigs import GATES, Manifest

RESERVED = {"kerf.dev/assigned-node": "n", "kerf.dev/assigned-gpus": "0"}
PATH = "/api/v1/namespaces/ns/pods/a"

Write = Callable[[DirectWriter, Pod, Term], Coroutine[Any, Any, Pod | None]]


class Api(VersionedApi):
    """Remembers what it was asked to write."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        metadata: Manifest = {"name": "a", "namespace": "ns", "uid": "a", "annotations": {}, "resourceVersion": "7"}
        self.pods["a"] = {
            "metadata": metadata | parts.get("metadata", {}),
            "spec": {"schedulingGates": GATES} | parts.get("spec", {}),
            "status": {"phase": "Pending"} | parts.get("status", {}),
        }
        self.asked: list[tuple[str, Manifest]] = []

    async def patch(self, path: str, body: bytes) -> bytes:
        self.asked.append((path, msgspec.json.decode(body)))
        return await super().patch(path, body)

    def writer(self) -> DirectWriter:
        return DirectWriter(cast(Transport, self))

    @property
    def pod(self) -> Pod:
        return decode_pod(self.pods["a"])

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.pods["a"]["metadata"]["annotations"]
        return found


def assign(writer: DirectWriter, pod: Pod, term: Term) -> Coroutine[Any, Any, Pod | None]:
    return writer.assign(pod, "n", lambda: RESERVED, "", term)


def take_back(writer: DirectWriter, pod: Pod, term: Term) -> Coroutine[Any, Any, Pod | None]:
    return writer.take_back(pod, "n", term)


WRITES: list[tuple[str, str, Write]] = [
    ("assign", "/status", assign),
    ("open", "", lambda writer, pod, term: writer.open(pod, "greedy", {}, term)),
    ("open without node", "", lambda writer, pod, term: writer.open_without_node(pod, "no plan", term)),
    ("take back", "/status", take_back),
    ("assign bound", "/status", lambda writer, pod, term: writer.assign_bound(pod, RESERVED, term)),
]
each_write = pytest.mark.parametrize(("part", "write"), [row[1:] for row in WRITES], ids=[row[0] for row in WRITES])


@each_write
def test_each_write_is_one_of_a_term_on_the_pod_as_it_is_known(part: str, write: Write) -> None:
    api, term = Api(), Term()
    found = asyncio.run(write(api.writer(), api.pod, term))
    assert found is not None
    assert found.metadata.resource_version == "8"
    ((path, body),) = api.asked
    assert path == PATH + part
    assert (body["metadata"]["uid"], body["metadata"]["resourceVersion"]) == ("a", "7")
    assert term.confirmed == [("a", "7")]


@each_write
def test_a_process_that_does_not_lead_writes_nothing(part: str, write: Write) -> None:
    api, term = Api(), Term()
    term.others = "another one leads"
    with pytest.raises(FencedError, match="another one leads"):
        asyncio.run(write(api.writer(), api.pod, term))
    assert api.asked == []


@each_write
def test_a_pod_that_has_changed_is_not_written_on(part: str, write: Write) -> None:
    api = Api()
    known = api.pod
    api.touch("a")
    assert asyncio.run(write(api.writer(), known, Term())) is None
    assert api.pods["a"]["metadata"]["resourceVersion"] == "8"


def write(api: Api, work: Write, writer: DirectWriter | None = None) -> Pod | None:
    return asyncio.run(work(writer or api.writer(), api.pod, Term()))


@pytest.mark.parametrize("others", [["example.com/licence", "example.com/data"], []])
def test_gates_of_others_stay_shut(others: list[str]) -> None:
    api = Api(spec={"schedulingGates": [*GATES, *({"name": name} for name in others)]})
    write(api, lambda writer, pod, term: writer.open(pod, "greedy", {"nodeSelector": {"rack": "r1"}}, term))
    spec = api.pods["a"]["spec"]
    assert spec["schedulingGates"] == ([{"name": name} for name in others] or None)
    assert spec["nodeSelector"] == {"rack": "r1"}
    assert api.annotations == {"kerf.dev/planned-by": "greedy"}


def test_what_was_written_of_a_node_is_gone_where_the_gate_opens_without_one() -> None:
    notes = {**RESERVED, "kerf.dev/planned-node": "n", "kerf.dev/skipped": "no room", "kerf.dev/skipped-count": "3"}
    api = Api(metadata={"annotations": notes})
    write(api, lambda writer, pod, term: writer.open_without_node(pod, "no plan", term))
    assert api.annotations == {"kerf.dev/planned-node": "", "kerf.dev/planned-by": "no plan"}


@pytest.mark.parametrize(
    ("lost", "told"), [("", None), ("1. m: gone", "1. m: gone"), ("2. m: " + 600 * "x", "2. m: " + 494 * "x")]
)
def test_a_nomination_tells_which_node_was_lost(lost: str, told: str | None) -> None:
    api = Api(metadata={"annotations": {"kerf.dev/skipped": "no room", "kerf.dev/skipped-count": "3"}})
    write(api, lambda writer, pod, term: writer.assign(pod, "n", lambda: RESERVED, lost, term))
    assert api.annotations.pop("kerf.dev/nomination-lost", None) == told
    assert api.annotations == {**RESERVED, "kerf.dev/planned-node": "n"}
    assert api.pods["a"]["status"]["nominatedNodeName"] == "n"


def test_what_is_assigned_by_others_is_taken_away() -> None:
    api = Api(metadata={"annotations": {"kerf.dev/assigned-gpus": "3", "ALIYUN_COM_GPU_MEM_IDX": "3", "own": "x"}})
    write(api, lambda writer, pod, term: writer.assign(pod, "n", lambda: {"kerf.dev/assigned-node": "n"}, "", term))
    assert api.annotations == {"kerf.dev/assigned-node": "n", "kerf.dev/planned-node": "n", "own": "x"}


def test_a_nomination_is_taken_back_unless_it_is_kube_schedulers() -> None:
    gated, opened = Api(status={"nominatedNodeName": "m"}), Api(spec={"schedulingGates": None})
    write(gated, take_back)
    assert "nominatedNodeName" not in gated.pods["a"]["status"]
    for node, left in (("n", None), ("m", "m")):
        opened.pods["a"]["status"]["nominatedNodeName"] = node
        opened.pods["a"]["metadata"]["annotations"] = dict(RESERVED)
        write(opened, take_back)
        assert opened.pods["a"]["status"].get("nominatedNodeName") == left
        assert opened.annotations == {}


def failing(api: Api, error: ClusterError) -> DirectWriter:
    """A writer whose assignment has failed."""
    writer = api.writer()
    assert writer.is_clear(api.pod)
    api.fail = lambda name, part: error
    with pytest.raises(type(error)):
        write(api, assign, writer)
    api.fail = lambda name, part: None
    assert is_blank(api.pod)
    return writer


def test_a_pod_on_which_an_assignment_may_come_yet_is_changed_to_be_clear() -> None:
    api = Api()
    writer = failing(api, UnreachableError("cut"))
    assert not writer.is_clear(api.pod)
    stale = api.pod
    api.touch("a")
    assert asyncio.run(writer.take_back(stale, "n", Term())) is None
    assert not writer.is_clear(api.pod), "it has changed before that"
    write(api, take_back, writer)
    assert writer.is_clear(api.pod)
    assert len(api.annotations["kerf.dev/sealed"]) == 8
    write(api, take_back, writer)
    assert api.asked[-1][1]["metadata"]["annotations"] == {}, "once is enough"


def test_an_assignment_that_was_refused_or_whose_pod_is_gone_may_not_come_any_more() -> None:
    api = Api()
    assert failing(api, ApiError(422, "Invalid", "denied by a webhook")).is_clear(api.pod)
    writer = failing(api, UnreachableError("cut"))
    writer.forget("another")
    assert not writer.is_clear(api.pod)
    writer.forget("a")
    assert writer.is_clear(api.pod)


class Losing(Api):
    """Does a part of the first write, and does not answer."""

    def __init__(self, status: dict[str, str], notes: dict[str, str]) -> None:
        super().__init__()
        self.part = status, notes

    async def patch(self, path: str, body: bytes) -> bytes:
        if self.asked:
            return await super().patch(path, body)
        self.asked.append((path, msgspec.json.decode(body)))
        self.pods["a"]["status"] |= self.part[0]
        self.annotations.update(self.part[1])
        self.touch("a")
        raise UnreachableError("cut")


def test_where_an_answer_is_lost_all_of_an_assignment_has_to_be_there() -> None:
    status, notes = {"nominatedNodeName": "n"}, {"kerf.dev/planned-node": "n"}
    found = write(Losing(status, {**RESERVED, **notes}), assign)
    assert found is not None
    assert found.status.nominated_node_name == "n"
    for api in (Losing({}, {**RESERVED, **notes}), Losing(status, notes)):
        with pytest.raises(UnreachableError):
            write(api, assign)


def test_what_does_not_stand_any_more_is_not_assigned() -> None:
    api = Api()
    assert write(api, lambda writer, pod, term: writer.assign(pod, "n", lambda: None, "", term)) is None
    assert api.asked == []
