"""The node nearest to fitting a request that fits nowhere: what is free there, and which pods hold the rest."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from extender.core.clusters import Cluster, Mask, Rows
from extender.core.fit.checks import TABLE, could_fit, nearest_sentence
from extender.core.fit.device_fits import explain_no_fit
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Fit, Reason
from extender.core.fit.relaxations import Checked, Shortfall, lacking, obstacles, shortfalls
from extender.core.occupancies import ObservedRules, with_observed_usage
from extender.core.resources.quantities import format_mib
from extender.core.resources.requests import GpuRequest, named
from extender.explain.occupants import Unbooked, unbooked
from extender.explain.sentences.words import listed
from extender.ledger.ledger import AllocationState

_NONE_UNBOOKED = Unbooked(0, 0, 0)


class Nearest(NamedTuple):
    """The node nearest to fitting a request, on one snapshot."""

    words: str
    """"needs 8 GPUs; h100-1 has 6 free"."""
    fits: bool = False
    """Whether the request fits: the node is then the first that fits, or the best if the policy was consulted."""
    node: str = ""
    """"" if no single node is nearest."""
    in_the_way: frozenset[int] = frozenset()
    """GPUs there that would be suitable once released."""
    whole: bool = False
    """Whether whole units are missing."""
    missing: int = 0
    """What would have to be released, in units, milli or MiB."""
    slices: bool = False
    """Whether the units are time slices."""
    rest: Unbooked = _NONE_UNBOOKED
    reason: int = Reason.FITS
    """Code of the check that the node fails; BUSY if pods are in the way."""
    free_elsewhere: int = 0
    """Suitable units that are free on other nodes, each of which has too few."""
    number: int = 0
    """Number that the check failed with."""
    num_fit: int = 1
    """Nodes that fit, if the policy was not consulted."""

    @property
    def where(self) -> str:
        """The node that fits, or how many do: only a policy can choose among several."""
        return named(self.node) if self.num_fit == 1 else f"{self.num_fit} nodes"


def nearest_of(cluster: Cluster, request: GpuRequest, rules: ObservedRules | None, rows: Rows) -> Nearest:
    """The nearest of R rows to a request, as a policy with these rules counts."""
    if not len(rows):
        return Nearest("there are no nodes")
    names, seen = cluster.node_names, with_observed_usage(cluster, rules)
    checked = fit(seen, request, rows)
    order = cluster.tie_rank[rows]
    if checked.fits.any():
        node = names[_first(rows, order, checked.fits)]
        found = Nearest("", fits=True, node=node, num_fit=int(checked.fits.sum()))
        return found._replace(words=f"needs {request}; there is room now on {found.where}")
    if request.devices is not None:
        return Nearest(explain_no_fit(cluster, request.devices, rows, checked.reason) or f"needs {request}")
    if lacks := shortfalls(seen, request, rows, 1):
        return _short(cluster, seen, request, rules, rows, checked, lacks[0])
    return _lasting(cluster, seen, request, rows, checked)


def in_short(cluster: Cluster, request: GpuRequest, rules: ObservedRules | None, rows: Rows, checked: Checked) -> str:
    """One sentence on why a request fits on none of R rows: the nearest node, and what it lacks.

    Uses the given check, and checks the cluster again only if no pod is in the way.
    """
    if not len(rows):
        return "Kerf does not know any of its candidate nodes yet"
    if request.devices is None and (lacks := lacking(cluster, request, rows, checked, 1)):
        (at,) = np.flatnonzero(rows == lacks[0].row)[:1]
        node = named(cluster.node_names[lacks[0].row])
        return nearest_sentence(node, int(checked.reason[at]), request, int(checked.available[at]))
    if request.devices is None and not (checked.reason >= Reason.SET_ASIDE).any():
        seen = with_observed_usage(cluster, rules)
        return _lasting(cluster, seen, request, rows, fit(seen, request, rows)).words
    return _latest(cluster, request, rows, checked, np.ones(len(rows), np.bool_)).words


def _lasting(cluster: Cluster, seen: Cluster, request: GpuRequest, rows: Rows, checked: Fit) -> Nearest:
    """The nearest node if no pod is in the way: the one with most suitable GPUs, else the one that fails the latest
    check."""
    suitable = np.ones(len(rows), np.bool_)
    if not request.mig:
        alike = fit(seen, _of_one(request), rows)
        suitable = could_fit(alike.reason)
        if not suitable.any():
            return _latest(cluster, request, rows, alike, ~suitable)
    of_kind = [check.reason for check in TABLE.checks if check.of_kind]
    counted = np.isin(checked.reason, of_kind) & (checked.available > 0)
    later = ~np.isin(checked.reason, of_kind) & (checked.reason > min(of_kind))
    if (few := suitable & counted).any() and not (suitable & later).any():
        few &= checked.available == checked.available[few].max()
        row = _first(rows, cluster.tie_rank[rows], few)
        (at,) = np.flatnonzero(rows == row)[:1]
        reason, node = int(checked.reason[at]), cluster.node_names[row]
        words = nearest_sentence(named(node), reason, request, int(checked.available[at]))
        return Nearest(words, node=node, reason=reason, number=int(checked.available[at]))
    return _latest(cluster, request, rows, checked, suitable)


def _latest(cluster: Cluster, request: GpuRequest, rows: Rows, checked: Checked, among: Mask) -> Nearest:
    """The node among R rows that fails the latest check with the highest number."""
    last = among & (checked.reason == checked.reason[among].max())
    number = int(checked.available[last].max())
    reason = int(checked.reason[last][0])
    if not number and (what := TABLE[reason].none_has) and request.devices is None:
        alone = len(rows) == 1
        nodes = "the only node" if alone else f"none of {len(rows)} nodes"
        return Nearest(f"needs {request}; {nodes} {what.format('no ' if alone else '')}", reason=reason)
    row = _first(rows, cluster.tie_rank[rows], last & (checked.available == number))
    node = cluster.node_names[row]
    words = nearest_sentence(named(node), reason, request, number)
    return Nearest(words, node=node, reason=reason, number=number)


def _short(
    cluster: Cluster,
    seen: Cluster,
    request: GpuRequest,
    rules: ObservedRules | None,
    rows: Rows,
    checked: Fit,
    short: Shortfall,
) -> Nearest:
    at = np.flatnonzero(rows == short.row)[:1]
    free, needed = int(checked.take(at).available[0]), max(request.count, 1)
    node = cluster.node_names[short.row]
    texts = obstacles(seen, request, rows[at])[0]
    slices = int(cluster.units_per_gpu[short.row]) > 1  # slices of any GPU may belong to any pod
    in_the_way = frozenset(
        gpu
        for gpu, text in enumerate(texts)
        if text == "in use" or text.endswith(" free") or (slices and cluster.gpu_model[short.row, gpu] >= 0)
    )
    match short.unit:
        case "GPUs":
            words = f"has {needed - short.missing} free"
        case "milli":
            words = f"has {free} of {request.milli or 1} milli free on one GPU"
        case "MiB" if request.memory_total_mib:
            words = f"has {format_mib(free)} of {format_mib(request.memory_total_mib)} free"
        case "MiB":
            words = f"has {format_mib(free)} of {format_mib(free + short.missing)} free on one GPU"
        case _:
            words = f"would need {short.text}"
    return Nearest(
        f"needs {request}; {named(node)} {words}",
        node=node,
        in_the_way=in_the_way,
        whole=short.unit == "GPUs",
        slices=slices,
        missing=short.missing,
        reason=Reason.BUSY,
        rest=unbooked(cluster, short.row, rules),
        free_elsewhere=_suitable_units(seen, request, rows[rows != short.row]),
    )


def _of_one(request: GpuRequest) -> GpuRequest:
    """The same request for one unit."""
    return replace(request, count=1, memory_total_mib=min(request.memory_total_mib, 1))


def _suitable_units(seen: Cluster, request: GpuRequest, rows: Rows) -> int:
    """Free units on R rows that suit a request, whatever their number per node."""
    checked = fit(seen, _of_one(request), rows)
    return int(checked.available[checked.fits].sum())


def _first(rows: Rows, order: Any, where: Any) -> int:
    """The row of the lowest rank."""
    return int(rows[where][np.argmin(order[where])])


def holding(nearest: Nearest, held: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The holders on its node (see `occupants.holders`) that are in the way: on suitable GPUs or GPUs of unknown
    index."""
    return [one for one in held if not one["gpus"] or nearest.in_the_way & set(one["gpus"])]


