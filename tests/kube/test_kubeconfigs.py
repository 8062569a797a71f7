"""Which cluster a kubeconfig means, and as whom: the rules of client-go, compared with kubectl where there is one."""

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
from tests.golden import Golden
from tests.kube.http_servers import NOWHERE, client, serving
from tests.kube.loops import in_loop


def kubeconfig(
    name: str,
    *,
    current: str | None = None,
    cluster: Mapping[str, Any] | None = None,
    user: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A kubeconfig with a cluster, a user and a context of one name."""
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


def fault_of(folder: Path, *paths: Path) -> str:
    """Why these kubeconfigs are refused, without the folder."""
    with pytest.raises(CredentialsError) as raised:
        resolved(*paths)
    return str(raised.value).replace(f"{folder}/", "")


# Files and how they are merged


def test_the_first_current_context_wins(tmp_path: Path) -> None:
    team = written(tmp_path / "team", kubeconfig("team"))
    production = written(tmp_path / "production", kubeconfig("production"))
    access = resolved(team, production)
    assert (access.server, access.context, access.token) == ("https://team.example:6443", "team", "token-of-team")
    assert resolved(production, team).context == "production"
    assert resolved(team, production, context="production").token == "token-of-production"
    assert resolved(production, kubeconfig=str(team)).context == "team", "a file that is named is the only one"
    for content in (kubeconfig("other", current=""), "", "null\n", "{}", "current-context: null\nusers: null\n"):
        other = written(tmp_path / "other", content)
        assert resolved(team, other).context == resolved(other, team).context == "team"


def test_the_first_entry_of_a_name_wins_as_a_whole(tmp_path: Path) -> None:
    first = kubeconfig("x", user={"token": "first"})
    second = kubeconfig("x", user={"token": "second", "as": "root"}, cluster={"server": "https://second.example"})
    access = resolved(written(tmp_path / "1", first), written(tmp_path / "2", second))
    assert (access.token, access.impersonated, access.server) == ("first", (), "https://x.example:6443")


def test_context_cluster_and_user_may_be_in_three_files(tmp_path: Path) -> None:
    whole = kubeconfig("x")
    parts = [
        written(tmp_path / part, {part: whole[part], "current-context": "x" if part == "users" else ""})
        for part in ("contexts", "clusters", "users")
    ]
    assert resolved(*parts).token == "token-of-x"


def test_missing_files_are_skipped_unless_named(tmp_path: Path) -> None:
    team = written(tmp_path / "team", kubeconfig("team"))
    assert resolved("", tmp_path / "missing", team, team).context == "team"
    with pytest.raises(CredentialsError, match="missing: No such file"):
        resolved(team, kubeconfig=str(tmp_path / "missing"))


def test_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    first = written(
        tmp_path / "a" / "config",
        kubeconfig("x", cluster={"certificate-authority": "pki/ca"}, user={"tokenFile": "token"}),
    )
    second = written(tmp_path / "b" / "config", kubeconfig("y", user={"client-certificate": "c", "client-key": "k"}))
    for name, content in (("a/pki/ca", "CA"), ("b/c", "certificate"), ("b/k", "key")):
        written(tmp_path / name, content)
    access, other = resolved(first, second), resolved(first, second, context="y")
    assert (access.ca, access.token_file) == (b"CA", tmp_path / "a" / "token")
    assert (other.certificate, other.key) == (b"certificate", b"key")


def test_a_kubeconfig_that_is_not_clear_is_refused(tmp_path: Path, golden: Golden) -> None:
    lines = [f"missing: {fault_of(tmp_path, tmp_path / 'missing')}"]
    broken: list[Any] = ["clusters: [", "just words", {"users": [{"name": "u", "user": {"token": 5}}]}]
    broken.append({"users": [{"name": "u"}, {"name": "u"}]})
    team = written(tmp_path / "team", kubeconfig("team"))
    for content in broken:
        file = written(tmp_path / "broken", content)
        fault = fault_of(tmp_path, team, file)
        assert fault_of(tmp_path, file, team) == fault
        lines.append(f"{content}: {fault}")
    changes: list[dict[str, Any]] = [{"current-context": ""}, {"current-context": "gone"}, {"clusters": []}]
    for change in (*changes, {"users": []}):
        lines.append(f"{change}: {fault_of(tmp_path, written(tmp_path / 'x', {**kubeconfig('x'), **change}))}")
    clusters: list[dict[str, Any]] = [
        {"server": ""},
        {"server": "ftp://x"},
        {"insecure-skip-tls-verify": True, "certificate-authority": "x"},
        {"certificate-authority-data": "eA==", "certificate-authority": "x"},
        {"certificate-authority": "missing"},
        {"proxy-url": "socks5://127.0.0.1:1"},
    ]
    users: list[dict[str, Any]] = [
        {"token": "t", "username": "u", "password": "p"},
        {"client-certificate-data": "eA=="},
        {"as-groups": ["g"]},
        {"as": "x\nImpersonate-Group: system:masters"},
        {"auth-provider": {"name": "azure", "config": {"x": "y"}}},
        {"auth-provider": {"name": "oidc", "config": {"id-token": "a.b.c"}}},
    ]
    entries: list[tuple[str, Any]] = [*(("cluster", one) for one in clusters), *(("user", one) for one in users)]
    for field, entry in entries:
        file = written(tmp_path / "x", kubeconfig("x", **{field: entry}))
        lines.append(f"{entry}: {fault_of(tmp_path, file)}")
    golden("kubeconfig-faults.txt", lines)


def test_the_address_of_a_server(tmp_path: Path) -> None:
    for given, server in (
        ({"server": "https://rancher.example/k8s/clusters/c-1/"}, "https://rancher.example/k8s/clusters/c-1"),
        ({"server": "https://x.example:6443/?a=b#c"}, "https://x.example:6443"),
        ({"server": "x.example:8080"}, "http://x.example:8080"),
        ({"server": "x.example:6443", "insecure-skip-tls-verify": True}, "https://x.example:6443"),
        ({"server": "https://[::1]:6443"}, "https://[::1]:6443"),
    ):
        assert resolved(written(tmp_path / "x", kubeconfig("x", cluster=given))).server == server


def test_a_valid_oidc_token_is_used(tmp_path: Path) -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": datetime.now(UTC).timestamp() + 600}).encode()).decode()
    token = f"h.{claims.rstrip('=')}.s"
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
    assert resolved(written(tmp_path / "x", kubeconfig("x", user=user))).token == token


def test_the_pods_service_account_is_used_where_no_kubeconfig_is(tmp_path: Path) -> None:
    account = tmp_path / "account"
    written(account / "token", "secret\n")
    written(account / "ca.crt", "CA")
    team = str(written(tmp_path / "team", kubeconfig("team")))
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}

    def chosen(named: str, listed: str) -> Access:
        environ = {**pod, "KUBECONFIG": listed}
        return access_of(kubeconfig=named, context="", service_account_dir=account, environ=environ)

    in_pod = chosen("", "/none")
    assert (in_pod.server, in_pod.token_file) == ("https://10.0.0.1:443", account / "token")
    assert chosen("", team).context == chosen(team, "").context == "team"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kubectl_chooses_the_same(tmp_path: Path) -> None:
    production = kubeconfig("production")
    production["users"].append({"name": "team", "user": {"token": "other"}})
    written(tmp_path / "1", kubeconfig("team", user={"token": "t", "as": "jane"}))
    written(tmp_path / "2", production)
    written(tmp_path / "3", {"current-context": "", "clusters": None})
    for order in ("12", "21", "312", "3:12", "13"):
        files = ("" if name == ":" else str(tmp_path / name) for name in order)
        environ = {"KUBECONFIG": ":".join(files), "HOME": str(tmp_path)}
        command = ["kubectl", "config", "view", "--minify", "--raw", "-o", "json"]
        shown = subprocess.run(command, check=True, capture_output=True, env={"PATH": os.environ["PATH"], **environ})
        theirs = json.loads(shown.stdout)
        ours = access_of(kubeconfig="", context="", service_account_dir=NOWHERE, environ=environ)
        assert ours.context == theirs["current-context"]
        assert ours.server == theirs["clusters"][0]["cluster"]["server"]
        user = theirs["users"][0]["user"]
        assert ours.token == user["token"]
        assert [value for _, value in ours.impersonated] == ([user["as"]] if "as" in user else [])


# Proxies


def test_which_proxy() -> None:
    host = "https://x.example:6443"
    for server, environ, proxy in (
        (host, {}, ""),
        (host, {"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
        (host, {"https_proxy": "p:3128"}, "http://p:3128"),
        (host, {"HTTP_PROXY": "http://p:3128"}, ""),
        (host, {"ALL_PROXY": "http://p:3128"}, ""),
        ("http://x.example:8080", {"HTTP_PROXY": "http://p:3128"}, "http://p:3128"),
    ):
        assert proxy_of(server, "", environ) == proxy
    for server, no_proxy, excepted in (
        ("https://[::1]:6443", "", True),
        ("https://localhost:6443", "", True),
        (host, "other,x.example", True),
        (host, "example", True),
        (host, ".example", True),
        (host, "*.example", True),
        (host, " X.EXAMPLE:6443 ", True),
        (host, "x.example:443", False),
        (host, ".x.example", False),
        (host, "ample", False),
        (host, "*", True),
        ("https://10.1.2.3:6443", "10.0.0.0/8", True),
        ("https://10.1.2.3:6443", "10.1.2.3", True),
        ("https://10.1.2.3:6443", "10.1.2.4,3", False),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", True),
    ):
        for name in ("NO_PROXY", "no_proxy"):
            assert proxy_of(server, "", {"HTTPS_PROXY": "http://p", name: no_proxy}) == "http://p" * (not excepted)
    environ = {"HTTPS_PROXY": "http://other", "NO_PROXY": "*"}
    assert proxy_of("https://127.0.0.1:6443", "http://u:secret@p:3128", environ) == "http://u:secret@p:3128"
    with pytest.raises(CredentialsError, match=r"^HTTPS_PROXY is not the URL") as raised:
        proxy_of("https://x", "", {"HTTPS_PROXY": "socks5://user:secret@p"})
    assert "secret" not in str(raised.value)


# Over real connections


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


@in_loop
async def test_every_request_names_who_is_impersonated(tmp_path: Path) -> None:
    requests: list[dict[str, list[str]]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        requests.append({name: request.headers.getall(name) for name in request.headers if name.startswith("Imperson")})
        return web.json_response({})

    user = {
        "token": "t",
        "as": "jane",
        "as-uid": "u-1",
        "as-groups": ["dev", "ops"],
        "as-user-extra": {"example.com/scopes": ["a", "b"], "ünder_score": ["ü"]},
    }
    async with serving(handler) as port:
        server = f"http://127.0.0.1:{port}"
        path = written(tmp_path / "x", kubeconfig("x", cluster={"server": server}, user=user))
        async with client(kubeconfig=str(path)) as transport:
            await everything(transport)
            assert transport.told == f"{server}, context x, user x, acting as jane"
    sent = {
        "Impersonate-User": ["jane"],
        "Impersonate-Uid": ["u-1"],
        "Impersonate-Group": ["dev", "ops"],
        "Impersonate-Extra-example.com%2Fscopes": ["a", "b"],
        "Impersonate-Extra-%C3%BCnder_score": ["ü"],
    }
    assert requests == [sent] * 7


@in_loop
async def test_every_request_goes_through_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []

    async def proxy(request: web.Request) -> web.StreamResponse:
        requests.append(f"{request.raw_path} {request.headers.get('Proxy-Authorization', '')}")
        return web.json_response({})

    secret = base64.b64encode(b"user:secret").decode()
    async with serving(proxy) as port:
        address = f"http://user:secret@127.0.0.1:{port}"
        for cluster, environ in (({"proxy-url": address}, ""), ({}, address)):
            monkeypatch.setenv("HTTP_PROXY", environ)
            content = kubeconfig("x", cluster={"server": "http://api.example:8080", **cluster})
            async with client(kubeconfig=str(written(tmp_path / "x", content))) as transport:
                await everything(transport)
            assert len(requests) == 7
            for name, request in zip("abcdefg", requests, strict=True):
                assert request.startswith(f"http://api.example:8080/{name}")
                assert secret in request
            requests.clear()


# Exec plugins


def plugin(path: Path, script: str, **wanted: Any) -> dict[str, Any]:
    """A user whose credentials a Python script prints."""
    path.write_text(
        f"#!{sys.executable}\nimport json, os, sys\ninfo = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n{script}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    wanted = {"apiVersion": f"{GROUP}/v1", "interactiveMode": "Never", **wanted}
    return {"exec": {"command": str(path), **wanted}}


GROUP = "client.authentication.k8s.io"
TELL = "print(json.dumps({'kind': 'ExecCredential', 'apiVersion': info['apiVersion'], 'status': %s}))"
COUNTING = """
counter = os.environ['COUNTER']
number = len(open(counter).read()) + 1 if os.path.exists(counter) else 1
open(counter, 'a').write('x')
"""


def counter(folder: Path) -> dict[str, str]:
    """Where a plugin counts its runs."""
    return {"name": "COUNTER", "value": str(folder / "counter")}


async def sent_by(
    folder: Path, user: dict[str, Any], *refused: str, num: int = 1, at_once: bool = False, **of: Any
) -> list[str]:
    """The Authorization headers of some requests, to a server that refuses some of them."""
    sent: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        sent.append(request.headers.get("Authorization", ""))
        return web.json_response({}, status=401 if sent[-1] in refused else 200)

    async with serving(answer) as port:
        given = {"server": f"http://127.0.0.1:{port}", **of}
        path = written(folder / "config", kubeconfig("x", cluster=given, user=user))
        try:
            async with client(kubeconfig=str(path)) as transport:
                if at_once:
                    await asyncio.gather(*(transport.get("/a") for _ in range(num)))
                else:
                    for _ in range(num):
                        await transport.get("/a")
        except CredentialsError:
            assert sent == [], "nothing is requested without credentials"
            raise
    return sent


@in_loop
async def test_a_plugin_gets_its_arguments_and_its_token_is_used(tmp_path: Path) -> None:
    script = (
        "json.dump([sys.argv[1:], os.environ['MINE'], info], open(os.environ['OUT'], 'w'))\n"
        + TELL % "{'token': 't\\n'}"
    )
    env = [{"name": "MINE", "value": "5"}, {"name": "OUT", "value": str(tmp_path / "told")}]
    extension = {"name": f"{GROUP}/exec", "extension": {"audience": "x"}}
    for version in (f"{GROUP}/v1", f"{GROUP}/v1beta1"):
        wanted = {"apiVersion": version, "args": ["get-token", "--cluster=x"], "env": env, "provideClusterInfo": True}
        user = plugin(tmp_path / "plugin", script, **wanted)
        assert await sent_by(tmp_path, user, num=2, extensions=[extension]) == ["Bearer t", "Bearer t"]
        arguments, mine, info = json.loads((tmp_path / "told").read_text())
        assert (arguments, mine) == (["get-token", "--cluster=x"], "5")
        assert (info["apiVersion"], info["spec"]["interactive"]) == (version, False)
        assert info["spec"]["cluster"].keys() == {"server", "config"}
        assert info["spec"]["cluster"]["config"] == {"audience": "x"}
    user = {**plugin(tmp_path / "plugin", script), "token": "own"}
    assert await sent_by(tmp_path, user) == ["Bearer own"], "a user with a token runs no plugin"


@in_loop
async def test_a_plugin_that_fails_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    token, lines = TELL % "{'token': 'x'}", list[str]()
    rows: list[tuple[str, dict[str, Any]]] = [
        ("sys.exit('Fehler: bitte anmelden ä\\nrun `login` first')", {}),
        ("sys.exit('\\x1b]52;c;x\\x07')", {}),
        ("os.kill(os.getpid(), 9)", {}),
        ("pass", {}),
        ("print('{}')", {}),
        (TELL % "{}", {}),
        (TELL % "None", {}),
        (TELL % "{'clientCertificateData': 'x'}", {}),
        (TELL % "{'token': 'a\\nb'}", {}),
        (f"info['apiVersion'] = '{GROUP}/v1beta1'\n{token}", {}),
        (token, {"command": "/nonexistent/plugin", "installHint": "brew install\x1b[2J it"}),
        (token, {"apiVersion": f"{GROUP}/v1alpha1"}),
        (token, {"interactiveMode": ""}),
        (token, {"interactiveMode": "Always"}),
    ]
    for script, wanted in rows:
        with pytest.raises(CredentialsError) as raised:
            await sent_by(tmp_path, plugin(tmp_path / "plugin", script, **wanted))
        fault = str(raised.value).replace(f"{tmp_path}/", "").partition("; give a kubeconfig")[0]
        lines.append(f"{wanted or script!r}: {fault}")
    golden("exec-plugin-faults.txt", lines)


@in_loop
async def test_a_plugin_runs_again_once_its_token_has_expired_or_was_refused(tmp_path: Path) -> None:
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat().replace("+00:00", "Z")
    expired = f"{{'token': str(number), **({{'expirationTimestamp': '{past}'}} if number == 1 else {{}})}}"
    user = plugin(tmp_path / "plugin", COUNTING + TELL % expired, env=[counter(tmp_path)])
    sent = await sent_by(tmp_path, user, "Bearer 2", num=3)
    assert sent == ["Bearer 2", "Bearer 3", "Bearer 3", "Bearer 3"]


@in_loop
async def test_a_plugin_runs_once_for_all_requests_that_are_refused_at_once(tmp_path: Path) -> None:
    user = plugin(tmp_path / "plugin", COUNTING + TELL % "{'token': str(number)}", env=[counter(tmp_path)])
    await sent_by(tmp_path, user, "Bearer 1", num=20, at_once=True)
    assert (tmp_path / "counter").read_text() == "xx"


# TLS


@in_loop
async def test_certificates_of_files_and_plugins_are_shown_and_renewed(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    pem = authority.certificate.read_bytes()
    shown: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        certificate = request.transport.get_extra_info("ssl_object").getpeercert()
        shown.append(dict(item[0] for item in certificate["subject"])["commonName"])
        return web.json_response({}, status=401 if shown[-1] == "old" else 200)

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=pem.decode())
    tls.load_cert_chain(*authority.issue("server"))
    tls.verify_mode = ssl.CERT_REQUIRED
    for name in ("old", "new"):
        authority.issue(name)
    script = COUNTING + (
        "name = 'old' if number == 1 else 'new'\nfolder = os.environ['FOLDER']\n"
        "read = lambda end: open(folder + '/' + name + end).read()\n"
        + TELL
        % "{'clientCertificateData': read('.crt'), 'clientKeyData': read('.key')}"
    )
    env = [counter(tmp_path), {"name": "FOLDER", "value": str(tmp_path)}]
    by_file = {"client-certificate": "new.crt", "client-key": "new.key"}
    async with serving(handler, tls) as port:
        of = {
            "server": f"https://127.0.0.1:{port}",
            "certificate-authority-data": base64.b64encode(b"some words\n" + pem).decode(),
            "tls-server-name": "localhost",
        }
        for user in (by_file, plugin(tmp_path / "plugin", script, env=env)):
            path = written(tmp_path / "config", kubeconfig("x", cluster=of, user=user))
            async with client(kubeconfig=str(path)) as transport:
                await everything(transport)
    assert shown == ["new"] * 7 + ["old"] + ["new"] * 7
