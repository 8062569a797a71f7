"""What is asked: one question at a time, in bounds, or a sentence that says what would be right."""

import pytest

from extender.explain.processes import QuestionError
from extender.parts.defrag.questions import needs_of, read_question


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        pytest.param(b"", "invalid request", id="nothing"),
        pytest.param(b"[]", "invalid request", id="a list"),
        pytest.param(b'{"for": "\xff"}', "invalid request", id="no text"),
        pytest.param(b'{"pods": [' + b'{"a":' * 20_000, "invalid request", id="deep"),
        pytest.param(b"{}", "room for what?: write one of for, pods", id="no target"),
        pytest.param(b'{"for": "a/b", "freeNodes": 2}', "for and freeNodes can't be combined", id="two targets"),
        pytest.param(b'{"gpus": 2, "pods": [{}], "empty": ["n"]}', "pods and empty and gpus", id="three targets"),
        pytest.param(b'{"nodes": 2}', "write gpus too", id="nodes alone"),
        pytest.param(b'{"freeNodes": 0}', "Expected `int` >= 1", id="no nodes"),
        pytest.param(b'{"freeNodes": 100000000000000000000000}', "invalid request", id="a huge number"),
        pytest.param(b'{"gpus": 8, "nodes": 1e300}', "invalid request", id="a huge float"),
        pytest.param(b'{"gpus": 2000}', "Expected `int` <= 1024", id="more GPUs than a node has"),
        pytest.param(b'{"freeNodes": 1, "maxMoves": -1}', "Expected `int` >= 0", id="negative"),
        pytest.param(b'{"freeNodes": 1, "priority": 9999999999}', "Expected `int` <= 2147483647", id="priority"),
        pytest.param(b'{"for": "a/b", "priority": 5}', "have their own", id="priority of what says its own"),
        pytest.param(b'{"for": "a"}', "write NAMESPACE/NAME", id="no namespace"),
        pytest.param(b'{"for": "a/b/c"}', "write NAMESPACE/NAME", id="two slashes"),
        pytest.param(b'{"for": "a,spec.nodeName=x/b"}', "write NAMESPACE/NAME", id="a selector for a namespace"),
        pytest.param(b'{"For": "a/b"}', "unknown field", id="unknown key"),
        pytest.param(b'{"empty": [%s"n"]}' % (b'"n",' * 1000), "more than 1000 nodes", id="too many nodes"),
        pytest.param(b'{"pods": [%s{}]}' % (b"{}," * 1000), "pods: more than 1000", id="too many pods"),
    ],
)
def test_what_is_no_question_is_refused(body: bytes, fault: str) -> None:
    with pytest.raises(QuestionError) as refused:
        read_question(body)
    assert fault in str(refused.value)
    assert len(str(refused.value)) < 400


def test_pending_pods_are_needed_of_one_namespace_or_none() -> None:
    assert needs_of(read_question(b'{"for": "team/train"}')).namespace == "team"
    assert needs_of(read_question(b'{"gpus": 8}')).namespace == ""
