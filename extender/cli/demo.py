"""`kerf demo`: the service on an in-memory sample cluster."""

from typing import Annotated

import typer

from extender import __version__
from extender.cli.client.kerf import FAILED, fail
from extender.cli.printing import echo
from extender.cli.serve import run
from extender.cli.settings import ConfigOption, SetOption, load

_PORT = 8888


def port_of(text: str) -> int:
    """Parse a port. Kubernetes sets KERF_PORT to an address in pods beside a Service named kerf: that is ignored."""
    text = str(text)  # the default is a number
    if text.startswith(("tcp://", "udp://", "sctp://")):
        return _PORT
    if not text.isdecimal() or int(text) > 65535:
        raise typer.BadParameter(f"{text!r} is not a port: set one with --port or KERF_PORT")
    return int(text)


def demo(
    port: Annotated[int, typer.Option(envvar="KERF_PORT", parser=port_of, help="Port to listen on.")] = _PORT,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Serve an embedded sample cluster: no Kubernetes needed, try it with curl."""
    loaded = load(config, settings, {"server.port": port, "telemetry.interval_s": 2.0})
    from extender.demo.cluster import sample_cluster
    from extender.demo.metrics import SampleFeed
    from extender.kube.memory import MemoryCluster
    from extender.server.connections import ListenError, listen

    try:
        for free in listen(loaded.server.host, loaded.server.port):
            free.close()
    except ListenError as error:
        fail(f"{error}; on another port: KERF_PORT=9000 make demo, or kerf demo --port 9000", FAILED)
    address = f"http://localhost:{port}"
    echo(
        f"Kerf {__version__} on a sample cluster at {address} - stop with Ctrl-C. In another terminal:\n"
        f"  {address}              # the page: open it in a browser\n"
        f"  curl -s {address}/readyz\n"
        f"  curl -s {address}/docs            # the API, in a browser\n"
        f"  curl -s {address}/telemetry       # sample metrics, moving\n"
        f"  kerf explain default/train-0{'' if port == _PORT else f' --server {address}'}      # why is it pending",
        err=True,
    )
    cluster = MemoryCluster(sample_cluster())
    telemetry = loaded.telemetry
    real = telemetry.url or telemetry.exporters or telemetry.source != "auto"
    run(loaded, cluster, None if real else SampleFeed(cluster))
