"""Free extended resources and host ports per node, and the pods per node that affinity and spread rules select.

Covers only what one batch of pods demands. Authors are not trusted: the rules by one namespace, the rules about one
namespace and the label combinations matched against them are bounded. Rules beyond that are ignored, and reported.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from extender.core.clusters import Ints, Longs, Mask
from extender.planning.demands import ANY_ADDRESS, AffinityTerm, Demands, HostPort, Labels, PodSelector, TopologySpread
from extender.planning.wait_reasons import Code, WaitReason

_MAX_RULES: Final = 64
"""Most different rules by pods of one namespace."""
_MAX_RULES_ABOUT: Final = 256
"""Most rules about pods of one namespace."""
_MAX_LABEL_SETS: Final = 4_000
"""Most different label combinations of one namespace's pods that are matched against rules."""
_MAX_MASKS: Final = 256
_TOO_MANY_RULES: Final = "rules about other pods beyond {most} different ones per namespace"

_IGNORED: Final = "{name}, which kube-scheduler does not count"

Choices = tuple[PodSelector, ...]
"""Selectors, all of which must match a pod."""


@dataclass(slots=True)
class _NamespaceRules:
    """Rules about the pods of one namespace."""

    numbers: list[int] = field(default_factory=list)
    keys: tuple[str, ...] = ()
    """Label keys that they use."""
    matching: dict[tuple[str | None, ...], tuple[int, ...]] = field(default_factory=dict)
    """Cache: the rules that select a pod, by its values of these labels."""


class PodRules:
    """Numbered pod selectors of affinity and spread rules."""

    def __init__(self) -> None:
        self._choices: list[Choices] = []
        self._number_of: dict[Choices, int] = {}
        self._authors: defaultdict[str, set[Choices]] = defaultdict(set)
        self._in: defaultdict[str, list[int]] = defaultdict(list)
        self._everywhere: list[int] = []
        self._about: dict[str, _NamespaceRules] = {}

    def __len__(self) -> int:
        return len(self._choices)

    def add(self, choices: Choices, author: str) -> None:
        """Add a rule of a pod in namespace `author`; rules beyond the bound are ignored."""
        own = self._authors[author]
        if choices in own or len(own) >= _MAX_RULES:
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
        """The rule's number, None if it was ignored."""
        return self._number_of.get(choices)

    def about(self, namespace: str) -> bool:
        """Whether any rule is about a namespace's pods."""
        return bool(self._everywhere) or namespace in self._in

    @property
    def namespaces(self) -> frozenset[str] | None:
        """Namespaces that rules are about; None for all."""
        return None if self._everywhere else frozenset(self._in)

    def choosing(self, namespace: str, labels: Labels) -> tuple[int, ...]:
        """Numbers of the rules that select a pod."""
        about = self._about.get(namespace)
        if about is None:
            about = self._about[namespace] = self._rules_about(namespace)
        if not about.numbers:
            return ()
        values = tuple([labels.get(key) for key in about.keys])
        numbers = about.matching.get(values)
        if numbers is None:
            if len(about.matching) >= _MAX_LABEL_SETS:
                return ()
            numbers = about.matching[values] = tuple(
                number for number in about.numbers if all(choice.holds(labels) for choice in self._choices[number])
            )
        return numbers

    def _rules_about(self, namespace: str) -> _NamespaceRules:
        numbers = [
            number
            for number in (*self._in.get(namespace, ()), *self._everywhere)
            if all(choice.namespaces is None or namespace in choice.namespaces for choice in self._choices[number])
        ][:_MAX_RULES_ABOUT]
        keys = {
            condition.key for number in numbers for choice in self._choices[number] for condition in choice.selector
        }
        return _NamespaceRules(numbers, tuple(sorted(keys)))


