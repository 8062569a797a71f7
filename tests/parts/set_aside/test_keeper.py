"""The leader quarantines failing nodes, within bounds, for a while; users can overrule it."""

import asyncio
from typing import Any

import msgspec

from extender.kube.client import ApiError, UnreachableError
from extender.plugins.set_aside import SET_ASIDE, Note, text_of
from extender.scheduling.fence import Fence
from tests.ledger.builders import Fault
from tests.parts.set_aside.rigs import EARLY_S, FOR_S, MAX_FOR_S, WALL, WINDOW_S, Rig

THREE = ("a", "b", "c", "a", "b")
"""Namespaces of five pods."""


def aside(rig: Rig, node: str = "n") -> bool:
    cluster = rig.ledger.snapshot(rig.clock.now)
    return bool(cluster.set_aside[cluster.row_of[node]])


def quarantined(**options: Any) -> Rig:
    """A rig whose first node is quarantined."""
    rig = Rig(**options)
    rig.fail("n", *THREE)
    rig.round()
    assert aside(rig)
    return rig


def noted(rig: Rig) -> Note:
    note = rig.note()
    assert note is not None
    return note


def test_five_failures_of_three_namespaces_set_a_node_aside() -> None:
    rig = Rig()
    rig.fail("n", *THREE[:4])
    rig.round()
    assert (rig.note(), aside(rig), rig.keeper.num_failing) == (None, False, 0)
    rig.fail("n", THREE[4])
    rig.round()
    assert rig.note() == Note(5, 3, int(WALL), int(WALL + FOR_S))
    assert aside(rig)
    assert not aside(rig, "m")
    assert (rig.keeper.num_set_aside, rig.keeper.num_failing, rig.lives.num_failed) == (1, 0, 5)
    assert rig.told() == ["SetAside"]
    assert rig.transport.inner.events[-1]["message"].startswith("5 pods of 3 namespaces failed within 60 s")
    words = rig.keeper.words("n")
    assert words.startswith("quarantined: 5 pods of 3 namespaces failed within 60 s; ")
    assert words.endswith("2027-01-15T08:30:00Z")


def test_a_tenant_with_two_namespaces_cannot_do_it() -> None:
    rig = Rig()
    for _ in range(50):
        rig.fail("n", "a", "b")
        rig.pass_time(10)
    assert (rig.note(), rig.keeper.num_failing, rig.told()) == (None, 0, [])


def test_pods_whose_author_chose_the_node_say_nothing() -> None:
    rig = Rig()
    rig.fail("n", *THREE * 3, nodeSelector={"kubernetes.io/hostname": "n"})
    rig.round(3)
    assert (rig.note(), rig.lives.num_failed) == (None, 15)


def test_pods_that_crash_where_they_are_count_once() -> None:
    rig = Rig()
    for _ in range(3):
        for pod in [rig.pod("n", namespace) for namespace in ("a", "b")]:
            pod["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": "RunContainerError"}}}]
            for _ in range(4):
                rig.hear_pod(pod)
    rig.round()
    assert (rig.lives.num_failed, rig.note()) == (6, None)
    rig.fail("n", "c")
    rig.round()
    assert rig.note() is not None


def test_only_pods_with_gpus_are_looked_at() -> None:
    rig = Rig()
    for _ in range(9):
        for namespace in "abc":
            pod = rig.pod("n", namespace)
            del pod["spec"]["containers"][0]["resources"]
            for key in ("name", "uid"):
                pod["metadata"][key] += "-without"
            rig.hear_pod(pod)
            rig.transport.calls.clear()
            rig.end(pod)
            rig.round()
            assert rig.transport.calls == []


def test_a_pod_that_lives_well_there_opens_it_again() -> None:
    for namespace in ("a", "d"):
        rig = quarantined()
        rig.pod("n", namespace)
        rig.round()
        assert aside(rig)
        rig.pass_time(EARLY_S)
        assert rig.note() is None
        assert (aside(rig), rig.told()) == (False, ["SetAside", "TakesPodsAgain"])
        rig.pass_time(1)
        assert rig.note() is None, "what was before counts no more"


