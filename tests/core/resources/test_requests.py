"""What a pod asks for: resources, Kerf's annotations, Genius labels, and sentences for what can't be understood."""

import re
from collections.abc import Mapping
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
from extender.core.resources.pod_resources import AskedGpus, Container, Resources, asked_gpus, total_request
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.kube.patterns import compile_pattern
from tests.core.builders import pattern
from tests.nvidia import GPU_RESOURCE, SHARED_GPU_RESOURCE


def gpus(number: int | str) -> Resources:
    return {GPU_RESOURCE: number, "cpu": "1"}


def main(number: int | str) -> Container:
    return Container(gpus(number))


def sidecar(number: int | str) -> Container:
    return Container(gpus(number), sidecar=True)


def read(
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    *,
    units: int = 0,
    unit: AskedUnit = AskedUnit.GPU,
) -> PodRequest:
    return read_request(AskedGpus(units, unit), annotations or {}, labels or {}, compile_pattern)


@pytest.mark.parametrize(
    ("containers", "init_containers", "overhead", "total"),
    [
        pytest.param([], [], {}, 0, id="no containers"),
        pytest.param([Container({"cpu": "1"})], [], {}, 0, id="no GPUs"),
        pytest.param([main(1), main(2)], [], {}, 1 + 2, id="containers add up"),
        pytest.param([main(1)], [main(4)], {}, 4, id="an init container runs before: max(1, 4)"),
        pytest.param([main(3)], [main(2), main(1)], {}, 3, id="init containers run one by one: max(3, 2, 1)"),
        pytest.param([main(2)], [sidecar(1)], {}, 2 + 1, id="a sidecar keeps running"),
        pytest.param([main(2)], [sidecar(1), main(3)], {}, 1 + 3, id="init after a sidecar: max(2 + 1, 1 + 3)"),
        pytest.param([main(2)], [main(3), sidecar(1)], {}, 3, id="init before a sidecar: max(2 + 1, 3)"),
        pytest.param([main(0)], [sidecar(1), sidecar(2)], {}, 1 + 2, id="sidecars add up"),
        pytest.param([main(1)], [main(2)], gpus(1), 2 + 1, id="overhead is added to the largest moment"),
        pytest.param([main("4k")], [], {}, 4000, id="canonicalised"),
        pytest.param([main("500m"), main("500m")], [], {}, 1, id="halves add up before anything is rounded"),
    ],
)
def test_total_request(
    containers: list[Container], init_containers: list[Container], overhead: Resources, total: int
) -> None:
    assert total_request(GPU_RESOURCE, containers, init_containers, overhead) == total


def most_at_any_moment(containers: list[Container], init_containers: list[Container], overhead: Resources) -> int:
    """A pod's life, moment by moment: what runs at the same time, summed."""
    moments: list[list[Container]] = []
    running: list[Container] = []
    for container in init_containers:
        if container.sidecar:
            running = [*running, container]
            moments.append(running)
        else:
            moments.append([*running, container])
    moments.append([*running, *containers])
    most = 0
    for moment in moments:
        used = 0
        for container in moment:
            used += int(container.requests.get(GPU_RESOURCE, 0))
        most = max(most, used)
    return most + int(overhead.get(GPU_RESOURCE, 0))


RESOURCES = st.builds(gpus, st.integers(0, 9)) | st.just({"cpu": "1"})


@given(
    st.lists(st.builds(Container, RESOURCES), max_size=4),
    st.lists(st.builds(Container, RESOURCES, st.booleans()), max_size=5),
    RESOURCES,
)
def test_total_request_is_the_most_that_runs_at_once(
    containers: list[Container], init_containers: list[Container], overhead: Resources
) -> None:
    total = total_request(GPU_RESOURCE, containers, init_containers, overhead)
    assert total == most_at_any_moment(containers, init_containers, overhead)


