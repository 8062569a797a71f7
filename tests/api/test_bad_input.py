"""Bad input: each kind has its documented answer, nothing crashes, nothing stays reserved.

=================================  ==========================================  ====================  =================
what is wrong                      filter                                      prioritize            bind
=================================  ==========================================  ====================  =================
a body that can't be read          200, `Error`                                400, `Error`          200, `Error`
a body over the limit              200, `Error`                                413, `Error`          200, `Error`
a pod that can't be understood     200, a sentence against every candidate     400, `Error`          200, `Error`
nodes that Kerf does not know      200, a sentence against them                200, score 0          200, `Error`
=================================  ==========================================  ====================  =================
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api import bodies
from tests.api.bodies import GPU, NAMES, node, pod
from tests.api.services import Kerf, Shared, running

GOOD = bodies.args(pod("good", 1), NAMES)
NUMBERS = itertools.count()
"""Of good pods: one that is asked about for a third time is offered another node."""
BINDING = bodies.binding_args(pod("nobody"), "t4-0")
BYSTANDER = pod("bystander", 1)


@pytest.fixture(scope="module")
def service() -> Iterator[Kerf]:
    """One service for everything bad, so that what one request breaks the next ones find."""
    with running([*bodies.CLUSTER, node("узел-0", 1), node("nul\0-0", 1)]) as kerf:
        yield kerf


@pytest.fixture
def kerf(service: Kerf) -> Iterator[Kerf]:
    """The service with one reservation of a bystander: afterwards that one is there, and a good request is answered."""
    begin_anew(service)
    yield service
    assert service.num_reservations == 1
    good = service.post("/filter", bodies.args(pod(f"good-{next(NUMBERS)}", 1), NAMES))
    assert (good.status, good.json()["NodeNames"]) == (200, ["t4-1"])  # the bystander's neighbour: best fit
    assert service.get("/readyz").status == 200


def _plain(text: str) -> str:
    """The text as part of a test's name: without a backslash, which pytest doubles when it collects in one process
    twice, as `make mutants` does."""
    return ascii(text)[1:-1].replace("\\", "%")


def begin_anew(kerf: Kerf) -> None:
    """Leave the bystander's reservation and no other."""
    kerf.clock.now += 1000  # longer than any TTL
    kerf.filter(BYSTANDER, ["t4-1"])


def assert_unreadable(kerf: Kerf, body: bytes, fault: str, verbs: tuple[str, ...]) -> None:
    """The answer of each verb to a body that can't be read."""
    if "filter" in verbs:
        answer = kerf.post("/filter", body)
        assert answer.status == 200
        assert answer.json()["NodeNames"] is None
        assert answer.json()["Nodes"] is None
        assert fault in answer.json()["Error"]
    if "prioritize" in verbs:
        answer = kerf.post("/prioritize", body)
        assert answer.status == 400
        assert answer.json().keys() == {"Error"}
        assert fault in answer.json()["Error"]
    if "bind" in verbs:
        answer = kerf.post("/bind", body)
        assert answer.status == 200
        assert answer.json().keys() == {"Error"}
        assert fault in answer.json()["Error"]


ALL = ("filter", "prioritize", "bind")
ASKING = ("filter", "prioritize")


