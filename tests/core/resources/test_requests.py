"""What a pod requests: resources, Kerf's annotations, Genius' labels, and sentences for invalid ones."""

import re
from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.annotations import (
    _GENIUS_MODEL,
    COUNT,
    GENIUS_COUNT,
    GENIUS_MEMORY_EACH,
    GENIUS_MEMORY_TOTAL,
    GENIUS_PRIORITY,
    MEMORY_EACH,
    MEMORY_TOTAL,
    MODEL,
    MODEL_EXCLUDE,
    POLICY,
    SHARE,
    UUID,
    UUID_EXCLUDE,
    read_priority,
    read_request,
)
from extender.core.resources.pod_resources import Container, RequestedGpus, Resources, requested_gpus, total_request
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.kube.patterns import compile_pattern
from tests.core.builders import ONE, pattern
from tests.golden import Golden
from tests.nvidia import GPU_RESOURCE, SHARED_GPU_RESOURCE

BARE = AskedUnit.WHOLE


def read(keys: Mapping[str, str], units: int = 0, unit: AskedUnit = AskedUnit.GPU) -> PodRequest:
    """The request of a pod with these annotations, and labels of Genius."""
    labels = {key: value for key, value in keys.items() if key.startswith("genius/")}
    annotations = {key: value for key, value in keys.items() if key not in labels}
    return read_request(RequestedGpus(units, unit), annotations, labels, compile_pattern)


def gpus(number: int | str) -> Resources:
    return {GPU_RESOURCE: number, "cpu": "1"}


def most_at_any_moment(containers: list[Container], init_containers: list[Container], overhead: Resources) -> int:
    """A pod's life, moment by moment: the sum of what runs at the same time."""
    moments: list[list[Container]] = []
    running: list[Container] = []
    for container in init_containers:
        moments.append([*running, container])
        if container.sidecar:
            running = moments[-1]
    moments.append([*running, *containers])
    most = max(sum(int(container.requests.get(GPU_RESOURCE, 0)) for container in moment) for moment in moments)
    return most + int(overhead.get(GPU_RESOURCE, 0))


RESOURCES = st.builds(gpus, st.integers(0, 9)) | st.just({"cpu": "1"})


@given(
    st.lists(st.builds(Container, RESOURCES), max_size=4),
    st.lists(st.builds(Container, RESOURCES, st.booleans()), max_size=5),
    RESOURCES,
)
def test_a_pod_requests_the_most_that_runs_at_once(
    containers: list[Container], init_containers: list[Container], overhead: Resources
) -> None:
    total = total_request(GPU_RESOURCE, containers, init_containers, overhead)
    assert total == most_at_any_moment(containers, init_containers, overhead)


def test_quantities_are_summed_exactly() -> None:
    for values, total in ((["4k"], 4000), (["500m", "500m"], 1), (["333333333n"] * 3, Fraction(999_999_999, 10**9))):
        assert total_request(GPU_RESOURCE, [Container(gpus(value)) for value in values], [], {}) == total


def test_gpus_requested_by_resources() -> None:
    for requests, units, unit in (
        ({}, 0, AskedUnit.GPU),
        ({GPU_RESOURCE: "2"}, 2, AskedUnit.GPU),
        ({GPU_RESOURCE: 2.0}, 2, AskedUnit.GPU),  # a float in JSON
        ({GPU_RESOURCE: "0", SHARED_GPU_RESOURCE: "3"}, 3, AskedUnit.SHARED),
    ):
        asked = requested_gpus([Container(requests)], [], {})
        assert (asked.units, asked.unit) == (units, unit)
    profiles = {"nvidia.com/mig-2g.10gb": "1", "nvidia.com/mig-1g.5gb": "2", "nvidia.com/mig-7g.40gb": "0"}
    asked = requested_gpus([Container(profiles)], [Container({"nvidia.com/mig-1g.5gb": "3"})], {})
    assert asked.mig == (("1g.5gb", 3), ("2g.10gb", 1))
    assert read_request(asked, {}, {}, compile_pattern).gpus == GpuRequest(4, AskedUnit.MIG, mig=asked.mig)