@pytest.mark.parametrize(
    ("requests", "units"),
    [
        pytest.param({}, (0, AskedUnit.GPU), id="none"),
        pytest.param({GPU_RESOURCE: "2"}, (2, AskedUnit.GPU), id="whole"),
        pytest.param({SHARED_GPU_RESOURCE: "3"}, (3, AskedUnit.SHARED), id="shared"),
        pytest.param({GPU_RESOURCE: "0", SHARED_GPU_RESOURCE: "3"}, (3, AskedUnit.SHARED), id="zero whole, shared"),
        pytest.param({GPU_RESOURCE: 2}, (2, AskedUnit.GPU), id="a number in JSON"),
        pytest.param({GPU_RESOURCE: 2.0}, (2, AskedUnit.GPU), id="a float in JSON that is whole"),
    ],
)
def test_resource_units(requests: Resources, units: tuple[int, AskedUnit]) -> None:
    asked = asked_gpus([Container(requests)], [], {})
    assert (asked.units, asked.unit) == units


@pytest.mark.parametrize(
    ("requests", "sentence"),
    [
        pytest.param(
            {GPU_RESOURCE: "two"}, 'nvidia.com/gpu: "two" is not a quantity; write a whole number', id="no quantity"
        ),
        pytest.param({GPU_RESOURCE: "-1"}, 'nvidia.com/gpu: "-1" is negative; write a whole number', id="negative"),
        pytest.param(
            {GPU_RESOURCE: "500m"},
            'nvidia.com/gpu: "0.5" is not a whole number; request whole GPUs',
            id="half a GPU",
        ),
        pytest.param(
            {GPU_RESOURCE: "1e10"}, 'nvidia.com/gpu: "10000000000" is more than any node has', id="absurdly many"
        ),
        pytest.param(
            {GPU_RESOURCE: "1", SHARED_GPU_RESOURCE: "2"},
            'nvidia.com/gpu.shared: "2" together with nvidia.com/gpu: "1" fits no node, '
            "because nodes offer only one of the two; request one",
            id="both kinds",
        ),
        pytest.param(
            {GPU_RESOURCE: "٣"}, 'nvidia.com/gpu: "٣" is not a quantity; write a whole number', id="other script"
        ),
        pytest.param(
            {GPU_RESOURCE: float("inf")}, 'nvidia.com/gpu: "inf" is not a quantity; write a whole number', id="infinite"
        ),
    ],
)
def test_resources_that_cannot_be_understood(requests: Resources, sentence: str) -> None:
    with pytest.raises(RequestError) as raised:
        asked_gpus([Container(requests)], [], {})
    assert str(raised.value) == sentence


def test_a_pod_that_says_nothing_asks_for_nothing() -> None:
    assert read({"other": "1"}, {"app": "web"}) == PodRequest(None, "", 0)


A100 = pattern("a100")