# Bodies that can't be read


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        pytest.param(b"", "truncated", id="empty"),
        pytest.param(b" \n", "truncated", id="spaces"),
        pytest.param(b"{", "truncated", id="one bracket"),
        pytest.param(b"{}{}", "malformed", id="two objects"),
        pytest.param(b"{'Pod': {}}", "malformed", id="single quotes"),
        pytest.param(b"Pod=a&NodeNames=b", "malformed", id="form"),
        pytest.param(b"\xef\xbb\xbf{}", "malformed", id="byte order mark"),
        pytest.param('{"Pod": {}}'.encode("utf-16"), "malformed", id="UTF-16"),
        pytest.param(b"\x00" * 64, "malformed", id="NUL bytes"),
        pytest.param(b"null", "got `null`", id="null"),
        pytest.param(b"[]", "got `array`", id="array"),
        pytest.param(b'[{"Pod": {}}]', "got `array`", id="array of requests"),
        pytest.param(b"7", "got `int`", id="number"),
        pytest.param(b'"Pod"', "got `str`", id="string"),
        pytest.param(b"true", "got `bool`", id="boolean"),
        pytest.param(b"[" * 100_000, "got `array`", id="100,000 brackets"),
        pytest.param(b'{"a":' * 100_000, "truncated", id="100,000 objects"),
        pytest.param(b'{"Pod":{"spec":{"x":' + b"[" * 100_000, "truncated", id="100,000 brackets in the pod"),
        pytest.param(b'{"Pod":{},"NodeNames":' + b"[" * 100_000, "truncated", id="100,000 brackets of names"),
        pytest.param(b"x" * 10_000_000, "malformed", id="10 MB of nothing"),
    ],
)
def test_a_malformed_body(kerf: Kerf, body: bytes, fault: str) -> None:
    assert_unreadable(kerf, body, "the request can't be read: ", ALL)
    assert_unreadable(kerf, body, fault, ALL)


@pytest.mark.parametrize("levels", [1_100, 9_000])
def test_deeply_nested_fields_that_kerf_does_not_read_are_accepted(levels: int) -> None:
    managed = b'{"metadata":{"managedFields":[{"fieldsV1":' + b'{"f:a":' * levels + b"{}" + b"}" * levels + b"}],"
    deep = GOOD.replace(b'{"metadata": {', managed, 1).replace(b'{"metadata":{', managed, 1)
    assert deep != GOOD
    with running() as kerf:
        assert kerf.post("/filter", deep).json() == kerf.post("/filter", GOOD).json()


@pytest.mark.parametrize("verb", ASKING)
def test_a_request_cut_off_anywhere(kerf: Kerf, verb: str) -> None:
    for length in range(0, len(GOOD) - 1, 13):
        assert_unreadable(kerf, GOOD[:length], "the request can't be read", (verb,))


def test_a_binding_cut_off_anywhere(kerf: Kerf) -> None:
    for length in range(len(BINDING)):
        assert_unreadable(kerf, BINDING[:length], "the request can't be read", ("bind",))


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        pytest.param(b"{}", "the request has no Pod", id="empty object"),
        pytest.param(b'{"Pod": null, "NodeNames": ["t4-0"]}', "the request has no Pod", id="null pod"),
        pytest.param(b'{"NodeNames": ["t4-0"]}', "the request has no Pod", id="no pod"),
        pytest.param(BINDING, "the request has no Pod", id="a binding"),
        pytest.param(
            b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the request has no Pod", id="100,000 brackets"
        ),
    ],
)
def test_a_request_without_a_pod(kerf: Kerf, body: bytes, fault: str) -> None:
    assert_unreadable(kerf, body, fault, ASKING)


