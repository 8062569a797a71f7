"""ResourceClaims and pods as an API server has them."""

import json
from collections.abc import Callable
from typing import Any

from extender.dra.objects import CLAIMS
from extender.kube.client import ApiError, ClusterError, UnreachableError

Manifest = dict[str, Any]

_PREFIX = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/"
_PODS = "/api/v1/namespaces/default/pods/"


class ClaimApi:
    """Claims and pods by name. `fail` may raise before a write is done, `lose` after it."""

    def __init__(self) -> None:
        self.claims: dict[str, Manifest] = {}
        self.pods: dict[str, Manifest] = {}
        self.version = 100
        self.fail: Callable[[str, str], ClusterError | None] = lambda name, part: None
        self.lose: Callable[[str, str], ClusterError | None] = lambda name, part: None
        self.unread = False
        """Whether nothing can be read."""
        self.refuse = ""
        """The part of the metadata that is refused."""
        self.writes: list[tuple[str, str]] = []
        self.posted: list[str] = []
        """Paths of created objects, of which nothing else is kept."""

    def add(self, name: str, *requests: Manifest) -> Manifest:
        """A claim, of one device of class `gpu` unless `requests` are given."""
        self.version += 1
        asked = list(requests) or [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
        metadata = {"name": name, "namespace": "default", "uid": f"u-{name}", "resourceVersion": str(self.version)}
        self.claims[name] = {"metadata": metadata, "spec": {"devices": {"requests": asked}}, "status": {}}
        return self.claims[name]

    def take_away(self, name: str) -> None:
        """Another client deallocates a claim."""
        self.version += 1
        self.claims[name]["status"] = {}
        self.claims[name]["metadata"]["resourceVersion"] = str(self.version)

    async def get(self, path: str, query: object = None) -> bytes:
        if self.unread:
            raise UnreachableError("no answer")
        if path == CLAIMS.path:
            return json.dumps({"metadata": {}, "items": list(self.claims.values())}).encode()
        name = path.removeprefix(_PREFIX)
        if (pod := self.pods.get(path.removeprefix(_PODS))) is not None:
            return json.dumps(pod).encode()
        if name not in self.claims:
            raise ApiError(404, "NotFound", name)
        return json.dumps(self.claims[name]).encode()

    async def post(self, path: str, body: bytes) -> bytes:
        self.posted.append(path)
        return body

    async def patch(self, path: str, body: bytes) -> bytes:
        name, _, part = path.removeprefix(_PREFIX).partition("/")
        if (error := self.fail(name, part)) is not None:
            raise error
        claim, asked = self.claims.get(name), json.loads(body)
        if claim is None:
            raise ApiError(404, "NotFound", name)
        known = asked["metadata"]
        if self.refuse in known:
            raise ApiError(422, "Invalid", f"metadata.{self.refuse}: Too long")
        if known["uid"] != claim["metadata"]["uid"] or known["resourceVersion"] != claim["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", name)
        self.version += 1
        if part == "status":
            changed = claim["status"] | asked["status"]
            claim["status"] = {key: value for key, value in changed.items() if value is not None}
        else:
            claim["metadata"] |= {key: value for key, value in known.items() if key in ("finalizers", "annotations")}
        claim["metadata"]["resourceVersion"] = str(self.version)
        self.writes.append((name, part))
        answer = json.dumps(claim).encode()
        if (error := self.lose(name, part)) is not None:
            raise error
        return answer
