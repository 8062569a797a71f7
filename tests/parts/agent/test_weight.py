"""The agent takes little memory on each node: it loads what it needs, and its command begins at once."""

from tests.test_weights import loaded_by


def test_it_is_loaded_without() -> None:
    assert loaded_by("extender.parts.agent.command", ["rich"]) == []
    assert loaded_by("extender.parts.agent.agent", ["fastapi", "numpy", "pydantic", "rich"]) == []