@pytest.mark.parametrize("field", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("value", ["", None, ...], ids=["empty", "null", "missing"])
def test_a_binding_without_a_field(kerf: Kerf, field: str, value: Any) -> None:
    binding = {**json.loads(BINDING), field: value}
    body = {name: given for name, given in binding.items() if given is not ...}
    assert_unreadable(kerf, json.dumps(body).encode(), f"the request has no {field}", ("bind",))


@pytest.mark.parametrize("field", ["PodName", "PodNamespace", "PodUID", "Node"])
@pytest.mark.parametrize("value", [7, True, [], {}], ids=["number", "boolean", "array", "object"])
def test_a_binding_of_a_wrong_type(kerf: Kerf, field: str, value: Any) -> None:
    body = json.dumps({**json.loads(BINDING), field: value}).encode()
    assert_unreadable(kerf, body, f"the request can't be read: Expected `str`, got `{kind_of(value)}`", ("bind",))
    assert_unreadable(kerf, body, f"at `$.{field}`", ("bind",))


def kind_of(value: Any) -> str:
    kinds = {type(None): "null", int: "int", bool: "bool", str: "str", list: "array", dict: "object"}
    return kinds[type(value)]


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("Pod", 7, "$.Pod"),
        ("Pod", [], "$.Pod"),
        ("Pod", "train-0", "$.Pod"),
        ("Pod.metadata", [], "$.Pod.metadata"),
        ("Pod.metadata.name", 7, "$.Pod.metadata.name"),
        ("Pod.metadata.annotations", "x", "$.Pod.metadata.annotations"),
        ("Pod.metadata.annotations.app", 1, "$.Pod.metadata.annotations[...]"),
        ("Pod.metadata.labels", [], "$.Pod.metadata.labels"),
        ("Pod.metadata.labels.app", {}, "$.Pod.metadata.labels[...]"),
        ("Pod.spec", "x", "$.Pod.spec"),
        ("Pod.spec.containers", {}, "$.Pod.spec.containers"),
        ("Pod.spec.containers.0", 1, "$.Pod.spec.containers[0]"),
        ("Pod.spec.containers.0.resources", [], "$.Pod.spec.containers[0].resources"),
        ("Pod.spec.containers.0.resources.limits", "2", "$.Pod.spec.containers[0].resources.limits"),
        ("Pod.spec.containers.0.resources.limits.cpu", True, "$.Pod.spec.containers[0].resources.limits[...]"),
        ("Pod.spec.containers.0.resources.limits.cpu", [], "$.Pod.spec.containers[0].resources.limits[...]"),
        ("Pod.spec.containers.0.restartPolicy", 1, "$.Pod.spec.containers[0].restartPolicy"),
        ("Pod.spec.initContainers", "x", "$.Pod.spec.initContainers"),
        ("Pod.spec.overhead", [], "$.Pod.spec.overhead"),
        ("Pod.spec.affinity", [], "$.Pod.spec.affinity"),
        ("Pod.spec.affinity", {"nodeAffinity": 1}, "$.Pod.spec.affinity.nodeAffinity"),
        ("Pod.spec.topologySpreadConstraints", {}, "$.Pod.spec.topologySpreadConstraints"),
        ("Pod.status", "Pending", "$.Pod.status"),
        ("NodeNames", "t4-0", "$.NodeNames"),
        ("NodeNames", {}, "$.NodeNames"),
        ("NodeNames.0", 7, "$.NodeNames[0]"),
        ("Nodes", [], "$.Nodes"),
        ("Nodes", {"items": {}}, "$.Nodes.items"),
    ],
    ids=repr,
)
def test_a_wrong_type_is_answered_with_its_place(kerf: Kerf, path: str, value: Any, place: str) -> None:
    body = json.loads(GOOD)
    *parents, last = path.split(".")
    holder = body
    for key in parents:
        holder = holder[int(key) if isinstance(holder, list) else key]
    holder[int(last) if isinstance(holder, list) else last] = value
    assert_unreadable(kerf, json.dumps(body).encode(), f" - at `{place}`", ASKING)


@pytest.mark.parametrize("item", [b"7", b"null", b"[]", b'{"metadata": 7}', b'{"metadata": {"name": 7}}'], ids=str)
def test_an_unreadable_node(kerf: Kerf, item: bytes) -> None:
    body = b'{"Pod": {}, "Nodes": {"items": [%s]}}' % item
    assert_unreadable(kerf, body, "a node of Nodes can't be read", ASKING)


# Large bodies


LARGE = {
    "annotation": bodies.args(pod("good", 1, annotations={"note": "x" * 10_000_000}), NAMES),
    "spaces": b" " * 10_000_000 + bodies.args(pod("spaces", 1), NAMES),
    "unknown field": b'{"x": [%s], ' % b", ".join([b"1"] * 3_000_000) + bodies.args(pod("field", 1), NAMES)[1:],
    "node": bodies.args(pod("node", 1), None, [{**node("t4-1", 2), "note": "x" * 10_000_000}]),
    "candidates": bodies.args(pod("large", 1), [*(f"unknown-{number}" for number in range(100_000)), *NAMES]),
}


