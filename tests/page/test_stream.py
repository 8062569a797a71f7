"""The live stream: everything once, then what changes, and no more than that after a reconnect."""

import asyncio
import json
from typing import Any

import pytest

from extender.core.clusters import Cluster, Rows
from extender.page.gpu_cells import Mark
from extender.page.stream import _MAX_STREAMS, Streams
from extender.page.view import PageView
from tests.api.bodies import node, pod
from tests.api.services import Kerf, running
from tests.ledger.builders import until

NODES = [node("n-0", 4), node("n-1", 4), node("cpu-0")]


class Heard:
    """Events of one round, by kind."""

    def __init__(self, kerf: Kerf, last_event_id: str = "") -> None:
        kerf.clock.now += 1
        answer = kerf.get("/live", {"last-event-id": last_event_id} if last_event_id else {})
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream"
        self.kinds: list[str] = []
        self.nodes: dict[int, Any] = {}
        self.tick: Any = {}
        self.id = ""
        for event in answer.content.decode().split("\n\n")[:-1]:
            fields = dict(line.split(": ", 1) for line in event.splitlines())
            self.kinds.append(fields["event"])
            self.id = fields.get("id", self.id)
            data = json.loads(fields["data"])
            if fields["event"] == "nodes":
                self.nodes |= {item["row"]: item for item in data}
            elif fields["event"] == "tick":
                self.tick = data


def test_everything_then_what_changes() -> None:
    with running(NODES) as kerf:
        first = Heard(kerf)
        assert first.kinds == ["begin", "nodes", "tick"]
        assert [item["node"] for item in first.nodes.values()] == ["n-0", "n-1", "cpu-0"]
        assert first.nodes[0]["gpus"] == [[0, -1, 0]] * 4
        assert (first.nodes[2]["gpus"], first.nodes[2]["model"]) == ([], "")
        assert first.tick["totals"]["gpus"] == 8
        assert "decisions" not in first.tick

        kerf.filter(pod("asking", 1), ["n-1"])
        kerf.filter(pod("waiting", 9), ["n-0", "n-1"])
        second = Heard(kerf, first.id)
    assert second.kinds == ["nodes", "tick"]
    assert {row: item["gpus"][0] for row, item in second.nodes.items()} == {1: [100, -1, Mark.RESERVED]}
    asked, waits = second.tick["decisions"]
    assert (asked["number"], asked["pod"], asked["node"], asked["gpus"]) == (1, "default/asking", "n-1", [0])
    assert (waits["number"], waits["node"], waits["why"]) == (2, None, "needs 9 GPUs; n-0 is nearest with 4 installed")
    (item,) = second.tick["waiting"]["items"]
    assert (item["pod"], item["request"], item["where"]) == ("default/waiting", "9 GPUs", "scheduler")
    assert item["why"] == waits["why"]


def test_pods_wait_by_whose_turn_it_is() -> None:
    gated = pod("gated", 2) | {"status": {"phase": "Pending"}}
    gated["spec"] |= {"schedulingGates": [{"name": "kerf.dev/queue"}], "priority": 5}
    with running([*NODES, gated], queue__enabled=True) as kerf:
        kerf.filter(pod("plain", 9), ["n-0"])
        kerf.filter(pod("urgent", 9, labels={"genius/priority": "10"}), ["n-0"])
        told = Heard(kerf).tick["waiting"]
    assert told["total"] == 3
    assert [(item["pod"], item["priority"], item["where"]) for item in told["items"]] == [
        ("default/urgent", 10, "scheduler"),
        ("default/gated", 5, "queue"),
        ("default/plain", 0, "scheduler"),
    ]


def test_nothing_is_told_twice() -> None:
    with running(NODES) as kerf:
        kerf.filter(pod("asking", 1), ["n-1"])
        first = Heard(kerf)
        again = Heard(kerf, first.id)
    assert len(first.tick["decisions"]) == 1
    assert again.kinds == ["tick"]  # sections are of no version: a new stream tells them anew
    assert "decisions" not in again.tick


@pytest.mark.parametrize(
    "event_id",
    [
        *("00000000-5-1", "nonsense", "a-b-c", "--", "{run}-x-1", "{run}-1", "{run}-1-" + "9" * 5000),
        *("{run}-" + "9" * 18 + "-0", "{run}-1-" + "9" * 18, "{run}-1-" + "9" * 30, "{run}-²-1", "{run}-٣-1"),
    ],
)
def test_an_id_of_another_process_or_of_none_begins_anew(event_id: str) -> None:
    with running(NODES) as kerf:
        run = Heard(kerf).id.partition("-")[0]
        assert Heard(kerf, event_id.replace("{run}", run)).kinds == ["begin", "nodes", "tick"]


def test_a_node_that_is_gone() -> None:
    with running(NODES) as kerf:
        first = Heard(kerf)
        kerf.cluster.delete(kerf.cluster.node("n-0"))
        kerf.settle()
        second = Heard(kerf, first.id)
    assert second.nodes == {0: {"row": 0, "node": ""}}


def test_a_large_cluster_comes_in_pieces() -> None:
    with running([node(f"n-{number}", 8) for number in range(600)]) as kerf:
        heard = Heard(kerf)
    assert heard.kinds == ["begin", *["nodes"] * 6, "tick"]
    assert len(heard.nodes) == 600


def test_what_was_worked_out_for_one_does_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with running([node(f"n-{number}", 8) for number in range(600)]) as kerf:
        view, calls = kerf.streams.view, []

        def nodes(cluster: Cluster, rows: Rows) -> list[dict[str, Any]]:
            calls.append(rows)
            return PageView.nodes(view, cluster, rows)

        monkeypatch.setattr(view, "nodes", nodes)
        kerf.streams.num_open = 1  # as if somebody looked all the time
        first, second = Heard(kerf), Heard(kerf)
        assert first.nodes == second.nodes
        assert len(calls) == 6
        kerf.filter(pod("asking", 1), ["n-1"])
        assert Heard(kerf, first.id).nodes == Heard(kerf, second.id).nodes != {}
        assert len(calls) == 7
        kerf.streams.num_open = 0
        Heard(kerf)
        Heard(kerf)
        assert len(calls) == 7 + 6 + 6  # nothing is kept for nobody


def test_streams_are_bounded() -> None:
    with running(NODES) as kerf:
        streams = kerf.streams
        streams.num_open = _MAX_STREAMS
        refused = kerf.get("/live")
        assert (refused.status, refused.headers["retry-after"]) == (503, "30")
        streams.num_open = 0
        Heard(kerf)
        assert streams.num_open == 0


def test_a_client_that_takes_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(NODES) as kerf:
        streams = Streams(kerf.streams.view, lambda: False, stall_s=0.01)

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            await asyncio.Event().wait()

        async def play() -> None:
            async with asyncio.timeout(30):
                await streams.open("")({"type": "http"}, receive, send)

        kerf.run(play())
        assert streams.num_open == 0


def test_a_stream_goes_on_until_the_service_stops() -> None:
    with running(NODES) as kerf:
        draining = False
        streams = Streams(kerf.streams.view, lambda: draining, tick_s=0.01)
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)

        def told(name: str) -> bool:
            return any(name.encode() in message.get("body", b"") for message in sent)

        async def play() -> None:
            nonlocal draining
            stream = asyncio.create_task(streams.open("")({"type": "http"}, receive, send))
            await until(lambda: told("n-1"))
            kerf.cluster.apply(node("n-2", 2))
            kerf.clock.now += 1
            await until(lambda: told("n-2"))
            draining = True
            async with asyncio.timeout(30):
                await stream

        kerf.run(play())
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
