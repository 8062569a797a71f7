"""Nodes with devices and claims for them, made by chance: small, but with everything that can be asked."""

from collections.abc import Sequence
from random import Random

from extender.core.dra.asks import (
    ClaimSpec,
    Constraint,
    DeviceClaims,
    DeviceSpec,
    RequestSpec,
    Selector,
    SelectorFault,
    Toleration,
)
from extender.core.dra.devices import Amount, Capacity, Device, DeviceId, Inventory, NodeDevices, Taint
from extender.core.dra.first_fit import first_fit

NUMBER = "d/number"
COLOUR = "d/colour"
BIG = "d/big"
TAINT = Taint("broken", "yes", "NoSchedule")


def selector(name: str, value: str | int | bool) -> Selector:
    """True where an attribute has a value; fails where it is missing."""

    def matches(device: Device) -> bool:
        if name not in device.attributes:
            raise SelectorFault(f"{name} of {device.id.device}")
        found = device.attributes[name]
        return type(found) is type(value) and found == value

    return Selector(f"{name} == {value!r}", matches, frozenset({name}))


def random_case(rng: Random) -> tuple[NodeDevices, DeviceClaims]:
    """A node, some of its devices taken, and what a pod asks."""
    counters: list[Amount] = []
    devices: list[Device] = []
    for pool in range(rng.randint(1, 2)):
        for _ in range(rng.randint(1, 3)):
            devices += _gpu(rng, f"pool-{pool}", len(devices), counters)
    inventory = Inventory(tuple(devices), tuple(counters), complete=rng.random() < 0.98)
    state = NodeDevices.of(inventory)
    for _ in range(rng.randint(0, 3)):
        picked = None
        try:
            picked = first_fit(state, _asked(rng, faults=False, admin=False), 2_000)
        except Exception:  # noqa: S112
            continue
        if picked:
            state = state.taking(taking for _, ask, taking in picked if not ask.admin)
    if rng.random() < 0.05 and counters:
        # A driver that has published a device less than it has given.
        left = list(state.left)
        left[rng.randrange(len(left))] = -1
        state = NodeDevices(inventory, state.taken, state.parts, tuple(left))
    return state, _asked(rng)


def _gpu(rng: Random, pool: str, first: int, counters: list[Amount]) -> list[Device]:
    """A device, or one with its partitions."""
    taints = (TAINT,) if rng.random() < 0.1 else ()

    def device(offset: int, consumes: Sequence[tuple[int, Amount]] = (), milli: int = 1000) -> Device:
        attributes: dict[str, str | int | bool] = {NUMBER: rng.randint(0, 2), COLOUR: rng.choice(("red", "blue"))}
        if rng.random() < 0.1:
            del attributes[rng.choice((NUMBER, COLOUR))]
        if rng.random() < 0.05:
            attributes[NUMBER] = True
        shareable = rng.random() < 0.25
        capacity = {"memory": Capacity(rng.choice((4, 8)))}
        if shareable and rng.random() < 0.7:
            policies = (Capacity(8, 2, valid_range=(2, 6, 2)), Capacity(8, 4, valid_values=(1, 4, 8)), Capacity(8, 2))
            capacity["memory"] = rng.choice(policies)
        name = f"device-{first + offset}"
        return Device(
            DeviceId("d", pool, name), attributes, capacity, tuple(consumes), taints, shareable, first, milli, 0
        )

    if rng.random() < 0.5:
        return [device(0)]
    base, num_slices = len(counters), rng.randint(2, 4)
    counters += [1] * num_slices + [rng.randint(num_slices - 1, num_slices)]
    total = base + num_slices
    devices = [device(0, [*((base + place, 1) for place in range(num_slices)), (total, num_slices - 1)])]
    for place in range(num_slices):
        devices.append(device(1 + place, [(base + place, 1), (total, 1)], 1000 // num_slices))
    if num_slices > 2:
        devices.append(device(len(devices), [(base, 1), (base + 1, 1), (total, 2)], 500))
    return devices


def _asked(rng: Random, faults: bool = True, admin: bool = True) -> DeviceClaims:
    claims = []
    for _ in range(rng.choice((1, 1, 2))):
        requests = [_request(rng, f"r{number}", faults, admin) for number in range(rng.randint(1, 3))]
        names = [ask.name for request in requests for ask in request.alternatives]
        names += [request.name for request in requests]
        constraints = tuple(
            Constraint(
                rng.choice((NUMBER, COLOUR, BIG) if rng.random() < 0.1 else (NUMBER, COLOUR)),
                tuple(rng.sample(names, rng.randint(1, len(names)))) if rng.random() < 0.5 else (),
                distinct=rng.random() < 0.5,
            )
            for _ in range(rng.choice((0, 0, 1, 2)))
        )
        claims.append(ClaimSpec(tuple(requests), constraints))
    return DeviceClaims(tuple(claims))


def _request(rng: Random, name: str, faults: bool, admin: bool) -> RequestSpec:
    if rng.random() < 0.3:
        alternatives = [_ask(rng, f"{name}/{number}", faults, False) for number in range(rng.randint(1, 3))]
    else:
        alternatives = [_ask(rng, name, faults, admin)]
    return RequestSpec(name, tuple(alternatives))


def _ask(rng: Random, name: str, faults: bool, admin: bool) -> DeviceSpec:
    tests = [selector(NUMBER, rng.randint(0, 2)), selector(COLOUR, rng.choice(("red", "blue")))]
    selectors = tuple(rng.sample(tests, rng.choice((0, 0, 1, 2))))
    if not faults or rng.random() < 0.9:
        selectors = tuple(_sound(item) for item in selectors)
    return DeviceSpec(
        name,
        selectors,
        count=rng.choice((1, 1, 1, 2, 3, 0)),
        admin=admin and rng.random() < 0.15,
        tolerations=(Toleration("broken", "Exists"),) if rng.random() < 0.2 else (),
        capacity=(("memory", rng.choice((1, 3, 5, 8))),) if rng.random() < 0.25 else (),
    )


def _sound(selector: Selector) -> Selector:
    """The selector, false where it would fail."""

    def matches(device: Device) -> bool:
        try:
            return selector.matches(device)
        except SelectorFault:
            return False

    return Selector(f"has({selector.expression})", matches, selector.reads)