def test_it_is_open_again_once_those_who_failed_fail_elsewhere_too() -> None:
    rig = Rig()
    for namespace in THREE:
        rig.fail("n", namespace, owner=f"job-of-{namespace}")
    rig.round()
    assert aside(rig)
    rig.fail("m", "a", owner="job-of-a")
    rig.round(2)
    assert not aside(rig)
    assert rig.told() == ["SetAside", "TakesPodsAgain"]
    rig.fail("m", *THREE, owner="job-of-b")
    rig.round()
    assert rig.note("m") is None, "three workloads that fail wherever they go blame no node"


def test_after_its_time_it_is_open_on_trial_and_then_for_good() -> None:
    rig = quarantined()
    rig.pass_time(FOR_S - 1)
    assert aside(rig)
    rig.pass_time(1)
    note = noted(rig)
    assert (note.trial, note.times, aside(rig), rig.keeper.num_set_aside) == (True, 1, False, 0)
    assert rig.keeper.words("n").startswith("on trial: 5 pods")
    rig.round()
    rig.live("n", "a")
    assert (rig.note(), rig.told()) == (None, ["SetAside", "OnTrial", "TakesPodsAgain"])


def test_on_trial_one_failure_of_each_of_three_namespaces_sets_it_aside_for_twice_as_long() -> None:
    rig = quarantined()
    for times in range(2, 9):
        rig.pass_time(noted(rig).until - rig.wall())
        rig.fail("n", "a", "b", "a", "b")
        rig.round(2)
        assert not aside(rig), "two namespaces are no weapon, on trial neither"
        rig.fail("n", "c")
        rig.round()
        note = noted(rig)
        assert (note.times, note.trial) == (times, False)
        assert note.until - note.since == min(FOR_S * 2 ** (times - 1), MAX_FOR_S)


def test_of_twenty_nodes_one_is_set_aside_and_the_others_are_named() -> None:
    rig = Rig(nodes=[f"n{number:02}" for number in range(20)])
    for number, node in enumerate(rig.nodes[:4]):
        rig.fail(node, *(f"{name}{number}" for name in (*THREE, "c")[: 6 if number == 2 else 5]))
    rig.round(3)
    assert [node for node in rig.nodes if rig.note(node)] == ["n02"], "that with most against it"
    assert (rig.keeper.num_set_aside, rig.keeper.num_failing) == (1, 3)
    assert "not quarantined: set_aside.max_frac" in rig.keeper.words("n01")
    assert rig.told("n01") == ["PodsFailEarly"]
    rig.annotate(None, "n02")
    rig.round(2)
    assert [node for node in rig.nodes if rig.note(node)] == ["n00"]


def test_so_many_nodes_are_set_aside_at_most() -> None:
    for num_nodes, max_frac, most in ((1, 0.5, 0), (2, 0.05, 1), (39, 0.05, 1), (40, 0.05, 2), (9, 0, 0)):
        rig = Rig(nodes=[f"n{number:02}" for number in range(num_nodes)], max_frac=max_frac)
        for number, node in enumerate(rig.nodes[:4]):
            rig.fail(node, *(f"{name}{number}" for name in THREE))
        rig.round(3)
        assert rig.keeper.num_set_aside == len([node for node in rig.nodes if rig.note(node)]) == most


def test_with_advice_alone_nothing_is_written_and_notes_count_for_nothing() -> None:
    rig = Rig(acts=False)
    rig.fail("n", *THREE)
    rig.round(3)
    assert rig.annotations() == {}
    assert (rig.keeper.num_set_aside, rig.keeper.num_failing, rig.told()) == (0, 1, ["PodsFailEarly"])
    words = rig.keeper.words("n")
    assert words.startswith("pods fail here: 5 pods of 3 namespaces")
    assert "set_aside.mode" in words
    rig.pass_time(WINDOW_S + 1)
    assert (rig.keeper.num_failing, rig.keeper.words("n")) == (0, "")
    rig.annotate(text_of(Note(5, 3, int(WALL), int(WALL + FOR_S))))
    assert (aside(rig), rig.keeper.num_set_aside, rig.keeper.words("n")) == (False, 0, "")