@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE.keys())
def test_a_large_body_is_answered(kerf: Kerf, body: bytes) -> None:
    answer = kerf.post("/filter", body).json()
    names = answer["NodeNames"] or [item["metadata"]["name"] for item in answer["Nodes"]["items"]]
    assert names == ["t4-1"]
    begin_anew(kerf)


@pytest.mark.parametrize("chunked", [False, True], ids=["with Content-Length", "without Content-Length"])
@pytest.mark.parametrize(
    ("excess", "refused"), [(0, False), (1, True), (9_000_000, True)], ids=["at the limit", "one byte more", "10 MB"]
)
def test_a_body_over_the_limit_is_refused(chunked: bool, excess: int, refused: bool, shared: Shared) -> None:
    limit = 1024 * 1024
    body = GOOD + b" " * (limit + excess - len(GOOD))
    sent = [body[start : start + 65536] for start in range(0, len(body), 65536)] if chunked else body
    sentence = "the request body is larger than 1 MiB (setting server.max_body_mib)"
    kerf = shared(server__max_body_mib=1)
    answers = {verb: kerf.post(f"/{verb}", sent) for verb in ALL}
    assert [answer.status for answer in answers.values()] == [200, 413 if refused else 200, 200]
    assert (answers["filter"].json()["Error"] == sentence) is refused
    assert (answers["prioritize"].json() == {"Error": sentence}) is refused
    assert (answers["bind"].json() == {"Error": sentence}) is refused
    assert kerf.num_reservations == (0 if refused else 1)
    assert kerf.filter(pod("good", 1), NAMES)["NodeNames"] == ["t4-0"]


@pytest.mark.parametrize("declared", ["-1", "x", "", "1e9"])
def test_an_invalid_content_length_is_ignored(kerf: Kerf, declared: str) -> None:
    assert kerf.post("/filter", b"7", {"content-length": declared}).json()["Error"].startswith("the request can't be")


# Candidates


def test_unknown_duplicate_and_no_names(kerf: Kerf) -> None:
    unknown = "node not known to Kerf yet"
    for names in (["x"], ["x", "x"], [""], ["x" * 100_000], ["\0"], ["t4-0\n"], ["💥"], ["../t4-0"]):
        answer = kerf.filter(pod("asking", 1), names)
        assert (answer["NodeNames"], answer["FailedNodes"], answer["Error"]) == ([], {}, "")
        assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(names, unknown)
        assert kerf.prioritize(pod("asking", 1), names) == dict.fromkeys(names, 0)
    assert kerf.filter(pod("asking", 1), [])["NodeNames"] == []
    assert kerf.prioritize(pod("asking", 1), []) == {}


@pytest.mark.parametrize(
    "manifest",
    [
        pytest.param({}, id="empty pod"),
        pytest.param({"metadata": {}, "spec": {}}, id="empty spec"),
        pytest.param({"spec": {"containers": []}}, id="no containers"),
        pytest.param({"spec": {"containers": [{}]}}, id="empty container"),
        pytest.param({"spec": {"containers": [{"resources": {}}]}}, id="empty resources"),
    ],
)
def test_a_pod_without_containers_asks_for_no_gpu(kerf: Kerf, manifest: Any) -> None:
    assert kerf.filter(manifest, ["t4-0", "cpu-0"])["NodeNames"] == ["t4-0", "cpu-0"]
    assert kerf.prioritize(manifest, ["t4-0", "cpu-0"]) == {"t4-0": 0, "cpu-0": 10}


# Quantities


