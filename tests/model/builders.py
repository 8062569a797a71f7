"""Small traces and clusters for tests."""

import os
from pathlib import Path

import numpy as np
import pytest

from extender.core.clusters import WHOLE_MILLI, Floats, Longs
from extender.core.fragmentation import ANY_MODEL, Mix, Nodes, PodClasses, TypicalPod, mix_of
from model.engine import kernels
from model.engine.kernels import _refresh
from model.engine.node_scores import Learned
from model.engine.ranks import Rank

PUBLISHED = Path(os.environ.get("KERF_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
"""Public traces, where they are at hand."""
needs_traces = pytest.mark.skipif(
    not (PUBLISHED / "openb" / "published_allocation.csv").exists(), reason="no public traces at KERF_TRACES"
)

SIZES = (WHOLE_MILLI, WHOLE_MILLI, 0, 100, 250, 500, 810)
"""GPU milli that random pods ask for."""


class CutOff(bytes):
    """The body of an answer whose connection breaks off before its end."""

    def __len__(self) -> int:
        return super().__len__() + 1000


def random_nodes(rng: np.random.Generator, num_nodes: int, num_slots: int = 4) -> Nodes:
    """Partly used nodes of up to three models; some have no GPUs."""
    num_gpus = rng.integers(0, num_slots + 1, num_nodes)
    cpu, memory = rng.integers(1, 9, num_nodes) * 8000, rng.integers(1, 9, num_nodes) * 16384
    free = rng.choice([WHOLE_MILLI, WHOLE_MILLI, 750, 500, 190, 0], (num_nodes, num_slots))
    return Nodes(
        cpu_milli=cpu,
        memory_mib=memory,
        num_gpus=num_gpus,
        model=np.where(num_gpus > 0, rng.integers(0, 3, num_nodes), -1),
        cpu_free_milli=(cpu * rng.choice([1, 0.5, 0.13], num_nodes)).astype(np.int64),
        memory_free_mib=(memory * rng.choice([1, 0.5, 0.13], num_nodes)).astype(np.int64),
        gpu_free_milli=np.where(np.arange(num_slots) < num_gpus[:, None], free, 0).astype(np.int32),
    )


def random_asks(rng: np.random.Generator, num_classes: int) -> PodClasses:
    """Classes with and without GPUs, shares and whole ones, some for certain models only."""
    milli = rng.choice(SIZES, num_classes)
    num = np.where(milli == WHOLE_MILLI, rng.choice([1, 1, 2, 4], num_classes), np.minimum(milli, 1))
    return PodClasses(
        cpu_milli=rng.choice([0, 500, 4000, 11908, 24000], num_classes),
        memory_mib=rng.choice([0, 1024, 16384, 65536], num_classes),
        num_gpus=num.astype(np.int64),
        gpu_milli=milli.astype(np.int64),
        models=rng.choice([ANY_MODEL, ANY_MODEL, 1, 2, 6], num_classes).astype(np.int64),
    )


def random_mix(rng: np.random.Generator, num_classes: int) -> Mix:
    """A mix of random classes."""
    asks = random_asks(rng, num_classes)
    counts = rng.integers(1, 50, num_classes)
    columns = (asks.cpu_milli, asks.num_gpus, asks.gpu_milli, asks.models, counts)
    pods = [TypicalPod(*row) for row in np.column_stack(columns).tolist()]
    return mix_of(pods, int(counts.sum()) + int(rng.integers(10)))


def twin_scores(
    nodes: Nodes, asks: PodClasses, c: int, rank: Rank, mix: Mix, learned: Learned | None = None
) -> tuple[Floats, Longs]:
    """(N,) score of a class by a compiled twin, and (N,) the GPU of a share."""
    memo = kernels.memo_of(len(asks.cpu_milli), nodes, mix)
    _refresh(nodes, asks, c, int(rank), mix, learned, memo)
    return memo.score[c], memo.gpu[c].astype(np.int64)


def write_openb(
    directory: Path, *, num_nodes: int = 12, num_pods: int = 60, seed: int = 0, trace: str = "small"
) -> Path:
    """A folder in the layout of the openb traces, with times, without an arrivals file."""
    rng = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    models = ("T4", "A10", "V100")
    lines = ["sn,cpu_milli,memory_mib,gpu,model"]
    for i in range(num_nodes):
        cpu, memory = rng.choice([32000, 64000]), rng.choice([131072, 262144])
        lines.append(f"node-{i:04d},{cpu},{memory},{rng.choice([2, 4, 8])},{rng.choice(models)}")
    (directory / "openb_node_list_gpu_node.csv").write_text("\n".join(lines) + "\n")
    columns = "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
    lines = [f"name,{columns}"]
    asks = random_asks(rng, num_pods)
    for i in range(num_pods):
        spec = rng.choice(["", "", "T4", "A10|V100"]) if asks.num_gpus[i] else ""
        created = int(rng.integers(0, 5000))
        started = created + int(rng.integers(0, 50))
        asked = f"{asks.cpu_milli[i]},{asks.memory_mib[i]},{asks.num_gpus[i]},{asks.gpu_milli[i]},{spec}"
        ended = started + int(rng.integers(10, 3000))
        lines.append(f"pod-{i:04d},{asked},LS,Running,{created},{ended},{started}")
    (directory / f"openb_pod_list_{trace}.csv").write_text("\n".join(lines) + "\n")
    return directory