@pytest.mark.parametrize(
    ("units", "annotations", "labels", "request_"),
    [
        pytest.param(2, {}, {}, GpuRequest(2), id="resources alone"),
        pytest.param(0, {COUNT: "2"}, {}, GpuRequest(2, AskedUnit.WHOLE), id="count alone"),
        pytest.param(0, {}, {GENIUS_COUNT: "2"}, GpuRequest(2, AskedUnit.WHOLE), id="Genius count alone"),
        pytest.param(2, {COUNT: "2"}, {}, GpuRequest(2), id="count and resources agree"),
        pytest.param(2, {}, {GENIUS_COUNT: "2"}, GpuRequest(2), id="Genius count and resources agree"),
        pytest.param(2, {COUNT: "2"}, {GENIUS_COUNT: "3"}, GpuRequest(2), id="annotation beats label"),
        pytest.param(0, {COUNT: "4k"}, {}, GpuRequest(4000, AskedUnit.WHOLE), id="canonicalised count"),
        pytest.param(0, {COUNT: " 2 "}, {}, GpuRequest(2, AskedUnit.WHOLE), id="spaces around"),
        pytest.param(0, {COUNT: ""}, {GENIUS_COUNT: "3"}, GpuRequest(3, AskedUnit.WHOLE), id="empty says nothing"),
        pytest.param(0, {COUNT: "0"}, {}, None, id="zero asks for nothing"),
        pytest.param(1, {MEMORY_EACH: "16Gi"}, {}, GpuRequest(1, memory_each_mib=16 * 1024), id="each, quantity"),
        pytest.param(1, {MEMORY_EACH: "16384"}, {}, GpuRequest(1, memory_each_mib=16384), id="each, plain MiB"),
        pytest.param(1, {MEMORY_EACH: "1e3"}, {}, GpuRequest(1, memory_each_mib=1000), id="each, exponent is plain"),
        pytest.param(1, {MEMORY_EACH: "1.5"}, {}, GpuRequest(1, memory_each_mib=2), id="each, rounded up"),
        pytest.param(
            1, {MEMORY_EACH: "16G"}, {}, GpuRequest(1, memory_each_mib=15259), id="16e9 / 2**20 = 15258.8, rounded up"
        ),
        pytest.param(1, {MEMORY_EACH: "0"}, {}, GpuRequest(1), id="each, zero asks nothing"),
        pytest.param(
            0, {MEMORY_EACH: "1Gi"}, {}, GpuRequest(1, AskedUnit.WHOLE, 1024), id="memory each without a count: one GPU"
        ),
        pytest.param(
            0, {}, {GENIUS_MEMORY_EACH: "8000"}, GpuRequest(1, AskedUnit.WHOLE, 8000), id="Genius each (G3): one GPU"
        ),
        pytest.param(
            0,
            {},
            {GENIUS_MEMORY_TOTAL: "20000"},
            GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=20000),
            id="Genius total (G4): as many as it takes",
        ),
        pytest.param(
            2, {MEMORY_TOTAL: "40Gi"}, {}, GpuRequest(2, memory_total_mib=40 * 1024), id="total over a number of GPUs"
        ),
        pytest.param(
            1,
            {MEMORY_EACH: "8Gi"},
            {GENIUS_MEMORY_EACH: "1"},
            GpuRequest(1, memory_each_mib=8192),
            id="each: own key wins",
        ),
        pytest.param(1, {MODEL: "a100"}, {}, GpuRequest(1, include=A100), id="model"),
        pytest.param(
            0, {}, {_GENIUS_MODEL: "a100"}, GpuRequest(1, AskedUnit.WHOLE, include=A100), id="Genius model (G5)"
        ),
        pytest.param(1, {MODEL: "a100"}, {_GENIUS_MODEL: "t4"}, GpuRequest(1, include=A100), id="model: own key wins"),
        pytest.param(1, {MODEL_EXCLUDE: "a100"}, {}, GpuRequest(1, exclude=A100), id="exclude"),
        pytest.param(
            1,
            {MODEL: "a", MODEL_EXCLUDE: "a100"},
            {},
            GpuRequest(1, include=pattern("a"), exclude=A100),
            id="both models",
        ),
        pytest.param(1, {MODEL: "größe"}, {}, GpuRequest(1, include=pattern("größe")), id="a pattern beyond ASCII"),
        pytest.param(0, {SHARE: "500"}, {}, GpuRequest(1, AskedUnit.WHOLE, milli=500), id="a share of one GPU (A6)"),
        pytest.param(0, {SHARE: "1"}, {}, GpuRequest(1, AskedUnit.WHOLE, milli=1), id="the smallest share"),
        pytest.param(0, {SHARE: "1000"}, {}, GpuRequest(1, AskedUnit.WHOLE), id="all of a GPU is a whole one"),
        pytest.param(1, {SHARE: "500"}, {}, GpuRequest(1, milli=500), id="a share in the name of a GPU"),
        pytest.param(
            0, {SHARE: "500", COUNT: "2"}, {}, GpuRequest(2, AskedUnit.WHOLE, milli=500), id="a share of each of two"
        ),
        pytest.param(
            0, {SHARE: "500", MEMORY_EACH: "4Gi"}, {}, GpuRequest(1, AskedUnit.WHOLE, 4096, milli=500), id="with memory"
        ),
        pytest.param(
            0,
            {UUID: "GPU-a, GPU-b", UUID_EXCLUDE: "GPU-c"},
            {},
            GpuRequest(1, AskedUnit.WHOLE, uuids=frozenset({"GPU-a", "GPU-b"}), uuids_exclude=frozenset({"GPU-c"})),
            id="UUIDs",
        ),
    ],
)
def test_request(
    units: int, annotations: Mapping[str, str], labels: Mapping[str, str], request_: GpuRequest | None
) -> None:
    assert read(annotations, labels, units=units).gpus == request_


