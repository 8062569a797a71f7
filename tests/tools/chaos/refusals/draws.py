"""What is added to a run of the queue: pods that no node takes, and nodes that are not as they look."""

import random
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from tests.tools.chaos.faults import LEFTOVERS, OBSTACLES, WINDOW_S, Fault, Kind, drawn_fault
from tests.tools.chaos.plans import Plan, PodPlan
from tests.tools.chaos.refusals.manifests import RESIZED_CPU

_NUM_REFUSED: Final = (8, 20)
_SIZES: Final = (1, 2, 4, 4, 8)
_GANG_PROBABILITY: Final = 0.25
_GROUP_PROBABILITY: Final = 0.6


def with_refusals(plan: Plan, without: Collection[Kind] = ()) -> Plan:
    """The same run with such pods and nodes; equal to it where all these kinds are left out."""
    rng = random.Random(f"refusals of {plan.seed}")
    # All is drawn before anything is left out, so that the rest stays what it is.
    pods = _refused(rng, _some(rng, OBSTACLES, 2))
    faults = [Fault(kind, 0.0, target=name) for kind, name in _first_of_each(pods)]
    faults += [
        Fault(kind, 0.0, target=node.name)
        for kind in _some(rng, LEFTOVERS, 2)
        for node in rng.sample(plan.nodes, rng.randint(1, max(1, len(plan.nodes) // 4)))
    ]
    free = [node.name for node in plan.nodes if node.name not in {pod.node for pod in plan.pods}]
    resized = rng.sample(free, min(rng.choice((0, 1, 2, 3)), len(free)))
    faults += [replace(drawn_fault(rng, Kind.RESIZE_PENDING), target=name) for name in resized]
    for _ in range(rng.choice((0, 1, 1, 2))):
        target = rng.choice(("", rng.choice(plan.nodes).name))
        faults.append(replace(drawn_fault(rng, Kind.NODE_REFUSED_BEHIND), target=target))
    left_out = {pod.name for pod in pods if pod.obstacle in without}
    faults = [fault for fault in faults if fault.kind not in without]
    kinds = {fault.kind for fault in faults}
    pods = [pod for pod in pods if pod.name not in left_out]
    if kinds & {Kind.HOST_PORT_TAKEN, Kind.APART_FROM_ALL}:
        pods += [PodPlan(f"guard-{node.name}", 0.0, 0, 0, node=node.name, cpu="1m", guards=True) for node in plan.nodes]
    if Kind.RESIZE_PENDING not in without:
        pods += [PodPlan(f"resized-{name}", 0.0, 0, 0, node=name, cpu=RESIZED_CPU) for name in resized]
    placed = [pod for pod in pods if pod.node]
    waiting = [pod for pod in pods if not pod.node]
    in_time = tuple(sorted((*plan.faults, *faults), key=lambda fault: fault.at_s))
    return replace(plan, pods=(*placed, *plan.pods, *waiting), faults=in_time)


def _some(rng: random.Random, kinds: tuple[Kind, ...], most: int) -> list[Kind]:
    """None of a group in some of the runs."""
    return rng.sample(kinds, rng.randint(1, most)) if rng.random() < _GROUP_PROBABILITY else []


def _refused(rng: random.Random, obstacles: list[Kind]) -> list[PodPlan]:
    """Pods that no node takes: all alike and of one controller, or each another one; some of them in gangs."""
    pods: list[PodPlan] = []
    if not obstacles:
        return pods
    alike, number, early = rng.random() < 0.5, rng.randint(*_NUM_REFUSED), rng.random() < 0.5
    first = rng.choice(_SIZES)
    for at in range(number):
        gpus = first if alike else rng.choice(_SIZES)
        size = rng.randint(2, 3) if rng.random() < _GANG_PROBABILITY else 1
        pod = PodPlan(
            f"refused-{at:02d}",
            round(rng.uniform(0.0, 0.2 if early else WINDOW_S * 0.9), 3),
            scheduler=0,
            gpus=gpus,
            by_resource=rng.random() < 0.5,
            gated=True,
            cpu="50m" if alike else f"{50 + at}m",
            owner="careless" if alike else f"careless-{at}",
            obstacle=obstacles[at % len(obstacles)],
        )
        if size == 1:
            pods.append(pod)
            continue
        gang = f"refused-gang-{at:02d}"
        pods += [replace(pod, name=f"{pod.name}-{member}", gang=gang, gang_size=size) for member in range(size)]
    return pods


def _first_of_each(pods: Iterable[PodPlan]) -> list[tuple[Kind, str]]:
    first: dict[Kind, str] = {}
    for pod in pods:
        if pod.obstacle is not None:
            first.setdefault(pod.obstacle, pod.name)
    return list(first.items())