def answers(kerf: Kerf, value: str, source: str) -> tuple[list[str], str]:
    """The nodes chosen and the reason against a100-0, for a JSON literal as a resource or as an annotation."""
    manifest = pod("asking", "PLACE") if source == GPU else pod("asking", annotations={source: "PLACE"})
    body = bodies.args(manifest, ["a100-0"]).replace(b'"PLACE"', value.encode())
    answer = kerf.post("/filter", body).json()
    assert (answer["Error"], answer["FailedNodes"]) == ("", {})
    reason = answer["FailedAndUnresolvableNodes"].get("a100-0", "")
    refusal = kerf.post("/prioritize", body)
    if refusal.status == 400:
        assert refusal.json() == {"Error": reason}
    else:
        assert reason == "" or reason.startswith("needs ")
    begin_anew(kerf)
    return answer["NodeNames"], reason


PLACED: list[str] = ["a100-0"]
WHOLE = "write a whole number"


@pytest.mark.parametrize(
    ("value", "nodes", "reason"),
    [
        ("2", PLACED, ""),
        ("2.0", PLACED, ""),
        ("2e0", PLACED, ""),
        ('"2"', PLACED, ""),
        ('"+2"', PLACED, ""),
        ('"2000m"', PLACED, ""),
        ('"0.002k"', PLACED, ""),
        ("0", PLACED, ""),
        ('"0"', PLACED, ""),
        ('"4k"', [], "needs 4000 GPUs, best here: 8 installed"),
        ('"1e3"', [], "needs 1000 GPUs, best here: 8 installed"),
        ('"1Ki"', [], "needs 1024 GPUs, best here: 8 installed"),
        ('"2147483647"', [], "needs 2147483647 GPUs, best here: 8 installed"),
        ('"2147483648"', [], f'{GPU}: "2147483648" is more than any node has'),
        ('"9223372036854775808"', [], f'{GPU}: "9223372036854775808" is more than any node has'),
        ("9223372036854775808", [], f'{GPU}: "9223372036854775808" is more than any node has'),
        ("18446744073709551616", [], f'{GPU}: "18446744073709551616" is more than any node has'),
        ('"1E"', [], f'{GPU}: "1000000000000000000" is more than any node has'),
        ('"500m"', [], f'{GPU}: "0.5" is not a whole number; request whole GPUs'),
        ("2.5", [], f'{GPU}: "2.5" is not a whole number; request whole GPUs'),
        ('"-1"', [], f'{GPU}: "-1" is negative; {WHOLE}'),
        ("-1", [], f'{GPU}: "-1" is negative; {WHOLE}'),
        ('"-1n"', [], f'{GPU}: "-1n" is negative; {WHOLE}'),
        (f'"{"9" * 400}"', [], f'{GPU}: "{"9" * 77}..." is not a quantity; {WHOLE}'),
        ("9" * 400, [], f'{GPU}: "{"9" * 77}..." is not a quantity; {WHOLE}'),
        ('"1e308"', [], f'{GPU}: "1e308" is exponent out of range; {WHOLE}'),
        ('"1e-308"', [], f'{GPU}: "1e-308" is exponent out of range; {WHOLE}'),
        ('"NaN"', [], f'{GPU}: "NaN" is not a quantity; {WHOLE}'),
        ('"Infinity"', [], f'{GPU}: "Infinity" is not a quantity; {WHOLE}'),
        ('"-inf"', [], f'{GPU}: "-inf" is not a quantity; {WHOLE}'),
        ('""', [], f'{GPU}: "" is not a quantity; {WHOLE}'),
        ('" 2"', [], f'{GPU}: " 2" is not a quantity; {WHOLE}'),
        ('"2\\u0000"', [], f'{GPU}: "2\\x00" is not a quantity; {WHOLE}'),
        ('"0x2"', [], f'{GPU}: "0x2" is not a quantity; {WHOLE}'),
        ('"1_0"', [], f'{GPU}: "1_0" is not a quantity; {WHOLE}'),
        ('"２"', [], f'{GPU}: "２" is not a quantity; {WHOLE}'),
        ('"2GPU"', [], f'{GPU}: "2GPU" is not a quantity; {WHOLE}'),
        ('"2gb"', [], f'{GPU}: "2gb": unknown suffix gb; {WHOLE}'),
    ],
    ids=lambda value: _plain(value[:24]) if isinstance(value, str) else "",
)
def test_a_number_of_gpus(kerf: Kerf, value: str, nodes: list[str], reason: str) -> None:
    assert answers(kerf, value, GPU) == (nodes, reason)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e400", "01", "+1", ".5", "0x2"])
