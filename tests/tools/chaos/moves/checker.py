"""The judge of moves: what has to hold at every moment, and what once the faults are over.

It goes by what the API server has told of pods, nodes, budgets and the record of moves, in the order in which it was
written, and by its audit log; of Kerf it knows the format of that record, and no code.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tests.tools.chaos import checker, holdings
from tests.tools.chaos.checker import Violation
from tests.tools.chaos.holdings import Manifest, name_of
from tests.tools.chaos.journals import Event, Journal
from tests.tools.chaos.modes import REPLACE_S
from tests.tools.chaos.moves import worlds
from tests.tools.chaos.moves.plans import Owner
from tests.tools.chaos.moves.worlds import World

_BELATED_S: Final = 8.0
"""For so long Kerf may not have heard that there is room, or be held between its last look and what it writes."""
_STALE_S: Final = 5.0
"""For so long what others did to pods of a budget may not be counted yet."""
_NEW_S: Final = 1.0
_ADMITTED: Final = 300


def replay(journal: Journal) -> list[Violation]:
    """What was wrong at any moment of all that was told."""
    world, judges = World(), (Evictions(), Budgets(), Places(), Needs())
    found = []
    for event in journal:
        before = world.enter(event)
        for judge in judges:
            violations = judge.see(world, event, before)
            if not journal.missed(event.version):
                found += violations
    return found


def num_moved(journal: Journal) -> int:
    """Pods that were evicted."""
    return len({event.uid for event in journal if event.kind == "pods" and worlds.evicted(event.manifest)})


def _evicts(event: Event, before: Manifest | None) -> bool:
    """Whether a pod is evicted by this."""
    return event.kind == "pods" and worlds.evicted(event.manifest) and not worlds.ending(before)


def _comes(event: Event, before: Manifest | None) -> str:
    """The node that a pod gets by this, "" for none."""
    if event.kind != "pods" or event.gone or (before is not None and before["spec"].get("nodeName")):
        return ""
    return str(event.manifest["spec"].get("nodeName") or "")


class Evictions:
    """Pods are evicted by steps that are written down, and each once."""

    def see(self, world: World, event: Event, before: Manifest | None) -> list[Violation]:
        """What is wrong with this."""
        if not _evicts(event, before):
            return []
        record = world.record
        stage = record.stage(event.uid) if record is not None else ""
        if record is not None and record.active and stage == "evicting":
            return []
        if not stage and checker.gang_of(event.manifest):
            return []  # what is left of a gang: `queue.gang_timeout_s`
        detail = f"its stage is {stage!r} in plan {record.id if record is not None else 'none'}"
        return [Violation("nobody is evicted but by a step that is written down", name_of(event.manifest), detail)]


class Budgets:
    """No eviction leaves fewer pods available than a budget keeps, and each is counted by it."""

    def __init__(self) -> None:
        self._disturbed: dict[str, float] = {}  # by controller: when others last did something to its pods
        self._came: dict[str, float] = {}  # by budget

    def see(self, world: World, event: Event, before: Manifest | None) -> list[Violation]:
        """What is wrong with this."""
        if event.kind == "budgets":
            spec = None if before is None else before["spec"]
            if event.gone or spec != event.manifest["spec"]:
                self._came[name_of(event.manifest)] = event.at_s
            return []
        if event.kind != "pods" or not worlds.ready(before) or worlds.ready(None if event.gone else event.manifest):
            return []
        owner = worlds.owner_of(event.manifest)
        if not _evicts(event, before):
            self._disturbed[owner] = event.at_s
            return []
        budget = world.budgets.get(owner)
        if budget is None or event.at_s - self._came.get(owner, float("-inf")) < _NEW_S:
            return []
        return self._judged(world, event, owner, budget)

    def _judged(self, world: World, event: Event, owner: str, budget: Manifest) -> list[Violation]:
        name = name_of(event.manifest)
        if name not in ((budget.get("status") or {}).get("disruptedPods") or {}):
            return [Violation("every eviction is counted by its budget", name, f"budget {owner} does not know of it")]
        keeps, left = budget["spec"]["minAvailable"], sum(map(worlds.ready, world.of_owner(owner)))
        if left >= keeps or event.at_s - self._disturbed.get(owner, float("-inf")) < _STALE_S:
            return []
        return [Violation("no eviction leaves fewer than a budget keeps", name, f"{left} of {keeps} are available")]


@dataclass(frozen=True, slots=True)
class _Kept:
    """The next place of a pod that was evicted."""

    node: str
    gpus: int
    controller: str
    planner: str
    since_s: float


@dataclass
class Places:
    """The place of who was evicted is not given to others before its replacement has one, or Kerf may give up."""

    _kept: dict[str, _Kept] = field(default_factory=dict)

    def see(self, world: World, event: Event, before: Manifest | None) -> list[Violation]:
        """What is wrong with this."""
        late = event.at_s - REPLACE_S
        self._kept = {uid: kept for uid, kept in self._kept.items() if kept.since_s > late}
        if event.kind == "maps":
            self._follow(world)
        elif event.kind == "nodes":
            self._forget_changed(event, before)
        elif _evicts(event, before) and world.record is not None and event.uid in world.record.moves:
            pod, move = event.manifest, world.record.moves[event.uid]
            planner, controller = f"defrag {world.record.id}", worlds.controller_of(pod)
            self._kept[event.uid] = _Kept(move["to"], worlds.gpus_of(pod), controller, planner, event.at_s)
        elif node := _comes(event, before):
            return self._judged(world, event.manifest, node)
        return []

    def _follow(self, world: World) -> None:
        record = world.record
        under_way = {
            uid
            for uid in self._kept
            if record is not None and record.active and record.stage(uid) in ("evicting", "coming", "starting")
        }
        self._kept = {uid: kept for uid, kept in self._kept.items() if uid in under_way}

    def _forget_changed(self, event: Event, before: Manifest | None) -> None:
        """Of a node that is gone, or offers something else, nothing can be kept."""
        offers = [None if node is None else node["status"]["allocatable"] for node in (before, event.manifest)]
        if event.gone or offers[0] != offers[1]:
            name = name_of(event.manifest)
            self._kept = {uid: kept for uid, kept in self._kept.items() if kept.node != name}

    def _judged(self, world: World, pod: Manifest, node: str) -> list[Violation]:
        controller = worlds.controller_of(pod)
        own = [uid for uid, kept in self._kept.items() if controller and kept.controller == controller]
        if own:  # a replacement: it has its place now, here or elsewhere
            there = [uid for uid in own if self._kept[uid].node == node]
            self._kept.pop((there or own)[0])
            return []
        needed = sum(kept.gpus for kept in self._kept.values() if kept.node == node)
        free = world.free(node)
        if not needed or not worlds.gpus_of(pod) or free is None or free >= needed:
            return []
        detail = f"it came to {node}, where {free} GPUs are left of {needed} kept for who was evicted"
        return [Violation("the place of an evicted pod is kept", name_of(pod), detail)]


class Needs:
    """No step begins for a target that has had room for a while."""

    def __init__(self) -> None:
        self._plan = ""
        self._fits_since: float | None = None
        self._begun: set[str] = set()

    def see(self, world: World, event: Event, before: Manifest | None) -> list[Violation]:
        """What is wrong with this."""
        record = world.record
        if record is None or not record.active:
            self._fits_since, self._plan = None, ""
            return []
        if record.id != self._plan:
            self._plan, self._fits_since, self._begun = record.id, None, set()
        begun = {uid for uid in record.moves if record.stage(uid) == "evicting"}
        new, self._begun = begun - self._begun, self._begun | begun
        since = self._fits_since
        if new and since is not None and event.at_s - since > _BELATED_S:
            detail = f"its target has had room for {event.at_s - since:.1f} s, and it evicts {sorted(new)}"
            return [Violation("no move without need", f"plan {record.id}", detail)]
        if not self._has_room(world):
            self._fits_since = None
        elif since is None:
            self._fits_since = event.at_s
        return []

    @staticmethod
    def _has_room(world: World) -> bool:
        """Whether all of the target's pods fit the nodes that the plan has for them."""
        target = world.record.target if world.record is not None else {}
        needed: dict[str, int] = {}
        for uid, node in target.items():
            pod = world.pods.get(uid)
            if pod is None or pod["spec"].get("nodeName"):
                return False
            needed[node] = needed.get(node, 0) + worlds.gpus_of(pod)
        free = {node: world.free(node) for node in needed}
        return bool(needed) and all((free[node] or 0) >= gpus for node, gpus in needed.items())


