"""Checks of other packages, from the entry point group `kerf.filters`: `NAME = "package.module:FILTER"`.

Each entry point names a `Filter`. Filters run in addition to Kerf's own checks. A filter that raises rejects all nodes,
with its error as the reason.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Mask, Rows
from extender.core.entry_points import Installed, describe_error
from extender.core.fit.checks import TABLE, Check, Failure
from extender.core.fit.fittings import Fitting, GpuFitting
from extender.core.fit.reasons import FIRST_LASTING, FIRST_PASSING, MAX_FILTERS, Kind, Remedy
from extender.core.resources.requests import GpuRequest


@dataclass(frozen=True, slots=True)
class Filter:
    """A check on nodes or on their GPUs."""

    passes: Callable[[Cluster, GpuRequest, Rows], Mask]
    """(R,) which of R rows pass, or (R, G) which of their GPUs. Must depend only on these rows' columns, not block, and
    be thread-safe."""
    says: str
    """Reason for a node that fails, appended to the pod's request; `{number}` is the number of units that pass."""
    by_state: bool = False
    """Whether nodes that differ only in name and identity get equal results, so that these can be cached."""
    lasting: bool = True
    """Whether it keeps failing when other pods end, so that preemption can't help."""
    of_gpu: str = ""
    """Reason for a GPU that fails."""
    relax: Callable[[GpuRequest], GpuRequest | None] = lambda request: None
    """A smaller request that may pass, or None."""
    relaxed: str = ""
    """Description of the smaller request: "fewer GPUs, ..."."""
    remedy: str = ""
    """What to change about the nodes."""


_INSTALLED: Final = Installed("kerf.filters", "filter")
faults: Final = _INSTALLED.faults


def load_installed() -> None:
    """Load the filters of other packages. `faults` has the reason for each that could not be loaded."""
    known = set(TABLE.names)
    _INSTALLED.load([name for name in known if name not in _INSTALLED.found])
    for name, loaded in list(_INSTALLED.found.items()):
        if name in known:
            continue
        try:
            if not isinstance(loaded, Filter):
                raise TypeError(f"it is not a Filter but {loaded!r:.80}")
            TABLE.add(_check(name, loaded))
        except (TypeError, ValueError) as error:
            del _INSTALLED.found[name]
            faults[name] = f"filter {name} could not be loaded: {describe_error(error)}"


def _check(name: str, filter_: Filter) -> Check:
    first = FIRST_LASTING if filter_.lasting else FIRST_PASSING
    used = {check.reason for check in TABLE.checks}
    code = next((code for code in range(first, first + MAX_FILTERS) if code not in used), None)
    if code is None:
        raise ValueError(f"there are already {MAX_FILTERS} filters of its kind")
    guarded = _Guarded(name, filter_)

    def relaxed(request: GpuRequest) -> tuple[str, GpuRequest] | None:
        smaller = filter_.relax(request)
        return None if smaller is None else (filter_.relaxed or f"as filter {name} suggests", smaller)

    return Check(
        reason=code,
        name=name,
        by_state=filter_.by_state,
        resolvable=not filter_.lasting,
        gpus=guarded.of_gpus,
        mig=guarded.of_nodes,
        devices=guarded.of_nodes,
        says=lambda request, number: f"needs {request}, {guarded.says(number)}",
        gpu=lambda fitting, row, slot: filter_.of_gpu or f"refused by filter {name}",
        relaxed=relaxed,
        remedies=lambda request, node, number: [Remedy(Kind.NODES, filter_.remedy)] if filter_.remedy else [],
    )


class _Guarded:
    """A filter whose errors reject all nodes instead of propagating."""

    def __init__(self, name: str, filter_: Filter) -> None:
        self._name, self._filter = name, filter_
        self._fault = ""

    def of_gpus(self, fitting: GpuFitting) -> Failure:
        """Check nodes, or their GPUs: a node fails where too few GPUs pass."""
        passes = self._passes(fitting)
        if passes.ndim == 1:
            return ~passes, fitting.num_installed
        fitting.keep(passes)
        number = fitting.units(fitting.left)
        return number < fitting.needed, number

    def of_nodes(self, fitting: Fitting) -> Failure:
        """Check nodes for requests that don't count GPUs: a node passes if any of its GPUs does."""
        passes = self._passes(fitting)
        passing = passes if passes.ndim == 1 else np.any(passes, axis=1, keepdims=True)[:, 0]
        return ~passing, np.zeros(len(passing), np.int64)

    def says(self, number: int) -> str:
        """The reason for a node that fails."""
        return self._fault or self._filter.says.replace("{number}", str(number))

    def _passes(self, fitting: Fitting) -> Mask:
        cluster, rows = fitting.cluster, fitting.rows
        try:
            passes = np.asarray(self._filter.passes(cluster, fitting.request, rows))
            if passes.dtype != np.bool_ or passes.shape not in ((len(rows),), (len(rows), cluster.gpu_model.shape[1])):
                raise ValueError(f"it returned {passes.dtype} of shape {passes.shape} for {len(rows)} rows")
        except Exception as error:
            self._fault = f"filter {self._name} has failed: {describe_error(error)}"
            return np.zeros(len(rows), np.bool_)
        self._fault = ""
        return passes