def test_a_number_that_is_not_json(kerf: Kerf, literal: str) -> None:
    body = bodies.args(pod("asking", "PLACE"), ["a100-0"]).replace(b'"PLACE"', literal.encode())
    assert_unreadable(kerf, body, "the request can't be read: ", ASKING)


EACH, COUNT, MODEL = "kerf.dev/gpu-memory-each", "kerf.dev/gpu-count", "kerf.dev/gpu-model"
SIZE = 'write a size such as "16Gi", or a plain number of MiB such as "16384"'
NUMBER = 'write a whole number of GPUs such as "2"'
PATTERN = 'write a regular expression on the model\'s name such as "a100|h100"'
HUGE = "x" * 10_000_000


@pytest.mark.parametrize(
    ("key", "text", "nodes", "reason"),
    [
        # A node of the test has 8 GPUs of 80 GiB.
        (EACH, "80Gi", PLACED, ""),
        (EACH, " 80Gi ", PLACED, ""),
        (EACH, "1e3", PLACED, ""),
        (EACH, "", PLACED, ""),
        (EACH, "81Gi", [], "needs 1 GPU with 81 GiB, best here: 0 of that size"),
        (EACH, "90k", [], f'{EACH}: "90k" is less than 1 MiB; {SIZE}'),
        (EACH, "500m", [], f'{EACH}: "500m" is less than 1 MiB; {SIZE}'),
        (EACH, "-1Gi", [], f'{EACH}: "-1Gi" is negative; {SIZE}'),
        (EACH, "1e308", [], f'{EACH}: "1e308" is exponent out of range; {SIZE}'),
        (EACH, "9223372036854775808", [], f'{EACH}: "9223372036854775808" is more memory than any node has; {SIZE}'),
        (EACH, "9" * 400, [], f'{EACH}: "{"9" * 77}..." is not a quantity; {SIZE}'),
        (EACH, "NaN", [], f'{EACH}: "NaN" is not a quantity; {SIZE}'),
        (EACH, "16 GiB", [], f'{EACH}: "16 GiB" is not a quantity; {SIZE}'),
        (EACH, "１６", [], f'{EACH}: "１６" is not a quantity; {SIZE}'),
        (EACH, "\0", [], f'{EACH}: "\\x00" is not a quantity; {SIZE}'),
        (EACH, HUGE, [], f'{EACH}: "{"x" * 77}..." is not a quantity; {SIZE}'),
        (COUNT, "2", PLACED, ""),
        (COUNT, "0", PLACED, ""),
        (COUNT, "4k", [], "needs 4000 GPUs, best here: 8 installed"),
        (COUNT, "-1", [], f'{COUNT}: "-1" is not a number of GPUs; {NUMBER}'),
        (COUNT, "500m", [], f'{COUNT}: "500m" is not a number of GPUs; {NUMBER}'),
        (COUNT, "two", [], f'{COUNT}: "two" is not a quantity; {NUMBER}'),
        (MODEL, "A100", PLACED, ""),
        (MODEL, "(a*)*$", PLACED, ""),
        (MODEL, "ёлка", [], "needs 1 GPU of model ёлка, best here: 0 of that model"),
        (MODEL, "\0", [], "needs 1 GPU of model \\x00, best here: 0 of that model"),
        (MODEL, "(", [], f'{MODEL}: "(" is not a regular expression (missing ): (?i)(); {PATTERN}'),
        (
            MODEL,
            r"(a)\1",
            [],
            rf'{MODEL}: "(a)\1" is not a regular expression (invalid escape sequence: \1); {PATTERN}',
        ),
        (
            MODEL,
            "a{1001}",
            [],
            f'{MODEL}: "a{{1001}}" is not a regular expression (invalid repetition size: {{1001}}); {PATTERN}',
        ),
        (MODEL, HUGE, [], f'{MODEL}: "{"x" * 77}..." is longer than 256 characters; {PATTERN}'),
        ("kerf.dev/policy", HUGE, PLACED, ""),
        ("заметка", "ё" * 1000, PLACED, ""),
    ],
    ids=lambda value: _plain(value[:40]) if isinstance(value, str) else "",
)
def test_an_annotation(kerf: Kerf, key: str, text: str, nodes: list[str], reason: str) -> None:
    assert answers(kerf, json.dumps(text), key) == (nodes, reason)


