from fractions import Fraction
from typing import Any

from extender.core.dra.devices import Capacity, DeviceId, Taint, Version
from extender.core.resources.gpu_models import UNKNOWN_MODEL
from extender.dra.objects import ResourceSlice
from tests.dra.builders import DRIVER, consuming, counters, device, pools_of, resource_slice, rule
from tests.golden import Golden

GPU: dict[str, Any] = {
    "attributes": {"type": {"string": "gpu"}, "uuid": {"string": "GPU-0"}},
    "capacity": {"memory": {"value": "40Gi"}},
}


def a100(minor: int, *placements: tuple[str, int, int, int, int]) -> list[Any]:
    """A GPU and its MIG devices as NVIDIA's driver publishes them: name, multiprocessors, MiB, first memory slice, and
    how many of these. Numbers of an A100-SXM4-40GB: seven slices of 14 multiprocessors, eight of memory."""

    def partition(name: str, kind: str, sms: int, mib: int, start: int, size: int, **more: Any) -> Any:
        slices = {f"memory_slice_{index}": "1" for index in range(start, start + size)}
        capacity = {"multiprocessors": {"value": str(sms)}, "memory": {"value": f"{mib}Mi"}}
        used = consuming(f"gpu-{minor}-counter-set", multiprocessors=str(sms), memory=f"{mib}Mi", **slices)
        return device(name, attributes={"type": {"string": kind}, **more}, capacity=capacity, **used)

    whole = partition(f"gpu-{minor}", "gpu", 98, 40192, 0, 8, uuid={"string": f"GPU-{minor}"})
    parts = [
        partition(f"gpu-{minor}-mig-{name}-{start}", "mig", sms, mib, start, size)
        for name, sms, mib, start, size in placements
    ]
    return [whole, *parts]


def counters_of(*minors: int) -> ResourceSlice:
    slices = {f"memory-slice-{index}": "1" for index in range(8)}
    found = {"multiprocessors": "98", "memory": "40192Mi", **slices}
    return counters(*((f"gpu-{minor}-counter-set", found) for minor in minors), name="s-counters", count=2)


def test_a_device_is_read_as_published() -> None:
    attributes = {
        "text": {"string": "a"},
        "number": {"int": 3},
        "truth": {"bool": True},
        "other.example.com/version": {"version": "1.2.3"},
    }
    ranged = {"default": "1", "validRange": {"min": "500m", "step": "1"}}
    capacity = {
        "memory": {"value": "1Gi"},
        f"{DRIVER}/parts": {"value": "10", "requestPolicy": ranged},
        "sizes": {"value": "4", "requestPolicy": {"default": "2", "validValues": ["2", "4"]}},
    }
    taints = [{"key": "health", "value": "bad", "effect": "NoExecute"}]
    shared = device("d", attributes=attributes, capacity=capacity, taints=taints, allowMultipleAllocations=True)
    found = pools_of(resource_slice(shared))
    (read,) = found.inventory.devices
    assert read.id == DeviceId(DRIVER, "p", "d")
    assert read.attributes == {
        f"{DRIVER}/text": "a",
        f"{DRIVER}/number": 3,
        f"{DRIVER}/truth": True,
        "other.example.com/version": Version("1.2.3"),
    }
    assert read.attributes[f"{DRIVER}/truth"] is True
    assert read.capacity[f"{DRIVER}/parts"] == Capacity(10, 1, (), (Fraction(1, 2), None, 1))
    assert read.capacity["memory"] == Capacity(2**30)
    assert read.capacity["sizes"] == Capacity(4, 2, (2, 4))
    assert read.taints == (Taint("health", "bad", "NoExecute"),)  # not that by which Kerf owns it
    assert read.shareable
    assert found.inventory.index_of == {read.id: 0}


def test_only_pools_that_kerf_owns_are_given() -> None:
    found = pools_of(
        resource_slice(device("a"), pool="ours"),
        resource_slice(device("b", owned=False), pool="theirs", name="s1"),
    )
    assert [read.id.device for read in found.inventory.devices] == ["a"]
    assert [read.id.device for read in found.inventory.unavailable] == ["b"]
    assert (found.others, found.faults, found.inventory.complete) == (True, (), True)


def test_rules_own_pools() -> None:
    cases: list[tuple[dict[str, str], bool]] = [
        ({"driver": DRIVER, "pool": "p"}, True),
        ({}, True),
        ({"driver": "other.example.com"}, False),
        ({"pool": "q"}, False),
    ]
    for selector, owns in cases:
        found = pools_of(resource_slice(device("a", owned=False)), rules=[rule(**selector)])
        assert bool(found.inventory.devices) is owns


def test_a_pool_that_is_handed_over_is_nobodys() -> None:
    held = {"key": "kerf.dev/owned", "value": "held", "effect": "NoSchedule"}
    found = pools_of(resource_slice(device("a")), rules=[rule(held)])
    assert (found.inventory.devices, found.others, found.faults) == ((), False, ())
    assert len(found.inventory.unavailable) == 1


