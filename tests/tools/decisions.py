"""Decisions on drawn pods and clusters, one line of JSON each, to compare two checkouts by.

    python -m tests.tools.decisions draw --num 100000 > new.jsonl      (and the same in the other checkout)
    python -m tests.tools.decisions compare old.jsonl new.jsonl

Clusters of up to eight nodes with GPUs of several models and sizes, unhealthy, in use, of unknown model or memory, time
slices, parts, MIG devices, devices for claims, plugins that pick, quarantine and nodes kept for a move; samples of live
use on a third of them. Pods come one after the other, hold what they were given and leave again.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final

import numpy as np
import typer

from extender.core.decisions import Decision, decide
from extender.core.evaluations import Memo
from extender.core.fit.reasons import Reason
from extender.core.gauges import Gauge
from extender.core.policies.registry import POLICIES
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.ledger.arrays import ClusterArrays, HeldAmounts
from tests.core.builders import NodeState, node, pattern
from tests.core.dra.cases import random_case
from tests.core.observing import observe

_GPUS: Final = (
    ("NVIDIA-A100-SXM4-80GB", 81920),
    ("NVIDIA-A100-SXM4-40GB", 40960),
    ("Tesla-T4", 15360),
    ("Tesla-T4", 0),
    ("", 15360),
)
_POLICIES: Final = ("tightest", "binpack", "spread", "live", "fgd", "kerf")
_PODS_OF_CLUSTER: Final = 25
_PROFILES: Final = ("1g.5gb", "2g.10gb")


def _node(rng: Random, number: int) -> NodeState:
    count = rng.choice((0, 1, 2, 4, 4, 8, 8, 8))
    if not count:
        return node(mig={rng.choice(_PROFILES): rng.randint(1, 3)} if rng.random() < 0.3 else None)
    kind = rng.choice(_GPUS)
    gpus = [kind if rng.random() < 0.8 else rng.choice(_GPUS) for _ in range(count)]
    unit = rng.choice((GpuUnit.WHOLE,) * 5 + (GpuUnit.PART, GpuUnit.PART, GpuUnit.REPLICA, GpuUnit.REPLICA_AS_GPU))
    slices = unit in (GpuUnit.REPLICA, GpuUnit.REPLICA_AS_GPU)
    return node(
        *gpus,
        unit=unit,
        units_per_gpu=rng.randint(2, 4) if slices else 1,
        broken=[gpu for gpu in range(count) if rng.random() < 0.07],
        uuids=[f"GPU-{number}-{gpu}" for gpu in range(count)],
        links=[gpu // 2 for gpu in range(count)],
        numas=[gpu // 4 for gpu in range(count)],
        mig={profile: rng.randint(1, 3) for profile in _PROFILES if rng.random() < 0.2},
        picks=rng.random() < 0.2,
        served=int(rng.random() < 0.2),
        unserved=int(rng.random() < 0.2),
        untracked=rng.choice((0, 0, 0, 1, 2)),
        aside=rng.choice((0,) * 15 + (3,)),
    )


def _request(rng: Random) -> GpuRequest:
    if rng.random() < 0.1:
        profiles = tuple((profile, rng.randint(1, 2)) for profile in _PROFILES if rng.random() < 0.7)
        if profiles:
            return GpuRequest(sum(count for _, count in profiles), AskedUnit.MIG, mig=profiles)
    unit = rng.choice((AskedUnit.GPU,) * 8 + (AskedUnit.WHOLE,) * 6 + (AskedUnit.SHARED, AskedUnit.PART))
    milli = rng.choice((300, 500, 0)) if unit in (AskedUnit.WHOLE, AskedUnit.PART) else rng.choice((0,) * 9 + (500,))
    milli = 0 if unit is AskedUnit.SHARED else milli
    total = rng.choice((0,) * 8 + (20000, 90000)) if not milli else 0
    wishes = [None] * 20 + [pattern("a100"), pattern("t4"), pattern("h100")]
    uuids = frozenset({f"GPU-{rng.randint(0, 7)}-{rng.randint(0, 3)}"}) if rng.random() < 0.05 else frozenset()
    return GpuRequest(
        rng.choice((1, 1, 1, 1, 2, 2, 4, 8)) if not total else rng.choice((0, 1, 2)),
        unit,
        rng.choice((0,) * 8 + (4096, 4096, 16384, 50000)),
        total,
        rng.choice(wishes),
        rng.choice(wishes),
        milli,
        uuids,
        frozenset({"GPU-0-0"}) if rng.random() < 0.03 else frozenset(),
        memory_each_percent=rng.choice((0, 0, 0, 0, 25)),
    )


class _Drawn:
    """A cluster, and who holds what of it."""

    def __init__(self, rng: Random) -> None:
        self._rng, self._arrays = rng, ClusterArrays()
        self._states = {f"n{number}": _node(rng, number) for number in range(rng.randint(1, 8))}
        self._held: dict[int, dict[int, tuple[int, int]]] = {}
        self._pods: list[tuple[int, dict[int, tuple[int, int]]]] = []
        self._rows = {name: self._arrays.set_node(name, state.offer) for name, state in self._states.items()}
        self.cases = []
        for name, row in self._rows.items():
            self._arrays.set_capacity(row, 64000, 256000)
            self._arrays.set_compute(row, 64000, 256000)
            state = self._states[name]
            self._held[row] = {
                gpu: (1000, one.memory_mib) if rng.random() < 0.6 else (rng.choice((300, 700)), one.memory_mib // 3)
                for gpu, one in enumerate(state.offer.gpus)
                if rng.random() < 0.25 and state.offer.unit in (GpuUnit.WHOLE, GpuUnit.PART)
            }
            self._write(row)
            if rng.random() < 0.05:
                self._arrays.set_closed(row, closed=True)
            if rng.random() < 0.2:
                devices, asked = random_case(rng)
                self.cases.append(asked)
                self._arrays.set_devices(row, devices)
        self.cluster = self._observed() if rng.random() < 0.33 else self._arrays.snapshot()

    def _observed(self) -> Any:
        samples = {
            name: {
                Gauge.MEMORY_USED: [self._rng.choice((0.0, 0.0, 500.0, 9000.0)) for _ in state.offer.gpus],
                Gauge.LOAD: [self._rng.random() for _ in state.offer.gpus],
                Gauge.XID: [self._rng.choice((0.0,) * 9 + (79.0,)) for _ in state.offer.gpus],
            }
            for name, state in self._states.items()
            if state.offer.gpus
        }
        return observe(self._arrays, samples)

    def _write(self, row: int) -> None:
        state = next(state for name, state in self._states.items() if self._rows[name] == row)
        gpus = {gpu: amounts for gpu, amounts in self._held[row].items() if amounts[0]}
        untracked = state.all_untracked
        self._arrays.set_held(row, HeldAmounts(gpus, untracked, (), state.num_served, state.num_unserved, {}))

    def place(self, decision: Decision) -> None:
        """The pod holds what it was given, and now and then an earlier one leaves."""
        row = decision.best
        if row is not None and decision.gpus and decision.allocation is None:
            taken = {}
            for position, gpu in enumerate(decision.gpus):
                mib = int(self.cluster.gpu_memory_mib[row, gpu])
                taken[gpu] = (decision.milli, decision.mib_each[position] if decision.mib_each else mib)
            self._add(row, taken, 1)
            self._pods.append((row, taken))
        if self._pods and self._rng.random() < 0.3:
            row, taken = self._pods.pop(self._rng.randrange(len(self._pods)))
            self._add(row, taken, -1)
        self.cluster = self._arrays.snapshot()

    def _add(self, row: int, taken: dict[int, tuple[int, int]], sign: int) -> None:
        for gpu, (milli, mib) in taken.items():
            before = self._held[row].get(gpu, (0, 0))
            self._held[row][gpu] = before[0] + sign * milli, before[1] + sign * mib
        self._write(row)


def _name(code: int) -> str:
    table = getattr(sys.modules.get("extender.core.fit.checks"), "TABLE", None)
    return str(table[code].name) if table is not None else Reason(code).name


def drawn(seed: int, num: int) -> Iterator[str]:
    """So many decisions."""
    left, number = num, 0
    while left > 0:
        rng, memo = Random(f"{seed} {number}"), Memo()
        cluster, number = _Drawn(rng), number + 1
        policy = POLICIES[_POLICIES[number % len(_POLICIES)]]
        for _ in range(min(left, _PODS_OF_CLUSTER)):
            request = _request(rng)
            if cluster.cases and rng.random() < 0.3:
                asked = rng.choice(cluster.cases)
                request = GpuRequest(asked.num_devices, AskedUnit.CLAIM, devices=asked)
            rows = np.arange(cluster.cluster.num_nodes)
            found = decide(cluster.cluster, request, policy, rows, memo)
            evaluation = found.evaluation
            told = {
                "reasons": [_name(code) for code in evaluation.reason.tolist()],
                "available": evaluation.available.tolist(),
                "scores": [score if np.isfinite(score) else None for score in evaluation.score.tolist()],
                "best": found.best,
                "gpus": found.gpus,
                "milli": found.milli,
                "mib": found.mib_each,
                "request": f"{request} {request.unit.name}",
                "policy": policy.name,
            }
            yield json.dumps(told)
            cluster.place(found)
        left -= _PODS_OF_CLUSTER


app = typer.Typer(help=__doc__, add_completion=False)


@app.command()
def draw(num: Annotated[int, typer.Option(help="Pods.")] = 100_000, seed: Annotated[int, typer.Option()] = 1) -> None:
    """Write decisions to standard output."""
    for line in drawn(seed, num):
        print(line)


@app.command()
def compare(old: Path, new: Path) -> None:
    """How two files differ; exit status 1 where they do."""
    num, changes, others = 0, Counter[str](), list[str]()
    with old.open() as before, new.open() as after:
        for num, (first, second) in enumerate(zip(before, after, strict=True), 1):
            if first == second:
                continue
            one, two = json.loads(first), json.loads(second)
            pairs = zip(one.pop("reasons"), two.pop("reasons"), one.pop("available"), two.pop("available"), strict=True)
            different = [pair for pair in pairs if pair[:2] != pair[2:] and (pair[0], pair[2]) != (pair[1], pair[3])]
            changes.update(f"{a} ({x}) -> {b} ({y})" if a == b else f"{a} -> {b}" for a, b, x, y in different)
            if one != two:
                others.append(f"{num}: {json.dumps(one)}\n      {json.dumps(two)}")
    print(f"{num} decisions; {len(others)} with another node, score or GPUs")
    for change, count in changes.most_common(40):
        print(f"  {count} x {change}")
    print("\n".join(others[:10]))
    raise typer.Exit(1 if changes or others else 0)


if __name__ == "__main__":
    app()
