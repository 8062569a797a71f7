"""Which cluster a kubeconfig means, and as whom it is asked: the rules of client-go, and kubectl's own word."""

import asyncio
import base64
import json
import os
import shutil
import ssl
import stat
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from extender.kube.client import ApiServer, CredentialsError
from extender.kube.kubeconfigs import Access, access_of, proxy_of
from tests.api.certificates import Authority
from tests.kube.test_client import serving

NOWHERE = Path("/nonexistent")


def kubeconfig(
    name: str,
    *,
    current: str | None = None,
    cluster: Mapping[str, Any] | None = None,
    user: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One of a cluster, a user and a context, all of one name."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example:6443", **(cluster or {})}}],
        "users": [{"name": name, "user": user or {"token": f"token-of-{name}"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name if current is None else current,
        "preferences": {},
    }


def written(path: Path, content: Mapping[str, Any] | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def resolved(*paths: Path | str, kubeconfig: str = "", context: str = "", **environ: str) -> Access:
    listed = {"KUBECONFIG": os.pathsep.join(map(str, paths))} if paths else {}
    return access_of(kubeconfig=kubeconfig, context=context, service_account_dir=NOWHERE, environ={**listed, **environ})


# Files and how they are merged.


def test_the_first_current_context_wins(tmp_path: Path) -> None:
    team = written(tmp_path / "team", kubeconfig("team"))
    production = written(tmp_path / "production", kubeconfig("production"))
    found = resolved(team, production)
    assert (found.server, found.context, found.token) == ("https://team.example:6443", "team", "token-of-team")
    assert resolved(production, team).context == "production"
    assert resolved(team, production, context="production").token == "token-of-production"


@pytest.mark.parametrize(
    "second", [kubeconfig("other", current=""), "", "null\n", "{}", "current-context: null\nusers: null\n"]
)
def test_a_file_without_current_context_takes_none_from_another(tmp_path: Path, second: Any) -> None:
    team, other = written(tmp_path / "team", kubeconfig("team")), written(tmp_path / "other", second)
    assert resolved(team, other).context == resolved(other, team).context == "team"


def test_the_first_entry_of_a_name_wins_whole(tmp_path: Path) -> None:
    first = kubeconfig("x", user={"token": "first"})
    second = kubeconfig("x", user={"token": "second", "as": "root"}, cluster={"server": "https://second.example"})
    found = resolved(written(tmp_path / "1", first), written(tmp_path / "2", second))
    assert (found.token, found.impersonated, found.server) == ("first", (), "https://x.example:6443")


def test_context_cluster_and_user_may_be_in_three_files(tmp_path: Path) -> None:
    whole = kubeconfig("x")
    parts = [
        written(tmp_path / part, {part: whole[part], "current-context": "x" if part == "users" else ""})
        for part in ("contexts", "clusters", "users")
    ]
    assert resolved(*parts).token == "token-of-x"


def test_empty_and_missing_names_are_passed_over_but_not_the_only_one_that_was_named(tmp_path: Path) -> None:
    team = written(tmp_path / "team", kubeconfig("team"))
    assert resolved("", tmp_path / "missing", team, team).context == "team"
    with pytest.raises(CredentialsError, match="missing: No such file"):
        resolved(team, kubeconfig=str(tmp_path / "missing"))
    with pytest.raises(CredentialsError, match="no cluster is defined there"):
        resolved(tmp_path / "missing")


def test_a_file_that_is_named_is_the_only_one(tmp_path: Path) -> None:
    team, other = written(tmp_path / "team", kubeconfig("team")), written(tmp_path / "other", kubeconfig("other"))
    assert resolved(other, kubeconfig=str(team)).context == "team"


def test_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    first = written(
        tmp_path / "a" / "config",
        kubeconfig("x", cluster={"certificate-authority": "pki/ca"}, user={"tokenFile": "token"}),
    )
    second = written(tmp_path / "b" / "config", kubeconfig("y", user={"client-certificate": "c", "client-key": "k"}))
    written(tmp_path / "a" / "pki" / "ca", "CA")
    for name, content in (("c", "certificate"), ("k", "key")):
        written(tmp_path / "b" / name, content)
    found = resolved(first, second)
    assert (found.ca, found.token_file) == (b"CA", tmp_path / "a" / "token")
    other = resolved(first, second, context="y")
    assert (other.certificate, other.key) == (b"certificate", b"key")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("clusters: [", "invalid YAML: "),
        ("just words", "not a kubeconfig: Expected `object`"),
        ({"users": [{"name": "u", "user": {"token": 5}}]}, "not a kubeconfig: Expected `str`, got `int`"),
        ({"users": [{"name": "u"}, {"name": "u"}]}, "two entries are named u"),
    ],
)
def test_a_broken_file_is_refused_wherever_it_stands(tmp_path: Path, content: Any, words: str) -> None:
    team, broken = written(tmp_path / "team", kubeconfig("team")), written(tmp_path / "broken", content)
    for files in ((team, broken), (broken, team)):
        with pytest.raises(CredentialsError, match=words):
            resolved(*files)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"current-context": ""}, r"no current-context; choose one with --context \(there are x\)"),
        ({"current-context": "gone"}, r"no context is named gone \(there are x\)"),
        ({"clusters": []}, "no cluster is named x, as in context x"),
        ({"users": []}, "no user is named x, as in context x"),
    ],
)
def test_nobody_is_asked_as_nobody_where_a_name_leads_nowhere(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(CredentialsError, match=words):
        resolved(written(tmp_path / "x", {**kubeconfig("x"), **change}))


@pytest.mark.parametrize(
    ("cluster", "user", "words"),
    [
        ({"server": ""}, {}, "its cluster has no server"),
        ({"server": "ftp://x"}, {}, "not a URL such as"),
        ({"insecure-skip-tls-verify": True, "certificate-authority": "x"}, {}, "insecure-skip-tls-verify and a cert"),
        ({"certificate-authority-data": "eA==", "certificate-authority": "x"}, {}, "are both given"),
        ({"certificate-authority": "missing"}, {}, "missing: No such file"),
        ({}, {"token": "t", "username": "u", "password": "p"}, "a token and a password"),
        ({}, {"client-certificate-data": "eA=="}, "has no client-key"),
        ({}, {"as-groups": ["g"]}, "without as"),
        ({}, {"as": "x\nImpersonate-Group: system:masters"}, "characters not allowed in a header"),
        ({}, {"auth-provider": {"name": "gcp"}}, "auth-provider gcp has been removed"),
        ({}, {"auth-provider": {"name": "azure", "config": {"x": "y"}}}, "auth-provider azure has been removed"),
        ({}, {"auth-provider": {"name": "oidc", "config": {"id-token": "a.b.c"}}}, "its id-token has expired"),
        ({"proxy-url": "socks5://127.0.0.1:1"}, {}, "proxy-url is not the URL of an HTTP proxy"),
    ],
)
def test_what_can_not_be_meant_is_refused_in_words(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], words: str
) -> None:
    with pytest.raises(CredentialsError, match=words):
        resolved(written(tmp_path / "x", kubeconfig("x", cluster=cluster, user=user or None)))