def ended_otherwise(lines: Iterable[str], user: str) -> list[Violation]:
    """Pods that a user has deleted, by the lines of the API server's audit log."""
    found = []
    for line in lines:
        told = json.loads(line)
        ref, admitted = told.get("objectRef") or {}, (told.get("responseStatus") or {}).get("code", 0) < _ADMITTED
        deletes = told["verb"] in ("delete", "deletecollection") and ref.get("resource") == "pods"
        if deletes and admitted and told["user"]["username"] == user:
            found.append(Violation("Kerf ends pods by evictions alone", str(ref.get("name", "all")), "it was deleted"))
    return found


def left_under_way(told: Manifest | None) -> list[Violation]:
    """That a plan has not ended, by the ConfigMap in which it is written down."""
    text = ((told or {}).get("data") or {}).get("plan.json")
    record = worlds.Record(json.loads(text)) if text else None
    if record is None or not record.active:
        return []
    stages = {move["pod"]: record.stage(uid) for uid, move in record.moves.items()}
    return [Violation("every plan ends", f"plan {record.id}", f"it is {record.told['phase']}: {stages}")]


def short_of_pods(kind: Owner, owners: Iterable[Manifest], pods: Iterable[Manifest]) -> list[Violation]:
    """Controllers that have other than the pods they were told to have. Jobs wait longer after each failure."""
    pods, found = list(pods), []
    for owner in owners:
        name, spec, status = name_of(owner), owner["spec"], owner.get("status") or {}
        if (owner["metadata"].get("ownerReferences") or ()) or status.get("failed"):
            continue
        there = [pod for pod in pods if worlds.owner_of(pod) == name and not holdings.finished(pod)]
        num, wanted = (
            sum(not worlds.ending(pod) for pod in there),
            spec["parallelism" if kind is Owner.JOB else "replicas"],
        )
        if num != wanted:
            detail = f"{num} of {wanted} are there"
            found.append(Violation("every controller has its pods", f"{kind} {name}", detail))
    return found
