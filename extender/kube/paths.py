"""Where the API server has what Kerf reads."""

import re
from typing import Final

NODES_PATH: Final = "/api/v1/nodes"
PODS_PATH: Final = "/api/v1/pods"
NAMESPACES_PATH: Final = "/api/v1/namespaces"

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)  # RFC 1123, as the API server checks it


def is_name(name: str) -> bool:
    """Whether Kubernetes takes it as the name of an object: names become parts of these paths."""
    return _NAME.fullmatch(name) is not None