def test_after_a_restart_it_is_still_set_aside_and_its_time_goes_on() -> None:
    rig = quarantined()
    rig.start()
    rig.round()
    assert aside(rig)
    assert rig.keeper.num_set_aside == 1
    rig.pass_time(FOR_S)
    assert not aside(rig)
    rig.start()
    rig.fail("n", "a", "b", "c")
    rig.round(2)
    note = noted(rig)
    assert (note.times, note.trial) == (2, False), "a restart forgets neither the trial nor how often it was"


def test_never_prevents_it_and_what_cannot_be_read_too() -> None:
    for text in ("never", "no"):
        rig = Rig()
        rig.annotate(text)
        rig.fail("n", *THREE)
        rig.round(2)
        assert rig.annotations() == {SET_ASIDE: text}
        assert (aside(rig), rig.keeper.num_failing) == (False, 0)


def test_who_takes_the_note_away_opens_it_at_once() -> None:
    for value in (None, "never"):
        rig = quarantined()
        rig.annotate(value)
        assert not aside(rig)
        rig.round(2)
        assert rig.annotations().get(SET_ASIDE) == value, "what was before counts no more"
        rig.fail("n", *THREE)
        rig.round()
        assert aside(rig) == (value is None)


def test_a_node_that_was_started_again_is_on_trial() -> None:
    rig = Rig()

    def boot(name: str) -> None:
        manifest = rig.transport.inner.node("n")
        manifest["status"]["nodeInfo"] = {"bootID": name}
        rig.transport.inner.apply(manifest)
        rig.hear_node("n")

    boot("boot-1")
    rig.fail("n", *THREE)
    rig.round(2)
    note = noted(rig)
    assert note.boot == "boot-1"
    boot("boot-2")
    rig.round()
    assert rig.note() == msgspec.structs.replace(note, trial=True)
    assert not aside(rig)


def test_a_note_for_longer_than_any_is_not_believed() -> None:
    """The clock was set back, or somebody wrote it."""
    rig = Rig()
    rig.annotate(text_of(Note(5, 3, int(WALL), int(WALL + MAX_FOR_S + 60))))
    rig.round()
    assert noted(rig).trial


def test_who_does_not_lead_reads_and_writes_nothing() -> None:
    rig = Rig(fence=Fence(lambda: 0.0))
    rig.transport.calls.clear()
    rig.fail("n", *THREE)
    rig.round(2)
    assert (rig.transport.calls, rig.note(), rig.keeper.num_failing) == ([], None, 0)


def test_without_an_answer_it_is_tried_again() -> None:
    for error in (UnreachableError("reset"), ApiError(409, "", "changed"), ApiError(403, "", "no")):
        rig = Rig()
        rig.fail("n", *THREE)
        rig.transport.patches.append(Fault(error))
        rig.round()
        assert (rig.note(), rig.keeper.num_failing) == (None, 1)
        rig.round()
        assert rig.note() is not None
        assert rig.keeper.num_failing == 0


def test_what_somebody_wrote_meanwhile_is_not_overwritten() -> None:
    rig = Rig()
    rig.fail("n", *THREE)
    manifest = rig.transport.inner.node("n")
    manifest["metadata"]["annotations"] = {SET_ASIDE: "never"}
    rig.transport.inner.apply(manifest)  # and the watch has not told of it yet
    asyncio.run(rig.keeper.round())
    assert rig.annotations() == {SET_ASIDE: "never"}


