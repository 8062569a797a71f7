"""Weights of the policies `live` and `genius`: defaults and meaning are those that the policies have."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, create_model

from extender.core.policies import genius, live
from extender.settings.section import Section


def _weights(wanted: Mapping[str, tuple[float, str]], **bounds: Any) -> Any:
    """A section with a number for each; `bounds` by name."""
    fields: dict[str, Any] = {
        name: (Annotated[float, Field(description=meaning, **bounds.get(name, {}))], default)
        for name, (default, meaning) in wanted.items()
    }
    return create_model("Weights", __base__=Section, **fields)


_BOUNDS = {name: {"ge": 0.0} for name in live.WEIGHTS} | {"own_gpus": {"ge": 0.0, "le": 1.0}}


class LiveSettings(_weights(live.WEIGHTS, **_BOUNDS)):  # type: ignore[misc]
    """Weights of the policy `live`: see docs/reference/policies.md."""


class GeniusSettings(_weights(genius.WEIGHTS)):  # type: ignore[misc]
    """Weights of the policy `genius`, the score of the GPU scheduling plugin Genius: its own weights by default."""
