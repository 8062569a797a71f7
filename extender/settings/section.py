"""Base of the sections of the settings."""

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
    """Keys removed in the previous version, and what applies instead; ignored with a warning for one version."""
    EXPERIMENTAL: ClassVar[frozenset[str]] = frozenset()
    """Keys that may change or be removed in any version; all others are stable."""


class Initiative(StrEnum):
    """What Kerf does by itself about a finding."""

    OFF = "off"
    ADVISE = "advise"
    ACT = "act"


def without_user(url: str) -> str:
    """Return a URL, which logs and responses show. Raises ValueError if it contains a user or password."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError("set the user in telemetry.username and the password in the file of telemetry.password_file")
    return url
