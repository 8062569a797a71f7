"""Selectors as kube-scheduler itself evaluates them: `k8s.io/dynamic-resource-allocation/cel` in a program of ours."""

import json
import subprocess
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from extender.core.dra.asks import SelectorFault
from extender.dra.asks import UnhandledError, _compile_selector
from tests.controlplane.binaries import find_program
from tests.dra.authors import made_up
from tests.dra.builders import core_device
from tests.dra.expressions import ANSWERS, DEVICES, DRIVER

pytestmark = pytest.mark.controlplane

MAX_COST = 1_000_000
"""`CELSelectorExpressionMaxCost`."""


def ask(pairs: Iterable[tuple[str, Any]]) -> list[Any]:
    questions = [json.dumps({"expression": text, "driver": DRIVER, "device": device}) for text, device in pairs]
    command = [find_program("selects")]
    done = subprocess.run(command, input="\n".join(questions) + "\n", capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_answers_on_file_are_those_of_kube_scheduler() -> None:
    found = iter(ask((row["expression"], device) for row in ANSWERS for device in DEVICES))
    for row in ANSWERS:
        answers = [next(found) for _ in DEVICES]
        said: Any = [answer.get("matches", "fault") for answer in answers] if answers[0]["compiles"] else "refused"
        assert said == row["answers"], row["expression"]


@pytest.mark.parametrize("seed", [1, 2])
def test_made_up_selectors_are_answered_as_kube_scheduler_does(seed: int) -> None:
    pairs = list(made_up(2500, seed))
    refused: Counter[str] = Counter()
    different = []
    num_compiled = 0
    for (expression, device), answer in zip(pairs, ask(pairs), strict=True):
        num_compiled += answer["compiles"]
        try:
            selector = _compile_selector(expression)
        except UnhandledError as error:
            if answer["compiles"]:
                refused[error.kind] += 1
            continue
        try:
            found: bool | str = selector.matches(core_device(DRIVER, device))
        except SelectorFault:
            found = "fault"
        if found != answer.get("matches", "fault") or answer.get("cost", 0) > MAX_COST:
            different.append((expression, device, answer, found))
    print(f"{num_compiled} of {len(pairs)} compile, {refused.total()} of them are refused: {dict(refused)}")
    assert different == []
    assert refused.total() <= 0.05 * num_compiled
    assert num_compiled > 0.9 * len(pairs)
