"""What all sections of the settings have in common."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

_MATCHER = r'[a-zA-Z_][a-zA-Z0-9_]*(=|!=|=~|!~)"[^"\\{}]*"'
Matchers = Annotated[str, Field(pattern=rf"^({_MATCHER},? ?)*$")]
"""Label matchers of PromQL, without braces."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    GONE: ClassVar[Mapping[str, str]] = {}
    """Keys that it had in the version before, and what holds now: they are dropped with a warning for one version."""
    EXPERIMENTAL: ClassVar[frozenset[str]] = frozenset()
    """Keys that may change or go in any version; all others are stable."""


class Initiative(StrEnum):
    """What Kerf does of itself about something that it may find."""

    OFF = "off"
    ADVISE = "advise"
    ACT = "act"


def without_user(url: str) -> str:
    """An address, which is shown in logs and answers. Raises ValueError where it holds a user or password."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError(
            "put the user into telemetry.username and the password into the file of telemetry.password_file"
        )
    return url
