"""How it stands with devices that Kerf owns, for `kerf install check`."""

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from extender.cli.install.dra import facts, policies
from extender.cli.install.findings import Finding, Verdict, listed, names
from extender.cli.install.kerf import Installed
from extender.core.dra import owning
from extender.kube.client import ClusterError, Transport

_WHAT: Final = "DRA devices"


async def devices_of_kerf(transport: Transport, installed: Installed | None) -> AsyncIterator[Finding]:
    """Whether pools that are Kerf's are allocated, and by nobody else; nothing where there are neither."""
    allocates = bool(((installed.settings if installed else {}).get("dra") or {}).get("allocate"))
    try:
        rules = await facts.rules_in(transport) if await facts.serves_rules(transport) else ()
        slices = await listed(transport, f"{facts.API}/resourceslices") if allocates else []
        found = await policies.in_force(transport) if allocates or rules else {}
    except (ClusterError, msgspec.DecodeError) as error:
        if allocates:
            yield Finding(_WHAT, Verdict.NOTE, f"can't be read: {error}", "run this as an administrator")
        return
    if not (allocates or rules):
        return
    if held := [rule for rule in rules if rule.value == owning.HELD.value]:
        told = f"on their way to or from Kerf, so that nobody allocates them: {names([rule.name for rule in held])}"
        yield Finding(_WHAT, Verdict.BROKEN, told, f"{_command(held[0])} again, with or without --remove")
    if not allocates:
        told = f"owned by Kerf, which does not allocate, so that nobody does: {names([rule.name for rule in rules])}"
        fix = f"{installed.upgrade} --set dra.enabled=true" if installed else f"{_command(rules[0])} --remove"
        yield Finding(_WHAT, Verdict.BROKEN, told, fix)
        return
    user = installed.user if installed else ""
    open_to_others = [rule for rule in rules if rule not in held and user not in found.get(rule.name, "")]
    if open_to_others:
        told = f"no policy {open_to_others[0].name} is in force that lets {user} alone allocate what is Kerf's"
        yield Finding(_WHAT, Verdict.BROKEN, told, _command(open_to_others[0]))
        return
    drivers = {item["spec"]["driver"] for item in slices}
    published = {driver for driver in drivers for pool in facts.pools_of(slices, driver) if pool.tainted}
    owned = sorted({rule.driver or "all drivers" for rule in rules} | published)
    if not owned:
        told = "Kerf may allocate, and owns no pool"
        yield Finding(_WHAT, Verdict.NOTE, told, "kerf install dra --driver NAME")
    elif not held:
        yield Finding(_WHAT, Verdict.OK, f"allocated by Kerf: {names(owned)}")


def _command(rule: facts.Rule) -> str:
    pool = f" --pool {rule.pool}" if rule.pool else ""
    return f"kerf install dra --driver {rule.driver or 'NAME'}{pool}"