# Characters


@pytest.mark.parametrize("name", ["узел-0", "nul\0-0"])
@pytest.mark.parametrize("escaped", [True, False], ids=["escaped", "UTF-8"])
def test_names_in_any_characters(kerf: Kerf, name: str, escaped: bool) -> None:
    manifest = pod("train-0", 1)
    body = json.dumps({"Pod": bodies.sent(manifest), "NodeNames": [name]}, ensure_ascii=escaped).encode()
    assert kerf.post("/filter", body).json()["NodeNames"] == [name]
    explained = kerf.get("/explain/pod/default/train-0").json()
    assert (explained["pod"], explained["node"]) == ("default/train-0", name)
    kerf.filter(manifest, [])  # gives its reservation back


@pytest.mark.parametrize("name", ["под-😀", "../../../nodes?x=", "a/b", "UPPER", "-x", "x" * 254, "two\nlines"])
def test_names_that_no_pod_has_never_become_part_of_a_path(kerf: Kerf, name: str) -> None:
    asking = pod("train-0", 1)
    asking["metadata"]["name"] = name
    assert "is not a valid Kubernetes name" in kerf.filter(asking, ["t4-0"])["Error"]
    assert "is not a valid Kubernetes name" in kerf.bind(asking, "t4-0")
    asking["metadata"] |= {"name": "train-0", "namespace": name}
    assert "is not a valid Kubernetes name" in kerf.filter(asking, ["t4-0"])["Error"]
    assert "is not a valid Kubernetes name" in kerf.bind(asking, "t4-0")


@pytest.mark.parametrize(
    "text",
    [rb"\ud800", rb"\udc00\ud800", rb"\ud800x", b"\xff", b"\xc0\xaf", b"\xed\xa0\x80"],
    ids=["half a pair", "pair reversed", "half a pair, more", "no UTF-8", "overlong UTF-8", "surrogate in UTF-8"],
)
@pytest.mark.parametrize(
    "body",
    [
        b'{"Pod": {"metadata": {"name": "%s", "uid": "u"}}, "NodeNames": ["t4-0"]}',
        b'{"Pod": {"metadata": {"annotations": {"kerf.dev/gpu-model": "%s"}}}, "NodeNames": ["t4-0"]}',
        b'{"Pod": {"metadata": {"annotations": {"%s": "1"}}}, "NodeNames": ["t4-0"]}',
        b'{"Pod": {"metadata": {"uid": "u"}}, "NodeNames": ["%s"]}',
        b'{"Pod": {}, "Nodes": {"items": [{"metadata": {"name": "%s"}}]}}',
        b'{"pod": {}, "nodenames": ["%s"]}',
        b'{"pod": {}, "%s": 1}',
    ],
    ids=["pod name", "pattern", "key", "node name", "node", "keys in lower case", "unknown key"],
)
def test_invalid_characters(kerf: Kerf, body: bytes, text: bytes) -> None:
    assert_unreadable(kerf, body % text, " can't be read", ASKING)


@pytest.mark.parametrize("key", [b"PodName", b"podname", b"\xff"])
def test_invalid_characters_in_a_binding(kerf: Kerf, key: bytes) -> None:
    assert_unreadable(kerf, b'{"%s": "\xff"}' % key, "the request can't be read", ("bind",))