def test_a_pool_that_is_only_partly_owned_is_not_given() -> None:
    found = pools_of(resource_slice(device("a"), device("b", owned=False)))
    assert found.inventory.devices == ()
    (fault,) = found.faults
    assert fault.startswith(f"pool p of {DRIVER}: only some")
    assert pools_of(resource_slice(device("b", owned=False)), rules=[rule(device="b")]).inventory.devices
    part = [
        resource_slice(device("a"), count=2),
        resource_slice(device("b", owned=False), name="s1", count=2, nodeName="n2"),
    ]
    assert pools_of(*part).faults


def test_taints_of_rules_count() -> None:
    taint = {"key": "health", "effect": "NoSchedule"}
    found = pools_of(resource_slice(device("a"), device("b")), rules=[rule(taint, device="b")])
    assert [read.taints for read in found.inventory.devices] == [(), (Taint("health", "", "NoSchedule"),)]


def test_pools_that_are_not_handled_are_not_given(golden: Golden) -> None:
    faults: list[str] = []
    both = {"attributes": {"n": {"int": 1}, f"{DRIVER}/n": {"int": 1}}}
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"bindingConditions": ["ready"]}, {}),
        ({"nodeAllocatableResources": {"cpu": {}}}, {}),
        ({"nodeName": "n1"}, {"perDeviceNodeSelection": True}),
        ({}, {"allNodes": True}),
        ({}, {"nodeSelector": {"nodeSelectorTerms": [{}]}}),
        ({}, {"skipNodeOperations": ["*"]}),
        ({}, {"count": 2}),
        ({"attributes": {"n": {"ints": [1]}}}, {}),
        ({"attributes": {"n": {}}}, {}),
        ({"attributes": {"n": {"version": "1.02.3"}}}, {}),
        (both, {}),
        ({"capacity": {"m": {"value": "much"}}}, {}),
    ]
    for more, spec in cases:
        found = pools_of(resource_slice(device("a", **more), **spec))
        assert found.inventory.devices == ()
        faults += found.faults
        assert pools_of(resource_slice(device("a", owned=False, **more), **spec)).faults == (), "not Kerf's"
    shared = counters(("g", {"m": "2"}), count=3)
    near = resource_slice(device("a", **consuming("g", m="1")), count=3)
    far = resource_slice(device("b", **consuming("g", m="1")), name="s1", count=3, nodeName="n2")
    faults += pools_of(shared, near, far).faults
    group = consuming("g", m="1")
    group["consumesCounters"][0]["compatibilityGroups"] = ["x"]
    faults += pools_of(counters(("g", {"m": "2"}), count=2), resource_slice(device("a", **group), count=2)).faults
    golden("pool_faults.txt", faults)


def test_an_inventory_is_complete_only_if_all_pools_are_read() -> None:
    assert pools_of(resource_slice(device("a"))).inventory.complete
    assert not pools_of(resource_slice(device("a"), count=2)).inventory.complete
    assert not pools_of(resource_slice(device("a"), device("a"))).inventory.complete
    network = pools_of(resource_slice(device("a")), resource_slice(device("n", owned=False), pool="net", allNodes=True))
    assert network.inventory.complete
    assert [read.id.device for read in network.inventory.unavailable] == ["n"]
    lists = device("n", owned=False, attributes={"n": {"ints": [1]}})
    assert not pools_of(resource_slice(lists, pool="net", name="s1"), resource_slice(device("a"))).inventory.complete


def test_counters_are_one_row() -> None:
    gpus = *a100(0), *a100(1, ("1g.5gb", 14, 4864, 6, 1))
    found = pools_of(counters_of(0, 1), resource_slice(*gpus, count=2))
    assert found.faults == ()
    assert len(found.inventory.counters) == 2 * 10
    first, second, part = found.inventory.devices
    assert {index for index, _ in first.consumes}.isdisjoint(index for index, _ in second.consumes)
    assert {index for index, _ in part.consumes} < {index for index, _ in second.consumes}
    assert sorted(found.inventory.counters[index] for index, _ in part.consumes) == [1, 98, 40192 * 2**20]
    assert sorted(amount for _, amount in part.consumes) == [1, 14, 4864 * 2**20]


def test_counters_of_several_pools_are_apart() -> None:
    slices = []
    for pool in ("p", "q"):
        slices.append(counters(("g", {"m": "2"}), name=f"counters-{pool}", pool=pool, count=2))
        slices.append(resource_slice(device("a", **consuming("g", m="1")), name=f"s-{pool}", pool=pool, count=2))
    found = pools_of(*slices)
    assert [read.consumes for read in found.inventory.devices] == [((0, 1),), ((1, 1),)]
    assert found.inventory.counters == (2, 2)


def test_a_counter_that_is_consumed_twice_is_added_up() -> None:
    consumed = [consuming("g", m=amount)["consumesCounters"][0] for amount in "12"]
    twice = device("a", consumesCounters=consumed)
    found = pools_of(counters(("g", {"m": "5"}), count=2), resource_slice(twice, count=2))
    assert found.inventory.devices[0].consumes == ((0, 3),)


