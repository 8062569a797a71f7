"""What several processes write down in one ConfigMap or Secret: whoever writes on an older version hears of it."""

import asyncio
from typing import Any

import pytest

from extender.kube import records
from extender.kube.client import ApiError, ClusterError, UnreachableError
from tests.kube.test_commit import LOST, PLAN, Server


def write(server: Server, version: str, **parts: Any) -> str:
    return asyncio.run(records.write(server, PLAN, version, **parts))


def test_what_is_written_is_read() -> None:
    server = Server()
    version = write(
        server, server.version, data={"plan": "{}"}, binary_data={"model": "AA=="}, annotations={"by": "kerf"}
    )
    found = asyncio.run(records.read(server, PLAN))
    assert found is not None
    assert (found.data, found.binary_data) == ({"plan": "{}"}, {"model": "AA=="})
    assert (found.metadata.annotations, found.metadata.resource_version) == ({"by": "kerf"}, version)
    assert asyncio.run(records.read(server, f"{PLAN}-of-nobody")) is None


def test_what_is_not_named_stays_as_it_is() -> None:
    server = Server()
    version = write(server, server.version, data={"plan": "{}", "old": ""}, annotations={"by": "kerf"})
    write(server, version, data={"old": None})
    assert [sorted(body) for body in server.bodies] == [["data", "metadata"], ["data", "metadata"]]
    assert [sorted(body["metadata"]) for body in server.bodies] == [
        ["annotations", "resourceVersion"],
        ["resourceVersion"],
    ]
    found = asyncio.run(records.read(server, PLAN))
    assert found is not None
    assert (found.data, found.metadata.annotations) == ({"plan": "{}"}, {"by": "kerf"})


def test_of_two_that_write_at_once_one_hears_that_it_was_late() -> None:
    server = Server()
    known = server.version
    write(server, known, annotations={"by": "a"})
    with pytest.raises(ApiError) as raised:
        write(server, known, annotations={"by": "b"})
    assert (raised.value.status, server.by) == (409, "a")


@pytest.mark.parametrize("part", ["data", "binary_data", "annotations"])
def test_where_an_answer_was_lost_the_record_tells_whether_it_is_written(part: str) -> None:
    server = Server()
    server.lost = [LOST]
    assert write(server, server.version, **{part: {"by": "kerf"}}) == server.version
    server.instead = [LOST]
    with pytest.raises(UnreachableError):
        write(server, server.version, **{part: {"by": "another"}})
    server.instead = [LOST]
    with pytest.raises(UnreachableError):
        write(server, server.version, **{part: {"by": "kerf", "besides": "more"}})
    server.lost = [LOST]
    write(server, server.version, **{part: {"by": None}})


def test_all_parts_of_a_record_tell_whether_it_is_written() -> None:
    server = Server()
    write(server, server.version, data={"plan": "{}"})
    server.instead = [LOST]
    with pytest.raises(UnreachableError):
        write(server, server.version, data={"plan": "{}"}, annotations={"by": "kerf"})


def test_a_record_that_is_gone_is_not_written() -> None:
    server = Server()
    server.gone = True
    with pytest.raises(ClusterError, match=f"{PLAN} is gone"):
        write(server, "", data={"plan": "{}"})
    server.instead = [LOST]
    with pytest.raises(UnreachableError):
        write(server, server.version, data={"plan": "{}"})
