"""The vectorised fit against a slow oracle that tries every case."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Reason
from extender.core.resources.gpu_models import GpuModel, ModelPattern
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import NodeState, all_rows, choose_gpus, cluster_of, node, pattern

A100, T4, UNKNOWN = ("NVIDIA-A100-SXM4-80GB", 81920), ("Tesla-T4", 15360), ("", 0)
A100_40 = ("NVIDIA-A100-SXM4-40GB", 40960)


# The oracle: one node, one unit at a time.


def accepts(request: GpuRequest, model: GpuModel) -> bool:
    def matches(wish: ModelPattern) -> bool:
        return any(wish.compiled.search(name) for name in model.names)

    if request.include and not matches(request.include):
        return False
    return not (request.exclude and (not model.names or matches(request.exclude)))


def most_memory(sizes: Sequence[int], taken_by_others: int, request: GpuRequest) -> tuple[int, int]:
    """The memory that the request surely gets, and how many units that takes, whichever units the others hold."""
    if not request.memory_total_mib:
        return 0, request.count
    taken_by_others = min(taken_by_others, len(sizes))
    worst_memory, worst_count = None, 0
    for gone in combinations(range(len(sizes)), taken_by_others):
        left = [size for index, size in enumerate(sizes) if index not in gone]
        count = min(request.count, len(left)) if request.count else len(left)
        memory = max(sum(chosen) for chosen in combinations(left, count))
        worst_memory = memory if worst_memory is None else min(worst_memory, memory)
        for fewest in range(len(left) + 1):
            if max(sum(chosen) for chosen in combinations(left, fewest)) >= request.memory_total_mib:
                worst_count = max(worst_count, fewest)
                break
    return worst_memory or 0, request.count or worst_count


@dataclass
class Counts:
    """A node's units, counted one by one."""

    installed: int = 0
    healthy: int = 0
    of_uuid: int = 0
    of_model: int = 0
    sizes: list[int] = field(default_factory=list)
    """MiB of each unit of the model and size asked."""
    free_sizes: list[int] = field(default_factory=list)
    of_size: list[int] = field(default_factory=list)
    """Indices of the GPUs of the model and size asked."""
    nameless: int = 0
    """Units that would do but for their model, which is unknown."""
    unmeasured: int = 0
    """Those that would do but for their memory, which is unknown."""


def count_units(state: NodeState, request: GpuRequest) -> Counts:
    counts = Counts()
    for index, gpu in enumerate(state.offer.gpus):
        for _ in range(state.offer.units_per_gpu):
            counts.installed += 1
            memory = gpu.memory_mib // state.offer.units_per_gpu
            if not gpu.healthy:
                continue
            counts.healthy += 1
            if (request.uuids and gpu.uuid not in request.uuids) or gpu.uuid in request.uuids_exclude:
                continue
            counts.of_uuid += 1
            if not accepts(request, gpu.model):
                counts.nameless += not gpu.model.names
                continue
            counts.of_model += 1
            if memory < request.memory_each_mib:
                counts.unmeasured += not gpu.memory_mib
                continue
            counts.sizes.append(memory)
            counts.of_size.append(index)
            if index in state.idle:
                counts.free_sizes.append(memory)
    return counts


REFUSED_UNITS = {
    AskedUnit.GPU: [GpuUnit.REPLICA],
    AskedUnit.WHOLE: [GpuUnit.REPLICA, GpuUnit.REPLICA_AS_GPU],
    AskedUnit.SHARED: [GpuUnit.WHOLE, GpuUnit.REPLICA_AS_GPU, GpuUnit.PART],
}


