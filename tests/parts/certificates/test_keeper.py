"""Certificates in a Secret, in files and in webhooks' configurations: made, shared, renewed, put right."""

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from extender.kube.client import ApiError, UnreachableError
from extender.parts.certificates.keeper import CertificateKeeper
from extender.parts.certificates.settings import CertificateSettings
from extender.server.certificates import CertificateFiles, Certificates
from tests.ledger.builders import until

SECRET = "/api/v1/namespaces/gpu/secrets/kerf-webhook"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/"
SETTINGS = CertificateSettings(
    secret="gpu/kerf-webhook", hosts=["kerf-webhook.gpu.svc"], webhooks=["kerf-queue", "kerf-webhook"]
)


class Api:
    """Objects by path, changed under their versions as on an API server."""

    def __init__(self, *webhooks: str) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.num_writes = 0
        self.fault: Exception | None = None
        self.before_patch: Callable[[str], None] = lambda path: None
        for name in webhooks:
            hooks = [{"name": f"{who}.kerf.dev", "clientConfig": {"service": {"name": name}}} for who in "ab"]
            self.put(HOOKS + name, {"webhooks": hooks})

    def put(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        self.num_writes += 1
        self.objects[path] = {"metadata": {}, **json.loads(json.dumps(content))}
        self.objects[path]["metadata"]["resourceVersion"] = str(self.num_writes)
        return self.objects[path]

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        if path not in self.objects:
            raise ApiError(404, "NotFound", path)
        return json.dumps(self.objects[path]).encode()

    async def post(self, path: str, body: bytes) -> bytes:
        raise NotImplementedError

    async def patch(self, path: str, body: bytes) -> bytes:
        await asyncio.sleep(0)
        self.before_patch(path)
        change, known = json.loads(body), self.objects[path]
        if change["metadata"]["resourceVersion"] != known["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        data = {**known.get("data", {}), **change.get("data", {})}
        return json.dumps(self.put(path, {**known, **change, **({"data": data} if data else {})})).encode()

    async def ensure(self, path: str, body: bytes) -> bytes:
        await asyncio.sleep(0)
        return json.dumps(self.objects.get(path) or self.put(path, json.loads(body))).encode()

    def watch(self, path: str, query: Mapping[str, str]) -> Any:
        raise NotImplementedError

    @property
    def data(self) -> dict[str, bytes]:
        return {name: b64decode(text) for name, text in self.objects[SECRET].get("data", {}).items()}

    def bundles(self, name: str) -> set[bytes]:
        return {b64decode(hook["clientConfig"].get("caBundle", "")) for hook in self.objects[HOOKS + name]["webhooks"]}


class Replica:
    """One keeper, with files and a clock of its own."""

    def __init__(self, api: Api, folder: Path, settings: CertificateSettings = SETTINGS) -> None:
        folder.mkdir(exist_ok=True)
        self.files = CertificateFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt")
        self.now = datetime.now(UTC)
        self.keeper = CertificateKeeper(api, settings, self.files, lambda: self.now, look_s=0.01)

    @property
    def serves(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.files.certificate.parent.glob("*.*")}


def run(scenario: Callable[[], Awaitable[None]], *replicas: Replica) -> None:
    """A scenario beside replicas that are at work, and go on being so."""

    async def beside() -> None:
        for replica in replicas:
            replica.keeper.start()
        try:
            await asyncio.wait_for(scenario(), 60)
            assert not any(replica.keeper.tasks.num_deaths for replica in replicas)
        finally:
            for replica in replicas:
                await replica.keeper.stop()

    asyncio.run(beside())


def test_they_are_made_served_and_trusted(tmp_path: Path) -> None:
    api = Api("kerf-queue")  # the other configuration is not installed
    api.put(SECRET, {"type": "Opaque"})
    replica = Replica(api, tmp_path / "a")

    async def scenario() -> None:
        await replica.keeper.ready()
        Certificates(replica.files).listen()  # certificate and key go together
        assert api.bundles("kerf-queue") == {api.data["ca.crt"]} == {replica.serves["ca.crt"]}
        assert {path.stat().st_mode & 0o777 for path in replica.files.certificate.parent.iterdir()} == {0o600}
        writes = api.num_writes
        await asyncio.sleep(0.2)
        assert api.num_writes == writes, "what is good is left alone"
        api.put(HOOKS + "kerf-webhook", {"webhooks": [{"name": "a", "clientConfig": {"caBundle": "bm9uZQ=="}}]})
        await until(lambda: api.bundles("kerf-webhook") == {api.data["ca.crt"]})

    run(scenario, replica)


def test_several_replicas_settle_on_the_same_then_rest_and_one_of_them_renews_in_time(tmp_path: Path) -> None:
    api = Api("kerf-queue", "kerf-webhook")
    replicas = [Replica(api, tmp_path / name) for name in "abcd"]

    def agree() -> bool:
        return all(replica.serves == replicas[0].serves for replica in replicas)

    async def scenario() -> None:
        for replica in replicas:
            await replica.keeper.ready()
        await until(agree)
        first, writes = api.data, api.num_writes
        assert replicas[0].serves["tls.crt"] == first["tls.crt"]
        await asyncio.sleep(0.2)
        assert api.num_writes == writes
        for replica in replicas:
            replica.now += timedelta(days=61)
        await until(lambda: all(replica.serves["tls.crt"] != first["tls.crt"] for replica in replicas))
        await until(agree)
        assert api.num_writes == writes + 1
        assert api.data["ca.crt"] == first["ca.crt"]  # nobody has to be told

    run(scenario, *replicas)


def lose(api: Api) -> None:
    del api.objects[SECRET]


def empty(api: Api) -> None:
    api.put(SECRET, {"type": "Opaque"})


def exchange(api: Api) -> None:
    data = api.objects[SECRET]["data"]
    api.put(SECRET, {"data": {**data, "tls.crt": data["ca.crt"]}})


def spoil(api: Api) -> None:
    api.put(SECRET, {"data": {"tls.crt": "no base64!", "tls.key": b64encode(b"\xff" * 300).decode(), "x": ""}})


def test_a_secret_that_is_lost_or_hostile_gets_back_what_is_served(tmp_path: Path) -> None:
    api = Api("kerf-queue", "kerf-webhook")
    replicas = [Replica(api, tmp_path / name) for name in "ab"]

    async def scenario() -> None:
        for replica in replicas:
            await replica.keeper.ready()
        await until(lambda: replicas[0].serves == replicas[1].serves)
        before = api.data
        for attack in (lose, empty, exchange, spoil):
            attack(api)
            await until(lambda: SECRET in api.objects and {**api.data, "x": b""} == {**before, "x": b""})
            assert all(replica.serves["tls.crt"] == before["tls.crt"] for replica in replicas)
            assert api.bundles("kerf-queue") == {before["ca.crt"]}

    run(scenario, *replicas)


def test_one_that_starts_when_all_is_lost_makes_others(tmp_path: Path) -> None:
    api = Api("kerf-queue", "kerf-webhook")
    spoil(api)
    replica = Replica(api, tmp_path / "a")

    async def scenario() -> None:
        await replica.keeper.ready()
        assert replica.serves["tls.crt"] == api.data["tls.crt"]

    run(scenario, replica)


def test_without_an_api_server_what_is_served_goes_on_being_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api = Api("kerf-queue", "kerf-webhook")
    replica = Replica(api, tmp_path / "a")

    async def scenario() -> None:
        api.fault = UnreachableError("refused")
        await asyncio.sleep(0.1)
        assert replica.serves == {}
        api.fault = None
        await replica.keeper.ready()
        served = replica.serves
        api.fault = ApiError(403, "Forbidden", "may not")
        await until(lambda: "may not" in caplog.text)
        assert replica.serves == served

    run(scenario, replica)
    assert caplog.text.count("refused") == 1  # not once for each try
    assert b"PRIVATE" not in caplog.text.encode()


def test_a_version_that_was_overtaken_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Between a replica's look and its write another one has written: that one's count."""
    api = Api("kerf-queue", "kerf-webhook")
    others = Api()
    first, second = Replica(others, tmp_path / "other"), Replica(api, tmp_path / "a")
    run(first.keeper.ready, first)

    def overtake(path: str) -> None:
        if path == SECRET:
            api.before_patch = lambda path: None
            api.put(SECRET, others.objects[SECRET])

    api.before_patch = overtake

    async def scenario() -> None:
        await second.keeper.ready()
        assert second.serves["tls.crt"] == others.data["tls.crt"]

    run(scenario, second)
    assert "Conflict" not in caplog.text
