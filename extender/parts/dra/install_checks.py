"""Checks of devices that Kerf owns, and objections to giving it a driver's devices."""

from collections.abc import AsyncIterator, Collection, Iterator
from typing import Final

import msgspec

from extender.cli.consoles import names
from extender.cli.install.access import policies_in_force
from extender.cli.install.findings import Check, Finding, Needs, broken, listed, note, ok
from extender.cli.install.kerf import CheckedCluster, Installed
from extender.core.dra import owning
from extender.kube.client import ClusterError
from extender.parts.dra import facts
from extender.settings.tree import allocates

NO_DRA: Final = "this API server has no resource.k8s.io/v1: DRA as Kerf allocates it needs Kubernetes 1.34 or newer"
NO_RULES: Final = """\
this API server has no DeviceTaintRule in resource.k8s.io/v1 (Kubernetes 1.37): only the driver can taint its devices.
If the driver supports it, let it publish the taint on every device of a pool (Kubernetes 1.36, or feature
DRADeviceTaints):

  spec:
    driver: {driver}
    devices:
      - name: gpu-0
        taints: [{{key: kerf.dev/owned, value: kerf, effect: NoSchedule}}]

Kerf owns such a pool as soon as all its devices have the taint. Create no pods with claims on the pool meanwhile:
docs/guides/dra.md"""


def objections(state: facts.Facts, asked: Collection[str], installed: Installed) -> Iterator[Finding]:
    """Objections to taking pools; `--force` overrides notes. `asked` are pool names, empty for all."""
    known = {pool.name for pool in state.pools}
    if not state.pools and not asked:
        drivers = names(state.drivers) or "none"
        yield note(f"driver {state.driver} publishes no ResourceSlices; drivers that do: {drivers}")
    if missing := sorted(set(asked) - known):
        yield note(f"{state.driver} publishes no pool {names(missing)}")
    if spread := [pool.name for pool in state.pools if not pool.local]:
        text = f"Kerf does not allocate pools that span nodes, so nothing would: {names(spread)}"
        yield broken(f"{text} (select others with --pool)")
    for rule in state.rules:
        if rule.driver in (None, state.driver) and (rule.driver is None or rule.device is not None):
            yield broken(f"DeviceTaintRule {rule.name} has Kerf's taint, but does not select a driver or a pool")
        elif rule.driver == state.driver and (rule.pool is None) != (not asked):
            yield broken(f"DeviceTaintRule {rule.name} already owns {_extent(rule.pool)}: give that back first")
    if state.twice:
        yield broken(f"allocated to two claims: {names(state.twice)}")
    if installed.name and not allocates(installed.settings):
        yield broken(f"Kerf does not allocate (dra.allocate): {installed.upgrade} --set dra.enabled=true")
    if outside := sorted({pod for holder in state.holders for pod in holder.outside}):
        text = (
            f"{len(outside)} running pods outside Kerf's queue have such devices: they keep running, but their "
            f"replacements would wait forever: {names(outside)}"
        )
        yield note(f"{text}; label their namespaces kerf.dev/queue=enabled")


def consequences(state: facts.Facts) -> Iterator[str]:
    """Consequences for the administrator, one sentence each."""
    devices = sum(pool.num_devices for pool in state.pools)
    nodes = {node for pool in state.pools for node in pool.nodes}
    yield f"{state.driver}: {devices} devices in {len(state.pools)} pools of {len(nodes)} nodes"
    if state.holders:
        held = sum(len(holder.devices) for holder in state.holders)
        pods = {pod for holder in state.holders for pod in holder.pods}
        text = f"already allocated: {held}, to {len(state.holders)} claims"
        yield f"{text}; their {len(pods)} pods keep running, and Kerf counts the devices as allocated"
    if tainted := [pool.name for pool in state.pools if pool.tainted]:
        yield f"the driver itself publishes the taint for {names(tainted)}"
    yield (
        "pods outside Kerf's queue get none of these devices: they stay pending with kube-scheduler's message "
        '"cannot allocate all claims"'
    )
    if state.waiting:
        yield f"such pods now: {names(state.waiting)}"
    if state.tolerant:
        text = f"delete these claims and templates, which tolerate all taints or Kerf's: {names(state.tolerant)}"
        yield f"{text}; kube-scheduler would keep trying to allocate such devices to them and be rejected"
    if state.templates:
        yield f"claim templates in namespaces that have not opted in: {names(state.templates)}"
    if state.resources:
        yield f"pods with extended resources of its classes get no devices either: {names(state.resources)}"


def _extent(pool: str | None) -> str:
    return "all pools of the driver" if pool is None else f"pool {pool}"


async def _devices_of_kerf(look: CheckedCluster) -> AsyncIterator[Finding]:
    """Check that Kerf, and only Kerf, allocates its pools; no findings if it neither allocates nor owns any."""
    transport, installed = look.transport, look.installed
    is_wanted = allocates(installed.settings)
    try:
        rules = await facts.rules_in(transport) if await facts.serves_rules(transport) else ()
        slices = await listed(transport, f"{facts.API}/resourceslices") if is_wanted else []
        in_force = await policies_in_force(transport) if is_wanted or rules else {}
    except (ClusterError, msgspec.DecodeError):
        if is_wanted:
            raise
        return
    held = [rule for rule in rules if rule.value == owning.HELD.value]
    if held:
        text = f"held between kube-scheduler and Kerf, so not allocated: {names([rule.name for rule in held])}"
        yield broken(text, f"{_command(held[0])} again, with or without --remove")
    if not is_wanted:
        if rules:
            text = f"owned by Kerf, which does not allocate, so nothing does: {names([one.name for one in rules])}"
            fix = f"{installed.upgrade} --set dra.enabled=true" if installed.name else f"{_command(rules[0])} --remove"
            yield broken(text, fix)
        return
    for rule in rules:
        if rule not in held and installed.user not in str(in_force.get(rule.name, {}).get("validations")):
            text = f"no policy {rule.name} is in force that lets only {installed.user} allocate Kerf's devices"
            yield broken(text, _command(rule))
            return
    drivers = {item["spec"]["driver"] for item in slices}
    published = {driver for driver in drivers for pool in facts.pools_of(slices, driver) if pool.tainted}
    owned = sorted({rule.driver or "all drivers" for rule in rules} | published)
    if not owned:
        yield note("Kerf may allocate, but owns no pool", "kerf install dra --driver NAME")
    elif not held:
        yield ok(f"allocated by Kerf: {names(owned)}")


def _command(rule: facts.Rule) -> str:
    pool = f" --pool {rule.pool}" if rule.pool else ""
    return f"kerf install dra --driver {rule.driver or 'NAME'}{pool}"


def checks() -> list[Check[CheckedCluster]]:
    """This part's checks in `kerf install check`."""
    return [Check("DRA devices", Needs.CLUSTER, _devices_of_kerf)]
