"""Of the pods without a node, those that more nodes may help: in the order of their turns, and why others wait."""

from typing import Any

import msgspec
import pytest

from extender.parts.what_if.questions import WhatIfError
from extender.parts.what_if.waiting import waiting_pods
from tests.parts.what_if.what_if_facts import Manifest, pod

GATE = {"schedulingGates": [{"name": "kerf.dev/queue"}]}


def waiting(*pods: Manifest, **held: str) -> tuple[list[str], dict[str, str]]:
    """The names of those that are asked about, and why others wait."""
    found, others = waiting_pods(msgspec.json.encode({"items": pods}), held)
    return [one.metadata.name for one in found], others


def made(name: str, gpus: int = 1, at: str = "2026-01-01T00:00:00Z", **more: Any) -> Manifest:
    found = pod(name, gpus, spec=more.pop("spec", None))
    found["metadata"]["creationTimestamp"] = at
    found["metadata"] |= more.pop("metadata", {})
    found["status"] |= more.pop("status", {})
    return found


def test_turns_go_by_priority_then_age_then_name() -> None:
    first, last = made("first", spec={"priority": 9}), made("last", spec={"priority": -1})
    labelled = made("labelled", metadata={"labels": {"genius/priority": "7"}})
    odd = made("odd", metadata={"labels": {"genius/priority": "high"}}, at="2025-06-01T00:00:00Z", spec=GATE)
    old = made("old", at="2025-01-01T00:00:00Z")
    names, _ = waiting(last, made("b"), made("a"), old, odd, labelled, first)
    assert names == ["first", "labelled", "old", "odd", "a", "b", "last"]


def test_who_waits_for_room() -> None:
    for one, waits in (
        (made("p"), True),
        (made("p", 0), False),
        (made("p", 0, spec=GATE), True),
        (made("p", 0, spec={"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}), True),
        (made("p", spec={"nodeName": "n"}), False),
        (made("p", status={"phase": "Failed"}), False),
        (made("p", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), False),
        (made("p", spec={"schedulingGates": [{"name": "x/y"}]}), False),
        (made("p", status={"nominatedNodeName": "n"}), False),
        (made("p", metadata={"annotations": {"kerf.dev/gpu-count": "lots"}}), False),
    ):
        assert waiting(one) == (["p"] if waits else [], {}), one


def test_those_that_wait_for_something_else_are_told_with_it_and_those_on_their_way_are_not() -> None:
    pods = [made("room"), made("quota"), made("goes"), made("cpu", 0)]
    held = {"quota": "over quota", "goes": "on its way to a node", "cpu": "over quota", "elsewhere": "over quota"}
    assert waiting(*pods, **held) == (["room"], {"ns/quota": "over quota"})


def test_so_many_are_asked_about_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.parts.what_if.waiting.MAX_PODS", 3)
    names, _ = waiting(*(made(f"p{number}") for number in range(4)))
    assert names == ["p0", "p1", "p2"]


def test_a_list_that_cannot_be_read_is_told() -> None:
    with pytest.raises(WhatIfError, match=r"^pending pods can't be read: "):
        waiting_pods(b'{"items": 3}', {})
