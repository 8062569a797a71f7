"""What a pod object means to Kerf."""

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


def pod(text: str) -> objects.Pod:
    return msgspec.json.decode(text, type=objects.Pod)


def gpu_pod(spec: str) -> objects.Pod:
    return pod(f'{{"metadata":{{"name":"p"}},"spec":{spec.replace("GPU", GPU_RESOURCE)}}}')


@pytest.mark.parametrize(
    ("spec", "request_"),
    [
        pytest.param("{}", None, id="no containers"),
        pytest.param('{"containers":null}', None, id="null containers"),
        pytest.param('{"containers":[{"name":"c"}]}', None, id="no resources"),
        pytest.param('{"containers":[{"resources":{"requests":{"cpu":"4"}}}]}', None, id="a CPU pod"),
        pytest.param('{"containers":[{"resources":{"requests":{"GPU":"2"}}}]}', GpuRequest(2), id="requests"),
        pytest.param('{"containers":[{"resources":{"limits":{"GPU":"2"}}}]}', GpuRequest(2), id="limits alone"),
        pytest.param(
            '{"containers":[{"resources":{"limits":{"GPU":"2"},"requests":{"GPU":"2"}}}]}', GpuRequest(2), id="both"
        ),
        pytest.param('{"containers":[{"resources":{"limits":{"GPU":2}}}]}', GpuRequest(2), id="a number"),
        pytest.param('{"containers":[{"resources":{"limits":{"GPU":"4k"}}}]}', GpuRequest(4000), id="canonicalised"),
        pytest.param(
            '{"containers":[{"resources":{"limits":{"GPU":"1"}}}],'
            '"initContainers":[{"restartPolicy":"Always","resources":{"limits":{"GPU":"1"}}},'
            '{"resources":{"limits":{"GPU":"3"}}}],"overhead":{"GPU":"1"}}',
            GpuRequest(5),
            id="max(1 + 1, 1 + 3) + 1",
        ),
        pytest.param(
            '{"containers":[{}],"initContainers":[{"restartPolicy":"Always","resources":{"limits":{"GPU":"1"}}}]}',
            GpuRequest(1),
            id="a sidecar alone",
        ),
        pytest.param('{"containers":[{}],"overhead":{"GPU":"1"}}', GpuRequest(1), id="overhead alone"),
        pytest.param(
            '{"containers":[{}],"resources":{"requests":{"GPU":"9"}}}', None, id="pod-level resources hold no GPUs"
        ),
    ],
)
def test_request_from_the_wire(spec: str, request_: GpuRequest | None) -> None:
    assert read_pod_request(gpu_pod(spec)).gpus == request_


def test_shares_are_counted_as_what_they_are() -> None:
    assert read_pod_request(pod_object("p", 3, resource=SHARED_GPU_RESOURCE)).gpus == GpuRequest(3, AskedUnit.SHARED)


def test_annotations_and_labels_are_read() -> None:
    asked = pod(f'{{"metadata":{{"annotations":{{"{COUNT}":"2"}},"labels":{{"{GENIUS_PRIORITY}":"7"}}}}}}')
    request = read_pod_request(asked)
    assert (request.gpus, request.priority) == (GpuRequest(2, AskedUnit.WHOLE), 7)


def test_priority_is_that_of_genius_else_that_of_the_class_for_pods_with_gpus() -> None:
    of_class = '"spec":{"priority":1000,"containers":[]}'
    label = f'"labels":{{"{GENIUS_PRIORITY}":"7"}}'
    asks = f'"annotations":{{"{COUNT}":"2"}}'
    assert read_pod_request(pod(f'{{"metadata":{{{asks}}},{of_class}}}')).priority == 1000
    assert read_pod_request(pod(f'{{"metadata":{{{asks},{label}}},{of_class}}}')).priority == 7
    unreadable = label.replace('"7"', '"high"')
    assert read_pod_request(pod(f'{{"metadata":{{{unreadable}}}}}')).gpus is None
    with pytest.raises(RequestError, match="not a number"):
        read_pod_request(pod(f'{{"metadata":{{{asks},{unreadable}}}}}'))


# Patterns.


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        pytest.param("a100", "nvidia-a100-sxm4", True, id="anywhere in the name"),
        pytest.param("^a100$", "a100", True, id="anchors"),
        pytest.param("v100|a100", "a100", True, id="alternatives"),
        pytest.param("größe", "größe", True, id="beyond ASCII"),
        pytest.param("h100", "a100", False, id="another model"),
    ],
)
def test_patterns(text: str, name: str, found: bool) -> None:
    assert (compile_pattern(text).search(name) is not None) is found


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("(", id="unclosed"),
        pytest.param("a)", id="unopened"),
        pytest.param("[z-a]", id="backward range"),
        pytest.param("*", id="nothing to repeat"),
        pytest.param("(?!a100)", id="look-ahead is not RE2"),
        pytest.param(r"(a)\1", id="back-references are not RE2"),
        pytest.param("((a{1000}){1000}){1000}", id="a repetition that explodes"),
        pytest.param("(x{900}){900}", id="a program too large"),
        pytest.param("\\", id="trailing backslash"),
    ],
)
def test_what_is_no_pattern_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        compile_pattern(text)


