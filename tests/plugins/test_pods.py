"""What Kerf reads in a pod."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.annotations import COUNT, GENIUS_PRIORITY, MEMORY_TOTAL, MODEL
from extender.core.resources.requests import AskedUnit, GpuRequest, RequestError
from extender.kube import objects
from extender.kube.patterns import compile_pattern
from extender.plugins.holdings import Holding, Part, whole_gpus
from extender.plugins.kerf import ASSIGNED_GPUS, format_gpus, parse_gpus
from extender.plugins.pods import has_soft_preferences, read_holding, read_pod_request
from tests.ledger.builders import pod_object
from tests.nvidia import GPU_RESOURCE, SHARED_GPU_RESOURCE
from tests.spending import at_most


def pod(spec: dict[str, Any] | None = None, **metadata: Any) -> objects.Pod:
    return msgspec.convert({"metadata": {"name": "p", **metadata}, "spec": spec or {}}, objects.Pod)


def container(number: str = "", field: str = "limits", **more: Any) -> dict[str, Any]:
    """A container that requests a number of GPUs."""
    return {**({"resources": {field: {GPU_RESOURCE: number}}} if number else {}), **more}


def test_requests_of_containers() -> None:
    sidecar, both, overhead = container("1", restartPolicy="Always"), container("2"), {"overhead": {GPU_RESOURCE: "1"}}
    both["resources"]["requests"] = {GPU_RESOURCE: "2"}
    rows: list[tuple[dict[str, Any], int]] = [
        ({}, 0),
        ({"containers": [container()]}, 0),
        ({"containers": [{"resources": {"requests": {"cpu": "4"}}}]}, 0),
        ({"containers": [container("2", "requests")]}, 2),
        ({"containers": [container("2")]}, 2),
        ({"containers": [both]}, 2),
        ({"containers": [container("4k")]}, 4000),
        # max(1 + 1, 1 + 3) + 1
        ({"containers": [container("1")], "initContainers": [sidecar, container("3")], **overhead}, 5),
        ({"containers": [{}], "initContainers": [sidecar]}, 1),
        ({"containers": [{}], **overhead}, 1),
        ({"containers": [{}], "resources": {"requests": {GPU_RESOURCE: "9"}}}, 0),
    ]
    for spec, number in rows:
        assert read_pod_request(pod(spec)).gpus == (GpuRequest(number) if number else None), spec
    for text in ('"containers":null', '"containers":[{"resources":{"limits":{"nvidia.com/gpu":2}}}]'):
        wire = msgspec.json.decode(f'{{"spec":{{{text}}}}}', type=objects.Pod)
        assert read_pod_request(wire).gpus == (GpuRequest(2) if "gpu" in text else None)
    shared = read_pod_request(pod_object("p", 3, resource=SHARED_GPU_RESOURCE)).gpus
    assert shared == GpuRequest(3, AskedUnit.SHARED)
    with pytest.raises(RequestError, match=r"nvidia\.com/gpu"):
        read_pod_request(pod_object("p", "-1"))


def test_requests_and_priorities_of_annotations_and_labels() -> None:
    requests, label = {"annotations": {COUNT: "2"}}, {"labels": {GENIUS_PRIORITY: "7"}}
    request = read_pod_request(pod(**requests, **label))
    assert (request.gpus, request.priority) == (GpuRequest(2, AskedUnit.WHOLE), 7)
    of_class = {"priority": 1000, "containers": []}
    assert read_pod_request(pod(of_class, **requests)).priority == 1000
    assert read_pod_request(pod(of_class, **requests, **label)).priority == 7
    unreadable = {"labels": {GENIUS_PRIORITY: "high"}}
    assert read_pod_request(pod(**unreadable)).gpus is None
    with pytest.raises(RequestError, match="not a number"):
        read_pod_request(pod(**requests, **unreadable))


# Patterns


def test_patterns() -> None:
    for text, name, found in (
        ("a100", "nvidia-a100-sxm4", True),
        ("^a100$", "a100", True),
        ("v100|a100", "a100", True),
        ("größe", "größe", True),
        ("h100", "a100", False),
    ):
        assert (compile_pattern(text).search(name) is not None) is found, text
    exploding = ("((a{1000}){1000}){1000}", "(x{900}){900}")
    for text in ("(", "a)", "[z-a]", "*", "(?!a100)", r"(a)\1", "\\", *exploding):
        with pytest.raises(ValueError, match=r".+"):
            compile_pattern(text)


def test_patterns_that_ruin_backtracking_engines_take_no_time() -> None:
    with at_most(0.5):  # `re` needs longer than the universe has lasted
        for text in ("(a+)+$", "(a|aa)+$", "(.*a){20}$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(a?){30}a{30}"):
            compile_pattern(text).search("a" * 5_000 + "!")


@given(st.text(max_size=40) | st.text("()[]{}*+?|\\^$.a1,-", max_size=20))
def test_any_text_is_a_pattern_or_a_value_error(text: str) -> None:
    try:
        compile_pattern(text).search("nvidia-a100")
    except ValueError as error:
        assert str(error)


# Assignments


def test_parse_gpus() -> None:
    for text, gpus in (("0,3", (0, 3)), ("3,0", (0, 3)), ("7", (7,)), ("", ()), ("0,0", ())):
        assert parse_gpus(text) == gpus
    for text in ("0,", "0, 1", "-1", "1.0", "GPU-4f3c", "٣", "1000", ",".join(map(str, range(200)))):
        assert parse_gpus(text) == ()


@given(st.sets(st.integers(0, 63)), st.text(max_size=20))
def test_what_is_written_is_read_back_and_any_text_is_read(gpus: set[int], text: str) -> None:
    assert parse_gpus(format_gpus(tuple(sorted(gpus)))) == tuple(sorted(gpus))
    assert len(set(parse_gpus(text))) == len(parse_gpus(text))


def test_holdings() -> None:
    by_memory = {MEMORY_TOTAL: "20Gi"}
    for held, holding in (
        (pod_object("p", 2, assigned="1,3"), whole_gpus(2, (1, 3))),
        (pod_object("p", 2), whole_gpus(2, ())),  # placed by another scheduler
        (pod_object("p", 2, assigned=""), whole_gpus(2, ())),  # slices: the plugin picked
        (pod_object("p", 2, assigned="1"), whole_gpus(2, ())),  # the number is certain, the indices are not
        (pod_object("p", 2, assigned="x"), whole_gpus(2, ())),
        (pod_object("p"), whole_gpus(0, ())),
        (pod_object("p", annotations={COUNT: "2"}), Holding(2, unserved=True)),
        (pod_object("p", assigned="0,1", annotations=by_memory), Holding(2, (Part(0), Part(1)), unserved=True)),
        (pod_object("p", annotations=by_memory), Holding(1, unserved=True)),  # at least one
        (pod_object("p", assigned="4"), whole_gpus(0, ())),  # assigned without a request
        (pod_object("p", 2, annotations={MODEL: "("}), whole_gpus(2, ())),  # an invalid request
        (pod_object("p", "two"), whole_gpus(1, ())),  # at least one
        (pod_object("p", "two", assigned="0,5"), whole_gpus(1, ())),
    ):
        assert read_holding(held)[0] == holding


@given(
    st.sampled_from([0, 1, 2, "4k", "-1", "x", "500m", "1e30"]),
    st.text(max_size=6) | st.none(),
    st.dictionaries(st.sampled_from([COUNT, MEMORY_TOTAL, MODEL, ASSIGNED_GPUS]), st.text(max_size=5)),
)
def test_reading_a_holding_never_fails(gpus: int | str, assigned: str | None, annotations: dict[str, str]) -> None:
    holding, _ = read_holding(pod_object("p", gpus, assigned=assigned, annotations=annotations))
    assert holding.units >= 0
    assert not holding.gpus or len(holding.gpus) == holding.units


def test_soft_preferences() -> None:
    soft, hard = "preferredDuringSchedulingIgnoredDuringExecution", "requiredDuringSchedulingIgnoredDuringExecution"
    rows: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"affinity": {}}, False),
        ({"affinity": {"nodeAffinity": {hard: {}}}}, False),
        ({"affinity": {"nodeAffinity": {soft: []}}}, False),
        ({"affinity": {"nodeAffinity": {soft: [{}]}}}, True),
        ({"affinity": {"podAffinity": {soft: [{}]}}}, True),
        ({"affinity": {"podAntiAffinity": {soft: [{}]}}}, True),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, True),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, False),
    ]
    for spec, is_soft in rows:
        assert has_soft_preferences(pod(spec).spec) is is_soft, spec
