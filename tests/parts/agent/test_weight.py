"""The agent takes little memory on each node: it loads what it needs, and its command begins at once."""

import pytest

from tests.test_weights import loaded_by


@pytest.mark.parametrize(
    ("module", "without"),
    [
        pytest.param("extender.parts.agent.command", ["rich"], id="its command"),
        pytest.param("extender.parts.agent.agent", ["fastapi", "numpy", "pydantic", "rich"], id="itself"),
    ],
)
def test_it_is_loaded_without(module: str, without: list[str]) -> None:
    assert loaded_by(module, without) == []