def slow_fit(state: NodeState, request: GpuRequest) -> tuple[Reason, int, int]:
    """Reason, the number behind it, and units taken."""
    counts = count_units(state, request)
    needed = request.count or 1
    if not state.offer.gpus:
        return Reason.NO_GPUS, 0, 0
    if state.offer.unit in REFUSED_UNITS[request.unit]:
        return Reason.NOT_THIS_KIND, counts.installed, 0
    if request.milli and request.unit is AskedUnit.GPU and state.offer.unit is not GpuUnit.PART:
        return Reason.NOT_THIS_KIND, counts.installed, 0
    if (request.uuids or request.uuids_exclude) and state.offer.unit not in (GpuUnit.WHOLE, GpuUnit.PART):
        return Reason.NOT_THIS_KIND, counts.installed, 0
    for reason, number in (
        (Reason.TOO_FEW_INSTALLED, counts.installed),
        (Reason.UNHEALTHY, counts.healthy),
        (Reason.WRONG_UUID, counts.of_uuid),
        (Reason.WRONG_MODEL, counts.of_model),
        (Reason.TOO_SMALL, len(counts.sizes)),
    ):
        if number < needed:
            maybe = {Reason.WRONG_MODEL: counts.nameless, Reason.TOO_SMALL: counts.unmeasured}.get(reason, 0)
            unknown = Reason.MODEL_UNKNOWN if reason is Reason.WRONG_MODEL else Reason.MEMORY_UNKNOWN
            return unknown if maybe and number + maybe >= needed else reason, number, 0
    installed_mib, _ = most_memory(counts.sizes, 0, request)
    if installed_mib < request.memory_total_mib:
        return (Reason.MEMORY_UNKNOWN if 0 in counts.sizes else Reason.TOTAL_TOO_SMALL), installed_mib, 0
    if state.offer.set_aside:
        return Reason.SET_ASIDE, state.offer.set_aside, 0
    by_others = state.num_served if request.unit is AskedUnit.WHOLE else state.num_unserved
    return slow_busy(state, request, counts, apart=state.offer.plugin_picks and by_others > 0)


def slow_busy(state: NodeState, request: GpuRequest, counts: Counts, *, apart: bool) -> tuple[Reason, int, int]:
    """The same where enough is installed."""
    needed = request.count or 1
    if apart:
        return Reason.KEPT_APART, counts.installed, 0
    if gives_shares(state, request):
        return slow_share_fit(state, request, counts.of_size)
    free = max(len(counts.free_sizes) - state.all_untracked, 0)
    if free < needed:
        return Reason.BUSY, free, 0
    free_mib, taken = most_memory(counts.free_sizes, state.all_untracked, request)
    if free_mib < request.memory_total_mib:
        return Reason.TOTAL_BUSY, free_mib, 0
    return Reason.FITS, free, taken


def gives_shares(state: NodeState, request: GpuRequest) -> bool:
    by_memory = state.offer.unit is GpuUnit.PART and request.memory_each_mib > 0 and not request.memory_total_mib
    return request.milli > 0 or by_memory


def free_of(state: NodeState, index: int) -> tuple[int, int]:
    """Free (milli, MiB) of one GPU."""
    memory = state.offer.gpus[index].memory_mib
    if index in state.held:
        return 0, 0
    milli, mib = state.used.get(index, (0, 0))
    return (0 if mib and not memory else max(1000 - milli, 0)), max(memory - mib, 0)


def slow_share_fit(state: NodeState, request: GpuRequest, gpus: Sequence[int]) -> tuple[Reason, int, int]:
    """The same for shares: each on one GPU, whole or partly used."""

    def of_that_rank(values: Sequence[int]) -> int:
        return sorted(values, reverse=True)[request.count - 1] if len(values) >= request.count else 0

    milli = max(request.milli, 1)
    most_milli = of_that_rank([free_of(state, index)[0] for index in gpus])
    if most_milli < milli:
        return Reason.COMPUTE_BUSY, most_milli, 0
    enough = [index for index in gpus if free_of(state, index)[0] >= milli]
    most_mib = of_that_rank([free_of(state, index)[1] for index in enough])
    if most_mib < request.memory_each_mib:
        return Reason.MEMORY_BUSY, most_mib, 0
    room = [index for index in enough if free_of(state, index)[1] >= request.memory_each_mib]
    idle = [index for index in room if index in state.idle]
    # Each unit of unknown index may hold one of the idle GPUs, and those with room first.
    available = len(room) - len(idle) + max(len(idle) - state.all_untracked, 0)
    return (Reason.FITS if available >= request.count else Reason.BUSY), available, request.count


# Random clusters and requests; sizes of a few GiB, so that sums meet thresholds often.

