"""The vectorised fit against a slow oracle that tries every case."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.fit.fits import fit
from extender.core.fit.reasons import Reason
from extender.core.resources.gpu_models import GpuModel, ModelPattern
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import (
    A100,
    A100_40,
    T4,
    UNKNOWN,
    NodeState,
    choose_gpus,
    cluster_of,
    fit_all,
    node,
    pattern,
    verdict,
)

# The oracle: one node, one unit at a time.


def accepts(request: GpuRequest, model: GpuModel) -> bool:
    def matches(pattern: ModelPattern) -> bool:
        return any(pattern.compiled.search(name) for name in model.names)

    if request.include and not matches(request.include):
        return False
    return not (request.exclude and (not model.names or matches(request.exclude)))


def most_memory(sizes: Sequence[int], taken_by_others: int, request: GpuRequest) -> tuple[int, int]:
    """The memory that the request surely gets, and the units that takes, whichever units others hold."""
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
    """MiB of each unit of the requested model and size."""
    free_sizes: list[int] = field(default_factory=list)
    of_size: list[int] = field(default_factory=list)
    """Indices of the GPUs of the requested model and size."""
    nameless: int = 0
    """Units of unknown model that pass all else."""
    unmeasured: int = 0
    """Units of unknown memory that pass all else."""


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
    """The same, where enough is installed."""
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
    """The same for shares: each on one GPU, idle or partly used."""

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
    # Each unit of unknown index may be on one of the idle GPUs with room.
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
    """The node with UUIDs that no other node has: all but the first node's get its number."""
    gpus = tuple(
        replace(gpu, uuid=f"{gpu.uuid}{number}" if number and gpu.uuid else gpu.uuid) for gpu in state.offer.gpus
    )
    return replace(state, offer=replace(state.offer, gpus=gpus))


CLUSTERS = st.lists(node_states(), min_size=1, max_size=6).map(
    lambda states: {f"n{number}": own_uuids(number, state) for number, state in enumerate(states)}
)


@settings(max_examples=3 * settings().max_examples)
@given(CLUSTERS, requests())
def test_fit_equals_the_oracle_and_the_gpus_chosen_satisfy_everything(
    states: dict[str, NodeState], request: GpuRequest
) -> None:
    cluster = cluster_of(states)
    checked = fit_all(cluster, request)
    for row, state in enumerate(states.values()):
        reason, available, taken = slow_fit(state, request)
        assert (Reason(checked.reason[row]), checked.available[row]) == (reason, available)
        free_units = len(state.idle) * state.offer.units_per_gpu - state.all_untracked
        assert checked.free_units[row] == max(free_units, 0)
        assert checked.fits[row] == (reason is Reason.FITS)
        if reason is Reason.FITS:
            assert checked.taken_units[row] == taken
            check_choice(state, request, choose_gpus(cluster, row, request))


def check_choice(state: NodeState, request: GpuRequest, chosen: tuple[int, ...] | None) -> None:
    """Assert that the GPUs chosen satisfy the request."""
    assert chosen is not None
    if state.offer.unit not in (GpuUnit.WHOLE, GpuUnit.PART):
        assert chosen == ()
        return
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
    for gpu in gpus:
        assert gpu.healthy
        assert not request.uuids or gpu.uuid in request.uuids
        assert gpu.uuid not in request.uuids_exclude
        assert accepts(request, gpu.model)
        assert gpu.memory_mib >= request.memory_each_mib
    assert sum(gpu.memory_mib for gpu in gpus) >= request.memory_total_mib


@given(CLUSTERS, requests(), st.data())
def test_the_order_and_selection_of_rows_change_no_verdict(
    states: dict[str, NodeState], request: GpuRequest, data: st.DataObject
) -> None:
    cluster = cluster_of(states)
    rows = np.array(data.draw(st.lists(st.integers(0, len(states) - 1))), dtype=np.intp)
    permuted = cluster_of({name: states[name] for name in data.draw(st.permutations(list(states)))})
    whole, part, other = fit_all(cluster, request), fit(cluster, request, rows), fit_all(permuted, request)
    places = [permuted.row_of[name] for name in states]
    for found, right in ((part, rows), (other.take(np.array(places)), np.arange(len(states)))):
        assert found.reason.tolist() == whole.reason[right].tolist()
        assert found.available.tolist() == whole.available[right].tolist()


# One node for each rule and each side of its boundaries, so that a broken one is seen at once.

