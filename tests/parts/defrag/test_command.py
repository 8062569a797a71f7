"""`kerf defrag` and `kerf drain`, against a Kerf that answers as it is told: what is asked, printed and returned."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from extender.cli.main import app

PENDING, USAGE, FAILED = 3, 2, 1
PLAN: dict[str, Any] = {
    "fits": True,
    "moves": [
        {
            **{"pod": "default/a", "uid": "u", "from": "n-0", "to": "n-2", "step": 0, "gpus": [3]},
            **{"cost_gpu_s": 5400.0, "controller": "c", "gang": ""},
        }
    ],
    "cost_gpu_s": 5400.0,
    "target": [{"pod": "default/big", "node": "n-0", "gpus": [0, 1, 2, 3], "uid": "v"}],
    "emptied": [],
    "impossible": [],
    "priority": 0,
    "id": "abcd",
    "before": {"freeNodes": 0, "usableGpus": 0},
    "after": {"freeNodes": 1, "usableGpus": 4},
}
NOTHING = {**PLAN, "moves": [], "cost_gpu_s": 0.0, "id": ""}
NOT = {**NOTHING, "fits": False, "impossible": ["default/x on n-0 stays: it has no controller"]}
STATE = {"id": "run", "phase": "moving", "why": "", "fault": "", "moves": []}


def state(phase: str, stage: str, why: str = "") -> dict[str, Any]:
    move = {"pod": "default/a", "from": "n-0", "to": "n-2", "step": 0, "stage": stage, "why": ""}
    return {**STATE, "phase": phase, "why": why, "moves": [move]}


@contextmanager
def answering(*answers: tuple[int, Any]) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Address of a server that gives these answers in their order; and what it is asked."""
    left, asked = list(answers), list[tuple[str, Any]]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(None)

        def do_POST(self) -> None:
            self.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def answer(self, body: Any) -> None:
            asked.append((f"{self.command} {self.path}", body))
            status, told = left.pop(0)
            content = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.005,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()


def kerf(address: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments], env={"KERF_SERVER_URL": address})


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        (["defrag", "--for", "big"], {"for": "default/big"}),
        (["defrag", "--for", "team/big", "--max-moves", "3"], {"for": "team/big", "maxMoves": 3}),
        (["defrag", "--gpus", "8", "--nodes", "2", "--priority", "-5"], {"gpus": 8, "nodes": 2, "priority": -5}),
        (["defrag", "--free-nodes", "2"], {"freeNodes": 2}),
        (["defrag", "--heal", "--max-moves", "2"], {"heal": True, "maxMoves": 2}),
        (["drain", "n-0", "n-1", "--max-moves", "0"], {"empty": ["n-0", "n-1"], "maxMoves": 0}),
    ],
)
def test_what_is_asked(arguments: list[str], question: dict[str, Any]) -> None:
    with answering((200, NOTHING)) as (address, asked):
        assert kerf(address, *arguments).exit_code == 0
    assert asked == [("POST /defrag", question)]


def test_a_plan_reads_well() -> None:
    with answering((200, PLAN)) as (address, _):
        result = kerf(address, "defrag", "--for", "big")
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.output.splitlines()]
    assert lines == [
        "1 pod would move, which loses 1.5 GPU h of work",
        "STEP  POD        FROM  TO   GPUS      LOSES",
        "1     default/a  n-0   n-2     3  1.5 GPU h",
        "default/big then goes to n-0",
        "whole nodes free: 0 now, 1 then",
        "free GPUs on nodes where it fits: 0 now, 4 then",
    ]


def test_as_data() -> None:
    with answering((200, PLAN)) as (address, _):
        assert json.loads(kerf(address, "defrag", "--for", "big", "-o", "json").output) == PLAN


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"target": [], "emptied": ["n-0"]}, "n-0 is free without moves"),
        ({"target": [], "emptied": ["n-0", "n-1"]}, "n-0, n-1 are free without moves"),
        ({"target": [{"pod": "a/x", "node": "n"}]}, "a/x fits without moves"),
        ({"target": [{"pod": "a/x", "node": "n"}, {"pod": "a/y", "node": "n"}]}, "a/x, a/y fit without moves"),
        ({"target": [{"pod": "a/x", "node": "n"}] * 2}, "free GPUs on nodes where the first of them fits: 0 now"),
    ],
)
def test_one_and_several_that_fit_as_they_are(told: dict[str, Any], said: str) -> None:
    with answering((200, {**NOTHING, **told})) as (address, _):
        assert said in kerf(address, "defrag", "--free-nodes", "2").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["drain", "n-0", "n-1"], "n-0, n-1 can't all be emptied:"),
        (["defrag", "--free-nodes", "1"], "1 node can't be emptied:"),
        (["defrag", "--free-nodes", "2"], "2 nodes can't be emptied:"),
        (["defrag", "--gpus", "8"], "no room can be made for it:"),
    ],
)
def test_what_is_impossible_is_told_of_what_was_asked(arguments: list[str], said: str) -> None:
    with answering((200, {**NOT, "target": [], "emptied": []})) as (address, _):
        result = kerf(address, *arguments)
    assert (result.exit_code, result.output.splitlines()[0]) == (PENDING, said)


def test_a_node_that_can_not_be_emptied_is_named_once() -> None:
    told = {**NOT, "target": [], "impossible": ["n-0 can't be emptied: default/a stays: it is exempt"]}
    with answering((200, told)) as (address, _):
        result = kerf(address, "drain", "n-0")
    assert result.output.splitlines() == ["n-0 can't be emptied:", "  default/a stays: it is exempt"]


