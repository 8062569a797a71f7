"""A driver's devices go from kube-scheduler to Kerf, and back, and are never both's.

Each goes by what it sees of the taint, which is old by some time, and writes what it has decided some time later. So
the taint has a value of its own for the way: "held". Under it kube-scheduler allocates nothing, since it does not
tolerate the taint; Kerf allocates nothing, since the value is not its own; and a policy, the fence, refuses whatever
either of them has decided before. It is proven to do so, then some time is waited for (other API servers, requests that
are half done), then fence and value become Kerf's, or both go. The rule comes first and goes last: whoever is killed on
the way leaves "held" behind: devices lie idle, and the same command goes on from there.
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
"""How long the API server may take to know a policy or a rule."""

Say = Callable[[str], None]


class RefusedError(Exception):
    """It must not go on; says why."""


def _rule_name(driver: str, pool: str | None) -> str:
    """What the rule for a driver, or one of its pools, is called: a pool's name may have slashes and be long."""
    return f"kerf-{driver}" if pool is None else f"kerf-{driver}-{hashlib.sha256(pool.encode()).hexdigest()[:10]}"


def rule_for(driver: str, pool: str | None, taint: owning.Taint) -> dict[str, Any]:
    """The DeviceTaintRule that gives the devices of a driver, or of one of its pools, a taint of Kerf's."""
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
    """Give a driver's pools to Kerf, all where none is named. Raises RefusedError, UnprovenError, ClusterError."""
    if not any(name.endswith(policies.TOLERATIONS) for name in await policies_in_force(api)):
        await policies.write(api, *policies.tolerations())
        say("claims must not tolerate the taint: policy written")
    wanted = {_rule_name(driver, pool): rule_for(driver, pool, owning.HELD) for pool in names or (None,)}
    known = {rule.name: rule for rule in await facts.rules_in(api)}
    for name, manifest in wanted.items():
        if name in known and known[name].value == owning.OWNED.value:
            say(f"{name} is Kerf's already")
            continue
        await api.ensure(f"{facts.RULES}/{name}", msgspec.json.encode(manifest))
    rules = [rule for rule in await facts.rules_in(api) if rule.name in wanted]
    held = [rule for rule in rules if rule.value == owning.HELD.value]
    await _hold(api, held, namespace, settle_s, say)
    found = await facts.facts_of(api, driver, names)
    if found.twice:
        raise RefusedError(f"devices are allocated twice, and nobody allocates now: {', '.join(found.twice)}")
    for rule in rules:  # those that were its before too: their fence may be gone, or name another account
        await policies.write(api, *policies.fence(rule.name, driver, rule.pool, user))
        await policies.prove(api, namespace, rule, policies.KERFS, _PROOF_S)
    for rule in held:
        await _change(api, rule, owning.OWNED)
        say(f"{rule.name}: Kerf's")


async def give_back(api: ApiServer, rules: Sequence[facts.Rule], namespace: str, settle_s: float, say: Say) -> None:
    """Give what rules own back to kube-scheduler. Raises UnprovenError, ClusterError."""
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
    """Return when nobody allocates any more what rules hold."""
    for rule in rules:
        await policies.write(api, *policies.fence(rule.name, rule.driver or "", rule.pool, user=""))
        await policies.prove(api, namespace, rule, policies.HELD, _PROOF_S)
        say(f"{rule.name}: held, nobody allocates")
    if rules:
        say(f"waiting {settle_s:g} s for what is under way")
        await asyncio.sleep(settle_s)


async def _change(api: ApiServer, rule: facts.Rule, taint: owning.Taint) -> None:
    """Give a rule another value, unless somebody else has changed it meanwhile."""
    change = {"metadata": {"resourceVersion": rule.version}, "spec": {"taint": {"value": taint.value}}}
    await api.patch(rule.path, msgspec.json.encode(change))