def test_mig_devices_are_asked_by_profile() -> None:
    asked = {"nvidia.com/mig-2g.10gb": "1", "nvidia.com/mig-1g.5gb": "2", "nvidia.com/mig-7g.40gb": "0"}
    found = asked_gpus([Container(asked)], [Container({"nvidia.com/mig-1g.5gb": "3"})], {})
    assert found.mig == (("1g.5gb", 3), ("2g.10gb", 1))
    request = read_request(found, {}, {}, compile_pattern).gpus
    assert request == GpuRequest(4, AskedUnit.MIG, mig=found.mig)
    assert str(request) == "3 x mig-1g.5gb and 1 x mig-2g.10gb"


@pytest.mark.parametrize(
    ("units", "annotations", "sentence"),
    [
        pytest.param(1, {}, "together with 1 GPUs of another resource is not supported", id="GPUs as well"),
        pytest.param(0, {MODEL: "a100"}, "defines the device completely", id="conditions"),
        pytest.param(0, {COUNT: "3"}, "disagrees with the 2 GPUs", id="another number"),
    ],
)
def test_mig_devices_have_no_other_conditions(units: int, annotations: dict[str, str], sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        read_request(AskedGpus(units, mig=(("1g.5gb", 2),)), annotations, {}, compile_pattern)


def test_a_time_slice_has_no_share() -> None:
    with pytest.raises(RequestError, match=r"time slices have no size"):
        read({SHARE: "500"}, units=1, unit=AskedUnit.SHARED)


def test_shares_keep_their_unit() -> None:
    assert read(units=3, unit=AskedUnit.SHARED).gpus == GpuRequest(3, AskedUnit.SHARED)


@pytest.mark.parametrize("key", ["kerf.dev/gpu-count", "kerf.dev/gpu-uuid", "kerf.dev/gpu-model"])
def test_sentences_about_an_authors_text_are_one_line(key: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_request(AskedGpus(), {key: "*\nERROR forged\x1b[31m"}, {}, compile_pattern)
    assert str(caught.value).isprintable()
    assert r"\nERROR forged" in str(caught.value)


def test_a_policy_travels_with_gpus_and_holds_up_no_pod_without() -> None:
    assert read({POLICY: " binpack "}) == PodRequest()
    assert read({POLICY: "spread"}, units=1) == PodRequest(GpuRequest(1), "spread")


def test_priority_is_the_label_of_genius_or_the_class() -> None:
    assert read_priority({}, None) == 0
    assert read_priority({}, 7) == 7
    assert read_priority({GENIUS_PRIORITY: " "}, 7) == 7
    assert read_priority({GENIUS_PRIORITY: "-3"}, 7) == -3


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("high", id="in words"),
        pytest.param("1_0", id="as only Python writes it"),
        pytest.param("9" * 63, id="absurd"),
    ],
)
def test_a_priority_that_is_no_number(text: str) -> None:
    with pytest.raises(RequestError) as raised:
        read_priority({GENIUS_PRIORITY: text}, 7)
    assert str(raised.value) == f'{GENIUS_PRIORITY}: "{text}" is not a number; write a whole number such as "10"'


RIGHT_COUNT = 'write a whole number of GPUs such as "2"'
RIGHT_SIZE = 'write a size such as "16Gi", or a plain number of MiB such as "16384"'
RIGHT_MODEL = 'write a regular expression on the model\'s name such as "a100|h100"'


