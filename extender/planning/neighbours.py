"""What nodes have left of what pods demand beside CPU, memory and GPUs, and who is where for rules about other pods.

Kept for the pods of one batch: what none of them asks for is not looked at. Authors are not trusted: of one namespace
so many rules count, about one namespace so many, and so many different labels are compared with them; what is beyond
counts for nobody, and is told.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from extender.core.clusters import Ints, Longs, Mask
from extender.planning.demands import ANY_ADDRESS, Choice, Demands, HostPort, Labels, Spread, Term
from extender.planning.wait_reasons import Code, WaitReason

_MOST_RULES: Final = 64
"""Different ones that count of one namespace's pods."""
_MOST_ABOUT: Final = 256
"""That count about one namespace's pods."""
_MOST_COMPARED: Final = 4_000
"""Different labels of one namespace's pods that are compared with rules."""
_MOST_MASKS: Final = 256
_BEYOND: Final = "rules about other pods: more than {most} different ones of one namespace are not read"

_IGNORED: Final = "{name}, which kube-scheduler does not count"

Choices = tuple[Choice, ...]
"""Of all of which a pod is."""


@dataclass(slots=True)
class _About:
    """Rules about the pods of one namespace."""

    numbers: list[int] = field(default_factory=list)
    keys: tuple[str, ...] = ()
    """Labels that they name."""
    known: dict[tuple[str | None, ...], tuple[int, ...]] = field(default_factory=dict)
    """Those that choose a pod, by its values of these labels."""


class Rules:
    """The choices of pods that rules are about, by number."""

    def __init__(self) -> None:
        self._choices: list[Choices] = []
        self._number_of: dict[Choices, int] = {}
        self._authors: defaultdict[str, set[Choices]] = defaultdict(set)
        self._in: defaultdict[str, list[int]] = defaultdict(list)
        self._everywhere: list[int] = []
        self._about: dict[str, _About] = {}

    def __len__(self) -> int:
        return len(self._choices)

    def add(self, choices: Choices, author: str) -> None:
        """A rule of a pod of the author's namespace; one too many is left out."""
        own = self._authors[author]
        if choices in own or len(own) >= _MOST_RULES:
            return
        own.add(choices)
        if choices in self._number_of:
            return
        number = self._number_of[choices] = len(self._choices)
        self._choices.append(choices)
        namespaces = choices[0].namespaces
        if namespaces is None:
            self._everywhere.append(number)
        for namespace in namespaces or ():
            self._in[namespace].append(number)
        self._about.clear()

    def number(self, choices: Choices) -> int | None:
        """None where it was left out."""
        return self._number_of.get(choices)

    def about(self, namespace: str) -> bool:
        """Whether there are rules about a namespace's pods."""
        return bool(self._everywhere) or namespace in self._in

    @property
    def namespaces(self) -> frozenset[str] | None:
        """Of the pods that rules are about; None for all."""
        return None if self._everywhere else frozenset(self._in)

    def choosing(self, namespace: str, labels: Labels) -> tuple[int, ...]:
        """Numbers of the rules that are about a pod."""
        about = self._about.get(namespace)
        if about is None:
            about = self._about[namespace] = self._rules_about(namespace)
        if not about.numbers:
            return ()
        values = tuple([labels.get(key) for key in about.keys])
        found = about.known.get(values)
        if found is None:
            if len(about.known) >= _MOST_COMPARED:
                return ()
            found = about.known[values] = tuple(
                number for number in about.numbers if all(one.holds(labels) for one in self._choices[number])
            )
        return found

    def _rules_about(self, namespace: str) -> _About:
        numbers = [
            number
            for number in (*self._in.get(namespace, ()), *self._everywhere)
            if all(one.namespaces is None or namespace in one.namespaces for one in self._choices[number])
        ][:_MOST_ABOUT]
        keys = {rule.key for number in numbers for one in self._choices[number] for rule in one.selector}
        return _About(numbers, tuple(sorted(keys)))


