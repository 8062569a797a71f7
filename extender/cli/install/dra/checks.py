"""What speaks against giving a driver's devices to Kerf, and what will become of pods that do not wait in its queue."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from extender.cli.install.dra.facts import Facts
from extender.cli.install.findings import names
from extender.cli.install.kerf import Installed

NO_DRA: Final = "this API server has no resource.k8s.io/v1: DRA as Kerf allocates it needs Kubernetes 1.34 or newer"
NO_RULES: Final = """\
this API server has no DeviceTaintRule in resource.k8s.io/v1 (Kubernetes 1.37): only the driver can taint its devices.
One that can be told so publishes the taint with every device of a pool (Kubernetes 1.36, or feature DRADeviceTaints):

  spec:
    driver: {driver}
    devices:
      - name: gpu-0
        taints: [{{key: kerf.dev/owned, value: kerf, effect: NoSchedule}}]

Kerf owns such a pool as soon as all its devices have it. Have no pods with claims on it created while it changes:
docs/guides/dra.md"""


@dataclass(frozen=True, slots=True)
class Objection:
    """A reason not to take a driver's devices."""

    text: str
    overruled: bool = False
    """Whether `--force` takes them all the same."""


def objections(found: Facts, asked: Collection[str], installed: Installed | None) -> Iterator[Objection]:
    """All of them; `asked` are the pools by name, none for all."""
    known = {pool.name for pool in found.pools}
    if not found.pools and not asked:
        told = f"no ResourceSlice is of driver {found.driver}; there are {names(found.drivers) or 'none at all'}"
        yield Objection(told, overruled=True)
    if missing := sorted(set(asked) - known):
        yield Objection(f"{found.driver} publishes no pool {names(missing)}", overruled=True)
    if spread := [pool.name for pool in found.pools if not pool.local]:
        told = f"pools that are not of one node are not allocated by Kerf, and would be by nobody: {names(spread)}"
        yield Objection(f"{told} (take others with --pool)")
    for rule in found.rules:
        if rule.driver in (None, found.driver) and (rule.driver is None or rule.device is not None):
            yield Objection(
                f"DeviceTaintRule {rule.name} has Kerf's taint for other devices than a driver's or a pool's"
            )
        elif rule.driver == found.driver and (rule.pool is None) != (not asked):
            yield Objection(f"DeviceTaintRule {rule.name} owns {_extent(rule.pool)} already: give that back first")
    if found.twice:
        yield Objection(f"allocated to two claims: {names(found.twice)}")
    if installed is not None and not (installed.settings.get("dra") or {}).get("allocate"):
        yield Objection(f"Kerf does not allocate (dra.allocate): {installed.upgrade} --set dra.enabled=true")
    if outside := sorted({pod for holder in found.holders for pod in holder.outside}):
        told = (
            f"{len(outside)} running pods have such devices and are outside Kerf's queue: they run on, but their "
            f"successors wait for ever: {names(outside)}"
        )
        yield Objection(f"{told}; label their namespaces kerf.dev/queue=enabled", overruled=True)


def consequences(found: Facts) -> Iterator[str]:
    """What the administrator should know, a sentence each."""
    devices = sum(pool.num_devices for pool in found.pools)
    nodes = {node for pool in found.pools for node in pool.nodes}
    yield f"{found.driver}: {devices} devices in {len(found.pools)} pools of {len(nodes)} nodes"
    if found.holders:
        held = sum(len(holder.devices) for holder in found.holders)
        pods = {pod for holder in found.holders for pod in holder.pods}
        told = f"allocated already: {held}, to {len(found.holders)} claims"
        yield f"{told}; their {len(pods)} pods run on, and Kerf counts the devices as taken"
    if already := [pool.name for pool in found.pools if pool.tainted]:
        yield f"the driver itself publishes the taint for {names(already)}"
    yield (
        "pods outside Kerf's queue get none of these devices: they stay pending, and kube-scheduler says "
        '"cannot allocate all claims"'
    )
    if found.waiting:
        yield f"such pods are now: {names(found.waiting)}"
    if found.tolerant:
        told = f"delete these claims and templates, which tolerate all taints or Kerf's: {names(found.tolerant)}"
        yield f"{told}; kube-scheduler would try to give them such devices, and be refused each time"
    if found.templates:
        yield f"claim templates in namespaces that do not opt in: {names(found.templates)}"
    if found.resources:
        yield f"nor do pods that ask by an extended resource of its classes: {names(found.resources)}"


def _extent(pool: str | None) -> str:
    return "all pools of the driver" if pool is None else f"pool {pool}"