@pytest.mark.parametrize(
    ("units", "annotations", "labels", "sentence"),
    [
        pytest.param(0, {COUNT: "two"}, {}, f'{COUNT}: "two" is not a quantity; {RIGHT_COUNT}', id="count in words"),
        pytest.param(0, {COUNT: "-1"}, {}, f'{COUNT}: "-1" is not a number of GPUs; {RIGHT_COUNT}', id="negative"),
        pytest.param(0, {COUNT: "500m"}, {}, f'{COUNT}: "500m" is not a number of GPUs; {RIGHT_COUNT}', id="half"),
        pytest.param(
            0, {COUNT: "1E"}, {}, f'{COUNT}: "1E" is not a number of GPUs; {RIGHT_COUNT}', id="an exa of GPUs"
        ),
        pytest.param(0, {COUNT: "２"}, {}, f'{COUNT}: "２" is not a quantity; {RIGHT_COUNT}', id="full-width digit"),
        pytest.param(
            0,
            {},
            {GENIUS_COUNT: "x"},
            f'{GENIUS_COUNT}: "x" is not a quantity; {RIGHT_COUNT}',
            id="the label is named when it is the label",
        ),
        pytest.param(
            0,
            {COUNT: "9" * 500},
            {},
            f'{COUNT}: "{"9" * 77}..." is not a quantity; {RIGHT_COUNT}',
            id="a long value is shortened to 80",
        ),
        pytest.param(
            2,
            {COUNT: "3"},
            {},
            f'{COUNT}: "3" disagrees with the 2 GPUs of the pod\'s resources; remove it or make them equal',
            id="count and resources disagree",
        ),
        pytest.param(
            2,
            {},
            {GENIUS_COUNT: "3"},
            f'{GENIUS_COUNT}: "3" disagrees with the 2 GPUs of the pod\'s resources; remove it or make them equal',
            id="Genius count and resources disagree",
        ),
        pytest.param(
            0,
            {COUNT: "0", MODEL: "a100"},
            {},
            f'{COUNT}: "0" requests no GPU, but other keys describe one; remove one of them',
            id="no GPU of a model",
        ),
        pytest.param(
            1, {MEMORY_EACH: "16GB"}, {}, f'{MEMORY_EACH}: "16GB": unknown suffix GB; do you mean 16Gi?', id="suffix"
        ),
        pytest.param(
            1, {MEMORY_TOTAL: "1.5tb"}, {}, f'{MEMORY_TOTAL}: "1.5tb": unknown suffix tb; do you mean 1.5Ti?', id="tb"
        ),
        pytest.param(
            1, {MEMORY_EACH: "40xb"}, {}, f'{MEMORY_EACH}: "40xb": unknown suffix xb; {RIGHT_SIZE}', id="no unit at all"
        ),
        pytest.param(
            1, {MEMORY_EACH: "-1Gi"}, {}, f'{MEMORY_EACH}: "-1Gi" is negative; {RIGHT_SIZE}', id="negative size"
        ),
        pytest.param(
            1, {MEMORY_EACH: "4k"}, {}, f'{MEMORY_EACH}: "4k" is less than 1 MiB; {RIGHT_SIZE}', id="bytes, not MiB"
        ),
        pytest.param(
            1, {MEMORY_TOTAL: "500m"}, {}, f'{MEMORY_TOTAL}: "500m" is less than 1 MiB; {RIGHT_SIZE}', id="half a byte"
        ),
        pytest.param(
            1,
            {MEMORY_EACH: "1e30"},
            {},
            f'{MEMORY_EACH}: "1e30" is more memory than any node has; {RIGHT_SIZE}',
            id="absurd size",
        ),
        pytest.param(
            0,
            {},
            {GENIUS_MEMORY_TOTAL: "viel"},
            f'{GENIUS_MEMORY_TOTAL}: "viel" is not a quantity; {RIGHT_SIZE}',
            id="Genius total",
        ),
        pytest.param(
            1,
            {MODEL: "("},
            {},
            f'{MODEL}: "(" is not a regular expression (missing ): (?i)(); {RIGHT_MODEL}',
            id="broken pattern",
        ),
        pytest.param(
            1,
            {MODEL_EXCLUDE: "a)|(b"},
            {},
            f'{MODEL_EXCLUDE}: "a)|(b" is not a regular expression (unexpected ): (?i)a)|(b); {RIGHT_MODEL}',
            id="a pattern cannot close what surrounds it",
        ),
        pytest.param(
            1,
            {MODEL: "a" * 257},
            {},
            f'{MODEL}: "{"a" * 77}..." is longer than 256 characters; {RIGHT_MODEL}',
            id="huge pattern",
        ),
        *(
            pytest.param(
                0,
                {SHARE: text},
                {},
                f'{SHARE}: "{text}" is not a share; write thousandths of a GPU such as "500", from 1 to 1000',
                id=f"share {text}",
            )
            for text in ("0", "1001", "0.5", "50%", "-1", "½", "５００", "9999999")
        ),
        pytest.param(
            0,
            {SHARE: "500", MEMORY_TOTAL: "8Gi"},
            {},
            f'{SHARE}: "500" is a share of one GPU, and total memory is for several; use {MEMORY_EACH} with it',
            id="a share with memory in total",
        ),
        pytest.param(
            0,
            {UUID: "GPU-a,,"},
            {},
            f'{UUID}: "GPU-a,," is not a list of UUIDs; '
            'write UUIDs with commas between them such as "GPU-8dcd427f,GPU-f2a1"',
            id="UUIDs",
        ),
        pytest.param(
            0,
            {UUID_EXCLUDE: "G" * 4097},
            {},
            f'{UUID_EXCLUDE}: "{"G" * 77}..." is longer than 4096 characters; write the UUIDs of a few GPUs',
            id="huge UUIDs",
        ),
    ],
)
def test_a_request_that_cannot_be_understood_names_key_value_and_what_would_be_right(
    units: int, annotations: Mapping[str, str], labels: Mapping[str, str], sentence: str
) -> None:
    with pytest.raises(RequestError) as raised:
        read(annotations, labels, units=units)
    assert str(raised.value) == sentence