A100 = pattern("a100")
BOTH_UUIDS = GpuRequest(1, BARE, uuids=frozenset({"GPU-a", "GPU-b"}), uuids_exclude=frozenset({"GPU-c"}))
READ: list[tuple[int, dict[str, str], GpuRequest | None]] = [
    (0, {"other": "1"}, None),
    # Number: annotation before label, both consistent with the resources
    (2, {}, GpuRequest(2)),
    (0, {COUNT: "2"}, GpuRequest(2, BARE)),
    (0, {GENIUS_COUNT: "2"}, GpuRequest(2, BARE)),
    (2, {GENIUS_COUNT: "2"}, GpuRequest(2)),
    (2, {COUNT: "2", GENIUS_COUNT: "3"}, GpuRequest(2)),
    (0, {COUNT: "4k"}, GpuRequest(4000, BARE)),
    (0, {COUNT: " 2 "}, GpuRequest(2, BARE)),
    (0, {COUNT: "", GENIUS_COUNT: "3"}, GpuRequest(3, BARE)),
    (0, {COUNT: "0"}, None),
    # Memory: MiB without a unit, rounded up
    (1, {MEMORY_EACH: "16Gi"}, GpuRequest(1, memory_each_mib=16 * 1024)),
    (1, {MEMORY_EACH: "16384"}, GpuRequest(1, memory_each_mib=16384)),
    (1, {MEMORY_EACH: "1e3"}, GpuRequest(1, memory_each_mib=1000)),
    (1, {MEMORY_EACH: "1.5"}, GpuRequest(1, memory_each_mib=2)),
    (1, {MEMORY_EACH: "16G"}, GpuRequest(1, memory_each_mib=15259)),  # 16e9 / 2**20 = 15258.8
    (1, {MEMORY_EACH: "0"}, ONE),
    (1, {MEMORY_EACH: "8Gi", GENIUS_MEMORY_EACH: "1"}, GpuRequest(1, memory_each_mib=8192)),
    (0, {GENIUS_MEMORY_EACH: "8000"}, GpuRequest(1, BARE, 8000)),  # G3
    (0, {GENIUS_MEMORY_TOTAL: "20000"}, GpuRequest(0, BARE, memory_total_mib=20000)),  # G4
    (2, {MEMORY_TOTAL: "40Gi"}, GpuRequest(2, memory_total_mib=40 * 1024)),
    # Model and UUID
    (0, {_GENIUS_MODEL: "a100"}, GpuRequest(1, BARE, include=A100)),  # G5
    (1, {MODEL: "a100", _GENIUS_MODEL: "t4"}, GpuRequest(1, include=A100)),
    (1, {MODEL: "größe", MODEL_EXCLUDE: "a100"}, GpuRequest(1, include=pattern("größe"), exclude=A100)),
    (0, {UUID: "GPU-a, GPU-b", UUID_EXCLUDE: "GPU-c"}, BOTH_UUIDS),
    # Shares (A6)
    (0, {SHARE: "1"}, GpuRequest(1, BARE, milli=1)),
    (0, {SHARE: "1000"}, GpuRequest(1, BARE)),
    (1, {SHARE: "500"}, GpuRequest(1, milli=500)),
    (0, {SHARE: "500", COUNT: "2", MEMORY_EACH: "4Gi"}, GpuRequest(2, BARE, 4096, milli=500)),
]


def test_the_request_read() -> None:
    for units, keys, request in READ:
        assert read(keys, units).gpus == request, keys
    assert read({}, 3, AskedUnit.SHARED).gpus == GpuRequest(3, AskedUnit.SHARED)
    one, other = (read({MODEL: "a100", MEMORY_EACH: memory}, 1).gpus for memory in ("16Gi", "16384"))
    assert one == other and hash(one) == hash(other)  # one class
    assert read({POLICY: " binpack "}) == PodRequest()  # a pod without GPUs has no policy
    assert read({POLICY: "spread"}, 1) == PodRequest(ONE, "spread")


INVALID: list[tuple[int, dict[str, str]]] = [
    *((0, {COUNT: text}) for text in ("two", "-1", "500m", "1E", "２", "9" * 500)),
    (0, {GENIUS_COUNT: "x"}),
    *((2, {key: "3"}) for key in (COUNT, GENIUS_COUNT)),
    (0, {COUNT: "0", MODEL: "a100"}),
    *((1, {MEMORY_EACH: text}) for text in ("16GB", "40xb", "-1Gi", "4k", "1e30")),
    *((1, {MEMORY_TOTAL: text}) for text in ("1.5tb", "500m")),
    (0, {GENIUS_MEMORY_TOTAL: "viel"}),
    *((1, {MODEL: text}) for text in ("(", "a" * 257)),
    (1, {MODEL_EXCLUDE: "a)|(b"}),  # can't close what surrounds it
    *((0, {SHARE: text}) for text in ("0", "1001", "0.5", "50%", "-1", "½", "５００", "9999999")),
    (0, {SHARE: "500", MEMORY_TOTAL: "8Gi"}),
    *((0, {UUID: text}) for text in ("GPU-a,,", "*\nERROR forged\x1b[31m")),
    (0, {UUID_EXCLUDE: "G" * 4097}),
    *((0, {key: "*\nERROR forged\x1b[31m"}) for key in (COUNT, MODEL)),
]