@dataclass(eq=False)
class Neighbours:
    """For one batch; changes as its pods are placed."""

    num_rows: int
    """N."""
    rules: Rules
    domains: Mapping[str, Ints]
    """By label: (N,) number of each node's domain, -1 where it has none."""
    eligible: Mapping[tuple[int, bool, bool], Mask]
    """(N,) nodes that count for spreading: by kind of pod, by its node affinity or not, by taints or not."""
    offered: Mapping[str, Longs]
    """(N,) what nodes offer of each resource that is asked for."""
    free: dict[str, Longs] = field(default_factory=dict)
    """(N,) what is left of it."""
    ports: dict[tuple[str, int], dict[str, Longs]] = field(default_factory=dict)
    """(N,) pods that have a port, by protocol and number, and then by address."""
    counts: dict[int, Longs] = field(default_factory=dict)
    """(N,) pods that a rule chooses, by its number."""
    staying: dict[int, Longs] = field(default_factory=dict)
    """(N,) of those the ones that are not being deleted, for rules about spreading."""
    repelling: dict[Term, Longs] = field(default_factory=dict)
    """(N,) pods that keep others away by such a term."""
    version: int = 0
    """Another one after each change."""
    _masks: dict[object, tuple[int, Mask]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        asked: Collection[tuple[str, Demands]],
        repelling: Iterable[tuple[str, Term]],
        num_rows: int,
        domains: Callable[[str], Ints],
        offered: Callable[[str], Longs],
        eligible: Mapping[tuple[int, bool, bool], Mask],
        ignored: Collection[str] = (),
    ) -> "Neighbours":
        """Without anybody on any node yet. `asked` are the demands of a batch, `repelling` terms of pods that run, both
        with their authors' namespaces; `ignored` are resources that kube-scheduler does not count."""
        rules = Rules()
        terms: dict[Term, None] = {}
        for namespace, demands in asked:
            for choices in _choices_of(demands):
                rules.add(choices, namespace)
            terms |= dict.fromkeys(demands.apart)
        for namespace, term in repelling:
            rules.add((term.pods,), namespace)
            terms[term] = None
        terms = {term: None for term in terms if rules.number((term.pods,)) is not None}
        topologies = {term.topology for term in terms} | {
            topology for _, demands in asked for topology in demands.topologies
        }
        resources = {name for _, demands in asked for name, _ in demands.resources}.difference(ignored)
        ports = {(port.protocol, port.number) for _, demands in asked for port in demands.ports}
        spread = {
            number
            for _, demands in asked
            for rule in demands.spread
            if (number := rules.number((rule.pods,))) is not None
        }
        found = {name: offered(name) for name in sorted(resources)}
        return cls(
            num_rows,
            rules,
            {topology: domains(topology) for topology in sorted(topologies)},
            eligible,
            found,
            free={name: units.copy() for name, units in found.items()},
            ports={port: {} for port in sorted(ports)},
            counts={number: np.zeros(num_rows, np.int64) for number in range(len(rules))},
            staying={number: np.zeros(num_rows, np.int64) for number in sorted(spread)},
            repelling={term: np.zeros(num_rows, np.int64) for term in terms},
        )

    def copy(self) -> "Neighbours":
        """One that changes by itself."""
        return Neighbours(
            num_rows=self.num_rows,
            rules=self.rules,
            domains=self.domains,
            eligible=self.eligible,
            offered=self.offered,
            free={name: units.copy() for name, units in self.free.items()},
            ports={port: {ip: on.copy() for ip, on in by_ip.items()} for port, by_ip in self.ports.items()},
            counts={number: on.copy() for number, on in self.counts.items()},
            staying={number: on.copy() for number, on in self.staying.items()},
            repelling={term: on.copy() for term, on in self.repelling.items()},
        )

    def emptied(self) -> "Neighbours":
        """The same nodes with nobody on them."""
        return Neighbours(
            num_rows=self.num_rows,
            rules=self.rules,
            domains=self.domains,
            eligible=self.eligible,
            offered=self.offered,
            free={name: units.copy() for name, units in self.offered.items()},
            ports={port: {} for port in self.ports},
            counts={number: np.zeros_like(on) for number, on in self.counts.items()},
            staying={number: np.zeros_like(on) for number, on in self.staying.items()},
            repelling={term: np.zeros_like(on) for term, on in self.repelling.items()},
        )

    def use(self, resource: str, row: int, units: int) -> None:
        """So much of a resource is taken of a node, or given back where it is negative."""
        if (free := self.free.get(resource)) is not None:
            free[row] -= units

    def hold(self, port: HostPort, row: int, count: int) -> None:
        """So many pods more have a port of a node."""
        by_address = self.ports.get((port.protocol, port.number))
        if by_address is not None:
            if port.address not in by_address:
                by_address[port.address] = np.zeros(self.num_rows, np.int64)
            by_address[port.address][row] += count

    def repel(self, term: Term, row: int, count: int) -> None:
        """So many pods more on a node keep others away."""
        if (on := self.repelling.get(term)) is not None:
            on[row] += count

    def join(self, namespace: str, labels: Labels, row: int, count: int, *, leaving: bool = False) -> None:
        """So many pods more of these labels are on a node."""
        for number in self.rules.choosing(namespace, labels):
            self.counts[number][row] += count
            if not leaving and number in self.staying:
                self.staying[number][row] += count

    def add(self, namespace: str, labels: Labels, demands: Demands | None, row: int, count: int) -> None:
        """A pod comes to a node (1), or leaves it (-1)."""
        self.version += 1
        self.join(namespace, labels, row, count)
        if demands is None:
            return
        for name, units in demands.resources:
            self.use(name, row, count * units)
        for port in demands.ports:
            self.hold(port, row, count)
        for term in demands.apart:
            self.repel(term, row, count)

    def alike(self, namespace: str, labels: Labels) -> tuple[int, ...]:
        """Equal for pods that no rule tells apart."""
        return self.rules.choosing(namespace, labels)

    def room(self, namespace: str, labels: Labels, demands: Demands | None, kind: int) -> Mask:
        """(N,) the nodes that have what a pod demands, and where no rule keeps it away."""
        key = namespace, demands, kind, self.alike(namespace, labels)
        known = self._masks.get(key)
        if known is not None and known[0] == self.version:
            return known[1]
        mask = np.ones(self.num_rows, np.bool_)
        for _, part in self._parts(namespace, labels, demands, kind):
            mask &= part
        if len(self._masks) >= _MOST_MASKS:
            self._masks.clear()
        self._masks[key] = self.version, mask
        return mask

    def offers(self, demands: Demands | None) -> Mask:
        """(N,) the nodes that would have the resources if nobody were on them."""
        mask = np.ones(self.num_rows, np.bool_)
        for name, units in demands.resources if demands is not None else ():
            if name in self.offered:
                mask &= self.offered[name] >= units
        return mask

    def why_not(
        self, namespace: str, labels: Labels, demands: Demands | None, kind: int, among: Mask
    ) -> WaitReason | None:
        """What keeps a pod from all of some nodes (N,) together, the last that was needed for that; None where some are
        left."""
        left = among.copy()
        for why, part in self._parts(namespace, labels, demands, kind):
            left &= part
            if not left.any():
                return why
        return None

    def unchecked(self, demands: Demands) -> tuple[str, ...]:
        """In words, what of a pod's demands nobody looked at."""
        found = [
            *demands.unchecked,
            *(_IGNORED.format(name=name) for name, _ in demands.resources if name not in self.free),
        ]
        if any(self.rules.number(choices) is None for choices in _choices_of(demands)):
            found.append(_BEYOND.format(most=_MOST_RULES))
        return tuple(found)

    def _parts(
        self, namespace: str, labels: Labels, demands: Demands | None, kind: int
    ) -> Iterable[tuple[WaitReason, Mask]]:
        """What keeps a pod from nodes, one by one, each with the nodes (N,) that it does not keep it from."""
        choosing = self.alike(namespace, labels)
        if demands is not None:
            for name, units in demands.resources:
                if name in self.free:
                    yield self._lack(name, units), self.free[name] >= units
            for port in demands.ports:
                yield Code.PORT_TAKEN.reason(port=f"{port.number}/{port.protocol}"), self._is_free(port)
            yield from self._near(demands.near, choosing)
            for term in demands.apart:
                if (number := self.rules.number((term.pods,))) is not None:
                    yield (
                        Code.APART.reason(topology=term.topology),
                        ~self._in_domain(term.topology, self.counts[number]),
                    )
            yield from self._spread(demands.spread, choosing, kind)
        for term, on in self.repelling.items():
            if self.rules.number((term.pods,)) in choosing and on.any():
                yield Code.REPELLED.reason(topology=term.topology), ~self._in_domain(term.topology, on)

    def _lack(self, name: str, units: int) -> WaitReason:
        offered = self.offered[name]
        if not (offered > 0).any():
            return Code.NO_RESOURCE.reason(resource=name)
        if not (offered >= units).any():
            return Code.RESOURCE_TOO_SMALL.reason(resource=name, units=units)
        return Code.RESOURCE_BUSY.reason(resource=name, units=units)

    def _is_free(self, port: HostPort) -> Mask:
        taken = np.zeros(self.num_rows, np.bool_)
        for address, on in self.ports.get((port.protocol, port.number), {}).items():
            if ANY_ADDRESS in (address, port.address) or address == port.address:
                taken |= on > 0
        return ~taken

    def _in_domain(self, topology: str, on: Longs) -> Mask:
        """(N,) the nodes in whose domain any of those counted (N,) is."""
        domain = self.domains[topology]
        known = domain >= 0
        here = np.zeros(int(domain.max(initial=-1)) + 1, np.bool_)
        here[domain[known & (on > 0)]] = True
        found = np.zeros(len(domain), np.bool_)
        found[known] = here[domain[known]]
        return found

    def _near(self, terms: Collection[Term], choosing: Collection[int]) -> Iterable[tuple[WaitReason, Mask]]:
        """The first of those who want to be together may go to any domain, by its own labels."""
        number = self.rules.number(tuple(term.pods for term in terms)) if terms else None
        if number is None:
            return
        on = self.counts[number]
        known = [self.domains[term.topology] >= 0 for term in terms]
        first = number in choosing and not (on[np.any(known, axis=0)] > 0).any()
        for term, has in zip(terms, known, strict=True):
            yield Code.NEAR.reason(topology=term.topology), has if first else self._in_domain(term.topology, on)

    def _spread(
        self, rules: Collection[Spread], choosing: Collection[int], kind: int
    ) -> Iterable[tuple[WaitReason, Mask]]:
        if not rules:
            return
        labelled = np.all([self.domains[rule.topology] >= 0 for rule in rules], axis=0)
        for rule in rules:
            why = Code.SPREAD.reason(topology=rule.topology)
            domain = self.domains[rule.topology]
            number = self.rules.number((rule.pods,))
            if number is None:
                yield why, domain >= 0
                continue
            counts = labelled & self.eligible[kind, rule.by_affinity, rule.by_taints]
            num_domains = int(domain.max(initial=-1)) + 1
            present = np.bincount(domain[counts], minlength=num_domains) > 0
            held = np.zeros(num_domains, np.int64)
            if rule.pods.selector:  # one that chooses all pods counts none of them: `countPodsMatchSelector`
                np.add.at(held, domain[counts], self.staying[number][counts])
            least = int(held[present].min()) if present.sum() >= max(rule.min_domains, 1) else 0
            fits = held + (number in choosing) - least <= rule.max_skew
            mask = domain >= 0
            mask[mask] = fits[domain[mask]]
            yield why, mask


def _choices_of(demands: Demands) -> list[Choices]:
    """What the rules of a pod are about."""
    found: list[Choices] = [(term.pods,) for term in demands.apart]
    found += [(rule.pods,) for rule in demands.spread]
    return [*found, tuple(term.pods for term in demands.near)] if demands.near else found