def test_until_the_watch_tells_of_a_note_it_is_written_once() -> None:
    rig = Rig(nodes=("n", "m"))
    rig.fail("n", *THREE)
    rig.fail("m", *(f"{name}2" for name in THREE))
    asyncio.run(rig.keeper.round())
    asyncio.run(rig.keeper.round())
    assert sum(verb == "PATCH" for verb, _, _ in rig.transport.calls) == 1
    assert [node for node in rig.nodes if rig.note(node)] == ["m"], "the first by name of two alike"


def test_a_node_that_is_gone_is_forgotten() -> None:
    rig = quarantined()
    rig.ledger.remove_node("n")
    rig.nodes = ("m", "k")
    rig.round()
    assert (rig.keeper.num_set_aside, rig.keeper.words("n")) == (0, "")


# Pods that are gone: how they ended is read.


def test_each_pod_that_is_gone_early_is_read_once() -> None:
    rig = Rig()
    rig.fail("n", "a")
    rig.transport.gets.append(Fault(UnreachableError("reset")))
    rig.round(3)
    assert [call[:2] for call in rig.transport.calls] == [("GET", "/api/v1/namespaces/a/pods/p-1")] * 2
    assert rig.lives.num_failed == 1


def test_of_who_was_deleted_or_lived_well_nothing_is_read() -> None:
    rig = Rig()
    pod = rig.pod("n", "a")
    rig.pass_time(EARLY_S)
    rig.end(pod)
    pod = rig.pod("n", "a")
    pod["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    rig.hear_pod(pod)
    rig.end(pod)
    rig.round(2)
    assert (rig.transport.calls, rig.lives.num_failed) == ([], 0)


def test_a_pod_of_that_name_that_was_made_since_is_another_one() -> None:
    rig = Rig()
    rig.end(rig.pod("n", "a", name="same"))
    manifest = rig.transport.inner.pod("a", "same")
    rig.transport.inner.apply(manifest | {"metadata": manifest["metadata"] | {"uid": "another"}})
    rig.round(2)
    assert rig.lives.num_failed == 0


def test_a_pod_that_ends_well_at_once_lives_well() -> None:
    rig = Rig()
    rig.fail("n", *THREE)
    rig.end(rig.pod("n", "d"), "Succeeded")
    rig.round(3)
    assert rig.note() is None


def test_namespaces_take_turns_in_being_read() -> None:
    rig = Rig()
    rig.fail("n", *("flood",) * 300)
    rig.fail("n", "a", "b")
    rig.round()
    read = [path.split("/")[4] for _, path, _ in rig.transport.calls]
    assert len(read) == 10
    assert {"a", "b"} <= set(read)


def test_a_pod_that_lived_well_and_then_crashes_again_and_again_counts() -> None:
    rig = Rig()
    pods = [rig.pod("n", namespace) for namespace in THREE]
    rig.pass_time(3600)
    last = {"terminated": {"exitCode": 1, "startedAt": "2027-01-15T09:00:00Z", "finishedAt": "2027-01-15T09:00:02Z"}}
    for pod in pods:
        waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": last}
        pod["status"]["containerStatuses"] = [waiting]
        rig.hear_pod(pod)
    rig.round()
    assert rig.note() is not None
    for pod in pods:
        pod["status"]["containerStatuses"] = [{"state": {"running": {}}, "lastState": last}]
        rig.hear_pod(pod)
    rig.round()
    assert rig.note() is not None
    rig.pass_time(EARLY_S)
    assert rig.note() is None, "they have recovered"


def test_a_pod_that_ran_there_long_before_says_nothing_although_it_is_first_seen_now() -> None:
    """As after a restart of Kerf."""
    rig = quarantined()
    rig.clock.now += 1
    old = rig.pod("n", "d")
    rig.pods_seen.retain_only(set(), 0.0)
    old["status"]["startTime"] = "2027-01-15T07:00:00Z"
    rig.hear_pod(old)
    rig.pass_time(EARLY_S)
    assert rig.note() is not None