def test_partitions_are_parts_of_their_gpu() -> None:
    gpus = *a100(0), *a100(1, ("3g.20gb", 42, 19968, 4, 4), ("1g.5gb", 14, 4864, 6, 1))
    found = pools_of(counters_of(0, 1), resource_slice(*gpus, count=2))
    placed = {read.id.device: (read.gpu, read.milli, read.mib) for read in found.inventory.devices}
    assert placed == {
        "gpu-0": (0, 1000, 40960),  # as it is sold
        "gpu-1": (1, 1000, 40960),
        "gpu-1-mig-3g.20gb-4": (1, 428, 19968),  # 42 of 98 multiprocessors
        "gpu-1-mig-1g.5gb-6": (1, 142, 4864),
    }
    assert len(found.offer.gpus) == 2


def test_partitions_name_their_gpu() -> None:
    attributes = {"type": {"string": "mig"}, "parentUUID": {"string": "GPU-0"}}
    part = device("m", attributes=attributes, capacity={"memory": {"value": "10Gi"}})
    unknown = device("u", attributes=attributes)
    found = pools_of(resource_slice(device("gpu-0", **GPU), part, unknown))
    whole = 0, 1000, 40960
    parts = [(read.gpu, read.milli, read.mib) for read in found.inventory.devices]
    assert parts == [whole, (0, 250, 10240), whole], "one of unknown size is all of its GPU"


def test_a_gpu_in_mig_mode_is_published_by_its_partitions_alone() -> None:
    """Numbers of an A100-SXM4-40GB with static partitions: NVIDIA's driver publishes neither the GPU nor counters."""

    def part(gpu: int, profile: str, sms: int, mib: int, **more: Any) -> Any:
        texts = {"type": "mig", "parentUUID": f"GPU-{gpu}", "productName": "NVIDIA A100-SXM4-40GB"}
        attributes = {name: {"string": text} for name, text in texts.items()}
        capacity = {"multiprocessors": {"value": str(sms)}, "memory": {"value": f"{mib}Mi"}}
        return device(f"gpu-{gpu}-mig-{profile}", attributes=attributes, capacity=capacity, **more)

    sizes = (("3g20gb-9-0", 42, 19968), ("2g10gb-14-4", 28, 9856), ("1g5gb-19-6", 14, 4864))
    cut = resource_slice(*(part(2, *size) for size in sizes), device("gpu-0", **GPU))
    found = pools_of(cut)
    assert [(gpu.uuid, gpu.model.name, gpu.memory_mib) for gpu in found.offer.gpus] == [
        ("GPU-0", UNKNOWN_MODEL.name, 40960),
        ("GPU-2", "a100-sxm4-40gb", 34688),
    ]
    assert [(read.gpu, read.milli, read.mib) for read in found.inventory.devices] == [
        (1, 500, 19968),
        (1, 333, 9856),
        (1, 166, 4864),
        (0, 1000, 40960),
    ]
    # Where kube-scheduler allocates, it must not be taken for a whole GPU.
    foreign = resource_slice(*(part(2, *size, owned=False) for size in sizes))
    assert pools_of(foreign).offer.gpus == ()
    # It is unhealthy once all parts are.
    taint = [{"key": "health", "effect": "NoSchedule"}]
    for taints, healthy in (((taint, []), True), ((taint, taint), False)):
        of = (part(2, *size, taints=of_part) for size, of_part in zip(sizes, taints, strict=False))
        assert [gpu.healthy for gpu in pools_of(resource_slice(*of)).offer.gpus] == [healthy]


def test_gpus_are_offered_whether_or_not_kerf_owns_them() -> None:
    for owned in (True, False):
        found = pools_of(resource_slice(device("gpu-0", owned=owned, **GPU)))
        assert [gpu.healthy for gpu in found.offer.gpus] == [True]
        assert found.index_of == {("p", "gpu-0"): 0}
    tainted = pools_of(resource_slice(device("gpu-0", **GPU)), rules=[rule({"key": "x", "effect": "NoExecute"})])
    assert [gpu.healthy for gpu in tainted.offer.gpus] == [False]
    assert pools_of(resource_slice(device("gpu-0", **GPU), count=2)).offer.gpus == ()


def test_devices_of_any_driver_are_given() -> None:
    found = pools_of(resource_slice(device("nic-0"), driver="nic.example.com"))
    assert [(read.id.driver, read.gpu) for read in found.inventory.devices] == [("nic.example.com", -1)]
    assert found.offer.gpus == ()


def test_without_ownership_all_is_given_and_taints_count() -> None:
    found = pools_of(resource_slice(device("a"), device("b", owned=False)), owned_only=False)
    assert [len(read.taints) for read in found.inventory.devices] == [1, 0]


def test_a_node_has_a_bounded_number_of_devices() -> None:
    slices = [
        resource_slice(*(device(f"d{index}") for index in range(128)), pool=f"p{number:03}", name=f"s{number}")
        for number in range(33)
    ]
    found = pools_of(*slices)
    assert len(found.inventory.devices) == 4096
    (fault,) = found.faults
    assert fault.startswith("pool p032") and "4096" in fault
