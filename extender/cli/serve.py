"""`kerf serve`, and `run`, which `kerf demo` shares."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from extender.cli.client.kerf import FAILED, fail
from extender.cli.settings import ConfigOption, ContextOption, KubeconfigOption, SetOption, api_server, load

if TYPE_CHECKING:
    from extender.settings.tree import Settings


def serve(  # noqa: PLR0913, PLR0917 - options of a command
    config: ConfigOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    mode: Annotated[str | None, typer.Option(help="decisive or scores.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Ranking policy: tightest, binpack, spread, live, fgd, ...")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning, error.")] = None,
    settings: SetOption = None,
) -> None:
    """Run the scheduler extender for a cluster."""
    flags = {
        "cluster.kubeconfig": kubeconfig,
        "cluster.context": context,
        "server.host": host,
        "server.port": port,
        "decisions.mode": mode,
        "decisions.policy": policy,
        "log.level": log_level,
    }
    loaded = load(config, settings, flags)
    run(loaded, api_server(loaded.cluster))


def run(settings: "Settings", transport: Any, feed: Any = None) -> None:
    """Serve until stopped; exits with an error message if the server can't start."""
    from extender.api.app import create_app
    from extender.api.contributions import PartError
    from extender.cli.logs import configure_logs
    from extender.kube.client import CredentialsError
    from extender.server.access import TokenError
    from extender.server.certificates import CertificateError
    from extender.server.connections import ListenError
    from extender.server.run import run as run_server

    configure_logs(settings.log)
    try:
        run_server(create_app(settings, transport, feed=feed), settings)
    except ListenError as error:
        fail(f"{error}; choose another with --port, --host or server.metrics_port", FAILED)
    except (CredentialsError, CertificateError, TokenError, PartError) as error:
        fail(str(error), FAILED)