@pytest.mark.parametrize("text", ["(a+)+$", "(a|aa)+$", "(.*a){20}$", "^(([a-z])+.)+[A-Z]([a-z])+$", "(a?){30}a{30}"])
def test_patterns_that_ruin_backtracking_engines_take_no_time(text: str) -> None:
    with at_most(0.5):  # `re` needs longer than the universe has lasted
        compile_pattern(text).search("a" * 5_000 + "!")


@given(st.text(max_size=40) | st.text("()[]{}*+?|\\^$.a1,-", max_size=20))
def test_any_text_is_a_pattern_or_a_value_error(text: str) -> None:
    try:
        compile_pattern(text).search("nvidia-a100")
    except ValueError as error:
        assert str(error)


# Assignments.


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        pytest.param("0,3", (0, 3), id="two"),
        pytest.param("3,0", (0, 3), id="in order"),
        pytest.param("7", (7,), id="one"),
        pytest.param("", (), id="none"),
        pytest.param("0,0", (), id="twice the same"),
        pytest.param("0,", (), id="empty part"),
        pytest.param("0, 1", (), id="space"),
        pytest.param("-1", (), id="negative"),
        pytest.param("1.0", (), id="decimal"),
        pytest.param("GPU-4f3c", (), id="a UUID"),
        pytest.param("٣", (), id="another script"),
        pytest.param("1000", (), id="four digits"),
        pytest.param(",".join(map(str, range(200))), (), id="absurdly long: 690 characters"),
    ],
)
def test_parse_gpus(text: str, gpus: tuple[int, ...]) -> None:
    assert parse_gpus(text) == gpus


@given(st.sets(st.integers(0, 63)))
def test_what_is_written_is_read_back(gpus: set[int]) -> None:
    assert parse_gpus(format_gpus(tuple(sorted(gpus)))) == tuple(sorted(gpus))


@given(st.text(max_size=20))
def test_any_assignment_is_read(text: str) -> None:
    gpus = parse_gpus(text)
    assert len(set(gpus)) == len(gpus)


@pytest.mark.parametrize(
    ("held", "holding"),
    [
        pytest.param(pod_object("p", 2, assigned="1,3"), whole_gpus(2, (1, 3)), id="assigned by Kerf"),
        pytest.param(pod_object("p", 2), whole_gpus(2, ()), id="placed by another scheduler"),
        pytest.param(pod_object("p", 2, assigned=""), whole_gpus(2, ()), id="slices: the plugin picked"),
        pytest.param(pod_object("p", 2, assigned="1"), whole_gpus(2, ()), id="number certain, indices not"),
        pytest.param(pod_object("p", 2, assigned="x"), whole_gpus(2, ()), id="garbage indices"),
        pytest.param(pod_object("p"), whole_gpus(0, ()), id="no GPUs"),
        pytest.param(pod_object("p", annotations={COUNT: "2"}), Holding(2, unserved=True), id="by annotation"),
        pytest.param(
            pod_object("p", assigned="0,1", annotations={MEMORY_TOTAL: "20Gi"}),
            Holding(2, (Part(0), Part(1)), unserved=True),
            id="by memory: as many as were assigned",
        ),
        pytest.param(
            pod_object("p", annotations={MEMORY_TOTAL: "20Gi"}),
            Holding(1, unserved=True),
            id="by memory, unknown: at least one",
        ),
        pytest.param(pod_object("p", assigned="4"), whole_gpus(0, ()), id="assigned, and nothing was asked"),
        pytest.param(
            pod_object("p", 2, annotations={MODEL: "("}), whole_gpus(2, ()), id="a request that can't be understood"
        ),
        pytest.param(pod_object("p", "two"), whole_gpus(1, ()), id="a resource that can't be understood: at least one"),
        pytest.param(
            pod_object("p", "two", assigned="0,5"),
            whole_gpus(1, ()),
            id="neither number nor indices agree: one, unknown",
        ),
    ],
)
def test_holding(held: objects.Pod, holding: Holding) -> None:
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


def test_a_request_that_cannot_be_understood_raises_for_its_author() -> None:
    with pytest.raises(RequestError, match=r"nvidia\.com/gpu"):
        read_pod_request(pod_object("p", "-1"))


@pytest.mark.parametrize(
    ("spec", "soft"),
    [
        pytest.param("{}", False, id="none"),
        pytest.param('{"affinity":{}}', False, id="empty affinity"),
        pytest.param(
            '{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{}}}}', False, id="required"
        ),
        pytest.param(
            '{"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[]}}}', False, id="empty"
        ),
        pytest.param(
            '{"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{}]}}}', True, id="node"
        ),
        pytest.param(
            '{"affinity":{"podAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{}]}}}', True, id="pod"
        ),
        pytest.param(
            '{"affinity":{"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[{}]}}}', True, id="anti"
        ),
        pytest.param('{"topologySpreadConstraints":[{"whenUnsatisfiable":"ScheduleAnyway"}]}', True, id="soft spread"),
        pytest.param('{"topologySpreadConstraints":[{"whenUnsatisfiable":"DoNotSchedule"}]}', False, id="hard spread"),
    ],
)
def test_soft_preferences(spec: str, soft: bool) -> None:
    assert has_soft_preferences(gpu_pod(spec).spec) is soft
