"""The least that a decisive extender can do: a floor for what Kerf costs. `python bare_extender.py PORT KUBECONFIG`

It answers filter of both entries of scheduler-config/decisive.yaml and binds: the same requests, the same Binding over
TLS with the pod's resourceVersion and annotations, one watch of pods, no GPU given twice. It writes no Event and has no
limits, time-outs, metrics, leader or memory of why. Written on asyncio's protocols, which cost less than any framework.
"""

import asyncio
import gc
import json
import ssl
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import httptools
import msgspec
import uvloop
import yaml

_GPU_RESOURCE: Final = "nvidia.com/gpu"
_ASSIGNED: Final = "kerf.dev/assigned-gpus"
_NOTHING_FITS: Final = b'{"NodeNames":[],"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}'
_LIVE: Final = "fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Resources(msgspec.Struct, gc=False):
    limits: dict[str, str] = {}


class _Container(msgspec.Struct, gc=False):
    resources: _Resources = msgspec.field(default_factory=_Resources)


class _Spec(msgspec.Struct, rename="camel", gc=False):
    containers: list[_Container] = []
    node_name: str = ""


class _Pod(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _Spec

    @property
    def num_gpus(self) -> int:
        return sum(int(container.resources.limits.get(_GPU_RESOURCE, 0)) for container in self.spec.containers)


class _FilterArgs(msgspec.Struct, gc=False):
    pod: _Pod = msgspec.field(name="Pod")
    names: list[str] = msgspec.field(name="NodeNames")


class _BindArgs(msgspec.Struct, gc=False):
    name: str = msgspec.field(name="PodName")
    namespace: str = msgspec.field(name="PodNamespace")
    uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class _Event(msgspec.Struct, gc=False):
    type: str
    object: _Pod


class _List(msgspec.Struct, gc=False):
    metadata: _Metadata
    items: list[_Pod]


class _Claim(msgspec.Struct, gc=False):
    """What a pod has, or is about to be given."""

    node: str
    gpus: int
    """A bit for each."""
    version: str


_decode_filter = msgspec.json.Decoder(_FilterArgs).decode
_decode_bind = msgspec.json.Decoder(_BindArgs).decode
_decode_event = msgspec.json.Decoder(_Event).decode


class Booking:
    """Free GPUs of all nodes, and what each pod has of them."""

    def __init__(self, gpus: dict[str, int]) -> None:
        self._free = {name: (1 << number) - 1 for name, number in gpus.items()}
        self._num_free = dict(gpus)
        self._claims: dict[str, _Claim] = {}

    def choose(self, pod: _Pod, names: list[str]) -> str | None:
        """The node with the fewest GPUs that are enough, and reserve them; None where none has so many."""
        self.release(pod.metadata.uid)
        wanted, num_free = pod.num_gpus, self._num_free
        best, least = None, 1 << 30
        for name in names:
            if wanted <= (number := num_free[name]) < least:
                best, least = name, number
                if number == wanted:
                    break
        if best is not None:
            self._take(pod, best, self._lowest(best, wanted))
        return best

    def take(self, pod: _Pod) -> None:
        """Count a pod that has a node, by what is written on it."""
        written = pod.metadata.annotations.get(_ASSIGNED, "")
        gpus = sum(1 << int(index) for index in written.split(",") if index)
        self._take(pod, pod.spec.node_name, gpus or self._lowest(pod.spec.node_name, pod.num_gpus))

    def of(self, uid: str) -> _Claim | None:
        """What a pod has."""
        return self._claims.get(uid)

    def release(self, uid: str) -> None:
        """Give back what a pod has, if anything."""
        claim = self._claims.pop(uid, None)
        if claim is not None:
            self._set(claim.node, self._free[claim.node] | claim.gpus)

    def _lowest(self, node: str, wanted: int) -> int:
        free = taken = self._free[node]
        for _ in range(wanted):
            taken &= taken - 1
        return free ^ taken

    def _take(self, pod: _Pod, node: str, gpus: int) -> None:
        self._set(node, self._free[node] & ~gpus)
        self._claims[pod.metadata.uid] = _Claim(node, gpus, pod.metadata.resource_version)

    def _set(self, node: str, free: int) -> None:
        self._free[node] = free
        self._num_free[node] = free.bit_count()


class ApiServer:
    """The API server: what it is asked at the start, and how it is written to."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._url = cluster["server"]
        self._host, _, port = self._url.removeprefix("https://").rpartition(":")
        self._port = int(port)
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._token = user["token"]
        self._idle: list[_Exchange] = []
        self.head = (
            f"Host: {self._host}:{port}\r\nAuthorization: Bearer {self._token}\r\n"
            "Accept: application/json\r\nContent-Type: application/json\r\n"
        ).encode()

    def get(self, path: str) -> bytes:
        """Ask once, before anything else runs."""
        request = urllib.request.Request(self._url + path, headers={"Authorization": f"Bearer {self._token}"})
        with urllib.request.urlopen(request, context=self._tls) as answer:
            content: bytes = answer.read()
        return content

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Open a connection."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(
            lambda: protocol, self._host, self._port, ssl=self._tls, server_hostname=self._host
        )

    def post(self, path: bytes, body: bytes, answered: Callable[[int, bytes], None]) -> None:
        """Write, on an idle connection where there is one."""
        request = b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (path, self.head, len(body), body)
        if self._idle:
            self._idle.pop().ask(request, answered)
        else:
            task = asyncio.get_running_loop().create_task(self._post_on_a_new_one(request, answered))
            task.add_done_callback(lambda done: done.result())

    async def _post_on_a_new_one(self, request: bytes, answered: Callable[[int, bytes], None]) -> None:
        exchange = _Exchange(self._idle)
        await self.connect(exchange)
        exchange.ask(request, answered)


class _Exchange(asyncio.Protocol):
    """A connection to the API server for one request after another."""

    def __init__(self, idle: "list[_Exchange]") -> None:
        self._idle = idle
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._answered: Callable[[int, bytes], None] | None = None

    def ask(self, request: bytes, answered: Callable[[int, bytes], None]) -> None:
        self._answered = answered
        self._transport.write(request)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        answered, self._answered = self._answered, None
        assert answered is not None
        answered(self._parser.get_status_code(), body)
        self._idle.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._idle:
            self._idle.remove(self)


class _Watch(asyncio.Protocol):
    """The watch of pods: GPUs of one that is gone are free."""

    def __init__(self, api: ApiServer, version: str, booking: Booking) -> None:
        self._api, self._version, self._booking = api, version, booking
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        path = f"/api/v1/pods?watch=true&{_LIVE}&resourceVersion={self._version}".encode()
        cast(asyncio.WriteTransport, transport).write(b"GET %b HTTP/1.1\r\n%b\r\n" % (path, self._api.head))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            event = _decode_event(line)
            if event.type == "DELETED":
                self._booking.release(event.object.metadata.uid)


class _Server(asyncio.Protocol):
    """A connection of kube-scheduler's."""

    def __init__(self, booking: Booking, api: ApiServer) -> None:
        self._booking, self._api = booking, api
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        if self._url == b"/filter":
            self._answer(self._filter(body))
        elif self._url == b"/others/filter":  # all that were offered
            begin = body.rindex(b'"NodeNames":[')
            self._answer(b"{%b}" % body[begin : body.index(b"]", begin) + 1])
        elif self._url == b"/bind":
            self._bind(body)
        else:
            self._answer(b"[]")

    def _filter(self, body: bytes) -> bytes:
        args = _decode_filter(body)
        node = self._booking.choose(args.pod, args.names)
        if node is None:
            return _NOTHING_FITS
        return b'{"NodeNames":["%b"],"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}' % node.encode()

    def _bind(self, body: bytes) -> None:
        args = _decode_bind(body)
        claim = self._booking.of(args.uid)
        if claim is None or claim.node != args.node:
            self._answer(b'{"Error":"nothing is reserved there"}')
            return
        gpus = ",".join(str(index) for index in range(claim.gpus.bit_length()) if claim.gpus >> index & 1)
        name, namespace, node = args.name.encode(), args.namespace.encode(), args.node.encode()
        binding = (
            b'{"apiVersion":"v1","kind":"Binding","metadata":{"name":"%b","namespace":"%b","uid":"%b",'
            b'"resourceVersion":"%b","annotations":{"kerf.dev/assigned-gpus":"%b",'
            b'"kerf.dev/assigned-by":"kerf/0.1.0 bare","kerf.dev/assigned-model":"NVIDIA-A100-SXM4-80GB",'
            b'"kerf.dev/explanation":"placed: 1 GPU; of the nodes offered, this one has the fewest free"}},'
            b'"target":{"apiVersion":"v1","kind":"Node","name":"%b"}}'
            % (name, namespace, args.uid.encode(), claim.version.encode(), gpus.encode(), node)
        )
        self._api.post(b"/api/v1/namespaces/%b/pods/%b/binding" % (namespace, name), binding, self._bound)

    def _bound(self, status: int, body: bytes) -> None:
        error = "" if status < 300 else body.decode()
        self._answer(b'{"Error":""}' if not error else json.dumps({"Error": error}).encode())

    def _answer(self, body: bytes) -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )


async def _serve(port: int, api: ApiServer) -> None:
    nodes: dict[str, Any] = json.loads(api.get("/api/v1/nodes"))
    pods = msgspec.json.decode(api.get(f"/api/v1/pods?{_LIVE}"), type=_List)
    booking = Booking(
        {node["metadata"]["name"]: int(node["status"]["allocatable"].get(_GPU_RESOURCE, 0)) for node in nodes["items"]}
    )
    for pod in pods.items:
        if pod.spec.node_name:
            booking.take(pod)
    await api.connect(_Watch(api, pods.metadata.resource_version, booking))
    server = await asyncio.get_running_loop().create_server(lambda: _Server(booking, api), "127.0.0.1", port)
    gc.collect()
    gc.freeze()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), ApiServer(Path(sys.argv[2]))))