BARE, SHARED, MIG = AskedUnit.WHOLE, AskedUnit.SHARED, AskedUnit.MIG
PART, CLAIM = GpuUnit.PART, GpuUnit.CLAIM
MIXED = node(A100, A100_40, T4, T4)
MIXED_MIB = 81920 + 40960 + 2 * 15360
SLICED, SLICED_AS_GPU = (node(T4, unit=unit, units_per_gpu=4) for unit in (GpuUnit.REPLICA, GpuUnit.REPLICA_AS_GPU))
OF_UUIDS = node(T4, T4, uuids=["GPU-a", "GPU-b"], held=[1])
A, B = frozenset({"GPU-a"}), frozenset({"GPU-b"})
RULES = [
    # Installed
    (node(), GpuRequest(1), Reason.NO_GPUS, 0),
    (node(T4), GpuRequest(1, SHARED), Reason.NOT_THIS_KIND, 1),
    (SLICED, GpuRequest(1), Reason.NOT_THIS_KIND, 4),
    (SLICED_AS_GPU, GpuRequest(1, BARE), Reason.NOT_THIS_KIND, 4),
    (node(T4), GpuRequest(1, milli=500), Reason.NOT_THIS_KIND, 1),
    (node(T4, T4), GpuRequest(3), Reason.TOO_FEW_INSTALLED, 2),
    (node(T4, T4, broken=[1]), GpuRequest(2), Reason.UNHEALTHY, 1),
    (SLICED, GpuRequest(4, SHARED), Reason.FITS, 4),
    (SLICED_AS_GPU, GpuRequest(4), Reason.FITS, 4),
    # UUID, model, memory: the same GPU must satisfy all of them
    (OF_UUIDS, GpuRequest(1, uuids=B), Reason.BUSY, 0),
    (OF_UUIDS, GpuRequest(2, uuids_exclude=B), Reason.WRONG_UUID, 1),
    (MIXED, GpuRequest(3, include=pattern("t4")), Reason.WRONG_MODEL, 2),
    (node(UNKNOWN), GpuRequest(1, exclude=pattern("t4")), Reason.MODEL_UNKNOWN, 0),
    (node(T4, ("", 15360)), GpuRequest(1, memory_each_mib=1, include=pattern("a100")), Reason.MODEL_UNKNOWN, 0),
    (MIXED, GpuRequest(2, memory_each_mib=40960), Reason.FITS, 2),
    (MIXED, GpuRequest(2, memory_each_mib=40961), Reason.TOO_SMALL, 1),
    (MIXED, GpuRequest(1, memory_each_mib=20000, include=pattern("t4")), Reason.TOO_SMALL, 0),
    (SLICED, GpuRequest(1, SHARED, memory_each_mib=15360 // 4 + 1), Reason.TOO_SMALL, 0),
    (node(UNKNOWN), GpuRequest(1, memory_each_mib=1), Reason.MEMORY_UNKNOWN, 0),
    (MIXED, GpuRequest(2, memory_total_mib=122880), Reason.FITS, 4),
    (MIXED, GpuRequest(2, memory_total_mib=122881), Reason.TOTAL_TOO_SMALL, 122880),
    (MIXED, GpuRequest(0, BARE, memory_total_mib=MIXED_MIB), Reason.FITS, 4),
    (MIXED, GpuRequest(0, BARE, memory_total_mib=MIXED_MIB + 1), Reason.TOTAL_TOO_SMALL, MIXED_MIB),
    (node(T4, UNKNOWN), GpuRequest(0, BARE, memory_total_mib=15360), Reason.FITS, 2),
    (node(T4, UNKNOWN), GpuRequest(0, BARE, memory_total_mib=15361), Reason.MEMORY_UNKNOWN, 15360),
    (node(T4, UNKNOWN), GpuRequest(2, memory_each_mib=1024, memory_total_mib=1024), Reason.MEMORY_UNKNOWN, 1),
    (node(T4, UNKNOWN), GpuRequest(1, memory_each_mib=1024, memory_total_mib=15361), Reason.TOTAL_TOO_SMALL, 15360),
    # Quarantined and kept apart
    (node(T4, T4, aside=1), GpuRequest(1), Reason.SET_ASIDE, 1),
    (node(T4, picks=True, unserved=1), GpuRequest(1), Reason.KEPT_APART, 1),
    (node(T4, picks=True, served=1), GpuRequest(1, BARE), Reason.KEPT_APART, 1),
    # Free
    (node(*[A100] * 8, held=range(5)), GpuRequest(4), Reason.BUSY, 3),
    (node(T4, T4, untracked=1), GpuRequest(2), Reason.BUSY, 1),
    (node(T4, T4, withheld=1), GpuRequest(2), Reason.BUSY, 1),
    (node(T4, untracked=5), GpuRequest(1), Reason.BUSY, 0),
    (node(T4, T4, used={0: (0, 1)}), GpuRequest(2), Reason.BUSY, 1),
    (node(A100, A100_40, T4, held=[0]), GpuRequest(2, memory_total_mib=60000), Reason.TOTAL_BUSY, 40960 + 15360),
    (node(A100, T4, untracked=1), GpuRequest(1, memory_total_mib=20000), Reason.TOTAL_BUSY, 15360),
    # Shares: compute, then memory, of one GPU
    (node(T4, T4, used={0: (600, 0), 1: (500, 0)}), GpuRequest(1, BARE, milli=501), Reason.COMPUTE_BUSY, 500),
    (node(T4, T4, held=[0], used={1: (500, 15000)}), GpuRequest(1, BARE, 360, milli=500), Reason.FITS, 1),
    (node(T4, T4, held=[0], used={1: (500, 15000)}), GpuRequest(1, BARE, 361, milli=500), Reason.MEMORY_BUSY, 360),
    (node(T4, T4, T4, used={0: (500, 0)}, untracked=2), GpuRequest(2, BARE, milli=500), Reason.BUSY, 1),
    (node(T4, unit=PART), GpuRequest(1, milli=500), Reason.FITS, 1),
    (node(T4, used={0: (500, 8192)}), GpuRequest(1, memory_each_mib=4096), Reason.BUSY, 0),
    (node(T4, used={0: (500, 8192)}, unit=PART), GpuRequest(1, memory_each_mib=4096), Reason.FITS, 1),
    (node(T4, used={0: (999, 0)}, unit=PART), GpuRequest(1, memory_each_mib=1024), Reason.FITS, 1),
    (node(T4, used={0: (1000, 0)}, unit=PART), GpuRequest(1, memory_each_mib=1024), Reason.COMPUTE_BUSY, 0),
]
BEYOND_THE_ORACLE = [
    (node(T4), GpuRequest(2**31 - 1, memory_each_mib=2**40), Reason.TOO_FEW_INSTALLED, 1),
    (node(T4), GpuRequest(1, memory_each_mib=2**40), Reason.TOO_SMALL, 0),
    (node(T4), GpuRequest(1, memory_total_mib=2**40), Reason.TOTAL_TOO_SMALL, 15360),
    (node(A100, unit=PART, used={0: (0, 40961)}), GpuRequest(1, memory_each_percent=50), Reason.MEMORY_BUSY, 40959),
    (node(T4, unit=PART, used={0: (0, 7680)}), GpuRequest(1, memory_each_percent=50), Reason.FITS, 1),
    (node(T4, unit=CLAIM), GpuRequest(1, AskedUnit.CLAIM), Reason.FITS, 1),
    (node(T4, unit=CLAIM), GpuRequest(1), Reason.FITS, 1),
    (node(T4, unit=CLAIM), GpuRequest(1, BARE), Reason.NOT_THIS_KIND, 1),
    (node(T4, unit=GpuUnit.OWNED), GpuRequest(1), Reason.NOT_THIS_KIND, 1),
    (node(T4), GpuRequest(1, AskedUnit.CLAIM), Reason.NOT_THIS_KIND, 1),
    (node(T4, unit=PART), GpuRequest(1, AskedUnit.PART, 1024), Reason.FITS, 1),
    (node(T4), GpuRequest(1, AskedUnit.PART, 1024), Reason.NOT_THIS_KIND, 1),
    (node(T4, uuids=["GPU-a"], unit=CLAIM), GpuRequest(1, AskedUnit.CLAIM, uuids=A), Reason.FITS, 1),
    (SLICED, GpuRequest(1, SHARED, uuids_exclude=B), Reason.NOT_THIS_KIND, 4),
    (node(mig={"1g.5gb": 2}), GpuRequest(2, MIG, mig=(("1g.5gb", 2),)), Reason.FITS, 2),
    (node(mig={"1g.5gb": 2}), GpuRequest(3, MIG, mig=(("1g.5gb", 3),)), Reason.TOO_FEW_INSTALLED, 2),
    (node(mig={"1g.5gb": 7}), GpuRequest(1, MIG, mig=(("2g.10gb", 1),)), Reason.TOO_FEW_INSTALLED, 0),
    (node(mig={"1g.10gb": 2}, aside=7), GpuRequest(1, MIG, mig=(("1g.10gb", 1),)), Reason.SET_ASIDE, 7),
]


def test_each_rule_at_its_boundaries() -> None:
    for state, request, reason, available in RULES:
        assert slow_fit(state, request)[:2] == (reason, available), request
        assert verdict(state, request) == (reason, available), request
    for state, request, reason, available in BEYOND_THE_ORACLE:
        assert verdict(state, request) == (reason, available), request


def test_a_pod_without_gpus_fits_everywhere_and_takes_none() -> None:
    states = {
        "cpu": node(),
        "held": node(T4, T4, T4, held=[1]),
        "untracked": node(T4, T4, T4, untracked=1),
        "lost": node(T4, untracked=3),
        "sliced": node(T4, T4, unit=GpuUnit.REPLICA, units_per_gpu=4, untracked=3),
        "broken": node(T4, T4, T4, used={0: (0, 1)}, broken=[1]),
        "mig": node(mig={"1g.5gb": 2}),
    }
    checked = fit_all(cluster_of(states), GpuRequest(0, AskedUnit.NONE, cpu_milli=10**9))
    assert checked.fits.all()
    assert checked.free_units.tolist() == [0, 2, 2, 0, 5, 1, 0]
    assert checked.available.tolist() == checked.taken_units.tolist() == [0] * 7
    assert not checked.room.any() and not checked.shares.any()
    assert checked.idle[1].tolist() == [True, False, True]


def test_no_nodes_no_verdicts() -> None:
    for request in (GpuRequest(1), GpuRequest(0, BARE, memory_total_mib=1), GpuRequest(0, AskedUnit.NONE)):
        assert fit_all(cluster_of({}), request).reason.tolist() == []
