"""The command line of `kerf install dra`."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from extender.cli.client.kerf import FAILED, USAGE, fail
from extender.cli.printing import as_yaml, echo
from extender.cli.settings import ContextOption, KubeconfigOption, ServiceAccountOption, cluster

if TYPE_CHECKING:
    from extender.cli.install.kerf import Installed
    from extender.kube.client import ApiServer

_TAKING_S, _GIVING_BACK_S = 15.0, 130.0
"""Giving back takes longer, since Kerf's view may be `cluster.max_age_s` old: 120 s."""


@dataclass(frozen=True, slots=True)
class _Asked:
    driver: str
    pools: Sequence[str]
    remove: bool
    dry_run: bool
    force: bool
    account: str
    settle_s: float


def give(  # noqa: PLR0913, PLR0917 - options of a command
    driver: Annotated[str, typer.Option(help="Name of the DRA driver, as in its ResourceSlices.")],
    pool: Annotated[list[str] | None, typer.Option(help="Only this pool; repeatable. Default: all pools.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Give the devices back to kube-scheduler.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done without writing.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also if pods outside Kerf's queue use devices, or there are none.")
    ] = False,
    account: ServiceAccountOption = "",
    settle: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds without allocations; default: 15, with --remove 130."),
    ] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Give a DRA driver's devices to Kerf, which becomes their only allocator, or back: docs/guides/dra.md.

    Needs administrator rights. Exit status 1 if it refuses or fails; rerun it to continue where it stopped.
    """
    from extender.kube.client import ClusterError
    from extender.parts.dra.handover import RefusedError
    from extender.parts.dra.policies import UnprovenError

    settle_s = settle if settle is not None else (_GIVING_BACK_S if remove else _TAKING_S)
    asked = _Asked(driver, tuple(dict.fromkeys(pool or ())), remove, dry_run, force, account, settle_s)
    try:
        asyncio.run(_run(asked, kubeconfig, context))
    except (ClusterError, RefusedError, UnprovenError) as error:
        fail(str(error), FAILED)


async def _run(asked: _Asked, kubeconfig: str | None, context: str | None) -> None:
    async with cluster(kubeconfig, context, writes=not asked.dry_run) as api:
        from extender.cli.install.kerf import find_kerf
        from extender.parts.dra import facts, policies
        from extender.parts.dra import install_checks as checks

        served = await facts.serves_rules(api)
        if not served:
            fail(checks.NO_DRA if served is None else checks.NO_RULES.format(driver=asked.driver), FAILED)
        installed = await find_kerf(api)
        account = asked.account or installed.service_account
        if not account and not asked.remove:
            fail("no Kerf was found in the cluster: name its account with --service-account NAMESPACE/NAME", FAILED)
        try:
            for name in (asked.driver, *asked.pools):
                policies.checked(name)
            user = policies.user_of(account) if account else ""
        except ValueError as error:
            fail(str(error), USAGE)
        if asked.remove:
            await _give_back(api, asked, account)
        else:
            await _take(api, asked, installed, account, user)


async def _take(api: "ApiServer", asked: _Asked, installed: "Installed", account: str, user: str) -> None:
    from extender.cli.install.access import missing, policies_in_force
    from extender.cli.install.findings import Verdict, broken
    from extender.core.dra import owning
    from extender.parts.dra import facts, handover, policies
    from extender.parts.dra import install_checks as checks
    from extender.parts.dra.settings import ALLOCATING

    state = await facts.facts_of(api, asked.driver, asked.pools)
    for sentence in checks.consequences(state):
        _say(sentence)
    against = list(checks.objections(state, asked.pools, installed))
    against += [broken(text) for text in await missing(api, user, ALLOCATING)]
    blocking = [each for each in against if each.verdict is Verdict.BROKEN or not asked.force]
    for each in against:
        _say(f"{'refused' if each in blocking else 'overridden'}: {each.told}")
    if blocking:
        hint = " (--force overrides this)" if all(each.verdict is Verdict.NOTE for each in blocking) else ""
        fail(f"nothing was changed{hint}", FAILED)
    if asked.dry_run:
        documents = [handover.rule_for(asked.driver, pool, owning.OWNED) for pool in asked.pools or (None,)]
        for rule in list(documents):
            selector = rule["spec"]["deviceSelector"]
            documents += policies.fence(rule["metadata"]["name"], asked.driver, selector.get("pool"), user)
        if not any(name.endswith(policies.TOLERATIONS) for name in await policies_in_force(api)):
            documents += policies.tolerations()
        _say(f"devices would be held for {asked.settle_s:g} s, then:")
        echo(as_yaml(*documents))
        return
    await handover.take(api, asked.driver, asked.pools, account.partition("/")[0], user, asked.settle_s, _say)


async def _give_back(api: "ApiServer", asked: _Asked, account: str) -> None:
    from extender.parts.dra import facts, handover

    of_driver = [rule for rule in await facts.rules_in(api) if rule.driver == asked.driver]
    rules = [rule for rule in of_driver if not asked.pools or rule.pool in asked.pools]
    if missing := sorted(set(asked.pools) - {rule.pool for rule in rules}):
        whole = next((rule.name for rule in of_driver if rule.pool is None), "")
        hint = f": {whole} owns all pools of {asked.driver} and can only be removed as a whole" if whole else ""
        fail(f"no DeviceTaintRule owns pool {', '.join(missing)}{hint}", FAILED)
    if not rules:
        fail(
            f"no DeviceTaintRule gives devices of {asked.driver} to Kerf (a driver may publish the taint itself)",
            FAILED,
        )
    if asked.dry_run:
        for rule in rules:
            _say(f"{rule.name}: would be held for {asked.settle_s:g} s, then deleted")
        return
    # Without an installed Kerf one may still run, outside the cluster or from other manifests: hold the devices anyway.
    await handover.give_back(api, rules, account.partition("/")[0] or "default", asked.settle_s, _say)


def _say(sentence: str) -> None:
    echo(sentence)
