"""`kerf doctor`: refreshes telemetry once, and reports findings and the rank that a running Kerf uses."""

import asyncio
import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from extender.cli.client.kerf import FAILED, CaFileOption, Kerf, Output, OutputOption, fail, show
from extender.cli.install.checks import checks_of
from extender.cli.install.findings import Finding, Needs, findings_of, finish
from extender.cli.install.running import ask_running, site_of
from extender.cli.settings import ConfigOption, ContextOption, KubeconfigOption, SetOption, api_server, connected, load
from extender.kube.client import CredentialsError, Transport
from extender.settings.tree import Settings
from extender.telemetry.series import ALIAS_OF, FRACTIONS

_UNITS = {0.01: "percent", 1 / 2**20: "bytes"}


def doctor(  # noqa: PLR0913, PLR0917 - options of a command
    typed: typer.Context,
    config: ConfigOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
    as_json: Annotated[bool, typer.Option("--json", hidden=True, help="As -o json.")] = False,
    settings: SetOption = None,
    server: Annotated[
        str | None,
        typer.Option("--server", "-s", help="Also report which rank the Kerf at this address uses, and why."),
    ] = None,
    ca_file: CaFileOption = None,
) -> None:
    """Find Prometheus, read it once, and report what was found; exit status 1 if something is wrong."""
    loaded = load(config, settings, {"cluster.kubeconfig": kubeconfig, "cluster.context": context})
    rank, faults = None, list[str]()
    if server:
        with Kerf(typed, server=server, ca_file=ca_file) as kerf:
            rank, faults = ask_running(kerf)
    try:
        result, findings = asyncio.run(_examine(loaded, api_server(loaded.cluster), faults))
    except CredentialsError as error:
        fail(str(error), FAILED)
    result["rank"] = rank
    show(result, Output.JSON if as_json else output, lambda console: _print(result, console))
    finish(findings)


async def _examine(
    settings: Settings, transport: Transport, faults: Sequence[str] = ()
) -> tuple[dict[str, Any], list[Finding]]:
    """The result of one telemetry refresh, as JSON data with all findings; and the findings.

    Raises CredentialsError if no API server is configured.
    """
    async with connected(transport):
        site = await site_of(settings, transport, faults)
        findings = await findings_of(checks_of(Needs.SETTINGS, Needs.SERVER), site)
    result = site.telemetry | {"findings": [finding.told for finding in findings]}
    return msgspec.to_builtins(result), findings


def _print(result: dict[str, Any], console: Console) -> None:
    if rank := result.get("rank"):
        console.print(f"rank: {_rank_in_words(rank)}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"telemetry: [bold]{result['state']}[/bold]", highlight=False)
    if "source" in result:
        _print_telemetry(result, console)
    for finding in result["findings"]:
        console.print(f"- {finding}", highlight=False, markup=False, soft_wrap=True)


def _print_telemetry(result: dict[str, Any], console: Console) -> None:
    """Print what was read, and from where."""
    version = f", version {result['version']}" if result["version"] else ""
    if result["source"]:
        console.print(
            f"source: {result['source']}{version}, read in {result['read_s']:.2f} s", highlight=False, markup=False
        )
    if result["candidates"]:
        console.print(f"found in the cluster: {', '.join(result['candidates'])}", highlight=False, markup=False)
    if result["passedOver"]:
        console.print(f"found, not read: {', '.join(result['passedOver'])}", highlight=False, markup=False)
    if result["series"]:
        table = Table("metric", "exporter", "unit", "series", box=None)
        for name, count in result["series"].items():
            table.add_row(escape(name), *_exporter_and_unit(name), str(count))
        console.print(table)
    nodes = ", ".join(f"{count} {state}" for state, count in result["nodes"].items())
    console.print(f"nodes with GPUs: {nodes}", highlight=False)
    console.print(f"GPUs in series: {result['gpus']}, matched: {result['gpusMatched']}", highlight=False)
    skew = result["skew_s"]
    if math.isfinite(skew) and result["skew_uncertainty_s"]:  # else its clock is unknown
        console.print(
            f"clock: {skew:+.2f} s from this machine's (within {result['skew_uncertainty_s']:.2f} s)", highlight=False
        )


def _rank_in_words(rank: dict[str, Any]) -> str:
    """The rank in use and why; if ranks are tried, also the last trial."""
    if rank["reason"]:
        return f"{rank['served']} serves: {rank['reason']}"
    auto, evidence = f"auto uses {rank['auto']}", rank["evidence"]
    if evidence is None:
        return f"{auto}; other ranks are not tried"
    if not evidence["reason"]:
        return f"{auto}; other ranks have not been tried yet"
    return f"{auto}: {evidence['reason']} (trial {evidence['tried']}, {evidence['ageSeconds'] / 3600:.1f} h ago)"


def _exporter_and_unit(name: str) -> tuple[str, str]:
    alias = ALIAS_OF.get(name)
    if alias is None:  # telemetry sources may have other names
        return "", ""
    return alias.exporter, _UNITS.get(alias.scale, "fraction" if alias.gauge in FRACTIONS else "as is")
