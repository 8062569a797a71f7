"""Histories in which something is known to have happened: what a policy makes of them."""

from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from extender.core.durations import Durations
from extender.history.records import History
from model.pasts.pasts import past
from model.simulations.baselines import BASELINES
from model.simulations.delays import turns_of
from model.simulations.queues import Simulation


@dataclass
class _Recorded(Simulation):
    """Remembers where jobs were."""

    parts: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    def _release(self, job: int) -> None:
        self.parts[job] = self._held[job]
        super()._release(job)


def as_it_happened(history: History, policy: str, seed: int = 1, late_s: float = 0.0) -> History:
    """The history with starts, ends and places as a policy makes them, `late_s` later. Pods of a gang ask alike."""
    known = past(history, seed)
    offered = known.offered
    tasks = offered.tasks
    turns = turns_of("fifo", tasks, offered.owners, Durations())
    simulation = _Recorded(
        tasks, offered.nodes.copy(), BASELINES[policy], turns, np.random.default_rng(seed),
        model_names=offered.model_names, absences=offered.absences,
    )  # fmt: skip
    outcome = simulation.run()
    slots = range(offered.nodes.gpu_free_milli.shape[1])
    pods = {name: column.copy() for name, column in history.pods.items()}
    since_s, until_s = history.about.since_s, history.about.until_s
    for job, rows in enumerate(known.rows):
        for row, (_, node, bits) in zip(rows.tolist(), simulation.parts[job], strict=True):
            pods["started_s"][row] = since_s + outcome.started_s[job] + late_s
            pods["ended_s"][row] = since_s + outcome.ended_s[job] + late_s
            pods["node"][row] = known.node_names[node]
            pods["gpu_indices"][row] = ",".join(str(gpu) for gpu in slots if bits >> gpu & 1)
    for name in ("started_s", "ended_s"):
        pods[name] = np.where(pods[name] > until_s, np.nan, pods[name])
    missing = tuple(told for told in history.about.missing if "started" not in told and "where" not in told)
    return replace(history, about=msgspec.structs.replace(history.about, missing=missing), pods=pods)
