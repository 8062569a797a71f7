"""How keys of answers are written, and those that all answers about the cluster may have."""

import msgspec


def camel(name: str) -> str:
    """`memory_free_mib` is `memoryFreeMiB`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest).replace("Mib", "MiB")


class OfCluster(msgspec.Struct, kw_only=True):
    """While Kerf is blind: how old its view of the cluster is, and why it decides nothing."""

    stale_seconds: float | msgspec.UnsetType | None = msgspec.field(default=msgspec.UNSET, name="staleSeconds")
    not_ready: str | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="notReady")
