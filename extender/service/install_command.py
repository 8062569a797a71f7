"""`kerf install check`: what a cluster lacks for Kerf, each with the command that mends it."""

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from extender.service.clients import FAILED, Output, OutputOption, fail, show
from extender.service.settings import ClusterSettings

app = typer.Typer(help="Look at what a cluster has, and lacks, for Kerf.", no_args_is_help=True)

_CLOSING_S = 0.2
"""Connections by TLS end a moment after they are closed, and the loop should still be there."""
_SIGNS = {"ok": "[green]ok[/green]    ", "note": "[yellow]note[/yellow]  ", "broken": "[red]broken[/red]"}


@app.callback()
def _install() -> None:
    """Look at what a cluster has, and lacks, for Kerf."""


@app.command()
def check(
    kubeconfig: Annotated[str, typer.Option(help="kubeconfig file; default: as kubectl, or in-cluster.")] = "",
    context: Annotated[str, typer.Option(help="kubeconfig context.")] = "",
    account: Annotated[
        str, typer.Option("--service-account", help="NAMESPACE/NAME; default: that of the Kerf which is found.")
    ] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Versions, the installed Kerf, its rights, the scheduler's configuration, device plugins, GFD, DCGM, Prometheus.

    Run it as an administrator; it only reads. Exit status 0 when nothing is broken, else 1.
    """
    from extender.cluster.transports import ApiServer, ClusterError
    from extender.service.install_checks import Checks, Finding, Verdict

    if account and account.count("/") != 1:
        raise typer.BadParameter("write NAMESPACE/NAME", param_hint="--service-account")

    async def look() -> list[Finding]:
        transport = ApiServer(
            kubeconfig=kubeconfig, context=context, service_account_dir=ClusterSettings().service_account_dir
        )
        await transport.start()
        try:
            return await Checks(transport, account).run()
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
