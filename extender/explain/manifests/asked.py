"""Objects as requests name them: as data, as text, or as several texts."""

from typing import Annotated, Any, Final

import msgspec

from extender.explain.manifests.documents import (
    MAX_CHARS,
    DocumentError,
    given_documents,
    read_documents,
    read_texts,
)
from extender.explain.manifests.objects import Given, read_objects
from extender.kube.paths import is_name

_MAX_TEXTS: Final = 100
_Text = Annotated[str, msgspec.Meta(max_length=MAX_CHARS)]
Texts = _Text | Annotated[list[_Text], msgspec.Meta(max_length=_MAX_TEXTS)]
"""YAML or JSON, of one document or several; or several texts."""


def read_given(objects: list[dict[str, Any]], manifest: str | list[str], namespace: str, copies: int = 1) -> Given:
    """What the keys `objects`, `manifest` and `namespace` of a request hold, each object that makes pods so many times.

    Raises DocumentError.
    """
    if not is_name(namespace):
        raise DocumentError(f"namespace: {namespace[:80]!r} is no name")
    documents = given_documents(objects, "objects")
    documents += read_documents(manifest) if isinstance(manifest, str) else read_texts(manifest, "manifest")
    return read_objects(documents, copies, namespace)
