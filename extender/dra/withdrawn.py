"""Devices that claims have and that their drivers publish no more: what they take of their pool's counters stays taken.

A driver withdraws what is sick, or cut anew, whoever has it. kube-scheduler's allocator forgets it then, and may give
what overlaps with it.
"""

from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet

from extender.core.dra.devices import Amount, CounterId, DeviceId, Inventory

_Consumption = tuple[tuple[CounterId, Amount], ...]


class WithdrawnDevices:
    """What devices consumed when they were published last, as long as somebody has them. Not thread-safe."""

    def __init__(self) -> None:
        self._consumed: dict[tuple[str, str], dict[DeviceId, _Consumption]] = {}  # by driver and pool

    def remember(self, inventory: Inventory, held: AbstractSet[DeviceId]) -> None:
        """The slices of these devices, as far as they are in it, are about to change."""
        names = {index: counter for counter, index in inventory.counter_of.items()}
        for device in inventory.index_of.keys() & held:
            consumes = inventory.devices[inventory.index_of[device]].consumes
            consumption = tuple((names[counter], amount) for counter, amount in consumes)
            self._consumed.setdefault(device[:2], {})[device] = consumption

    def forget(self, is_used: Callable[[str, str], bool]) -> None:
        """Pools of which nobody has a device are of no interest."""
        self._consumed = {pool: known for pool, known in self._consumed.items() if is_used(*pool)}

    def taken(
        self, inventory: Inventory, held: Collection[DeviceId]
    ) -> tuple[list[tuple[int, Amount]], tuple[str, ...]]:
        """What is taken of an inventory's counters by devices that somebody has and that are not in it; and sentences
        about those of which this process has never seen what they take: all of their pool's counters, it has to be."""
        taken: list[tuple[int, Amount]] = []
        faults = []
        for device in sorted(set(held) - inventory.index_of.keys()):
            counters = {counter: index for counter, index in inventory.counter_of.items() if counter[:2] == device[:2]}
            consumption = self._consumed.get(device[:2], {}).get(device)
            if consumption is not None:
                taken += [(counters[counter], amount) for counter, amount in consumption if counter in counters]
            elif counters:
                taken += [(index, inventory.counters[index]) for index in counters.values()]
                faults.append(
                    f"{device.driver}/{device.pool}: device {device.device} is allocated and published no more; until "
                    "its claim is free, no device that shares counters is given"
                )
        for pool in {device[:2] for device in held}:
            if known := self._consumed.get(pool):
                self._consumed[pool] = {device: known[device] for device in known.keys() & set(held)}
        return taken, tuple(faults)
