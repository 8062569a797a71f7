"""An API server in memory that can be cut off: lists and watches fail until it is reachable again."""

from collections.abc import AsyncIterator

from extender.kube.client import UnreachableError
from extender.kube.memory import MemoryCluster
from extender.kube.transport import Query


class CutOff(MemoryCluster):
    """Reads of a pod and bindings still go through."""

    reachable = True

    def cut(self) -> None:
        """Let lists and watches fail from now on."""
        self.reachable = False
        self.breathe()  # wakes the watches, which end

    async def get(self, path: str, query: Query | None = None) -> bytes:
        if not self.reachable and query:  # a list
            raise UnreachableError(f"GET {path}: no route")
        return await super().get(path, query)

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        if not self.reachable:
            raise UnreachableError(f"watch of {path}: no route")
        async for lines in super().watch(path, query):
            if not self.reachable:
                raise UnreachableError(f"watch of {path}: no route")
            yield lines
