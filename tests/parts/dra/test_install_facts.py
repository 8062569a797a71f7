"""What `kerf install dra` reads of a cluster, and the names that it writes."""

import json

import pytest

from extender.parts.dra.facts import _tolerates, _waits_in_queue, pools_of
from extender.parts.dra.handover import _rule_name
from extender.parts.dra.policies import fence, user_of
from tests.controlplane.objects import pod
from tests.parts.dra.test_install import slice_of
from tests.parts.dra.test_install_policy import DRIVER, INTOLERABLE, TOLERABLE, claim


def test_which_pods_wait_in_the_queue() -> None:
    kerfs, others = [{"name": "kerf.dev/queue"}], [{"name": "example.com/other"}]
    cases: list[tuple[dict[str, str], list[dict[str, str]], list[str], bool]] = [
        ({}, [], [], False),
        ({}, kerfs, [], True),
        ({}, others, [], False),
        ({}, [], ["default"], True),
        ({"kerf.dev/queue": "disabled"}, [], ["default"], False),
        ({"kerf.dev/queue": "enabled"}, [], [], True),
        ({"genius/priority": "3"}, [], [], True),
        ({"genius/priority": " "}, [], [], False),
    ]
    for labels, gates, opted_in, waits in cases:
        assert _waits_in_queue(pod("p", labels=labels, schedulingGates=gates), opted_in) is waits


def test_existing_claims_that_the_policy_would_refuse_are_found() -> None:
    for form in ("exactly", "firstAvailable"):
        for toleration in INTOLERABLE:
            assert _tolerates(claim(TOLERABLE[0], toleration, form=form)["spec"])
        assert not _tolerates(claim(*TOLERABLE, form=form)["spec"])
    assert not _tolerates(claim(INTOLERABLE[0], admin=True)["spec"])
    assert not _tolerates({})


def test_pools_are_those_of_the_newest_generation() -> None:
    old = slice_of("one", 4)
    new = slice_of("one", 1, pool={"name": "one", "generation": 2, "resourceSliceCount": 2})
    more = slice_of("one", 2, pool={"name": "one", "generation": 2, "resourceSliceCount": 2})
    (found,) = pools_of([new, old, more, slice_of("one", 8, driver="nic.example.com")], DRIVER)
    assert (found.name, found.num_devices, sorted(found.nodes)) == ("one", 3, ["one"])
    assert (found.local, found.tainted) == (True, False)


def test_a_pool_is_tainted_when_all_its_devices_are() -> None:
    for taints, tainted in (
        ([["kerf"], ["kerf"]], True),
        ([["kerf"], []], False),
        ([["kerf", "held"], ["kerf"]], False),
    ):
        taint = {"key": "kerf.dev/owned", "effect": "NoSchedule"}
        devices = [
            {"name": f"gpu-{number}", "taints": [{**taint, "value": value} for value in values]}
            for number, values in enumerate(taints)
        ]
        (found,) = pools_of([slice_of("one", 0, devices=devices)], DRIVER)
        assert found.tainted is tainted


def test_rules_have_names_that_the_api_server_takes() -> None:
    long = "/".join(["rack-1.example.com"] * 12)
    assert len(_rule_name(DRIVER, long)) < 64
    assert len({_rule_name(DRIVER, pool) for pool in (None, "a", "b", "a/b", long)}) == 5


def test_a_fence_names_the_account() -> None:
    assert "system:serviceaccount:gpu:kerf-2" in json.dumps(fence("owned", DRIVER, None, user_of("gpu/kerf-2")))
    for account in ("a/b'c", "a", "a/b/c", "A/b", "a/b\n", "/b", "a/"):
        with pytest.raises(ValueError, match="NAMESPACE/NAME"):
            user_of(account)