GPUS = st.tuples(st.sampled_from([A100[0], T4[0], A100_40[0], ""]), st.sampled_from([0, 1000, 2000, 3000, 4000]))


MILLI = st.sampled_from([0, 1, 300, 500, 999, 1000, 1500])
UUIDS = ["GPU-a", "GPU-b", "GPU-c", "", ""]


@st.composite
def node_states(draw: st.DrawFn) -> NodeState:
    gpus = draw(st.lists(GPUS, max_size=5))
    if not gpus:
        return node()
    unit = draw(st.sampled_from([GpuUnit.WHOLE, GpuUnit.WHOLE, GpuUnit.PART, GpuUnit.REPLICA, GpuUnit.REPLICA_AS_GPU]))
    indexed = unit in (GpuUnit.WHOLE, GpuUnit.PART)
    held = draw(st.sets(st.integers(0, len(gpus) - 1)))
    used = draw(st.dictionaries(st.integers(0, len(gpus) - 1), st.tuples(MILLI, st.sampled_from([1, 500, 2000, 5000]))))
    broken = draw(st.sets(st.integers(0, len(gpus) - 1), max_size=1))
    per_gpu = 1 if indexed else draw(st.integers(2, 3)) if len(gpus) <= 2 else 2
    if not indexed:
        gpus = gpus[:3]
        held, used = set(), {}
    healthy = len(gpus) - len([index for index in broken if index < len(gpus)])
    return node(
        *gpus,
        held=held,
        used={gpu: amounts for gpu, amounts in used.items() if gpu not in held | broken},
        broken=broken,
        uuids=draw(st.permutations(UUIDS))[: len(gpus)],
        untracked=draw(st.sampled_from([0, 0, 1, 2, 7])),
        unit=unit,
        units_per_gpu=per_gpu,
        withheld=draw(st.sampled_from([0, 0, 1])) if healthy else 0,
        picks=draw(st.booleans()),
        served=draw(st.sampled_from([0, 0, 1])),
        unserved=draw(st.sampled_from([0, 0, 1])),
        aside=draw(st.sampled_from([0, 0, 0, 7])),
    )


PATTERNS = st.sampled_from([None, None, pattern("a100"), pattern("t4"), pattern("80gb|t4"), pattern("nothing")])


@st.composite
def requests(draw: st.DrawFn) -> GpuRequest:
    unit = draw(st.sampled_from([AskedUnit.GPU, AskedUnit.WHOLE, AskedUnit.SHARED]))
    milli = 0 if unit is AskedUnit.SHARED else draw(st.sampled_from([0, 0, 1, 500, 700]))
    total = 0 if milli else draw(st.sampled_from([0, 0, 1, 1000, 2500, 4000, 6000, 9000]))
    return GpuRequest(
        draw(st.integers(0 if total else 1, 5)),
        unit,
        draw(st.sampled_from([0, 0, 1, 500, 1000, 1500, 3000])),
        total,
        draw(PATTERNS),
        draw(PATTERNS),
        milli,
        draw(st.sampled_from([frozenset(), frozenset(), frozenset({"GPU-a", "GPU-c"}), frozenset({"GPU-x"})])),
        draw(st.sampled_from([frozenset(), frozenset(), frozenset({"GPU-b"})])),
    )


def own_uuids(number: int, state: NodeState) -> NodeState:
    """UUIDs are a node's own: all but the first node's get its number."""
    gpus = tuple(
        replace(gpu, uuid=f"{gpu.uuid}{number}" if number and gpu.uuid else gpu.uuid) for gpu in state.offer.gpus
    )
    return replace(state, offer=replace(state.offer, gpus=gpus))


CLUSTERS = st.lists(node_states(), min_size=1, max_size=6).map(
    lambda states: {f"n{number}": own_uuids(number, state) for number, state in enumerate(states)}
)


