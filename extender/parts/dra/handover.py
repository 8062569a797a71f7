"""Hands a driver's devices over from kube-scheduler to Kerf or back, so that the two never allocate at the same time.

Both see the taint with a delay and write their decisions later. So the taint's value is "held" during a handover, under
which neither allocates, and an admission policy, the fence, rejects what either decided before. After a dry run has
shown that the fence is in force, the command waits for other API servers and requests in flight. Then rule and fence
become Kerf's, or are deleted. The rule is created first and deleted last: an interrupted command leaves the devices
"held" and idle, and can be run again.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from extender.cli.install.access import policies_in_force
from extender.core.dra import owning
from extender.kube.client import ApiServer
from extender.parts.dra import facts, policies

_PROOF_S: Final = 30.0
"""Longest time for the API server to enforce a policy."""

Say = Callable[[str], None]


class RefusedError(Exception):
    """The handover must not continue."""


def _rule_name(driver: str, pool: str | None) -> str:
    """The name of a driver's or a pool's rule. A pool's name is hashed, since it may be long and have slashes."""
    return f"kerf-{driver}" if pool is None else f"kerf-{driver}-{hashlib.sha256(pool.encode()).hexdigest()[:10]}"


def rule_for(driver: str, pool: str | None, taint: owning.Taint) -> dict[str, Any]:
    """The DeviceTaintRule that adds a taint to all devices of a driver or of one of its pools."""
    selector = {"driver": driver} | ({} if pool is None else {"pool": pool})
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": _rule_name(driver, pool), "labels": policies.LABELS},
        "spec": {"deviceSelector": selector, "taint": taint._asdict()},
    }


async def take(
    api: ApiServer, driver: str, names: Sequence[str], namespace: str, user: str, settle_s: float, say: Say
) -> None:
    """Give a driver's pools to Kerf; all of them if `names` is empty.

    Raises RefusedError, UnprovenError, ClusterError.
    """
    if not any(name.endswith(policies.TOLERATIONS) for name in await policies_in_force(api)):
        await policies.write(api, *policies.tolerations())
        say("wrote the policy that forbids claims to tolerate the taint")
    wanted = {_rule_name(driver, pool): rule_for(driver, pool, owning.HELD) for pool in names or (None,)}
    known = {rule.name: rule for rule in await facts.rules_in(api)}
    for name, manifest in wanted.items():
        if name in known and known[name].value == owning.OWNED.value:
            say(f"{name}: already owned by Kerf")
            continue
        await api.ensure(f"{facts.RULES}/{name}", msgspec.json.encode(manifest))
    rules = [rule for rule in await facts.rules_in(api) if rule.name in wanted]
    held = [rule for rule in rules if rule.value == owning.HELD.value]
    await _hold(api, held, namespace, settle_s, say)
    inventory = await facts.facts_of(api, driver, names)
    if inventory.twice:
        raise RefusedError(f"devices are allocated twice; the pools stay held: {', '.join(inventory.twice)}")
    for rule in rules:  # also those already owned: their fence may be gone, or name another account
        await policies.write(api, *policies.fence(rule.name, driver, rule.pool, user))
        await policies.prove(api, namespace, rule, policies.KERFS, _PROOF_S)
    for rule in held:
        await _change(api, rule, owning.OWNED)
        say(f"{rule.name}: owned by Kerf")


async def give_back(api: ApiServer, rules: Sequence[facts.Rule], namespace: str, settle_s: float, say: Say) -> None:
    """Give the rules' devices back to kube-scheduler. Raises UnprovenError, ClusterError."""
    for rule in rules:
        if rule.value != owning.HELD.value:
            await _change(api, rule, owning.HELD)
    await _hold(api, rules, namespace, settle_s, say)
    for rule in rules:
        await policies.delete(api, rule.name)
        await api.delete(rule.path)
        say(f"{rule.name}: deleted, kube-scheduler allocates")
    if not await facts.rules_in(api):
        await policies.delete(api, *await policies.written(api))


async def _hold(api: ApiServer, rules: Sequence[facts.Rule], namespace: str, settle_s: float, say: Say) -> None:
    """Write fences that reject all allocations of the rules' devices, and wait until none can be in flight."""
    for rule in rules:
        await policies.write(api, *policies.fence(rule.name, rule.driver or "", rule.pool, user=""))
        await policies.prove(api, namespace, rule, policies.HELD, _PROOF_S)
        say(f"{rule.name}: held, no allocations")
    if rules:
        say(f"waiting {settle_s:g} s for requests in flight")
        await asyncio.sleep(settle_s)


async def _change(api: ApiServer, rule: facts.Rule, taint: owning.Taint) -> None:
    """Change the taint's value in a rule, unless the rule has changed since."""
    change = {"metadata": {"resourceVersion": rule.version}, "spec": {"taint": {"value": taint.value}}}
    await api.patch(rule.path, msgspec.json.encode(change))
