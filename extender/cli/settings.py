"""What commands share that take settings, or speak to an API server: options, and what comes of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from extender.cli.client.kerf import fail
from extender.cli.printing import echo

if TYPE_CHECKING:
    from extender.kube.client import ApiServer
    from extender.settings.cluster import ClusterSettings
    from extender.settings.tree import Settings

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="KERF_CONFIG", help="YAML file of settings.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, as in --set server.port=9000; repeatable.")
]
KubeconfigOption = Annotated[str | None, typer.Option(help="kubeconfig file; default: as kubectl, or in-cluster.")]
ContextOption = Annotated[str | None, typer.Option(help="kubeconfig context.")]


def load(
    config: Path | None, assignments: list[str] | None, flags: dict[str, Any] | None = None, *, failing_with: int = 2
) -> "Settings":
    """Settings of a file, the environment and the command line; ends the command with all their faults at once."""
    from extender.settings.load import SettingsError, load_settings
    from extender.telemetry.sources.registry import SOURCES, unknown

    given = {name: value for name, value in (flags or {}).items() if value is not None}
    try:
        loaded = load_settings(config, given, assignments or ())
        if loaded.telemetry.source not in ("auto", "off", *SOURCES):
            raise SettingsError([unknown(loaded.telemetry.source)])
        return loaded
    except SettingsError as error:
        head = f"{len(error.faults)} error{'s' if len(error.faults) > 1 else ''} in the settings:"
        fail("\n  ".join([head, *error.faults]), failing_with)


def cluster_settings(kubeconfig: str | None, context: str | None) -> "ClusterSettings":
    """Settings of a command that has no others."""
    from extender.settings.cluster import ClusterSettings

    return ClusterSettings(kubeconfig=kubeconfig or "", context=context or "")


def announce(api: "ApiServer") -> None:
    """Say which cluster a command is about to write to, and as whom, before it asks anything."""
    echo(f"writes to {api.told}", err=True)


def api_server(cluster: "ClusterSettings") -> "ApiServer":
    """The API server that the settings name."""
    from extender.kube.client import ApiServer

    return ApiServer(
        kubeconfig=cluster.kubeconfig,
        context=cluster.context,
        service_account_dir=cluster.service_account_dir,
        request_timeout_s=cluster.request_timeout_s,
    )