@pytest.mark.parametrize(
    ("given", "server"),
    [
        ({"server": "https://rancher.example/k8s/clusters/c-1/"}, "https://rancher.example/k8s/clusters/c-1"),
        ({"server": "https://x.example:6443/?a=b#c"}, "https://x.example:6443"),
        ({"server": "x.example:8080"}, "http://x.example:8080"),
        ({"server": "x.example:6443", "insecure-skip-tls-verify": True}, "https://x.example:6443"),
        ({"server": "https://[::1]:6443"}, "https://[::1]:6443"),
    ],
)
def test_the_address_of_a_server(tmp_path: Path, given: dict[str, Any], server: str) -> None:
    assert resolved(written(tmp_path / "x", kubeconfig("x", cluster=given))).server == server


def test_a_token_of_oidc_is_used_while_it_is_good(tmp_path: Path) -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": datetime.now(UTC).timestamp() + 600}).encode()).decode()
    token = f"h.{claims.rstrip('=')}.s"
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
    assert resolved(written(tmp_path / "x", kubeconfig("x", user=user))).token == token


def test_a_pod_is_asked_for_only_where_no_kubeconfig_leads_anywhere(tmp_path: Path) -> None:
    account = tmp_path / "account"
    written(account / "token", "secret\n")
    written(account / "ca.crt", "CA")
    team = written(tmp_path / "team", kubeconfig("team"))
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    in_pod = access_of(kubeconfig="", context="", service_account_dir=account, environ={**pod, "KUBECONFIG": "/none"})
    assert (in_pod.server, in_pod.token_file) == ("https://10.0.0.1:443", account / "token")
    named = access_of(kubeconfig="", context="", service_account_dir=account, environ={**pod, "KUBECONFIG": str(team)})
    assert named.context == "team"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("order", ["12", "21", "312", "3:12", "13"])
