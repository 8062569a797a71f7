"""`kerf node-agent`, which runs on each GPU node."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import typer

from extender.cli.printing import echo

if TYPE_CHECKING:
    from extender.kube.transport import Transport


class _Logs(NamedTuple):
    """Log settings. Kerf's settings are not used, as reading them takes as much memory as the agent."""

    level: str
    format: str


def node_agent(  # noqa: PLR0913, PLR0917 - options of a command
    node: Annotated[str, typer.Option(envvar="NODE_NAME", help="The node's name.")],
    steer: Annotated[bool, typer.Option("--steer", help="Proxy the device plugin to choose its devices.")] = False,
    device_plugins: Annotated[Path, typer.Option(help="The kubelet's folder for device plugins.")] = Path(
        "/var/lib/kubelet/device-plugins"
    ),
    pod_resources: Annotated[Path, typer.Option(help="Socket of the kubelet's PodResources API.")] = Path(
        "/var/lib/kubelet/pod-resources/kubelet.sock"
    ),
    health_port: Annotated[int, typer.Option(help="Port of /healthz and /readyz, 0 for none.")] = 8889,
    service_account_dir: Annotated[Path, typer.Option(help="Token and CA of the pod's service account.")] = Path(
        "/var/run/secrets/kubernetes.io/serviceaccount"
    ),
    kubeconfig: Annotated[str | None, typer.Option(help="kubeconfig file, instead of a service account.")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning, error.")] = "info",
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
) -> None:
    """Report the GPUs that the kubelet allocated, and steer the device plugin to those that Kerf chose."""
    from extender.cli.logs import configure_logs

    try:
        from extender.parts.agent.agent import Agent, AgentError, Options
    except ModuleNotFoundError as error:
        _fail(f"kerf node-agent needs the extra kerf[agent] ({error})", 2)
    from extender.kube.transport import CredentialsError, is_name

    if not is_name(node):
        _fail(f"{node!r} is not a valid node name", 2)
    if log_level not in ("debug", "info", "warning", "error") or log_format not in ("text", "json"):
        _fail("--log-level is debug, info, warning or error, --log-format text or json", 2)
    configure_logs(_Logs(log_level, log_format))
    options = Options(
        node=node,
        steer=steer,
        device_plugins=device_plugins,
        pod_resources=pod_resources,
        health_port=health_port,
    )
    try:
        asyncio.run(Agent(options, _transport(service_account_dir, kubeconfig)).run())
    except (AgentError, CredentialsError, OSError) as error:
        _fail(str(error), 1)


def _fail(sentence: str, status: int) -> NoReturn:
    echo(sentence, err=True)
    raise typer.Exit(status)


def _transport(service_account_dir: Path, kubeconfig: str | None) -> "Transport":
    if kubeconfig is None:
        from extender.parts.agent.service_account import ServiceAccount

        return ServiceAccount(service_account_dir)
    from extender.kube.client import ApiServer

    return ApiServer(kubeconfig=kubeconfig, service_account_dir=service_account_dir)
