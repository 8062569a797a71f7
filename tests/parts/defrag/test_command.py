"""`kerf defrag` and `kerf drain`: their requests, output and exit status, with a fake Kerf."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from extender.cli.client.kerf import AnswerError, Kerf
from extender.cli.main import app
from tests.golden import Golden

USAGE = 2
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


class FakeKerf:
    """Answers the commands' requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Kerf, "ask", self.ask)
        self.answers: list[Any] = []
        """Answers in order; a text is an error."""
        self.asked: list[tuple[str, Any]] = []

    def ask(
        self, path: str, body: Any = None, timeout_s: float = 0, wrong: Callable[[str], str] = str, files: Any = ()
    ) -> Any:
        self.asked.append((path, body))
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise AnswerError(409 if path == "/defrag/apply" else 400, wrong(answer))
        return answer

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, arguments, env={"KERF_SERVER_URL": "http://kerf"})


@pytest.fixture
def kerf(monkeypatch: pytest.MonkeyPatch) -> FakeKerf:
    return FakeKerf(monkeypatch)


def test_the_requests(kerf: FakeKerf) -> None:
    cases: list[tuple[list[str], dict[str, Any]]] = [
        (["defrag", "--for", "big"], {"for": "default/big"}),
        (["defrag", "--for", "team/big", "--max-moves", "3"], {"for": "team/big", "maxMoves": 3}),
        (["defrag", "--gpus", "8", "--nodes", "2", "--priority", "-5"], {"gpus": 8, "nodes": 2, "priority": -5}),
        (["defrag", "--free-nodes", "2"], {"freeNodes": 2}),
        (["defrag", "--heal", "--max-moves", "2"], {"heal": True, "maxMoves": 2}),
        (["drain", "n-0", "n-1", "--max-moves", "0"], {"empty": ["n-0", "n-1"], "maxMoves": 0}),
    ]
    for arguments, question in cases:
        kerf.answers = [NOTHING]
        assert kerf.run(*arguments).exit_code == 0
        assert kerf.asked.pop() == ("/defrag", question)
    kerf.answers = [PLAN]
    assert json.loads(kerf.run("defrag", "--for", "big", "-o", "json").output) == PLAN


def test_the_output(kerf: FakeKerf, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.parts.defrag.command._LOOK_S", 0.01)
    pods = [{"pod": f"a/{name}", "node": "n"} for name in "xy"]
    none = {**NOT, "target": [], "emptied": []}
    left = [{"pod": "kube-system/dns", "node": "n-0", "why": "namespace kube-system is exempt"}]
    drained = {**PLAN, "target": [], "emptied": ["n-0"], "left": left, "open": ["n-0"]}
    healed = {**PLAN, "target": [], "impossible": ["default/b stays on an unhealthy GPU: x"], "on_sick": ["default/a"]}
    begun = {"id": "run"}
    done = [state(*one) for one in (("moving", "evicting"), ("placing", "done"), ("done", "done"))]
    runs: list[tuple[str, list[Any]]] = [
        ("defrag --for big", [PLAN]),
        ("defrag --for big", [NOT]),
        ("defrag --free-nodes 1", [{**NOTHING, "target": [], "emptied": ["n-0"]}]),
        ("defrag --free-nodes 2", [{**NOTHING, "target": [], "emptied": ["n-0", "n-1"]}]),
        ("defrag --gpus 1", [{**NOTHING, "target": pods[:1]}]),
        ("defrag --gpus 1 --nodes 2", [{**NOTHING, "target": pods}]),
        ("defrag --heal", [{**NOTHING, "target": [], "on_sick": []}]),
        ("drain n-0", [drained]),
        ("drain n-0", [{**none, "impossible": ["n-0 can't be emptied: default/a stays: it is exempt"]}]),
        ("drain n-0 n-1", [none]),
        ("defrag --free-nodes 1", [none]),
        ("defrag --free-nodes 2", [none]),
        ("defrag --gpus 8", [none]),
        ("drain x", ["empty: no node is named x"]),
        ("defrag --for x", ["for: default/x has a node: n"]),
        ("defrag --gpus 1", ["default/x: is left as it is"]),
        ("defrag --for big --apply", [PLAN, begun, *done]),
        ("defrag --heal --apply", [healed, begun, done[-1]]),
        ("drain n-0 --apply", [PLAN, begun, state("stopped", "left", "a budget refused it")]),
        ("defrag --for big --apply", [PLAN, "another plan is being carried out"]),
        ("defrag --for big --apply", [NOTHING]),
        ("defrag --for big --apply", [NOT]),
        ("defrag --stop", [{"stopped": True}]),
        ("defrag --stop", [{"stopped": False}]),
    ]
    lines = []
    for command, answers in runs:
        kerf.answers, kerf.asked = list(answers), []
        result = kerf.run(*command.split())
        assert len(kerf.asked) == len(answers)
        paths = [f"{path}{f' {json.dumps(body)}' if path != '/defrag' else ''}" for path, body in kerf.asked]
        output = [line.rstrip() for line in result.output.splitlines()]
        lines += [f"$ kerf {command}", *output, f"({', '.join(paths)}: exit status {result.exit_code})", ""]
    golden("defrag/command.txt", lines)


def test_wrong_usage(kerf: FakeKerf) -> None:
    for arguments, fault in (
        (["defrag"], "room for what?"),
        (["defrag", "--max-moves", "3"], "room for what?"),
        (["defrag", "-f", "/nowhere.yaml"], "/nowhere.yaml"),
        (["drain"], "Missing argument"),
    ):
        result = kerf.run(*arguments)
        assert (result.exit_code, kerf.asked) == (USAGE, [])
        assert fault in result.output
