"""Records that several processes write in one ConfigMap or Secret: a write on an older version fails."""

import asyncio
from typing import Any

import pytest

from extender.kube import records
from extender.kube.client import ApiError, ClusterError, UnreachableError
from tests.kube.test_commit import LOST, PLAN, Server


def write(server: Server, version: str, **parts: Any) -> str:
    return asyncio.run(records.write(server, PLAN, version, **parts))


def stored(server: Server) -> records.Record:
    record = asyncio.run(records.read(server, PLAN))
    assert record is not None
    return record


def test_what_is_written_is_read() -> None:
    server = Server()
    first = write(server, server.version, data={"plan": "{}", "old": ""}, annotations={"by": "kerf"})
    version = write(server, first, data={"old": None}, binary_data={"model": "AA=="})
    record = stored(server)
    assert (record.data, record.binary_data) == ({"plan": "{}"}, {"model": "AA=="})
    assert (record.metadata.annotations, record.metadata.resource_version) == ({"by": "kerf"}, version)
    assert [(sorted(body), sorted(body["metadata"])) for body in server.bodies] == [
        (["data", "metadata"], ["annotations", "resourceVersion"]),
        (["binaryData", "data", "metadata"], ["resourceVersion"]),
    ], "what is not named stays as it is"
    assert asyncio.run(records.read(server, f"{PLAN}-of-nobody")) is None
    with pytest.raises(ApiError) as raised:
        write(server, first, annotations={"by": "late"})
    assert (raised.value.status, server.by) == (409, "kerf")


def test_if_a_response_is_lost_the_record_shows_whether_it_is_written() -> None:
    for part, other in (("data", "annotations"), ("binary_data", "data"), ("annotations", "binary_data")):
        server, by = Server(), {part: {"by": "kerf"}}
        server.lost = [LOST]
        assert write(server, server.version, **by) == server.version
        for parts in ({part: {"by": "another"}}, {part: {"by": "kerf", "more": "x"}}, {**by, other: {"x": ""}}):
            server.instead = [LOST]
            with pytest.raises(UnreachableError):
                write(server, server.version, **parts)
        server.lost = [LOST]
        write(server, server.version, **{part: {"by": None}})


def test_a_record_that_is_gone_is_not_written() -> None:
    server = Server()
    server.gone = True
    with pytest.raises(ClusterError, match=f"{PLAN} is gone"):
        write(server, "", data={"plan": "{}"})
    server.instead = [LOST]
    with pytest.raises(UnreachableError):
        write(server, server.version, data={"plan": "{}"})