@settings(max_examples=3 * settings().max_examples)
@given(CLUSTERS, requests())
def test_fit_is_what_the_oracle_says(states: dict[str, NodeState], request: GpuRequest) -> None:
    cluster = cluster_of(states)
    checked = fit(cluster, request, all_rows(cluster))
    for row, state in enumerate(states.values()):
        reason, available, taken = slow_fit(state, request)
        assert (Reason(checked.reason[row]), checked.available[row]) == (reason, available)
        free_units = len(state.idle) * state.offer.units_per_gpu - state.all_untracked
        assert checked.free_units[row] == max(free_units, 0)
        if reason is Reason.FITS:
            assert checked.taken_units[row] == taken
            assert checked.fits[row]


@settings(max_examples=3 * settings().max_examples)
@given(CLUSTERS, requests())
def test_whenever_it_fits_the_gpus_chosen_satisfy_everything(states: dict[str, NodeState], request: GpuRequest) -> None:
    cluster = cluster_of(states)
    checked = fit(cluster, request, all_rows(cluster))
    for row, state in enumerate(states.values()):
        if not checked.fits[row]:
            continue
        chosen = choose_gpus(cluster, row, request)
        if state.offer.unit not in (GpuUnit.WHOLE, GpuUnit.PART):
            assert chosen == ()
            continue
        assert chosen is not None
        assert len(set(chosen)) == len(chosen) == (request.count or len(chosen)) > 0
        gpus = [state.offer.gpus[index] for index in chosen]
        if gives_shares(state, request):
            for index in chosen:
                free_milli, free_mib = free_of(state, index)
                assert free_milli >= max(request.milli, 1)
                assert free_mib >= request.memory_each_mib
            assert len(state.idle - set(chosen)) >= min(state.all_untracked, len(state.idle))
        else:
            assert set(chosen) <= state.idle
        assert all(gpu.healthy for gpu in gpus)
        assert all(not request.uuids or gpu.uuid in request.uuids for gpu in gpus)
        assert all(gpu.uuid not in request.uuids_exclude for gpu in gpus)
        assert all(accepts(request, gpu.model) for gpu in gpus)
        assert all(gpu.memory_mib >= request.memory_each_mib for gpu in gpus)
        assert sum(gpu.memory_mib for gpu in gpus) >= request.memory_total_mib


def verdicts(cluster: Cluster, request: GpuRequest) -> dict[str, tuple[int, int]]:
    checked = fit(cluster, request, all_rows(cluster))
    pairs = zip(checked.reason.tolist(), checked.available.tolist(), strict=True)
    return dict(zip(cluster.node_names, pairs, strict=True))


@given(CLUSTERS, requests(), st.data())
def test_permutation_of_nodes_changes_nothing(
    states: dict[str, NodeState], request: GpuRequest, data: st.DataObject
) -> None:
    permuted = {name: states[name] for name in data.draw(st.permutations(list(states)))}
    assert verdicts(cluster_of(permuted), request) == verdicts(cluster_of(states), request)


@given(CLUSTERS, requests(), st.data())
def test_a_selection_of_rows_gets_the_rows_own_verdicts(
    states: dict[str, NodeState], request: GpuRequest, data: st.DataObject
) -> None:
    cluster = cluster_of(states)
    rows = np.array(data.draw(st.lists(st.integers(0, len(states) - 1))), dtype=np.intp)
    whole, part = fit(cluster, request, all_rows(cluster)), fit(cluster, request, rows)
    assert part.reason.tolist() == whole.reason[rows].tolist()
    assert part.available.tolist() == whole.available[rows].tolist()


# One node for each rule, so that a broken one has a name.

BUSY_8 = node(*[A100] * 8, held=[0, 1, 2, 3, 4])
MIXED = node(A100, A100_40, T4, T4)


