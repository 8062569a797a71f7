"""The command line, `kerf`."""

import importlib
import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from typer.core import TyperGroup

from extender import __version__
from extender.cluster.yaml_faults import yaml_fault
from extender.service.explain_command import explain
from extender.service.install_command import app as install_app
from extender.service.pipeline_command import pipeline_app
from extender.service.plan_command import plan
from extender.service.settings import Settings, SettingsError, describe_settings, load_settings
from extender.service.top_command import top
from extender.service.what_if_command import what_if

COMMANDS = "kerf.commands"
"""Entry points: commands of other parts of the product, each a `typer.Typer`."""


class _Commands(TyperGroup):
    """The commands below, and those that entry points add: their parts are imported when they are asked for."""

    # Typer's own names and, since it may or may not bring its own copy of click, no types of that.
    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *sorted(entry_points(group=COMMANDS).names)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = entry_points(group=COMMANDS, name=cmd_name)
        if not found:
            return super().get_command(ctx, cmd_name)
        command = typer.main.get_command(found[cmd_name].load())
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_Commands,
    help="Kerf: a kube-scheduler extender that stops GPU clusters from wasting GPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Look at settings, or check them.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(pipeline_app, name="pipeline")
app.add_typer(install_app, name="install")
app.command()(plan)
app.command()(explain)
app.command()(top)
app.command("what-if")(what_if)

_errors = Console(stderr=True)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="KERF_CONFIG", help="YAML file of settings.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="One setting, as in --set server.port=9000; may be repeated.")
]


