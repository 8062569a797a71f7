"""`kerf demo`: the service on a cluster that is only in memory."""

from typing import Annotated

import typer

from extender import __version__
from extender.cli.printing import echo
from extender.cli.serve import run
from extender.cli.settings import ConfigOption, SetOption, load


def demo(
    port: Annotated[int, typer.Option(envvar="KERF_PORT", help="Port to listen on.")] = 8888,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Serve an embedded sample cluster: no Kubernetes needed, try it with curl."""
    loaded = load(config, settings, {"server.port": port, "telemetry.interval_s": 2.0})
    from extender.demo.cluster import sample_cluster
    from extender.demo.metrics import SampleFeed
    from extender.kube.memory import MemoryCluster

    address = f"http://localhost:{port}"
    echo(
        f"Kerf {__version__} on a sample cluster at {address} - stop with Ctrl-C. In another terminal:\n"
        f"  {address}              # the page: open it in a browser\n"
        f"  curl -s {address}/readyz\n"
        f"  curl -s {address}/docs            # the API, in a browser\n"
        f"  curl -s {address}/telemetry       # sample metrics, moving\n"
        f"  kerf explain default/train-0{'' if port == 8888 else f' --server {address}'}      # why is it pending",
        err=True,
    )
    cluster = MemoryCluster(sample_cluster())
    telemetry = loaded.telemetry
    real = telemetry.url or telemetry.exporters or telemetry.source != "auto"
    run(loaded, cluster, None if real else SampleFeed(cluster))