@pytest.mark.parametrize(
    ("state", "request_", "reason", "available"),
    [
        pytest.param(node(), GpuRequest(1), Reason.NO_GPUS, 0, id="no GPUs"),
        pytest.param(node(T4, T4), GpuRequest(1), Reason.FITS, 2, id="1 of 2"),
        pytest.param(node(T4, T4, aside=7), GpuRequest(1), Reason.SET_ASIDE, 7, id="set aside"),
        pytest.param(node(T4, T4, aside=7), GpuRequest(3), Reason.TOO_FEW_INSTALLED, 2, id="too small besides"),
        pytest.param(
            node(mig={"1g.10gb": 2}, aside=7),
            GpuRequest(1, AskedUnit.MIG, mig=(("1g.10gb", 1),)),
            Reason.SET_ASIDE,
            7,
            id="set aside, MIG devices",
        ),
        pytest.param(node(T4, T4), GpuRequest(3), Reason.TOO_FEW_INSTALLED, 2, id="3 of 2 (G2)"),
        pytest.param(BUSY_8, GpuRequest(4), Reason.BUSY, 3, id="free ones count, not installed ones: 8 - 5"),
        pytest.param(MIXED, GpuRequest(3, include=pattern("t4")), Reason.WRONG_MODEL, 2, id="model"),
        pytest.param(MIXED, GpuRequest(3, exclude=pattern("t4")), Reason.WRONG_MODEL, 2, id="exclusion"),
        pytest.param(MIXED, GpuRequest(2, memory_each_mib=81920), Reason.TOO_SMALL, 1, id="size"),
        pytest.param(MIXED, GpuRequest(2, memory_each_mib=40960), Reason.FITS, 2, id="exactly the size"),
        pytest.param(MIXED, GpuRequest(2, memory_each_mib=40961), Reason.TOO_SMALL, 1, id="one MiB more"),
        pytest.param(
            MIXED,
            GpuRequest(1, memory_each_mib=20000, include=pattern("t4")),
            Reason.TOO_SMALL,
            0,
            id="the same GPU must satisfy model and memory (G5)",
        ),
        pytest.param(
            node(A100, T4, held=[0]),
            GpuRequest(1, memory_each_mib=40960),
            Reason.BUSY,
            0,
            id="the free GPU is the small one",
        ),
        pytest.param(
            MIXED, GpuRequest(2, memory_total_mib=122880), Reason.FITS, 4, id="total of two: 81920 + 40960 = 122880"
        ),
        pytest.param(
            MIXED, GpuRequest(2, memory_total_mib=122881), Reason.TOTAL_TOO_SMALL, 122880, id="total of two, one more"
        ),
        pytest.param(
            node(A100, A100_40, T4, held=[0]),
            GpuRequest(2, memory_total_mib=60000),
            Reason.TOTAL_BUSY,
            40960 + 15360,
            id="total of what is free: 40960 + 15360",
        ),
        pytest.param(
            MIXED,
            GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=81920 + 40960 + 2 * 15360),
            Reason.FITS,
            4,
            id="all GPUs together hold the total (G4)",
        ),
        pytest.param(
            MIXED,
            GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=81920 + 40960 + 2 * 15360 + 1),
            Reason.TOTAL_TOO_SMALL,
            81920 + 40960 + 2 * 15360,
            id="one MiB more than all",
        ),
        pytest.param(
            node(A100, T4, untracked=1),
            GpuRequest(1, memory_total_mib=20000),
            Reason.TOTAL_BUSY,
            15360,
            id="whoever holds a GPU of unknown index may hold the largest",
        ),
        pytest.param(node(T4, T4, untracked=1), GpuRequest(2), Reason.BUSY, 1, id="unknown index: 2 - 1"),
        pytest.param(node(T4, T4, withheld=1), GpuRequest(2), Reason.BUSY, 1, id="unhealthy: 2 - 1"),
        pytest.param(node(T4, untracked=5), GpuRequest(1), Reason.BUSY, 0, id="never below zero"),
        pytest.param(node(T4, T4, broken=[1]), GpuRequest(2), Reason.UNHEALTHY, 1, id="broken ones are not offered"),
        pytest.param(
            node(T4, T4, uuids=["GPU-a", "GPU-b"], held=[1]),
            GpuRequest(1, uuids=frozenset({"GPU-b"})),
            Reason.BUSY,
            0,
            id="the GPU of that UUID is held",
        ),
        pytest.param(
            node(T4, T4, uuids=["GPU-a", "GPU-b"]),
            GpuRequest(2, uuids_exclude=frozenset({"GPU-b"})),
            Reason.WRONG_UUID,
            1,
            id="one of two is excluded",
        ),
        pytest.param(node(T4, T4, used={0: (1, 0)}), GpuRequest(2), Reason.BUSY, 1, id="a shared GPU is not whole"),
        pytest.param(node(T4, T4, used={0: (0, 1)}), GpuRequest(2), Reason.BUSY, 1, id="nor with a share of memory"),
        pytest.param(
            node(T4, T4, used={0: (600, 0), 1: (500, 0)}),
            GpuRequest(1, AskedUnit.WHOLE, milli=501),
            Reason.COMPUTE_BUSY,
            500,
            id="one share on one GPU: 400 + 500 free do not make 501 (A6)",
        ),
        pytest.param(
            node(T4, T4, used={0: (600, 15000), 1: (500, 15000)}),
            GpuRequest(1, AskedUnit.WHOLE, 361, milli=400),
            Reason.MEMORY_BUSY,
            360,
            id="memory of one GPU: 15360 - 15000",
        ),
        pytest.param(
            node(T4, T4, held=[0], used={1: (500, 15000)}),
            GpuRequest(1, AskedUnit.WHOLE, 360, milli=500),
            Reason.FITS,
            1,
            id="exactly what is left",
        ),
        pytest.param(
            node(T4, T4, untracked=2), GpuRequest(1, AskedUnit.WHOLE, milli=1), Reason.BUSY, 0, id="anybody's GPUs"
        ),
        pytest.param(
            node(T4, T4, T4, used={0: (500, 0)}, untracked=2),
            GpuRequest(2, AskedUnit.WHOLE, milli=500),
            Reason.BUSY,
            1,
            id="shared with us, so not with the two of unknown index",
        ),
        pytest.param(
            node(T4, used={0: (500, 8192)}, unit=GpuUnit.PART),
            GpuRequest(1, memory_each_mib=4096),
            Reason.FITS,
            1,
            id="by memory a share where the plugin shares",
        ),
        pytest.param(
            node(T4, used={0: (500, 8192)}),
            GpuRequest(1, memory_each_mib=4096),
            Reason.BUSY,
            0,
            id="by memory a whole GPU elsewhere",
        ),
        pytest.param(
            node(T4), GpuRequest(1, milli=500), Reason.NOT_THIS_KIND, 1, id="this plugin gives whole GPUs for it"
        ),
        pytest.param(node(T4, unit=GpuUnit.PART), GpuRequest(1, milli=500), Reason.FITS, 1, id="this one shares"),
        pytest.param(
            node(mig={"1g.5gb": 7}), GpuRequest(2, AskedUnit.MIG, mig=(("1g.5gb", 2),)), Reason.FITS, 7, id="MIG"
        ),
        pytest.param(
            node(mig={"1g.5gb": 7}),
            GpuRequest(1, AskedUnit.MIG, mig=(("2g.10gb", 1),)),
            Reason.TOO_FEW_INSTALLED,
            0,
            id="another MIG profile",
        ),
        pytest.param(
            node(mig={"1g.5gb": 1, "2g.10gb": 1}),
            GpuRequest(3, AskedUnit.MIG, mig=(("1g.5gb", 1), ("2g.10gb", 2))),
            Reason.TOO_FEW_INSTALLED,
            1,
            id="every MIG profile asked must fit",
        ),
        pytest.param(
            node(T4, T4, unit=GpuUnit.REPLICA, units_per_gpu=4),
            GpuRequest(8, AskedUnit.SHARED),
            Reason.FITS,
            8,
            id="slices: 2 x 4",
        ),
        pytest.param(
            node(T4, T4, unit=GpuUnit.REPLICA, units_per_gpu=4),
            GpuRequest(1),
            Reason.NOT_THIS_KIND,
            8,
            id="a whole GPU is not where slices have a name of their own",
        ),
        pytest.param(
            node(T4, unit=GpuUnit.REPLICA_AS_GPU, units_per_gpu=4), GpuRequest(4), Reason.FITS, 4, id="slices as GPUs"
        ),
        pytest.param(
            node(T4, unit=GpuUnit.REPLICA_AS_GPU, units_per_gpu=4),
            GpuRequest(1, AskedUnit.WHOLE),
            Reason.NOT_THIS_KIND,
            4,
            id="asked by annotation alone, a slice is no GPU",
        ),
        pytest.param(node(T4), GpuRequest(1, AskedUnit.SHARED), Reason.NOT_THIS_KIND, 1, id="a whole GPU is no slice"),
        pytest.param(
            node(T4, unit=GpuUnit.REPLICA, units_per_gpu=4),
            GpuRequest(1, AskedUnit.SHARED, memory_each_mib=15360 // 4 + 1),
            Reason.TOO_SMALL,
            0,
            id="a slice has its part of the memory: 15360 / 4",
        ),
        pytest.param(node(UNKNOWN), GpuRequest(1), Reason.FITS, 1, id="an unknown GPU is a GPU"),
        pytest.param(
            node(UNKNOWN), GpuRequest(1, memory_each_mib=1), Reason.MEMORY_UNKNOWN, 0, id="an unknown memory is none"
        ),
        pytest.param(
            node(UNKNOWN),
            GpuRequest(1, exclude=pattern("t4")),
            Reason.MODEL_UNKNOWN,
            0,
            id="an unknown model may be it",
        ),
        pytest.param(
            node(T4), GpuRequest(2**31 - 1, memory_each_mib=2**40), Reason.TOO_FEW_INSTALLED, 1, id="absurd request"
        ),
        pytest.param(node(T4), GpuRequest(1, memory_each_mib=2**40), Reason.TOO_SMALL, 0, id="absurd memory each"),
        pytest.param(
            node(T4), GpuRequest(1, memory_total_mib=2**40), Reason.TOTAL_TOO_SMALL, 15360, id="absurd memory total"
        ),
    ],
)
def test_fit(state: NodeState, request_: GpuRequest, reason: Reason, available: int) -> None:
    cluster = cluster_of({"n": state})
    checked = fit(cluster, request_, all_rows(cluster))
    assert (Reason(checked.reason[0]), checked.available[0]) == (reason, available)
    if not request_.mig and request_.count <= 100:
        assert slow_fit(state, request_)[:2] == (reason, available)