@dataclass(eq=False)
class Neighbours:
    """State for one batch; changes as its pods are placed."""

    num_rows: int
    """N."""
    rules: PodRules
    domains: Mapping[str, Ints]
    """(N,) number of each node's domain, -1 for none; by topology key."""
    eligible: Mapping[tuple[int, bool, bool], Mask]
    """(N,) nodes that count for topology spread; by kind of pod, `by_affinity` and `by_taints`."""
    offered: Mapping[str, Longs]
    """(N,) allocatable quantity of each requested resource."""
    free: dict[str, Longs] = field(default_factory=dict)
    """(N,) free quantity of each requested resource."""
    ports: dict[tuple[str, int], dict[str, Longs]] = field(default_factory=dict)
    """(N,) number of pods that use a host port; by protocol and number, then by address."""
    counts: dict[int, Longs] = field(default_factory=dict)
    """(N,) number of pods that a rule selects; by rule number."""
    staying: dict[int, Longs] = field(default_factory=dict)
    """(N,) the same without terminating pods, for spread rules."""
    repelling: dict[AffinityTerm, Longs] = field(default_factory=dict)
    """(N,) number of pods with this anti-affinity term."""
    version: int = 0
    """Incremented by each change."""
    _masks: dict[object, tuple[int, Mask]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        asked: Collection[tuple[str, Demands]],
        repelling: Iterable[tuple[str, AffinityTerm]],
        num_rows: int,
        domains: Callable[[str], Ints],
        offered: Callable[[str], Longs],
        eligible: Mapping[tuple[int, bool, bool], Mask],
        ignored: Collection[str] = (),
    ) -> "Neighbours":
        """The state of empty nodes. `asked` are the batch's demands, `repelling` the anti-affinity terms of running
        pods, both with their pods' namespaces; `ignored` are resources that kube-scheduler does not count."""
        rules = PodRules()
        terms: dict[AffinityTerm, None] = {}
        for namespace, demands in asked:
            for choices in _choices_of(demands):
                rules.add(choices, namespace)
            terms |= dict.fromkeys(demands.anti_affinity)
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
        allocatable = {name: offered(name) for name in sorted(resources)}
        return cls(
            num_rows,
            rules,
            {topology: domains(topology) for topology in sorted(topologies)},
            eligible,
            allocatable,
            free={name: units.copy() for name, units in allocatable.items()},
            ports={port: {} for port in sorted(ports)},
            counts={number: np.zeros(num_rows, np.int64) for number in range(len(rules))},
            staying={number: np.zeros(num_rows, np.int64) for number in sorted(spread)},
            repelling={term: np.zeros(num_rows, np.int64) for term in terms},
        )

    def copy(self) -> "Neighbours":
        """An independent copy."""
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
        """The same nodes without pods."""
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
        """Take units of a resource on a node, or return them if negative."""
        if (free := self.free.get(resource)) is not None:
            free[row] -= units

    def hold(self, port: HostPort, row: int, count: int) -> None:
        """Add to the number of pods that use a node's port."""
        by_address = self.ports.get((port.protocol, port.number))
        if by_address is not None:
            if port.address not in by_address:
                by_address[port.address] = np.zeros(self.num_rows, np.int64)
            by_address[port.address][row] += count

    def repel(self, term: AffinityTerm, row: int, count: int) -> None:
        """Add to a node's number of pods with an anti-affinity term."""
        if (on := self.repelling.get(term)) is not None:
            on[row] += count

    def join(self, namespace: str, labels: Labels, row: int, count: int, *, leaving: bool = False) -> None:
        """Add to a node's number of pods with these labels; `leaving` ones are terminating."""
        for number in self.rules.choosing(namespace, labels):
            self.counts[number][row] += count
            if not leaving and number in self.staying:
                self.staying[number][row] += count

    def add(self, namespace: str, labels: Labels, demands: Demands | None, row: int, count: int) -> None:
        """Add a pod to a node (`count` 1), or remove it (-1)."""
        self.version += 1
        self.join(namespace, labels, row, count)
        if demands is None:
            return
        for name, units in demands.resources:
            self.use(name, row, count * units)
        for port in demands.ports:
            self.hold(port, row, count)
        for term in demands.anti_affinity:
            self.repel(term, row, count)

    def alike(self, namespace: str, labels: Labels) -> tuple[int, ...]:
        """A key that is equal for pods selected by the same rules."""
        return self.rules.choosing(namespace, labels)

    def room(self, namespace: str, labels: Labels, demands: Demands | None, kind: int) -> Mask:
        """(N,) the nodes that meet a pod's demands and every rule."""
        key = namespace, demands, kind, self.alike(namespace, labels)
        known = self._masks.get(key)
        if known is not None and known[0] == self.version:
            return known[1]
        mask = np.ones(self.num_rows, np.bool_)
        for _, part in self._checks(namespace, labels, demands, kind):
            mask &= part
        if len(self._masks) >= _MAX_MASKS:
            self._masks.clear()
        self._masks[key] = self.version, mask
        return mask

    def offers(self, demands: Demands | None) -> Mask:
        """(N,) the nodes that would have the resources if they were empty."""
        mask = np.ones(self.num_rows, np.bool_)
        for name, units in demands.resources if demands is not None else ():
            if name in self.offered:
                mask &= self.offered[name] >= units
        return mask

    def why_not(
        self, namespace: str, labels: Labels, demands: Demands | None, kind: int, among: Mask
    ) -> WaitReason | None:
        """Why a pod fits no node of `among` (N,): the check that ruled out the last one; None if some fit."""
        left = among.copy()
        for why, part in self._checks(namespace, labels, demands, kind):
            left &= part
            if not left.any():
                return why
        return None

    def unchecked(self, demands: Demands) -> tuple[str, ...]:
        """Descriptions of a pod's demands that were not checked."""
        ignored = [
            *demands.unchecked,
            *(_IGNORED.format(name=name) for name, _ in demands.resources if name not in self.free),
        ]
        if any(self.rules.number(choices) is None for choices in _choices_of(demands)):
            ignored.append(_TOO_MANY_RULES.format(most=_MAX_RULES))
        return tuple(ignored)

    def _checks(
        self, namespace: str, labels: Labels, demands: Demands | None, kind: int
    ) -> Iterable[tuple[WaitReason, Mask]]:
        """Each check of a pod: the reason if it fails, and the nodes (N,) that pass."""
        choosing = self.alike(namespace, labels)
        if demands is not None:
            for name, units in demands.resources:
                if name in self.free:
                    yield self._resource_reason(name, units), self.free[name] >= units
            for port in demands.ports:
                yield Code.PORT_TAKEN.reason(port=f"{port.number}/{port.protocol}"), self._port_free(port)
            yield from self._near(demands.affinity, choosing)
            for term in demands.anti_affinity:
                if (number := self.rules.number((term.pods,))) is not None:
                    yield (
                        Code.APART.reason(topology=term.topology),
                        ~self._in_domain(term.topology, self.counts[number]),
                    )
            yield from self._spread(demands.spread, choosing, kind)
        for term, on in self.repelling.items():
            if self.rules.number((term.pods,)) in choosing and on.any():
                yield Code.REPELLED.reason(topology=term.topology), ~self._in_domain(term.topology, on)

    def _resource_reason(self, name: str, units: int) -> WaitReason:
        offered = self.offered[name]
        if not (offered > 0).any():
            return Code.NO_RESOURCE.reason(resource=name)
        if not (offered >= units).any():
            return Code.RESOURCE_TOO_SMALL.reason(resource=name, units=units)
        return Code.RESOURCE_BUSY.reason(resource=name, units=units)

    def _port_free(self, port: HostPort) -> Mask:
        taken = np.zeros(self.num_rows, np.bool_)
        for address, on in self.ports.get((port.protocol, port.number), {}).items():
            if ANY_ADDRESS in (address, port.address) or address == port.address:
                taken |= on > 0
        return ~taken

    def _in_domain(self, topology: str, on: Longs) -> Mask:
        """(N,) the nodes whose domain has any of the pods counted in `on` (N,)."""
        domain = self.domains[topology]
        known = domain >= 0
        occupied = np.zeros(int(domain.max(initial=-1)) + 1, np.bool_)
        occupied[domain[known & (on > 0)]] = True
        mask = np.zeros(len(domain), np.bool_)
        mask[known] = occupied[domain[known]]
        return mask

    def _near(self, terms: Collection[AffinityTerm], choosing: Collection[int]) -> Iterable[tuple[WaitReason, Mask]]:
        """Checks of required pod affinity; the first pod of a group that selects itself may go to any domain."""
        number = self.rules.number(tuple(term.pods for term in terms)) if terms else None
        if number is None:
            return
        on = self.counts[number]
        known = [self.domains[term.topology] >= 0 for term in terms]
        first = number in choosing and not (on[np.any(known, axis=0)] > 0).any()
        for term, has in zip(terms, known, strict=True):
            yield Code.NEAR.reason(topology=term.topology), has if first else self._in_domain(term.topology, on)

    def _spread(
        self, rules: Collection[TopologySpread], choosing: Collection[int], kind: int
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
            if rule.pods.selector:  # an empty selector counts no pods, as in `countPodsMatchSelector`
                np.add.at(held, domain[counts], self.staying[number][counts])
            least = int(held[present].min()) if present.sum() >= max(rule.min_domains, 1) else 0
            fits = held + (number in choosing) - least <= rule.max_skew
            mask = domain >= 0
            mask[mask] = fits[domain[mask]]
            yield why, mask


def _choices_of(demands: Demands) -> list[Choices]:
    """The pod selectors of a pod's rules."""
    choices: list[Choices] = [(term.pods,) for term in demands.anti_affinity]
    choices += [(rule.pods,) for rule in demands.spread]
    return [*choices, tuple(term.pods for term in demands.affinity)] if demands.affinity else choices
