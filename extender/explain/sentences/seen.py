"""Compares two candidate nodes by what users can check: what is free there, and what the pod would leave free.

The learned rank's score has no unit, so its parts are not shown.
"""

from dataclasses import dataclass

import numpy as np

from extender.core.bookings import booked_each
from extender.core.clusters import CORE_MILLI, GIB_MIB, WHOLE_MILLI, Cluster, Rows
from extender.core.decisions import choice
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Fit
from extender.core.occupancies import with_observed_usage
from extender.core.policies.breakdowns import counted, noun, percent
from extender.core.policies.policy import Policy
from extender.core.resources.quantities import format_mib
from extender.core.resources.requests import GpuRequest, named


@dataclass(frozen=True, slots=True)
class Look:
    """One candidate, as its policy counts it."""

    node: str
    """Its name, shortened for a sentence."""
    models: str
    """Models of its GPUs, "" if unknown."""
    thing: str
    """Unit that the pod gets: "GPU", "time slice"."""
    free: int
    """Whole units that are free."""
    keeps: int
    """Whole units that would stay free with the pod there."""
    installed: int
    """All units."""
    share: str
    """Which part of a GPU the pod would get, as a phrase; "" if it gets whole units."""
    beside: str
    """CPU and main memory that would stay free with the pod there."""

    @property
    def empty(self) -> bool:
        """Whether all its GPUs are free."""
        return 0 < self.installed == self.free

    @property
    def gpus(self) -> tuple[object, ...]:
        """Everything that its sentence says except its name."""
        return self.free, self.keeps, self.installed, self.share, self.thing, self.models

    def words(self, *, model: bool, first: bool = True) -> str:
        """ "a has 4 GPUs free and would keep 2"; with its models if `model`, without the unit if not `first`."""
        node = self.named(model=model)
        if self.share:
            return f"{node} {self.share}"
        if self.empty:
            return f"{node} is empty and would keep {self.keeps or 'none'} of its {counted(self.installed, self.thing)}"
        free = counted(self.free, self.thing) if first else str(self.free or "none")
        return f"{node} has {free} free and would keep {self.keeps or 'none'}"

    def named(self, *, model: bool) -> str:
        """Its name, with the models of its GPUs if `model`."""
        return f"{self.node} ({self.models or 'unknown model'})" if model else self.node


def looks(cluster: Cluster, policy: Policy, request: GpuRequest, rows: tuple[int, int]) -> tuple[Look, Look]:
    """Two rows that fit, for a request without ResourceClaims. Thread-safe."""
    seen, at = with_observed_usage(cluster, policy.rules), np.array(rows)
    checked = fit(seen, request, at)
    return _look(seen, policy, request, at, checked, 0), _look(seen, policy, request, at, checked, 1)


def compared(one: Look, other: Look) -> str:
    """The winner and the runner-up in one sentence, without its full stop."""
    model = one.models != other.models
    winner = one.words(model=model)
    if one.gpus != other.gpus:
        if other.empty and not (one.empty or one.share or other.share):
            return f"{winner}; {other.named(model=model)} is empty and stays whole"
        return f"{winner}; {other.words(model=model, first=one.empty or bool(one.share))}"
    alike = f"{winner}; {other.node} looks the same"
    if one.beside == other.beside:
        return alike
    return f"{alike} by its GPUs, but {one.node} would keep {one.beside} free beside them, {other.node} {other.beside}"


def _look(seen: Cluster, policy: Policy, request: GpuRequest, rows: Rows, checked: Fit, at: int) -> Look:
    row = int(rows[at])
    models = {seen.models[index].name for index in seen.gpu_model[row].tolist() if index >= 0}
    free, share = int(checked.free_units[at]), ""
    keeps = free - int(checked.taken_units[at])
    if checked.shares[at]:
        keeps, share = _shared(seen, policy, request, row, checked, at)
    cpu = round((int(seen.cpu_free_milli[row]) - request.cpu_milli) / CORE_MILLI, 1)
    memory = round((int(seen.memory_free_mib[row]) - request.memory_mib) / GIB_MIB, 1)
    return Look(
        node=named(seen.node_names[row]),
        models=", ".join(sorted(models - {""})),
        thing=noun(request, seen, rows[at : at + 1]),
        free=free,
        keeps=keeps,
        installed=int((seen.gpu_model[row] >= 0).sum() * seen.units_per_gpu[row]),
        share=share,
        beside=f"{cpu:g} CPUs and {memory:g} GiB",
    )


def _shared(seen: Cluster, policy: Policy, request: GpuRequest, row: int, checked: Fit, at: int) -> tuple[int, str]:
    """Whole GPUs that would stay free with a pod that shares GPUs, and which part it would get, as a phrase."""
    gpus = choice(seen, row, request, policy, checked.room[at], shares=True) or ()
    broken = sum(bool(checked.idle[at, gpu]) for gpu in gpus)
    keeps = int(checked.free_units[at]) - broken
    if len(gpus) != 1:
        of_idle = f", {broken} of them idle until then" if broken else ""
        return keeps, f"would give parts of {counted(len(gpus), 'GPU')}{of_idle}"
    if broken:
        return keeps, f"would share an idle GPU and keep {keeps or 'none'} idle"
    milli, mib_each = booked_each(seen, row, request, gpus)
    (gpu,) = gpus
    if request.milli:
        free = int(seen.gpu_free_milli[row, gpu])
        left = percent((free - milli) / WHOLE_MILLI)
        return keeps, f"has {percent(free / WHOLE_MILLI)} of GPU {gpu} free and would keep {left}"
    free_mib = int(seen.gpu_free_mib[row, gpu])
    left_mib = free_mib - (mib_each[0] if mib_each else free_mib)
    return keeps, f"has {format_mib(free_mib)} of GPU {gpu} free and would keep {format_mib(left_mib)}"