@pytest.mark.parametrize(
    ("arguments", "answered", "said"),
    [
        (["drain", "x"], "empty: no node is named x", "NODE: no node is named x"),
        (["defrag", "--for", "x"], "for: default/x has a node: n", "--for: default/x has a node: n"),
        (["defrag", "--gpus", "1"], "default/x: is left as it is", "default/x: is left as it is"),
    ],
)
def test_a_fault_is_told_of_what_was_typed(arguments: list[str], answered: str, said: str) -> None:
    with answering((400, {"Error": answered})) as (address, _):
        result = kerf(address, *arguments)
    assert result.exit_code == USAGE
    assert said in result.output and "empty:" not in result.output and " for:" not in result.output


def test_a_drained_node_says_what_is_left_to_kubectl_and_that_it_is_open() -> None:
    left = {
        "left": [{"pod": "kube-system/dns", "node": "n-0", "why": "namespace kube-system is exempt"}],
        "open": ["n-0"],
    }
    with answering((200, {**PLAN, "target": [], "emptied": ["n-0"], **left})) as (address, _):
        result = kerf(address, "drain", "n-0")
    assert result.exit_code == 0
    assert "empty then, except for what is left to kubectl drain: n-0" in result.output
    assert "left to kubectl drain: kube-system/dns on n-0: namespace kube-system is exempt" in result.output
    assert "unless you cordon it: kubectl cordon n-0" in result.output


def test_where_some_can_not_leave_sick_gpus_the_others_are_moved_and_the_status_says_so() -> None:
    stays = "default/b stays on an unhealthy GPU: it has no controller"
    told = {**PLAN, "target": [], "impossible": [stays], "on_sick": ["default/a", "default/b"]}
    done = {**state("done", "done")}
    with answering((200, told), (200, {"id": "run"}), (200, done)) as (address, asked):
        result = kerf(address, "defrag", "--heal", "--apply")
    assert result.exit_code == PENDING
    assert stays in result.output
    assert ("POST /defrag/apply", {"id": "abcd"}) in asked


def test_no_pod_on_a_sick_gpu_reads_well() -> None:
    with answering((200, {**NOTHING, "target": [], "on_sick": []})) as (address, _):
        result = kerf(address, "defrag", "--heal")
    assert (result.exit_code, result.output.strip()) == (0, "no pod is on an unhealthy GPU")


def test_no_room_has_a_status_of_its_own_and_says_why() -> None:
    with answering((200, NOT)) as (address, asked):
        result = kerf(address, "defrag", "--for", "big", "--apply")
    assert result.exit_code == PENDING
    assert "default/x on n-0 stays: it has no controller" in result.output
    assert len(asked) == 1, "nothing is carried out"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        pytest.param(["defrag"], "room for what?", id="nothing"),
        pytest.param(["defrag", "--max-moves", "3"], "room for what?", id="no target"),
        pytest.param(["defrag", "-f", "/nowhere.yaml"], "/nowhere.yaml", id="no file"),
        pytest.param(["drain"], "Missing argument", id="no node"),
    ],
)
def test_wrong_usage(arguments: list[str], fault: str) -> None:
    with answering() as (address, asked):
        result = kerf(address, *arguments)
    assert result.exit_code == USAGE
    assert fault in result.output
    assert not asked


def test_the_plan_that_was_shown_is_carried_out_and_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.parts.defrag.command._LOOK_S", 0.01)
    states = [state("moving", "evicting"), state("placing", "done"), state("done", "done")]
    told = [(200, PLAN), (200, {"id": "run"}), *((200, one) for one in states)]
    with answering(*told) as (address, asked):
        result = kerf(address, "defrag", "--for", "big", "--apply")
    assert result.exit_code == 0, result.output
    assert asked[1] == ("POST /defrag/apply", {"id": "abcd"})
    assert [path for path, _ in asked[2:]] == ["GET /defrag"] * 3
    assert "default/a to n-2: evicting" in result.output
    assert result.output.count("default/a to n-2: done") == 1


def test_one_that_stops_says_why() -> None:
    told = [(200, PLAN), (200, {"id": "run"}), (200, state("stopped", "left", "a budget refused it"))]
    with answering(*told) as (address, _):
        result = kerf(address, "drain", "n-0", "--apply")
    assert (result.exit_code, "stopped: a budget refused it" in result.output) == (FAILED, True)


def test_one_that_is_refused_says_why() -> None:
    with answering((200, PLAN), (409, {"Error": "another plan is being carried out"})) as (address, _):
        result = kerf(address, "defrag", "--for", "big", "--apply")
    assert (result.exit_code, "another plan" in result.output) == (FAILED, True)


def test_where_nobody_has_to_move_nothing_is_carried_out() -> None:
    with answering((200, NOTHING)) as (address, asked):
        assert kerf(address, "defrag", "--for", "big", "--apply").exit_code == 0
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("stopped", "said"), [(True, "the move under way is finished"), (False, "nothing was under way")]
)
def test_stopping(stopped: bool, said: str) -> None:
    with answering((200, {"stopped": stopped})) as (address, asked):
        result = kerf(address, "defrag", "--stop")
    assert (result.exit_code, said in result.output) == (0, True)
    assert asked == [("POST /defrag/stop", {"why": "kerf defrag --stop"})]