def refused(read: Callable[..., object], *arguments: object) -> str:
    """The sentence of the RequestError."""
    with pytest.raises(RequestError) as caught:
        read(*arguments)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_an_invalid_request_names_key_value_and_a_valid_form(golden: Golden) -> None:
    mig = RequestedGpus(mig=(("1g.5gb", 2),))
    both = {GPU_RESOURCE: "1", SHARED_GPU_RESOURCE: "2"}
    resources: list[Resources] = [
        *(gpus(text) for text in ("two", "-1", "500m", "1e10", "٣")),
        *({GPU_RESOURCE: float("inf")}, both),
    ]
    lines = [
        *(refused(read, keys, units) for units, keys in INVALID),
        refused(read, {SHARE: "500"}, 1, AskedUnit.SHARED),
        refused(read_request, RequestedGpus(1, mig=mig.mig), {}, {}, compile_pattern),
        *(refused(read_request, mig, keys, {}, compile_pattern) for keys in ({MODEL: "a100"}, {COUNT: "3"})),
        *(refused(requested_gpus, [Container(requests)], [], {}) for requests in resources),
        *(refused(read_priority, {GENIUS_PRIORITY: text}, 7) for text in ("high", "1_0", "9" * 63)),
    ]
    golden("core/invalid-requests.txt", lines)


def test_priority_is_the_label_of_genius_or_the_class() -> None:
    for labels, of_class, priority in (({}, None, 0), ({}, 7, 7), ({GENIUS_PRIORITY: " "}, 7, 7)):
        assert read_priority(labels, of_class) == priority
    assert read_priority({GENIUS_PRIORITY: "-3"}, 7) == -3


ANNOTATION_KEYS = [COUNT, SHARE, UUID, UUID_EXCLUDE, MEMORY_EACH, MEMORY_TOTAL, MODEL, MODEL_EXCLUDE, POLICY]
LABEL_KEYS = [GENIUS_COUNT, GENIUS_MEMORY_EACH, GENIUS_MEMORY_TOTAL, _GENIUS_MODEL]
VALUES = st.text(max_size=10) | st.sampled_from(["0", "1", "2", "4k", "1e3", "500m", "16Gi", "a100", "(", "-1"])


@given(st.integers(0, 3), st.dictionaries(st.sampled_from(ANNOTATION_KEYS + LABEL_KEYS), VALUES))
def test_any_annotations_and_labels_give_a_request_or_a_sentence(units: int, keys: dict[str, str]) -> None:
    try:
        request = read(keys, units).gpus
    except RequestError as error:
        assert re.match(r"(kerf\.dev|genius)/[a-z-]+: \".*\"( |: unknown )", str(error), re.DOTALL)
        return
    if request is None:
        assert units == 0
    else:
        assert request.count == (units or request.count)
        assert request.count > 0 or request.memory_total_mib > 0


def test_a_request_in_words(golden: Golden) -> None:
    requests = [
        ONE,
        GpuRequest(2, memory_each_mib=40960),
        GpuRequest(0, BARE, memory_total_mib=11000),
        GpuRequest(1, AskedUnit.SHARED),
        GpuRequest(3, AskedUnit.SHARED),
        GpuRequest(1, memory_each_mib=4096, milli=500),
        GpuRequest(2, milli=500),
        GpuRequest(1, memory_each_percent=25, containers=2),
        GpuRequest(4, AskedUnit.MIG, mig=(("1g.5gb", 3), ("2g.10gb", 1))),
        GpuRequest(1, uuids=frozenset({"b", "a"}), uuids_exclude=frozenset({"c"})),
        GpuRequest(2, AskedUnit.GPU, 1024, 4096, A100, pattern("pcie")),
    ]
    golden("core/requests.txt", map(str, requests))
