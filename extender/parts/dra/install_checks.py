"""How it stands with devices that Kerf owns, and what speaks against giving it a driver's."""

from collections.abc import AsyncIterator, Collection, Iterator
from typing import Final

import msgspec

from extender.cli.consoles import names
from extender.cli.install.access import policies_in_force
from extender.cli.install.findings import Check, Finding, Needs, broken, listed, note, ok
from extender.cli.install.kerf import Installed, Look
from extender.core.dra import owning
from extender.kube.client import ClusterError
from extender.parts.dra import facts
from extender.settings.tree import allocates

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


def objections(found: facts.Facts, asked: Collection[str], installed: Installed) -> Iterator[Finding]:
    """What speaks against taking pools, notes where `--force` takes them all the same; `asked` are those by name, none
    for all."""
    known = {pool.name for pool in found.pools}
    if not found.pools and not asked:
        told = f"no ResourceSlice is of driver {found.driver}; there are {names(found.drivers) or 'none at all'}"
        yield note(told)
    if missing := sorted(set(asked) - known):
        yield note(f"{found.driver} publishes no pool {names(missing)}")
    if spread := [pool.name for pool in found.pools if not pool.local]:
        told = f"pools that are not of one node are not allocated by Kerf, and would be by nobody: {names(spread)}"
        yield broken(f"{told} (take others with --pool)")
    for rule in found.rules:
        if rule.driver in (None, found.driver) and (rule.driver is None or rule.device is not None):
            yield broken(f"DeviceTaintRule {rule.name} has Kerf's taint for other devices than a driver's or a pool's")
        elif rule.driver == found.driver and (rule.pool is None) != (not asked):
            yield broken(f"DeviceTaintRule {rule.name} owns {_extent(rule.pool)} already: give that back first")
    if found.twice:
        yield broken(f"allocated to two claims: {names(found.twice)}")
    if installed.name and not allocates(installed.settings):
        yield broken(f"Kerf does not allocate (dra.allocate): {installed.upgrade} --set dra.enabled=true")
    if outside := sorted({pod for holder in found.holders for pod in holder.outside}):
        told = (
            f"{len(outside)} running pods have such devices and are outside Kerf's queue: they run on, but their "
            f"successors wait for ever: {names(outside)}"
        )
        yield note(f"{told}; label their namespaces kerf.dev/queue=enabled")


def consequences(found: facts.Facts) -> Iterator[str]:
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


async def _devices_of_kerf(look: Look) -> AsyncIterator[Finding]:
    """Whether pools that are Kerf's are allocated, and by nobody else; nothing where there are neither."""
    transport, installed = look.transport, look.installed
    is_wanted = allocates(installed.settings)
    try:
        rules = await facts.rules_in(transport) if await facts.serves_rules(transport) else ()
        slices = await listed(transport, f"{facts.API}/resourceslices") if is_wanted else []
        found = await policies_in_force(transport) if is_wanted or rules else {}
    except (ClusterError, msgspec.DecodeError):
        if is_wanted:
            raise
        return
    held = [rule for rule in rules if rule.value == owning.HELD.value]
    if held:
        told = f"on their way to or from Kerf, so that nobody allocates them: {names([rule.name for rule in held])}"
        yield broken(told, f"{_command(held[0])} again, with or without --remove")
    if not is_wanted:
        if rules:
            told = f"owned by Kerf, which does not allocate, so that nobody does: {names([one.name for one in rules])}"
            fix = f"{installed.upgrade} --set dra.enabled=true" if installed.name else f"{_command(rules[0])} --remove"
            yield broken(told, fix)
        return
    for rule in rules:
        if rule not in held and installed.user not in str(found.get(rule.name, {}).get("validations")):
            told = f"no policy {rule.name} is in force that lets {installed.user} alone allocate what is Kerf's"
            yield broken(told, _command(rule))
            return
    drivers = {item["spec"]["driver"] for item in slices}
    published = {driver for driver in drivers for pool in facts.pools_of(slices, driver) if pool.tainted}
    owned = sorted({rule.driver or "all drivers" for rule in rules} | published)
    if not owned:
        yield note("Kerf may allocate, and owns no pool", "kerf install dra --driver NAME")
    elif not held:
        yield ok(f"allocated by Kerf: {names(owned)}")


def _command(rule: facts.Rule) -> str:
    pool = f" --pool {rule.pool}" if rule.pool else ""
    return f"kerf install dra --driver {rule.driver or 'NAME'}{pool}"


def checks() -> list[Check[Look]]:
    """Of `kerf install check`."""
    return [Check("DRA devices", Needs.CLUSTER, _devices_of_kerf)]
