"""Another extender after Kerf: a node that it rejects is not offered to that pod again and again."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import KerfCluster, KerfProcess
from tests.e2e.fixtures import Clusters

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]


@contextmanager
def storage(rejected: set[str]) -> Iterator[tuple[str, Counter[str]]]:
    """An extender that rejects some nodes: its address, and how often it was asked about each node."""
    asked: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            names = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["NodeNames"]
            asked.update(names)
            failed = {name: "no storage here" for name in names if name in rejected}
            kept = [name for name in names if name not in rejected]
            content = json.dumps({"NodeNames": kept, "FailedNodes": failed}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def test_another_node_is_offered_where_an_extender_after_kerf_rejects_its_node(
    clusters: Clusters, tmp_path: Path
) -> None:
    clusters.close()
    nodes = ["a", "b", "c"]
    with storage(set()) as (url, asked):
        kerf = KerfProcess(clusters.plane, "kerf-before-storage")
        settings = yaml.safe_load((SCHEDULER_CONFIG / "decisive.yaml").read_text())
        for entry in settings["extenders"]:
            entry["urlPrefix"] = entry["urlPrefix"].replace("http://127.0.0.1:8888", kerf.url)
        settings["extenders"].append({"urlPrefix": url, "filterVerb": "filter", "weight": 1, "nodeCacheCapable": True})
        config = tmp_path / "with-storage.yaml"
        config.write_text(yaml.safe_dump(settings))
        scheduler = clusters.plane.start_scheduler(config, name="scheduler-before-storage")
        cluster = KerfCluster(clusters.plane, kerf)
        try:
            cluster.add_nodes(*(gpu_node(name, gpus=4) for name in nodes))
            cluster.submit("first", gpus=1)
            liked = cluster.node_of("first")
            with storage({liked}) as (refusing, refused):
                scheduler.stop()
                settings["extenders"][-1]["urlPrefix"] = refusing
                config.write_text(yaml.safe_dump(settings))
                scheduler = clusters.plane.start_scheduler(config, name="scheduler-with-storage")
                cluster.submit("second", gpus=1)
                placed = wait_until(
                    lambda: cluster.pod("second")["spec"].get("nodeName"), 60.0, "bound where storage lets it"
                )
                assert placed != liked
                assert refused[liked] == 2
                scheduler.stop()
            assert asked[liked] >= 1
        finally:
            cluster.clean()
            scheduler.stop()
            kerf.stop()