ANNOTATION_KEYS = [COUNT, SHARE, UUID, UUID_EXCLUDE, MEMORY_EACH, MEMORY_TOTAL, MODEL, MODEL_EXCLUDE, POLICY]
LABEL_KEYS = [GENIUS_COUNT, GENIUS_MEMORY_EACH, GENIUS_MEMORY_TOTAL, _GENIUS_MODEL]
VALUES = st.text(max_size=10) | st.sampled_from(["0", "1", "2", "4k", "1e3", "500m", "16Gi", "a100", "(", "-1"])


@given(
    st.integers(0, 3),
    st.dictionaries(st.sampled_from(ANNOTATION_KEYS), VALUES),
    st.dictionaries(st.sampled_from(LABEL_KEYS), VALUES),
)
def test_any_annotations_and_labels_give_a_request_or_a_sentence(
    units: int, annotations: dict[str, str], labels: dict[str, str]
) -> None:
    try:
        request = read(annotations, labels, units=units).gpus
    except RequestError as error:
        assert re.match(r"(kerf\.dev|genius)/[a-z-]+: \".*\" ", str(error), re.DOTALL)
        return
    if request is None:
        assert units == 0
    else:
        assert request.count == (units or request.count)
        assert request.count > 0 or request.memory_total_mib > 0


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        pytest.param(GpuRequest(1), "1 GPU", id="one"),
        pytest.param(GpuRequest(2, memory_each_mib=40960), "2 GPUs with 40 GiB", id="memory each"),
        pytest.param(
            GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=11000), "GPUs with 11000 MiB in total", id="total alone"
        ),
        pytest.param(GpuRequest(3, AskedUnit.SHARED), "3 GPU replicas", id="shares"),
        pytest.param(GpuRequest(1, AskedUnit.SHARED), "1 GPU replica", id="one share"),
        pytest.param(GpuRequest(1, memory_each_mib=4096, milli=500), "500 milli of a GPU with 4 GiB", id="a part"),
        pytest.param(GpuRequest(2, milli=500), "500 milli of each of 2 GPUs", id="a part of each of two"),
        pytest.param(
            GpuRequest(1, uuids=frozenset({"b", "a"}), uuids_exclude=frozenset({"c"})),
            "1 GPU of UUID a or 1 more not of UUID c",
            id="UUIDs",
        ),
        pytest.param(
            GpuRequest(2, AskedUnit.GPU, 1024, 4096, A100, pattern("pcie")),
            "2 GPUs of model a100 not of model pcie with 1 GiB with 4 GiB in total",
            id="everything",
        ),
    ],
)
def test_a_request_in_words(request_: GpuRequest, words: str) -> None:
    assert str(request_) == words


def test_equal_requests_are_one_class() -> None:
    one, other = (read({MODEL: "a100", MEMORY_EACH: memory}, units=1).gpus for memory in ("16Gi", "16384"))
    assert one == other
    assert hash(one) == hash(other)


def test_totals_are_exact() -> None:
    third = Container({GPU_RESOURCE: "333333333n"})
    assert total_request(GPU_RESOURCE, [third] * 3, [], {}) == Fraction(999_999_999, 10**9)