def test_kubectl_says_the_same(tmp_path: Path, order: str) -> None:
    production = kubeconfig("production")
    production["users"].append({"name": "team", "user": {"token": "other"}})
    written(tmp_path / "1", kubeconfig("team", user={"token": "t", "as": "jane"}))
    written(tmp_path / "2", production)
    written(tmp_path / "3", {"current-context": "", "clusters": None})
    files = [tmp_path / name if name != ":" else Path() for name in order]
    environ = {"KUBECONFIG": ":".join("" if file == Path() else str(file) for file in files), "HOME": str(tmp_path)}
    command = ["kubectl", "config", "view", "--minify", "--raw", "-o", "json"]
    told = json.loads(
        subprocess.run(command, check=True, capture_output=True, env={"PATH": os.environ["PATH"], **environ}).stdout
    )
    found = access_of(kubeconfig="", context="", service_account_dir=NOWHERE, environ=environ)
    assert found.context == told["current-context"]
    assert found.server == told["clusters"][0]["cluster"]["server"]
    assert found.token == told["users"][0]["user"]["token"]
    assert [value for _, value in found.impersonated] == [
        user["user"]["as"] for user in told["users"] if "as" in user["user"]
    ]


# Proxies.


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        ("https://x.example:6443", {}, ""),
        ("https://x.example:6443", {"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        ("https://x.example:6443", {"https_proxy": "p:3128"}, "http://p:3128"),
        ("https://x.example:6443", {"HTTP_PROXY": "http://p:3128"}, ""),
        ("https://x.example:6443", {"ALL_PROXY": "http://p:3128"}, ""),
        ("http://x.example:8080", {"HTTP_PROXY": "http://p:3128"}, "http://p:3128"),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p"}, ""),
        ("https://[::1]:6443", {"HTTPS_PROXY": "http://p"}, ""),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://p"}, ""),
        ("https://x.example:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "other,x.example"}, ""),
        ("https://x.example:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "example"}, ""),
        ("https://x.example:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": ".example"}, ""),
        ("https://x.example:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "*.example"}, ""),
        ("https://x.example:6443", {"HTTPS_PROXY": "http://p", "no_proxy": " X.EXAMPLE:6443 "}, ""),
        ("https://x.example:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "x.example:443"}, "http://p"),
        ("https://x.example:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": ".x.example"}, "http://p"),
        ("https://x.example:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "ample"}, "http://p"),
        ("https://x.example:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "*"}, ""),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.0.0.0/8"}, ""),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.1.2.3"}, ""),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "10.1.2.4,3"}, "http://p"),
        ("https://[fd00::1]:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "fd00::/8"}, ""),
        ("https://[fd00::1]:6443", {"HTTPS_PROXY": "http://p", "NO_PROXY": "[fd00::1]:6443"}, ""),
    ],
)
def test_which_proxy(server: str, environ: dict[str, str], proxy: str) -> None:
    assert proxy_of(server, "", environ) == proxy


def test_a_proxy_of_the_kubeconfig_comes_before_that_of_the_environment() -> None:
    environ = {"HTTPS_PROXY": "http://other", "NO_PROXY": "*"}
    assert proxy_of("https://127.0.0.1:6443", "http://user:secret@p:3128", environ) == "http://user:secret@p:3128"


def test_a_proxy_that_is_none_is_said_so_without_its_password() -> None:
    with pytest.raises(CredentialsError, match=r"^HTTPS_PROXY is not the URL") as raised:
        proxy_of("https://x", "", {"HTTPS_PROXY": "socks5://user:secret@p"})
    assert "secret" not in str(raised.value)


# Over real connections.


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No proxy, cluster or kubeconfig of the machine's own."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def api_server(path: Path) -> ApiServer:
    return ApiServer(kubeconfig=str(path), service_account_dir=NOWHERE, request_timeout_s=10.0)


async def everything(transport: ApiServer) -> None:
    """One of each kind of request."""
    await transport.get("/a")
    await transport.get("/b", {"limit": "1"})
    await transport.post("/c", b"{}")
    await transport.patch("/d", b"{}")
    await transport.ensure("/e", b"{}")
    await transport.delete("/f")
    async for _ in transport.watch("/g", {"watch": "true"}):
        break


@pytest.mark.usefixtures("plain")
def test_whoever_is_impersonated_is_named_with_every_request(tmp_path: Path) -> None:
    asked: list[dict[str, list[str]]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append({name: request.headers.getall(name) for name in request.headers if name.startswith("Imperson")})
        return web.json_response({})

    user = {
        "token": "t",
        "as": "jane",
        "as-uid": "u-1",
        "as-groups": ["dev", "ops"],
        "as-user-extra": {"example.com/scopes": ["a", "b"], "ünder_score": ["ü"]},
    }

    async def run() -> None:
        async with serving(handler) as port:
            cluster = {"server": f"http://127.0.0.1:{port}"}
            transport = api_server(written(tmp_path / "x", kubeconfig("x", cluster=cluster, user=user)))
            await transport.start()
            try:
                await everything(transport)
            finally:
                await transport.close()
            assert transport.told == f"http://127.0.0.1:{port}, context x, user x, acting as jane"

    asyncio.run(run())
    assert len(asked) == 7
    for headers in asked:
        assert headers == {
            "Impersonate-User": ["jane"],
            "Impersonate-Uid": ["u-1"],
            "Impersonate-Group": ["dev", "ops"],
            "Impersonate-Extra-example.com%2Fscopes": ["a", "b"],
            "Impersonate-Extra-%C3%BCnder_score": ["ü"],
        }


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("named_by", ["proxy-url", "HTTP_PROXY"])
def test_every_request_goes_by_the_proxy(tmp_path: Path, named_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def proxy(request: web.Request) -> web.StreamResponse:
        asked.append(f"{request.method} {request.raw_path} {request.headers.get('Proxy-Authorization', '')}")
        return web.json_response({})

    async def run() -> None:
        async with serving(proxy) as port:
            cluster = {"server": "http://api.example:8080"}
            address = f"http://user:secret@127.0.0.1:{port}"
            if named_by == "proxy-url":
                cluster["proxy-url"] = address
            else:
                monkeypatch.setenv(named_by, address)
            transport = api_server(written(tmp_path / "x", kubeconfig("x", cluster=cluster)))
            await transport.start()
            try:
                await everything(transport)
            finally:
                await transport.close()

    asyncio.run(run())
    assert len(asked) == 7
    secret = base64.b64encode(b"user:secret").decode()
    assert all(f" http://api.example:8080/{'abcdefg'[n]}" in asked[n] and secret in asked[n] for n in range(7))


# Exec plugins.


def plugin(path: Path, script: str, **wanted: Any) -> dict[str, Any]:
    """A user whose credentials a script of Python tells."""
    path.write_text(
        f"#!{sys.executable}\nimport json, os, sys\ninfo = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n{script}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    wanted = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", **wanted}
    return {"exec": {"command": str(path), **wanted}}


GROUP = "client.authentication.k8s.io"
TELL = "print(json.dumps({'kind': 'ExecCredential', 'apiVersion': info['apiVersion'], 'status': %s}))"


class Cluster:
    """An API server that keeps what it was asked with, and refuses some tokens."""

    def __init__(self, *refused: str) -> None:
        self.asked: list[str] = []
        self._refused = refused

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.headers.get("Authorization", ""))
        return web.json_response({}, status=401 if self.asked[-1] in self._refused else 200)


async def asked_with(cluster: Cluster, path: Path, user: dict[str, Any], num_calls: int = 1, **of: Any) -> None:
    async with serving(cluster.answer) as port:
        given = {"server": f"http://127.0.0.1:{port}", **of}
        transport = api_server(written(path / "config", kubeconfig("x", cluster=given, user=user)))
        try:
            await transport.start()
            for _ in range(num_calls):
                await transport.get("/a")
        finally:
            await transport.close()


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_plugin_is_told_what_it_is_to_know_and_its_token_is_used(tmp_path: Path, version: str) -> None:
    script = (
        "json.dump([sys.argv[1:], os.environ['MINE'], info], open(os.environ['OUT'], 'w'))\n"
        + TELL % "{'token': 't\\n'}"
    )
    env = [{"name": "MINE", "value": "5"}, {"name": "OUT", "value": str(tmp_path / "told")}]
    user = plugin(
        tmp_path / "plugin",
        script,
        apiVersion=f"client.authentication.k8s.io/{version}",
        args=["get-token", "--cluster=x"],
        env=env,
        provideClusterInfo=True,
    )
    cluster = Cluster()
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    asyncio.run(asked_with(cluster, tmp_path, user, 2, extensions=[extension]))
    assert cluster.asked == ["Bearer t", "Bearer t"]
    arguments, mine, info = json.loads((tmp_path / "told").read_text())
    assert (arguments, mine) == (["get-token", "--cluster=x"], "5")
    assert info["apiVersion"] == f"client.authentication.k8s.io/{version}"
    assert info["spec"]["interactive"] is False
    assert info["spec"]["cluster"].keys() == {"server", "config"}
    assert info["spec"]["cluster"]["config"] == {"audience": "x"}


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    ("script", "wanted", "words"),
    [
        (
            "sys.exit('Fehler: bitte anmelden ä\\nrun `login` first')",
            {},
            "exit status 1: Fehler: bitte anmelden ä\nrun `login` first",
        ),
        ("sys.exit('\\x1b]52;c;x\\x07')", {}, r"exit status 1: \x1b]52;c;x\x07"),
        ("os.kill(os.getpid(), 9)", {}, "exit status -9"),
        ("pass", {}, "is not an ExecCredential"),
        ("print('{}')", {}, "returned nothing of no version"),
        (TELL % "{}", {}, "neither a token nor a certificate"),
        (TELL % "None", {}, "neither a token nor a certificate"),
        (TELL % "{'clientCertificateData': 'x'}", {}, "a certificate without its key"),
        (TELL % "{'token': 'a\\nb'}", {}, "characters not allowed in a header"),
        (
            TELL % "{'token': 'x'}",
            {"command": "/nonexistent/plugin", "installHint": "brew install\x1b[2J it"},
            "there is no such program\nbrew install\\x1b[2J it",
        ),
        (TELL % "{'token': 'x'}", {"command": "kerf-test-no-such-plugin"}, "there is no such program"),
        (TELL % "{'token': 'x'}", {"apiVersion": f"{GROUP}/v1alpha1"}, f"has apiVersion {GROUP}/v1alpha1, which"),
        (TELL % "{'token': 'x'}", {"interactiveMode": ""}, "interactiveMode none"),
        (TELL % "{'token': 'x'}", {"interactiveMode": "Always"}, "standard input is not a terminal"),
        (
            f"info['apiVersion'] = '{GROUP}/v1beta1'\n" + TELL % "{'token': 'x'}",
            {},
            f"returned ExecCredential of {GROUP}/v1beta1, not",
        ),
    ],
)
def test_a_plugin_that_fails_is_the_end_and_nothing_is_asked_as_nobody(
    tmp_path: Path, script: str, wanted: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    cluster = Cluster()
    with pytest.raises(CredentialsError) as raised:
        asyncio.run(asked_with(cluster, tmp_path, plugin(tmp_path / "plugin", script, **wanted)))
    assert words in str(raised.value)
    assert cluster.asked == []


COUNTING = """
counter = os.environ['COUNTER']
number = len(open(counter).read()) + 1 if os.path.exists(counter) else 1
open(counter, 'a').write('x')
"""


@pytest.mark.usefixtures("plain")
def test_a_plugin_runs_again_once_its_token_has_run_out_or_was_refused(tmp_path: Path) -> None:
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat().replace("+00:00", "Z")
    script = (
        COUNTING + TELL % f"{{'token': str(number), **({{'expirationTimestamp': '{past}'}} if number == 1 else {{}})}}"
    )
    env = [{"name": "COUNTER", "value": str(tmp_path / "counter")}]
    cluster = Cluster("Bearer 2")
    asyncio.run(asked_with(cluster, tmp_path, plugin(tmp_path / "plugin", script, env=env), 3))
    assert cluster.asked == ["Bearer 2", "Bearer 3", "Bearer 3", "Bearer 3"]


@pytest.mark.usefixtures("plain")
def test_a_plugin_runs_once_for_all_who_are_refused_at_once(tmp_path: Path) -> None:
    script = COUNTING + TELL % "{'token': str(number)}"
    env = [{"name": "COUNTER", "value": str(tmp_path / "counter")}]
    cluster = Cluster("Bearer 1")

    async def run() -> None:
        async with serving(cluster.answer) as port:
            of = {"server": f"http://127.0.0.1:{port}"}
            user = plugin(tmp_path / "plugin", script, env=env)
            transport = api_server(written(tmp_path / "config", kubeconfig("x", cluster=of, user=user)))
            await transport.start()
            try:
                await asyncio.gather(*(transport.get("/a") for _ in range(20)))
            finally:
                await transport.close()

    asyncio.run(run())
    assert (tmp_path / "counter").read_text() == "xx"


@pytest.mark.usefixtures("plain")
def test_a_user_with_a_token_runs_no_plugin(tmp_path: Path) -> None:
    user = {**plugin(tmp_path / "plugin", "sys.exit(1)"), "token": "own"}
    cluster = Cluster()
    asyncio.run(asked_with(cluster, tmp_path, user))
    assert cluster.asked == ["Bearer own"]


# TLS.


@pytest.mark.usefixtures("plain")
def test_certificates_of_files_and_plugins_are_shown_and_renewed(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    pem = authority.certificate.read_bytes()
    shown: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        certificate = request.transport.get_extra_info("ssl_object").getpeercert()
        shown.append(dict(item[0] for item in certificate["subject"])["commonName"])
        return web.json_response({}, status=401 if shown[-1] == "old" else 200)

    certificate, key = authority.issue("server")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=pem.decode())
    tls.load_cert_chain(certificate, key)
    tls.verify_mode = ssl.CERT_REQUIRED
    for name in ("old", "new"):
        authority.issue(name)
    script = COUNTING + (
        "name = 'old' if number == 1 else 'new'\nfolder = os.environ['FOLDER']\n"
        "read = lambda end: open(folder + '/' + name + end).read()\n"
        + TELL
        % "{'clientCertificateData': read('.crt'), 'clientKeyData': read('.key')}"
    )
    env = [{"name": "COUNTER", "value": str(tmp_path / "counter")}, {"name": "FOLDER", "value": str(tmp_path)}]
    by_file = {"client-certificate": "new.crt", "client-key": "new.key"}

    async def run() -> None:
        async with serving(handler, tls) as port:
            of = {
                "server": f"https://127.0.0.1:{port}",
                "certificate-authority-data": base64.b64encode(b"some words\n" + pem).decode(),
                "tls-server-name": "localhost",
            }
            for user in (by_file, plugin(tmp_path / "plugin", script, env=env)):
                transport = api_server(written(tmp_path / "config", kubeconfig("x", cluster=of, user=user)))
                await transport.start()
                try:
                    await everything(transport)
                finally:
                    await transport.close()

    asyncio.run(run())
    assert shown == ["new"] * 7 + ["old"] + ["new"] * 7