def describe_holders(nearest: Nearest, holders: list[Mapping[str, Any]]) -> str:
    """Holders of the rest of a node: "a/b and a/c hold 2, 1 is in use by unknown processes"; "" if there are none."""
    parts = []
    for bound in (True, False):
        some = [one for one in holders if (one["state"] == AllocationState.BOUND.name) is bound]
        if not some:
            continue
        names = list(dict.fromkeys(one["pod"] or "a pod that is being placed" for one in some))
        amount = _amount(nearest, some)
        held = f"{listed(names)} hold{'s' if len(names) == 1 else ''} {amount}"
        parts.append(held if bound else f"{amount} {'is' if amount == '1' else 'are'} reserved for {listed(names)}")
    rest = nearest.rest
    kinds = ((rest.used, "in use by unknown processes"), (rest.faulty, "faulty"), (rest.unhealthy, "unhealthy"))
    parts += [f"{count} {'is' if count == 1 else 'are'} {what}" for count, what in kinds if count]
    return ", ".join(parts)


def _amount(nearest: Nearest, holders: list[Mapping[str, Any]]) -> str:
    """How much some holders have of the suitable units, in words."""
    if any(one["shared"] for one in holders):
        return "parts of its GPUs"
    if not nearest.whole:
        return "the rest"
    if nearest.slices:
        return str(sum(one["units"] for one in holders))
    known = {gpu for one in holders for gpu in one["gpus"] if gpu in nearest.in_the_way}
    return str(len(known) + sum(one["units"] for one in holders if not one["gpus"]))
