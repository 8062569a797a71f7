"""`kerf install check`: what a cluster lacks for Kerf, each with the command that mends it; and `kerf install dra`."""

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from extender.cli.client.kerf import FAILED, Output, OutputOption, fail, show
from extender.cli.groups import Group
from extender.cli.install.dra.command import give
from extender.cli.settings import ContextOption, KubeconfigOption, api_server, cluster_settings

app = typer.Typer(
    cls=Group,
    help="Check what a cluster has, and lacks, for Kerf; give it devices.",
    no_args_is_help=True,
    add_completion=False,
)

_CLOSING_S = 0.2
"""Connections by TLS end a moment after they are closed, and the loop should still be there."""
_SIGNS = {"ok": "[green]ok[/green]    ", "note": "[yellow]note[/yellow]  ", "broken": "[red]broken[/red]"}


@app.callback()
def _install() -> None:
    """Check what a cluster has, and lacks, for Kerf; give it devices."""


app.command("dra")(give)


@app.command()
def check(
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    account: Annotated[
        str, typer.Option("--service-account", help="NAMESPACE/NAME; default: that of the Kerf it finds.")
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Check versions, Kerf's installation and rights, the scheduler's configuration, device plugins and telemetry.

    Run it as an administrator; it only reads. Exit status 1 if something is broken, else 0.
    """
    from extender.cli.install.checks import check_cluster
    from extender.cli.install.findings import Finding, Verdict
    from extender.kube.client import ClusterError

    if account and account.count("/") != 1:
        raise typer.BadParameter("write NAMESPACE/NAME", param_hint="--service-account")

    async def look() -> list[Finding]:
        transport = api_server(cluster_settings(kubeconfig, context))
        await transport.start()
        try:
            return await check_cluster(transport, account)
        finally:
            await transport.close()
            await asyncio.sleep(_CLOSING_S)

    try:
        findings = asyncio.run(look())
    except ClusterError as error:
        fail(str(error), FAILED)

    def table(console: Console) -> None:
        for finding in findings:
            console.print(
                f"{_SIGNS[finding.verdict]}  [bold]{finding.what}[/bold]: {escape(finding.told)}", soft_wrap=True
            )
            if finding.fix:
                console.print(f"          {escape(finding.fix)}", soft_wrap=True)

    show([asdict(finding) for finding in findings], output, table)
    if any(finding.verdict is Verdict.BROKEN for finding in findings):
        raise typer.Exit(FAILED)
