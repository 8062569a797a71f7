"""Questions are validated and bounded; errors say what would be right."""

import pytest

from extender.explain.processes import QuestionError
from extender.parts.defrag.questions import needs_of, read_question


def test_invalid_questions_are_refused() -> None:
    for body, fault in (
        (b"", "invalid request"),
        (b"[]", "invalid request"),
        (b'{"for": "\xff"}', "invalid request"),
        (b'{"pods": [' + b'{"a":' * 20_000, "invalid request"),
        (b"{}", "room for what?: write one of for, pods"),
        (b'{"for": "a/b", "freeNodes": 2}', "for and freeNodes can't be combined"),
        (b'{"gpus": 2, "pods": [{}], "empty": ["n"]}', "pods and empty and gpus"),
        (b'{"nodes": 2}', "write gpus too"),
        (b'{"freeNodes": 0}', "Expected `int` >= 1"),
        (b'{"freeNodes": 100000000000000000000000}', "invalid request"),
        (b'{"gpus": 8, "nodes": 1e300}', "invalid request"),
        (b'{"gpus": 1025}', "Expected `int` <= 1024"),
        (b'{"freeNodes": 1, "maxMoves": -1}', "Expected `int` >= 0"),
        (b'{"freeNodes": 1, "priority": 9999999999}', "Expected `int` <= 2147483647"),
        (b'{"for": "a/b", "priority": 5}', "have their own"),
        (b'{"for": "a"}', "write NAMESPACE/NAME"),
        (b'{"for": "a/b/c"}', "write NAMESPACE/NAME"),
        (b'{"for": "a,spec.nodeName=x/b"}', "write NAMESPACE/NAME"),
        (b'{"For": "a/b"}', "unknown field"),
        (b'{"empty": [%s"n"]}' % (b'"n",' * 1000), "more than 1000 nodes"),
        (b'{"pods": [%s{}]}' % (b"{}," * 1000), "pods: more than 1000"),
    ):
        with pytest.raises(QuestionError) as refused:
            read_question(body)
        assert fault in str(refused.value)
        assert len(str(refused.value)) < 400


def test_pending_pods_of_at_most_one_namespace_are_needed() -> None:
    assert needs_of(read_question(b'{"for": "team/train"}')).namespace == "team"
    assert needs_of(read_question(b'{"gpus": 8}')).namespace == ""
