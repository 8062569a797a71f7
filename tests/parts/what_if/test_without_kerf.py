"""The process that answers does not go on without the Kerf that it answers."""

import pytest

from tests.explain.killed import ends_when_kerf_was_killed
from tests.test_weights import loaded_by

pytestmark = pytest.mark.slow

QUESTION = b'{"pods": [{"metadata": {"name": "p"}, "spec": {"containers": []}}]}'


@pytest.mark.parametrize("question", [QUESTION, b""], ids=["after-its-question", "before-any"])
def test_it_ends_when_its_kerf_was_killed(question: bytes) -> None:
    ends_when_kerf_was_killed("extender.parts.what_if.process", question)


def test_it_loads_what_it_needs() -> None:
    assert loaded_by("extender.parts.what_if.process", ["fastapi", "pydantic", "rich"]) == []
