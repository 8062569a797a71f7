"""Checks of other packages, by the entry point group `kerf.filters`: `NAME = "package.module:FILTER"`.

What an entry point names is a `Filter`. It stands in the table beside Kerf's own checks, so it can only refuse what
they let pass; one that fails refuses every node, and says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Mask, Rows
from extender.core.entry_points import Installed, told_of
from extender.core.fit.checks import TABLE, Check, Failure
from extender.core.fit.fittings import Fitting, GpuFitting
from extender.core.fit.reasons import FIRST_LASTING, FIRST_PASSING, MAX_FILTERS, Kind, Remedy
from extender.core.resources.requests import GpuRequest


@dataclass(frozen=True, slots=True)
class Filter:
    """A check on nodes, or on their GPUs."""

    passes: Callable[[Cluster, GpuRequest, Rows], Mask]
    """(R,) which of R rows of a cluster pass, or (R, G) which of their GPUs; of the columns of those rows alone, and
    without waiting for anything. It is called by several threads."""
    says: str
    """What is said of a node that does not, after what the pod needs; `{number}` is of units there that pass."""
    by_state: bool = False
    """Whether it comes to the same on nodes that are equal but for their name and identity: then it is asked less."""
    lasting: bool = True
    """Whether it will not pass when other pods go: then nobody is evicted for it."""
    of_gpu: str = ""
    """What is said of a GPU that does not pass."""
    relax: Callable[[GpuRequest], GpuRequest | None] = lambda request: None
    """A request that asks less, and may pass; None where there is none."""
    relaxed: str = ""
    """What that one is, in words: "fewer GPUs, ..."."""
    remedy: str = ""
    """What of the nodes would have to be another way."""


_INSTALLED: Final = Installed("kerf.filters", "filter")
faults: Final = _INSTALLED.faults


def load_installed() -> None:
    """Load the filters of other packages. What is wrong with one is in `faults`."""
    known = set(TABLE.names)
    _INSTALLED.load([name for name in known if name not in _INSTALLED.found])
    for name, found in list(_INSTALLED.found.items()):
        if name in known:
            continue
        try:
            if not isinstance(found, Filter):
                raise TypeError(f"it is not a Filter but {found!r:.80}")
            TABLE.add(_check(name, found))
        except (TypeError, ValueError) as error:
            del _INSTALLED.found[name]
            faults[name] = f"filter {name} could not be loaded: {told_of(error)}"


def _check(name: str, found: Filter) -> Check:
    first = FIRST_LASTING if found.lasting else FIRST_PASSING
    used = {check.reason for check in TABLE.checks}
    code = next((code for code in range(first, first + MAX_FILTERS) if code not in used), None)
    if code is None:
        raise ValueError(f"there are {MAX_FILTERS} filters like it already")
    guarded = _Guarded(name, found)

    def relaxed(request: GpuRequest) -> tuple[str, GpuRequest] | None:
        smaller = found.relax(request)
        return None if smaller is None else (found.relaxed or f"as filter {name} would have it", smaller)

    return Check(
        reason=code,
        name=name,
        by_state=found.by_state,
        resolvable=not found.lasting,
        gpus=guarded.of_gpus,
        mig=guarded.of_nodes,
        devices=guarded.of_nodes,
        says=lambda request, number: f"needs {request}, {guarded.says(number)}",
        gpu=lambda fitting, row, slot: found.of_gpu or f"refused by filter {name}",
        relaxed=relaxed,
        remedies=lambda request, node, number: [Remedy(Kind.NODES, found.remedy)] if found.remedy else [],
    )


class _Guarded:
    """A filter that may be wrong."""

    def __init__(self, name: str, found: Filter) -> None:
        self._name, self._filter = name, found
        self._fault = ""

    def of_gpus(self, fitting: GpuFitting) -> Failure:
        """On nodes, or on their GPUs: what is left of these has to be enough."""
        passes = self._passes(fitting)
        if passes.ndim == 1:
            return ~passes, fitting.num_installed
        fitting.keep(passes)
        number = fitting.units(fitting.left)
        return number < fitting.needed, number

    def of_nodes(self, fitting: Fitting) -> Failure:
        """Where GPUs are not asked by number, a node passes if any of its GPUs does."""
        passes = self._passes(fitting)
        passing = passes if passes.ndim == 1 else np.any(passes, axis=1, keepdims=True)[:, 0]
        return ~passing, np.zeros(len(passing), np.int64)

    def says(self, number: int) -> str:
        """Of a node that does not pass."""
        return self._fault or self._filter.says.replace("{number}", str(number))

    def _passes(self, fitting: Fitting) -> Mask:
        cluster, rows = fitting.cluster, fitting.rows
        try:
            passes = np.asarray(self._filter.passes(cluster, fitting.request, rows))
            if passes.dtype != np.bool_ or passes.shape not in ((len(rows),), (len(rows), cluster.gpu_model.shape[1])):
                raise ValueError(f"it returned {passes.dtype} of shape {passes.shape} for {len(rows)} rows")
        except Exception as error:
            self._fault = f"filter {self._name} has failed: {told_of(error)}"
            return np.zeros(len(rows), np.bool_)
        self._fault = ""
        return passes
