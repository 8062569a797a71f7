"""Which claims this process has written: what a watch tells of them from before is none of its news."""

from extender.dra.objects import ResourceClaim
from extender.kube.objects import Named


class OwnWrites:
    """Versions of claims of which no watch has told yet. Not thread-safe."""

    def __init__(self) -> None:
        self._written: dict[str, int] = {}  # by uid

    def enter(self, claim: ResourceClaim) -> None:
        """This process has written a claim."""
        self._written[claim.metadata.uid] = version(claim)

    def forget(self, uid: str) -> None:
        """A claim is gone."""
        self._written.pop(uid, None)

    def is_outdated(self, item: Named) -> bool:
        """Whether a claim is told as it was before this process has written it."""
        written = self._written.get(item.metadata.uid)
        if written is None or not isinstance(item, ResourceClaim) or version(item) < written:
            return written is not None
        del self._written[item.metadata.uid]
        return False


def version(claim: ResourceClaim) -> int:
    """A claim's resourceVersion; 0 where it is no number."""
    text = claim.metadata.resource_version
    return int(text) if text.isdecimal() else 0
