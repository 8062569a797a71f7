"""Plans: equal seeds give equal plans, and every plan is as hard as promised."""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from tests.tools.chaos import draws, faults
from tests.tools.chaos.devices.plans import Ask, PoolKind
from tests.tools.chaos.faults import Kind
from tests.tools.chaos.plans import Plan, PodPlan


@cache
def many(*, queue: bool = False) -> list[Plan]:
    """Three hundred plans."""
    return [draws.draw(seed, queue=queue) for seed in range(300)]


@cache
def with_devices() -> list[Plan]:
    """Three hundred plans with claims."""
    return [draws.draw(seed, queue=True, extender=False, dra=True) for seed in range(300)]


@cache
def with_moves() -> list[Plan]:
    """Three hundred plans in which room is made."""
    return [draws.draw(seed, queue=True, extender=seed % 2 == 0, defrag=True) for seed in range(300)]


def test_equal_seeds_give_equal_plans() -> None:
    assert draws.draw(7) == draws.draw(7)
    assert draws.draw(7) != draws.draw(8)


def test_what_goes_together_is_drawn_together() -> None:
    for plan in (*many(), *many(queue=True)):
        kinds = {fault.kind for fault in plan.faults}
        assert plan.elects or (plan.replicas == 1 and not kinds & set(faults.LAPSES))
        assert plan.stops_clocks or Kind.VM_PAUSE not in kinds
        if not plan.policy and kinds & set(
            faults.EDITS
        ):  # Kerf knows what was written before the edits as long as it lives
            assert not kinds & {*faults.KILLS, *faults.QUEUE_KILLS, Kind.KERF_GONE}
            assert plan.replicas == 1
    assert {plan.policy for plan in many()} == {True, False}


def test_at_least_200_pods_stay_and_ask_for_80_percent_or_more() -> None:
    for plan in many():
        deleted = {fault.target for fault in plan.faults if fault.kind in (Kind.POD_DELETED, Kind.POD_TERMINATING)}
        assert len({pod.name for pod in plan.pods} - deleted) >= 200
        assert plan.load_frac >= 0.8


def test_every_kind_is_drawn() -> None:
    drawn = Counter(fault.kind for plan in many(queue=True) for fault in plan.faults)
    drawn += Counter(fault.kind for plan in with_devices() for fault in plan.faults)
    drawn += Counter(fault.kind for plan in with_moves() for fault in plan.faults)
    drawn[Kind.PLAN_BEGUN] = drawn[Kind.POD_MOVED] = sum(bool(plan.moves.targets) for plan in with_moves())
    drawn[Kind.TWO_SCHEDULERS] = sum(len({pod.scheduler for pod in plan.pods}) == 2 for plan in many())
    drawn[Kind.FAILOVER] = sum(plan.replicas == 2 for plan in many())
    assert set(Kind) == {kind for kind, number in drawn.items() if number}


def test_faults_begin_while_pods_come_and_name_what_exists() -> None:
    for plan in many():
        names = {""} | {node.name for node in plan.nodes} | {pod.name for pod in plan.pods}
        names |= {pod.group for pod in plan.pods}
        assert {fault.target for fault in plan.faults} <= names
        assert all(0 <= fault.at_s <= faults.WINDOW_S + 0.5 for fault in plan.faults)


@pytest.mark.parametrize("asked", [1, 2, 4, 8])
def test_pods_of_every_size_are_drawn(asked: int) -> None:
    assert any(pod.gpus == asked and not pod.milli for pod in many()[0].pods)
    assert any(pod.milli for pod in many()[0].pods)


def of_refusals(pod: PodPlan) -> bool:
    """Whether it is there for what no node takes."""
    return pod.obstacle is not None or pod.guards or pod.name.startswith("resized-")


def test_the_queue_has_the_same_runs_with_gates_gangs_and_kills_of_its_own() -> None:
    for plain, whole in zip(many(), many(queue=True), strict=True):
        queued = replace(whole, pods=tuple(pod for pod in whole.pods if not of_refusals(pod)))
        assert [pod.size for pod in queued.pods] == [pod.size for pod in plain.pods]
        assert (queued.nodes, queued.replicas) == (plain.nodes, plain.replicas)
        assert {fault.kind for fault in queued.faults} & set(faults.QUEUE_KILLS)
        assert not {fault.kind for fault in plain.faults} & set(faults.QUEUE_KILLS)
        assert not any(pod.gated for pod in (*plain.pods, *plain.late_pods))
        assert 0.5 < sum(pod.gated for pod in queued.pods) / len(queued.pods) < 1
        gangs = {gang: [pod for pod in queued.pods if pod.gang == gang] for gang in {pod.gang for pod in queued.pods}}
        del gangs[""]
        assert gangs
        for members in gangs.values():
            assert len(members) == members[0].gang_size >= 2
            alike = {(pod.gpus, pod.milli, pod.model, pod.memory_mib, pod.scheduler, pod.gated) for pod in members}
            assert len(alike) == 1
            assert members[0].gated
            assert not members[0].milli


