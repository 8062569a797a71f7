"""DeviceClasses by name."""

from extender.dra.objects import DeviceClass


class DeviceClasses:
    """As the watch tells of them. Not thread-safe."""

    def __init__(self) -> None:
        self.by_name: dict[str, DeviceClass] = {}
        self._names: dict[str, str] = {}  # by uid
        self.version = 0
        """Grows with every change."""

    def upsert(self, item: DeviceClass) -> None:
        """One was added or changed."""
        self.by_name[item.metadata.name] = item
        self._names[item.metadata.uid] = item.metadata.name
        self.version += 1

    def remove(self, uid: str) -> None:
        """One is gone; another may have its name by now."""
        name = self._names.pop(uid, "")
        if name and self.by_name[name].metadata.uid == uid:
            del self.by_name[name]
        self.version += 1
