"""What an API server has done so far, by its own metrics: requests, writes, and what watches were sent.

Exact numbers, where its processor time mostly says how fast everything else was.
"""

import re
import time
from collections import defaultdict
from typing import Final

from tests.controlplane import ControlPlane

_LINE: Final = re.compile(
    r"^(apiserver_(?:request_total|watch_events_total|watch_events_sizes_sum))\{(.*)\} (\S+)$", re.M
)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE"})
_OF_THE_CLOCK: Final = frozenset({"leases"})
"""Written as time goes by, however many pods there are."""
_QUIET_S: Final = 3.0
_MOST_S: Final = 60.0
"""Longer than Kerf waits for a pause to write its Events in."""


def read(plane: ControlPlane) -> dict[str, float]:
    """Numbers since its start: `requests` but for watches, `writes` among them, `events_written` among those,
    `watch_events` and `watch_bytes` sent to all who watch."""
    counts: defaultdict[str, float] = defaultdict(float)
    for name, text, value in _LINE.findall(plane.request("GET", "/metrics")):
        labels = dict(_LABEL.findall(text))
        if labels.get("resource") in _OF_THE_CLOCK or labels.get("kind") == "Lease":
            continue
        if name == "apiserver_watch_events_total":
            counts["watch_events"] += float(value)
        elif name == "apiserver_watch_events_sizes_sum":
            counts["watch_bytes"] += float(value)
        elif labels["verb"] != "WATCH":
            counts["requests"] += float(value)
            if labels["verb"] in _WRITES:
                counts["writes"] += float(value)
                counts["events_written"] += float(value) * (labels["resource"] == "events")
    return {key: counts[key] for key in ("requests", "writes", "events_written", "watch_events", "watch_bytes")}


def wait_until_written(plane: ControlPlane) -> None:
    """Return when nothing has been written for some seconds: Events follow the pods that they are about."""
    began = since = time.monotonic()
    last = read(plane)["writes"]
    while time.monotonic() < min(since + _QUIET_S, began + _MOST_S):
        time.sleep(1.0)
        now = read(plane)["writes"]
        if now != last:
            last, since = now, time.monotonic()