def test_with_devices_pods_of_all_kinds_name_claims_of_which_there_are_plans() -> None:
    assert draws.draw(7, queue=True, dra=True) == draws.draw(7, queue=True, dra=True)
    asked: Counter[Ask] = Counter()
    for plan in with_devices():
        claims = {claim.name: claim for claim in plan.devices.claims}
        named = Counter(name for pod in (*plan.pods, *plan.late_pods) for name in pod.claims)
        assert set(named) == set(claims)
        assert {pool.node for pool in plan.devices.pools} <= {node.name for node in plan.nodes}
        assert {pool.kind for pool in plan.devices.pools} == set(PoolKind)
        asked.update(ask for claim in claims.values() for request in claim.requests for ask in request.alternatives)
        shared = [name for name, number in named.items() if number > 1 and not claims[name].template]
        assert all(named[name] == 2 for name in shared)
    assert set(asked) == set(Ask)


def test_claims_are_stripped_only_before_the_eyes_of_one_kerf_that_lives() -> None:
    stripped = [plan for plan in with_devices() if any(fault.kind is Kind.CLAIM_STRIPPED for fault in plan.faults)]
    assert 20 < len(stripped) < 80
    for plan in stripped:
        kinds = {fault.kind for fault in plan.faults}
        assert plan.replicas == 1
        assert not kinds & {*faults.KILLS, *faults.QUEUE_KILLS, *faults.CLAIM_KILLS, Kind.KERF_GONE, Kind.VM_PAUSE}


def test_with_moves_half_of_what_fills_the_nodes_leaves_and_whole_nodes_are_asked_for() -> None:
    assert draws.draw(7, queue=True, defrag=True) == draws.draw(7, queue=True, defrag=True)
    for number, plan in enumerate(with_moves()):
        capacity = sum(node.gpus for node in plan.nodes)
        filled = sum(owner.gpus * owner.replicas for owner in plan.moves.owners)
        stay = sum(owner.gpus * owner.replicas for owner in plan.moves.owners if not owner.leaves)
        assert capacity * 0.8 < filled <= capacity
        assert stay < filled
        members = [pod for pod in plan.pods if (pod.gang or pod.name) in plan.moves.targets]
        assert {pod.gpus for pod in members} == {plan.nodes[0].gpus}
        names = {"", *plan.moves.targets, *(node.name for node in plan.nodes)}
        names |= {owner.name for owner in plan.moves.owners} | {pod.name for pod in plan.pods}
        assert {fault.target for fault in plan.faults} <= names
        kinds = {fault.kind for fault in plan.faults}
        assert plan.elects or (plan.replicas == 1 and not kinds & set(faults.LAPSES))
        assert plan.stops_clocks or Kind.VM_PAUSE not in kinds
        if number % 2:  # nobody asks Kerf there about pods that do not wait in its queue
            assert all(pod.gated for pod in plan.pods)
            assert not kinds & {Kind.KILL_FILTER_ANSWERED, Kind.KILL_BIND_CALLED, Kind.KILL_BIND_ANSWERED}
    owners = [owner for plan in with_moves() for owner in plan.moves.owners]
    for found in ("urgent", "stays", "gang"):
        assert any(getattr(owner, found) for owner in owners)
    assert {owner.keeps for owner in owners} >= {None, 0, 1, 2}


def test_in_the_queue_there_are_pods_that_no_node_takes_and_nodes_that_are_not_as_they_look() -> None:
    drawn = Counter(fault.kind for plan in many(queue=True) for fault in plan.faults)
    assert all(drawn[kind] > 20 for kind in faults.REFUSALS)
    assert not any(fault.kind in faults.REFUSALS for plan in many() for fault in plan.faults)
    for plan in many(queue=True):
        names, nodes = {pod.name for pod in plan.pods}, {node.name for node in plan.nodes}
        assert {pod.node for pod in plan.pods} <= {"", *nodes}
        for fault in plan.faults:
            if fault.kind in faults.OBSTACLES:
                assert next(pod for pod in plan.pods if pod.name == fault.target).obstacle is fault.kind
            elif fault.kind is Kind.RESIZE_PENDING:
                assert f"resized-{fault.target}" in names
            elif fault.kind in faults.REFUSALS:
                assert fault.target in {"", *nodes}
        assert {pod.obstacle for pod in plan.pods} - {None} == {fault.kind for fault in plan.faults} & {
            *faults.OBSTACLES
        }
        refused = [pod for pod in plan.pods if pod.obstacle is not None]
        assert all(pod.gated for pod in refused)
        guarded = {pod.obstacle for pod in refused} & {Kind.HOST_PORT_TAKEN, Kind.APART_FROM_ALL}
        assert {pod.node for pod in plan.pods if pod.guards} == (nodes if guarded else set())


def test_kinds_are_left_out_of_a_run_that_is_the_same_otherwise() -> None:
    for seed in range(40):
        whole = draws.draw(seed, queue=True)
        rest = draws.draw(seed, queue=True, without=faults.REFUSALS)
        assert rest.pods == tuple(pod for pod in whole.pods if not of_refusals(pod))
        assert rest.faults == tuple(fault for fault in whole.faults if fault.kind not in faults.REFUSALS)
        assert replace(rest, pods=whole.pods, faults=whole.faults) == whole
        kinds = {pod.obstacle for pod in whole.pods if pod.obstacle is not None}
        for kind in kinds:
            some = draws.draw(seed, queue=True, without=(kind, Kind.PAUSE))
            assert {pod.obstacle for pod in some.pods} - {None} == kinds - {kind}
            assert not {fault.kind for fault in some.faults} & {kind, Kind.PAUSE}
            assert {pod for pod in some.pods if not pod.guards} <= set(whole.pods)
