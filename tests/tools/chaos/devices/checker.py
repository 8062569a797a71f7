"""The judge of devices: what has to hold at every moment, and what once the faults are over."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from typing import Final

from tests.tools.chaos import checker, holdings
from tests.tools.chaos.checker import Violation
from tests.tools.chaos.devices.books import Books, Taking, consumers_of, has_claims, takings_of
from tests.tools.chaos.devices.plans import OWNED
from tests.tools.chaos.devices.rooms import Room, asked_of
from tests.tools.chaos.holdings import Manifest, name_of
from tests.tools.chaos.journals import Journal

_KERF: Final = "kerf"
_LET_GO: Final = "kerf.dev/planned-by"
_KUBE_SCHEDULER: Final = "kube-scheduler"


def replay(journal: Journal, touched: Collection[str]) -> tuple[Books, list[Violation]]:
    """The state after all that was told, and what was wrong on the way.

    `touched` are names of claims at which others have laid hands: their pods may have none any more.
    """
    books, found = Books(), []
    came: set[str] = set()
    for event in journal:
        before = books.claims.get(event.uid)
        books.enter(event)
        if event.kind == "claims" and not event.gone:
            takings = takings_of(event.manifest)
            if takings and (before is None or takings_of(before) != takings):
                found += overtaken(books, takings) + _misallocated(event.manifest, takings)
        elif event.kind == "pods" and event.manifest["spec"].get("nodeName") and event.uid not in came:
            came.add(event.uid)
            if not journal.missed(event.version) and not event.gone:
                found += unserved(books, event.manifest, touched)
    return books, found


def state(journal: Journal) -> Books:
    """The state after all that was told."""
    books = Books()
    for event in journal:
        books.enter(event)
    return books


def overtaken(books: Books, takings: Iterable[Taking]) -> list[Violation]:
    """Of these devices those of which more is taken than there is, and counters of their pools."""
    found, holders = [], books.holders()
    ours = {taking.key for taking in takings if taking.key.driver in OWNED}
    for key in sorted(ours):
        device, held = books.devices.get(key), holders[key]
        names = ", ".join(sorted(name for name, _ in held))
        if device is None:
            found.append(Violation("only devices that exist", str(key), f"it never did: {names}"))
        elif not device.shared:
            if len(held) > 1:
                found.append(Violation("no device has two claims", str(key), names))
        else:
            for capacity, amount in device.capacity.items():
                consumed = sum(dict(taking.consumed).get(capacity, amount) for _, taking in held)
                if consumed > amount:
                    detail = f"{consumed} of {amount} {capacity}: {names}"
                    found.append(Violation("no capacity above what a device has", str(key), detail))
    used = books.used(holders)
    for pool in sorted({key[:2] for key in ours}):
        for counter, amount in used[pool].items():
            if amount > books.counters[pool].get(counter, 0):
                detail = f"{amount} of {books.counters[pool].get(counter, 0)} {'/'.join(counter)}"
                found.append(Violation("no counter above what a pool has", "/".join(pool), detail))
    return found


def _misallocated(claim: Manifest, takings: Iterable[Taking]) -> list[Violation]:
    """Devices that somebody else has allocated than who owns them."""
    writers = {
        item["manager"]
        for item in claim["metadata"].get("managedFields") or ()
        if "f:allocation" in (item.get("fieldsV1") or {}).get("f:status", {})
    }
    owners = {_KERF if taking.key.driver in OWNED else _KUBE_SCHEDULER for taking in takings}
    if writers == owners:
        return []
    detail = f"{', '.join(sorted(str(taking.key) for taking in takings))} by {', '.join(sorted(writers)) or 'nobody'}"
    return [Violation("devices are allocated by whoever owns them", name_of(claim), detail)]


def unserved(books: Books, pod: Manifest, touched: Collection[str]) -> list[Violation]:
    """Claims of a pod that comes to its node which have no devices there, or are not reserved for it."""
    node, found = pod["spec"]["nodeName"], []
    for name, claim in books.claims_of(pod).items():
        if name in touched or (claim is not None and claim["metadata"].get("deletionTimestamp")):
            continue
        takings = takings_of(claim) if claim is not None else []
        places = {books.devices[taking.key].node for taking in takings if taking.key in books.devices}
        if places != {node} or claim is None or pod["metadata"]["uid"] not in consumers_of(claim):
            detail = f"on {node}, claim {name} has devices on {sorted(places)}"
            found.append(Violation("all claims of a bound pod have devices on its node", name_of(pod), detail))
    return found


def kept(books: Books) -> list[Violation]:
    """Claims that have devices of Kerf's, and no pod that uses them, or is about to."""
    users: dict[str, list[Manifest]] = defaultdict(list)
    for pod in books.pods.values():
        if not holdings.finished(pod):
            for name in books.claims_of(pod):
                users[name].append(pod)
    found = []
    for claim in books.claims.values():
        devices = [str(taking.key) for taking in takings_of(claim) if taking.key.driver in OWNED]
        waiting = users[name_of(claim)]
        if devices and not waiting:
            found.append(
                Violation("no devices are left with claims of pods that are gone", name_of(claim), str(devices))
            )
        elif devices and all(map(checker.gated, waiting)):
            names = ", ".join(map(name_of, waiting))
            found.append(Violation("no devices are kept for pods that wait", name_of(claim), f"{devices} for {names}"))
    return found


def stranded(books: Books, nodes: Iterable[Manifest]) -> list[Violation]:
    """Pods that wait although their claims could have devices; members of gangs that wait, all together."""
    room = Room.of(books, [holdings.node_use(node) for node in nodes])
    units: dict[str, list[Manifest]] = defaultdict(list)
    for pod in books.pods.values():
        if has_claims(pod) and not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp"):
            units[(checker.gang_of(pod) if checker.gated(pod) else "") or name_of(pod)].append(pod)
    sizes = Counter(checker.gang_of(pod) for pod in books.pods.values() if not pod["metadata"].get("deletionTimestamp"))
    found = []
    for name, pods in units.items():
        size = checker.gang_size(pods) if checker.gang_of(pods[0]) and checker.gated(pods[0]) else 1
        asked = [asked_of(books, pod) for pod in pods]
        if size > max(sizes[name], 1) or None in asked:
            continue  # incomplete, or some claim is not there
        if any(item is not None and item.ours for item in asked) and not _in_queue(pods[0]):
            continue  # its author has forgotten the gate
        places = room.places([item for item in asked if item is not None])
        if places:
            detail = f"could go to {', '.join(places)}; its reason: {checker.reason_of(pods[0])!r}"
            found.append(Violation("placed after the faults end", name, detail))
    return found


def _in_queue(pod: Manifest) -> bool:
    """Whether a pod waits in Kerf's queue, or Kerf let it go."""
    return checker.gated(pod) or _LET_GO in (pod["metadata"].get("annotations") or {})