@pytest.mark.parametrize(
    ("state", "request_", "taken"),
    [
        pytest.param(node(*[T4] * 4), GpuRequest(3), 3, id="the number asked"),
        pytest.param(
            node(A100, *[T4] * 3),
            GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=100_000),
            3,
            id="fewest for 100000: 81920 + 15360 = 97280 < 100000 <= 97280 + 15360",
        ),
        pytest.param(
            node(A100, *[T4] * 3, untracked=1),
            GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=20_000),
            2,
            id="the A100 may be in use: 15360 < 20000 <= 2 * 15360",
        ),
    ],
)
def test_taken_units(state: NodeState, request_: GpuRequest, taken: int) -> None:
    cluster = cluster_of({"n": state})
    assert fit(cluster, request_, all_rows(cluster)).taken_units[0] == taken


@pytest.mark.parametrize(
    ("state", "free_units"),
    [
        (node(), 0),
        (node(T4, T4, T4, held=[1]), 2),
        (node(T4, T4, T4, untracked=1), 2),
        (node(T4, untracked=3), 0),
        (node(T4, T4, unit=GpuUnit.REPLICA, units_per_gpu=4, untracked=3), 5),
        (node(T4, T4, broken=[0]), 1),
        (node(mig={"1g.5gb": 2}), 0),
    ],
)
def test_a_pod_that_asks_for_no_gpu_fits_everywhere_and_takes_none(state: NodeState, free_units: int) -> None:
    cluster = cluster_of({"n": state})
    checked = fit(cluster, GpuRequest(0, AskedUnit.NONE, cpu_milli=10**9), all_rows(cluster))
    assert (checked.fits.tolist(), checked.free_units.tolist()) == ([True], [free_units])
    assert checked.taken_units.tolist() == [0]
    assert not checked.room.any() and not checked.shares.any()


@pytest.mark.parametrize(
    "request_", [GpuRequest(1), GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=1), GpuRequest(0, AskedUnit.NONE)]
)
def test_no_nodes_no_verdicts(request_: GpuRequest) -> None:
    empty = cluster_of({})
    assert fit(empty, request_, all_rows(empty)).reason.tolist() == []
