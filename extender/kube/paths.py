"""Where the API server has what Kerf reads."""

from typing import Final

NODES_PATH: Final = "/api/v1/nodes"
PODS_PATH: Final = "/api/v1/pods"
NAMESPACES_PATH: Final = "/api/v1/namespaces"