@app.command()
def serve(  # noqa: PLR0913, PLR0917 - options of a command
    config: ConfigOption = None,
    kubeconfig: Annotated[str | None, typer.Option(help="kubeconfig file; default: as kubectl, or in-cluster.")] = None,
    context: Annotated[str | None, typer.Option(help="kubeconfig context.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    mode: Annotated[str | None, typer.Option(help="decisive or scores.")] = None,
    policy: Annotated[str | None, typer.Option(help="Ranking: bestfit, binpack, spread, live, fgd, ...")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning, error.")] = None,
    settings: SetOption = None,
) -> None:
    """Serve kube-scheduler from a cluster's API server."""
    loaded = _load(
        config,
        settings,
        {
            "cluster.kubeconfig": kubeconfig,
            "cluster.context": context,
            "server.host": host,
            "server.port": port,
            "decisions.mode": mode,
            "decisions.policy": policy,
            "log.level": log_level,
        },
    )
    _run(loaded, _api_server(loaded))


@app.command()
def demo(
    port: Annotated[int, typer.Option(envvar="KERF_PORT", help="Port to listen on.")] = 8888,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Serve an embedded sample cluster: no Kubernetes needed, try it with curl."""
    loaded = _load(config, settings, {"server.port": port, "telemetry.interval_s": 2.0})
    from extender.cluster.memory import MemoryCluster
    from extender.service.sample_metrics import SampleFeed
    from extender.service.samples import sample_cluster

    address = f"http://localhost:{port}"
    _errors.print(
        f"Kerf {__version__} on a sample cluster at [bold]{address}[/bold] - stop with Ctrl-C. In another terminal:\n"
        f"  {address}              # the page: open it in a browser\n"
        f"  curl -s {address}/readyz\n"
        f"  curl -s {address}/docs            # the API, in a browser\n"
        f"  curl -s {address}/telemetry       # sample metrics, moving\n"
        f"  kerf explain default/train-0      # why is it pending",
        highlight=False,
        soft_wrap=True,
    )
    cluster = MemoryCluster(sample_cluster())
    real = loaded.telemetry.url or loaded.telemetry.exporters
    _run(loaded, cluster, None if real else SampleFeed(cluster))


@app.command()
def doctor(
    config: ConfigOption = None,
    kubeconfig: Annotated[str | None, typer.Option(help="kubeconfig file; default: as kubectl, or in-cluster.")] = None,
    context: Annotated[str | None, typer.Option(help="kubeconfig context.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, on standard output.")] = False,
    settings: SetOption = None,
) -> None:
    """Look for Prometheus, read it once, and say what was found; exit status 1 when something is wrong."""
    import asyncio

    import msgspec

    from extender.cluster.transports import CredentialsError
    from extender.service.doctor import examine, print_finding

    loaded = _load(config, settings, {"cluster.kubeconfig": kubeconfig, "cluster.context": context})
    try:
        told = asyncio.run(examine(loaded, _api_server(loaded)))
    except CredentialsError as error:
        _complain(str(error), style="red")
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
    else:
        print_finding(told, Console())
    if told["findings"]:
        raise typer.Exit(1)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@config_app.command("show")
def config_show(config: ConfigOption = None, settings: SetOption = None) -> None:
    """Print all settings as they are in effect, as YAML that --config takes; stars stand for secrets."""
    typer.echo(yaml.safe_dump(_load(config, settings, {}).model_dump(mode="json"), sort_keys=False).rstrip())


@config_app.command("describe")
def config_describe() -> None:
    """Print every setting with its default and meaning, as Markdown."""
    typer.echo(describe_settings().rstrip())


@config_app.command("check")
def config_check(config: ConfigOption = None, settings: SetOption = None) -> None:
    """Report every fault in the settings at once; exit status 1 when there is one."""
    _load(config, settings, {}, failing_with=1)
    typer.echo("settings are valid")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Measure Kerf beside a plain kube-scheduler and a bare echo (needs a source checkout)."""
    _run_from_checkout("bench", context)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def chaos(context: typer.Context) -> None:
    """Break Kerf and a real control plane in every way, and check what it promises (needs a source checkout)."""
    _run_from_checkout("chaos", context)


def _run_from_checkout(name: str, context: typer.Context) -> None:
    try:
        commands = importlib.import_module(f"tests.{name}.commands")
    except ModuleNotFoundError as error:
        _complain(
            f"kerf {name} drives a real control plane that is built from tests/ of a source checkout ({error}); "
            f"run it there, as .venv/bin/kerf {name}"
        )
        raise typer.Exit(2) from None
    commands.app(context.args, prog_name=f"kerf {name}")


def main() -> None:
    """The entry point."""
    app()


def _load(
    config: Path | None, assignments: list[str] | None, flags: dict[str, Any], *, failing_with: int = 2
) -> Settings:
    given = {name: value for name, value in flags.items() if value is not None}
    faults: list[str] = []
    for assignment in assignments or ():
        name, separator, value = assignment.partition("=")
        try:
            if not separator:
                raise ValueError("write section.name=value, as in server.port=9000")
            given[name.strip()] = yaml.safe_load(value) if value else ""
        except ValueError as error:
            faults.append(f"--set {name}: {error}")
        except yaml.YAMLError as error:
            faults.append(f"--set {name}: {yaml_fault(error)}")
    loaded = Settings.model_construct()
    try:
        loaded = load_settings(config, given)
    except SettingsError as error:
        faults += error.faults
    if faults:
        _complain(f"{len(faults)} fault{'s' if len(faults) > 1 else ''} in the settings:", style="red")
        for fault in faults:
            _complain(f"  {fault}")
        raise typer.Exit(failing_with)
    return loaded


def _complain(text: str, style: str = "") -> None:
    """A line on standard error as it is: not wrapped, and brackets in it are no markup."""
    _errors.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _api_server(settings: Settings) -> Any:
    from extender.cluster.transports import ApiServer

    cluster = settings.cluster
    return ApiServer(
        kubeconfig=cluster.kubeconfig,
        context=cluster.context,
        service_account_dir=cluster.service_account_dir,
        request_timeout_s=cluster.request_timeout_s,
    )


def _run(settings: Settings, transport: Any, feed: Any = None) -> None:
    from extender.cluster.transports import CredentialsError
    from extender.service.app import create_app
    from extender.service.certificates import CertificateError
    from extender.service.logs import configure_logs
    from extender.service.server import run
    from extender.service.tokens import TokenError
    from extender.service.traces import TraceError

    configure_logs(settings.log)
    try:
        run(create_app(settings, transport, feed=feed), settings)
    except (CredentialsError, CertificateError, TokenError, TraceError) as error:
        _complain(str(error), style="red")
        raise typer.Exit(1) from None


if os.environ.get("NO_COLOR"):
    _errors.no_color = True
