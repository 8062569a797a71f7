"""A demo whose API server comes and goes: `python -m tests.page.blind demo --port N [--unsynced]`.

SIGUSR1 cuts it off, SIGUSR2 brings it back; what was heard 3 s ago is too old.
"""

import signal
import sys

from extender.api.app import create_app
from extender.cli.logs import configure_logs
from extender.demo.cluster import sample_cluster
from extender.demo.metrics import SampleFeed
from extender.server.run import run
from extender.settings.load import load_settings
from tests.api.cut_off import CutOff

MAX_AGE_S = 3


def main(port: int, *, synced: bool) -> None:
    """Serve until told to stop."""
    flags = {"server.port": port, "cluster.max_age_s": MAX_AGE_S, "telemetry.interval_s": 15, "model.mode": "off"}
    settings = load_settings(flags=flags)
    configure_logs(settings.log)
    cluster = CutOff(sample_cluster())
    cluster.reachable = synced

    def reach(number: int, frame: object) -> None:
        cluster.reachable = True

    signal.signal(signal.SIGUSR1, lambda number, frame: cluster.cut())
    signal.signal(signal.SIGUSR2, reach)
    run(create_app(settings, cluster, feed=SampleFeed(cluster)), settings)


if __name__ == "__main__":
    main(int(sys.argv[sys.argv.index("--port") + 1]), synced="--unsynced" not in sys.argv)
