"""Options for settings and for the API server, shared by commands."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from extender.cli.client.kerf import fail
from extender.cli.printing import echo

if TYPE_CHECKING:
    from extender.kube.client import ApiServer, Transport
    from extender.settings.cluster import ClusterSettings
    from extender.settings.tree import Settings

T = TypeVar("T", bound="Transport")

_CLOSING_S: Final = 0.2
"""TLS connections end shortly after they are closed, and need the event loop until then."""

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="KERF_CONFIG", help="YAML file of settings.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, as in --set server.port=9000; repeatable.")
]
KubeconfigOption = Annotated[str | None, typer.Option(help="kubeconfig file; default: kubectl's, or in-cluster.")]
ContextOption = Annotated[str | None, typer.Option(help="kubeconfig context.")]
ServiceAccountOption = Annotated[
    str, typer.Option("--service-account", help="NAMESPACE/NAME; default: that of the installed Kerf.")
]


def load(
    config: Path | None, assignments: list[str] | None, flags: dict[str, Any] | None = None, *, failing_with: int = 2
) -> "Settings":
    """Load settings from a file, the environment and the command line; exits with a list of all errors."""
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


@asynccontextmanager
async def connected(transport: T) -> AsyncIterator[T]:
    """Start a transport, and close it at the end."""
    try:
        await transport.start()
        yield transport
    finally:
        await transport.close()
        await asyncio.sleep(_CLOSING_S)


@asynccontextmanager
async def cluster(kubeconfig: str | None, context: str | None, *, writes: bool = False) -> AsyncIterator["ApiServer"]:
    """The API server of a command without settings. With `writes`, first prints which cluster it will change."""
    from extender.settings.cluster import ClusterSettings

    api = api_server(ClusterSettings(kubeconfig=kubeconfig or "", context=context or ""))
    if writes:
        echo(f"writes to {api.told}", err=True)
    async with connected(api):
        yield api


def api_server(settings: "ClusterSettings") -> "ApiServer":
    """The API server of the settings."""
    from extender.kube.client import ApiServer

    return ApiServer(
        kubeconfig=settings.kubeconfig,
        context=settings.context,
        service_account_dir=settings.service_account_dir,
        request_timeout_s=settings.request_timeout_s,
    )
