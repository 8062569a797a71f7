"""What kubelets really gave, node by node (`kerf.GIVEN`), and to which pod each name belongs."""

from collections.abc import Mapping

from extender.plugins.kerf import Given


class GivenGpus:
    """UUIDs of the GPUs that pods were given."""

    def __init__(self) -> None:
        self._given: dict[str, Given] = {}
        self._faults: dict[str, tuple[str, ...]] = {}
        self._owner: dict[str, dict[str, str]] = {}  # by node and `namespace/name`: the UID, "" for nobody
        self.starting = True
        """Whether pods may be told of that were there when an entry was written: until they were all listed once."""

    def set(self, node: str, given: Given, uids: Mapping[str, str], faults: tuple[str, ...] = ()) -> bool:
        """A node says so; `uids` are those of its pods by name, `faults` what of it can't be read. Whether it says
        something else than before."""
        before = self._given.get(node, {})
        if given == before and faults == self._faults.get(node, ()):
            return False
        self._faults[node] = faults
        owners = self._owner.get(node, {})
        self._owner[node] = {
            name: owners[name] if name in owners and before.get(name) == uuids else uids.get(name, "")
            for name, uuids in given.items()
            if "/" in name and (name in uids or name in owners or not self.starting)
        }
        self._given[node] = given
        return True

    def meet(self, node: str, name: str, uid: str) -> None:
        """A pod is told of for the first time."""
        if self.starting and name in self._given.get(node, ()):
            self._owner[node].setdefault(name, uid)

    def of(self, node: str, name: str, uid: str) -> tuple[str, ...] | None:
        """What a pod was given, None where that is not told."""
        given = self._given.get(node)
        if not given or not name:
            return None
        by_name = given.get(name) if self._owner[node].get(name) == uid else None
        return given.get(uid, by_name)

    def forget(self, node: str) -> None:
        """A node is gone."""
        self._given.pop(node, None)
        self._faults.pop(node, None)
        self._owner.pop(node, None)
