"""Many alike objects on a control plane, by etcd: of one that the API server has stored, copies under other names.

The API server takes some milliseconds of processor time for each object that it is given, so that 150,000 pods take it
many minutes; etcd takes what it is given as it is. Every name in a copy is as long as that in its original: the stored
form, protobuf, tells lengths.
"""

import base64
import itertools
import json
import urllib.request
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tests.controlplane import ControlPlane

_AT_ONCE: Final = 100
"""Writes of one transaction: etcd takes 128."""
_TIMEOUT_S: Final = 60.0

Names = Mapping[str, str]
"""What stands in the original, and what in a copy."""


def copy(plane: ControlPlane, key: str, path: str, copies: Iterable[Names]) -> None:
    """Store the object at a key of etcd, and at a path of the API server, again and again under other names.

    Raises OSError.
    """
    url = next(process.url for process in plane.running if process.name == "etcd")
    (stored,) = _ask(url, "range", {"key": _text(key.encode())})["kvs"]
    original, uid = base64.b64decode(stored["value"]), plane.request("GET", path)["metadata"]["uid"]
    for some in _batches(copies):
        puts = [_put(key, original, {**names, uid: str(uuid.uuid4())}) for names in some]
        _ask(url, "txn", {"success": puts})


def _batches(copies: Iterable[Names]) -> Iterator[list[Names]]:
    left = iter(copies)
    while some := list(itertools.islice(left, _AT_ONCE)):
        yield some


def _put(key: str, value: bytes, names: Names) -> dict[str, Any]:
    for old, new in names.items():
        if len(old) != len(new):
            raise ValueError(f"{new!r} is not as long as {old!r}")
        key, value = key.replace(old, new), value.replace(old.encode(), new.encode())
    return {"requestPut": {"key": _text(key.encode()), "value": _text(value)}}


def _ask(url: str, what: str, question: Mapping[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(f"{url}/v3/kv/{what}", json.dumps(question).encode())
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
