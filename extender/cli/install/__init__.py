"""`kerf install check`: what a cluster lacks for Kerf, with the fix for each; and the install commands of parts."""

import asyncio

import typer

from extender.cli.client.kerf import FAILED, Output, OutputOption, fail, show
from extender.cli.main import Group
from extender.cli.settings import ContextOption, KubeconfigOption, ServiceAccountOption, cluster
from extender.core.faces import faces, named

app = typer.Typer(
    cls=Group,
    help="Check whether a cluster has what Kerf needs; parts add commands that change it.",
    no_args_is_help=True,
    add_completion=False,
)


for _face in faces().values():
    for _name, _where in _face.installs.items():
        app.command(_name)(named(_where))


@app.command()
def check(
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    account: ServiceAccountOption = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Check versions, Kerf's installation and rights, the scheduler's configuration, device plugins and telemetry.

    Run it as an administrator; it only reads. Exit status 1 if something is broken, else 0.
    """
    import msgspec

    from extender.cli.install.checks import checks_of
    from extender.cli.install.findings import Finding, Needs, findings_of, finish, print_findings
    from extender.cli.install.kerf import look_at
    from extender.kube.client import ClusterError

    if account and account.count("/") != 1:
        raise typer.BadParameter("write NAMESPACE/NAME", param_hint="--service-account")

    async def look() -> list[Finding]:
        async with cluster(kubeconfig, context) as transport:
            return await findings_of(checks_of(Needs.CLUSTER), await look_at(transport, account))

    try:
        findings = asyncio.run(look())
    except ClusterError as error:
        fail(str(error), FAILED)
    show(msgspec.to_builtins(findings), output, lambda console: print_findings(findings, console))
    finish(findings)
