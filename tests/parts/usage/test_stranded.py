"""One figure for what is stranded: what GPU-hours count, in the cluster that was looked at and in what it becomes."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np

from extender.core.annotations import MEMORY_EACH, SHARE
from extender.core.clusters import WHOLE_MILLI
from extender.explain.rates import STRANDED
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_MEMORY, ASSIGNED_SHARE
from tests.nvidia import SHARED_GPU_RESOURCE
from tests.parts.usage.rigs import Rig


def share(rig: Rig, name: str, node: str, gpu: int, milli: int, mib: int) -> None:
    asked = {SHARE: str(milli), MEMORY_EACH: f"{mib}Mi"}
    given = {ASSIGNED_GPUS: str(gpu), ASSIGNED_SHARE: str(milli), ASSIGNED_MEMORY: str(mib)}
    rig.pod(name, 0, node, annotations=asked | given)


def drawn(seed: int) -> Rig:
    """Nodes of all kinds, and who has what of them."""
    random, rig = np.random.default_rng(seed), Rig()
    for number in range(int(random.integers(1, 7))):
        name, gpus = f"n-{number}", int(random.integers(1, 9))
        kinds: dict[str, Any] = {"resource": SHARED_GPU_RESOURCE, "replicas": 4} if random.random() < 0.15 else {}
        rig.node(name, gpus, cordoned=random.random() < 0.15, **kinds)
        for gpu in range(gpus):
            one = f"p-{number}-{gpu}"
            if kinds or random.random() < 0.4:
                continue
            if random.random() < 0.5:
                rig.pod(one, 1, name, assigned=str(gpu))
            else:
                share(rig, one, name, gpu, int(random.integers(100, 900)), int(random.integers(100, 15000)))
    return rig


def test_it_is_what_gpu_hours_count() -> None:
    found = []
    for seed in range(40):
        rig = drawn(seed)
        rig.tick()
        meter, cluster = rig.meter, rig.ledger.snapshot(rig.clock())
        assert meter.rates is not None and meter.stranding is not None
        told = meter.stranding.milli(cluster)
        assert told[: meter.rates.of_nodes.shape[1]].tolist() == meter.rates.of_nodes[STRANDED].tolist()
        elsewhere = pickle.loads(pickle.dumps(meter.stranding.packed())).unpacked(cluster)  # noqa: S301
        assert elsewhere.milli(cluster).tolist() == told.tolist()
        found.append(int(told.sum()))
    assert sum(milli > 0 for milli in found) > 20


def test_what_was_bound_since_counts_at_once_and_a_closed_node_strands_nothing() -> None:
    rig = Rig()
    for name in ("open", "cordoned"):
        rig.node(name, 2, cordoned=name == "cordoned")
        share(rig, f"on-{name}", name, 0, 950, 1000)  # hardly anybody asks for the rest
    rig.tick()
    before = rig.meter.stranding
    assert before is not None
    first = before.milli(rig.ledger.snapshot(rig.clock()))
    rows = rig.ledger.arrays.row_of
    assert first[rows["open"]] > 0 == first[rows["cordoned"]]
    rig.pod("more", 1, "open", assigned="1")
    bound = before.milli(rig.ledger.snapshot(rig.clock()))
    rig.tick()
    after = rig.meter.stranding
    assert after is not None
    assert bound.tolist() == after.milli(rig.ledger.snapshot(rig.clock())).tolist()
    assert before.milli(rig.ledger.snapshot(rig.clock()), [rows["open"]]).sum() == 0
    rig.standby = "another leads"
    rig.tick()
    assert rig.meter.stranding is None


def test_it_is_told_of_a_cluster_with_more_gpus_a_node_than_were_looked_at() -> None:
    rig = Rig()
    rig.node("two", 2)
    rig.tick()
    seen, cluster = rig.meter.stranding, rig.ledger.snapshot(rig.clock())
    assert seen is not None
    pairs = seen.mix._replace(num_gpus=np.where(seen.mix.sizes[seen.mix.size] == WHOLE_MILLI, 2, 1))
    packed = replace(seen, mix=pairs, tables=None)
    rig.node("many", 16)
    wider = rig.ledger.snapshot(rig.clock())
    assert packed.unpacked(cluster).milli(wider).tolist() == packed.milli(wider).tolist()
