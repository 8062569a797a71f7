"""Server address and credentials from kubeconfigs, by client-go's rules, or from a pod's service account.

Sources: `tools/clientcmd/client_config.go`, `validation.go` and `transport/round_trippers.go` of client-go.

Files are merged as in `tools/clientcmd/loader.go`. The first file with a current-context, or with an entry of a name,
wins; entries are not merged. Empty names and missing files are skipped, unless the only one named is missing. Paths
are relative to their file.

Exec plugins follow `plugin/pkg/client/auth/exec`, v1 and v1beta1. If one fails, so does the request: Kerf never falls
back to anonymous access. Proxies are chosen as in Go's `golang.org/x/net/http/httpproxy`.
"""

import asyncio
import base64
import ipaddress
import json
import os
import string
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, urlsplit, urlunsplit

import msgspec
import yaml

from extender.core.texts import printable
from extender.kube.transport import CredentialsError
from extender.kube.yaml_faults import yaml_fault

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of a pod's token and the API server's CA."""
_KUBECONFIG: Final = "KUBECONFIG"
_DEFAULT: Final = "~/.kube/config"


class _Entry(msgspec.Struct, kw_only=True):
    """A named entry of a list in the file."""

    name: str = ""


_EntryT = TypeVar("_EntryT", bound=_Entry)


class ExecEnv(msgspec.Struct, kw_only=True):
    """An environment variable of an exec plugin."""

    name: str = ""
    value: str = ""


class Exec(msgspec.Struct, rename="camel", kw_only=True):
    """An exec plugin."""

    command: str = ""
    args: list[str] = []
    env: list[ExecEnv] = []
    api_version: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class _AuthProvider(msgspec.Struct, kw_only=True):
    """The predecessor of exec plugins."""

    name: str = ""
    config: dict[str, str] = {}


class _Extension(msgspec.Struct, kw_only=True):
    """Other tools' data in an entry."""

    name: str = ""
    extension: Any = None


class _Cluster(msgspec.Struct, rename="kebab", kw_only=True):
    """An API server's address and TLS settings."""

    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: bytes = b""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: list[_Extension] = []


class _User(msgspec.Struct, rename="kebab", kw_only=True):
    """Credentials and impersonation."""

    client_certificate: str = ""
    client_certificate_data: bytes = b""
    client_key: str = ""
    client_key_data: bytes = b""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    as_: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: list[str] = []
    as_user_extra: dict[str, list[str]] = {}
    username: str = ""
    password: str = ""
    auth_provider: _AuthProvider | None = None
    exec: Exec | None = None


class _Context(msgspec.Struct, kw_only=True):
    """A cluster and a user."""

    cluster: str = ""
    user: str = ""


class _NamedCluster(_Entry, kw_only=True):
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)


class _NamedUser(_Entry, kw_only=True):
    user: _User = msgspec.field(default_factory=_User)


class _NamedContext(_Entry, kw_only=True):
    context: _Context = msgspec.field(default_factory=_Context)


class _File(msgspec.Struct, rename="kebab", kw_only=True):
    clusters: list[_NamedCluster] = []
    users: list[_NamedUser] = []
    contexts: list[_NamedContext] = []
    current_context: str = ""


@dataclass
class _Kubeconfig:
    """The merged files; paths are absolute."""

    sources: list[Path] = field(default_factory=list)
    """The files read, or those tried if none exists."""
    clusters: dict[str, _Cluster] = field(default_factory=dict)
    users: dict[str, _User] = field(default_factory=dict)
    contexts: dict[str, _Context] = field(default_factory=dict)
    current_context: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the files have no entries at all."""
        return not (self.clusters or self.users or self.contexts or self.current_context)


def _load(path: str, environ: Mapping[str, str]) -> _Kubeconfig:
    """Load a file, or without a path those of the environment. Raises CredentialsError."""
    paths = [str(Path(path).expanduser())] if path else _environment_paths(environ)
    merged = _Kubeconfig()
    for name in paths:
        try:
            text = Path(name).read_bytes()
        except FileNotFoundError as error:
            if path:
                raise CredentialsError(f"{name}: {error.strerror}") from None
            continue
        except OSError as error:
            raise CredentialsError(f"{name}: {error.strerror}") from None
        merged.sources.append(Path(name))
        _add(merged, _decoded(name, text), Path(name).absolute().parent)
    if not merged.sources:
        merged.sources = [Path(name) for name in paths]
    return merged


def _environment_paths(environ: Mapping[str, str]) -> list[str]:
    """Return the paths in KUBECONFIG, or without it the one in the home folder, as kubectl."""
    listed = environ.get(_KUBECONFIG, "")
    if not listed:
        return [str(Path(_DEFAULT).expanduser())]
    return [name for name in dict.fromkeys(listed.split(os.pathsep)) if name]


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: without timestamps."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _decoded(name: str, text: bytes) -> _File:
    try:
        content = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
        return msgspec.convert(_without_nulls(content) if content is not None else {}, _File)
    except yaml.YAMLError as error:
        raise CredentialsError(f"{name}: {yaml_fault(error)}") from None
    except (msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise CredentialsError(f"{name}: not a kubeconfig: {error}") from None


def _without_nulls(value: Any) -> Any:
    """Remove null values, which Go treats as absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _add(merged: _Kubeconfig, file: _File, folder: Path) -> None:
    """Add what no earlier file has. Raises CredentialsError."""
    merged.current_context = merged.current_context or file.current_context
    for named_cluster in _unique(file.clusters, merged.sources[-1]):
        cluster = named_cluster.cluster
        cluster.certificate_authority = _absolute(cluster.certificate_authority, folder)
        merged.clusters.setdefault(named_cluster.name, cluster)
    for named_user in _unique(file.users, merged.sources[-1]):
        user = named_user.user
        user.client_certificate = _absolute(user.client_certificate, folder)
        user.client_key = _absolute(user.client_key, folder)
        user.token_file = _absolute(user.token_file, folder)
        if user.exec is not None and os.sep in user.exec.command:
            user.exec.command = _absolute(user.exec.command, folder)
        merged.users.setdefault(named_user.name, user)
    for context in _unique(file.contexts, merged.sources[-1]):
        merged.contexts.setdefault(context.name, context.context)


def _unique(entries: Sequence[_EntryT], source: Path) -> Sequence[_EntryT]:
    """Return the entries. Raises CredentialsError for a duplicate name, as in Go."""
    names = [entry.name for entry in entries]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise CredentialsError(f"{source}: two entries are named {twice}")
    return entries


def _absolute(path: str, folder: Path) -> str:
    return str(folder / path) if path else ""


_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_INFO: Final = "KUBERNETES_EXEC_INFO"
_NEVER, _IF_AVAILABLE, _ALWAYS = "Never", "IfAvailable", "Always"
_TIMEOUT_S: Final = 120.0
"""For plugins that are not interactive."""
_MAX_LINES: Final = 20
"""Last lines of a plugin's stderr that an error quotes."""


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class _Credential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials returned by a plugin."""

    token: str = ""
    certificate: bytes = b""
    key: bytes = b""
    expires: datetime | None = None

    @property
    def expired(self) -> bool:
        """Whether the credentials have expired."""
        return self.expires is not None and datetime.now(UTC) >= self.expires


@dataclass(frozen=True, slots=True)
class Plugin:
    """An exec plugin: its command and input."""

    user: str
    command: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    api_version: str
    install_hint: str
    interactive_mode: str
    cluster: str
    """Cluster information for the plugin as JSON, "" for none."""

    @classmethod
    def of(cls, user: str, spec: Exec, cluster: dict[str, Any] | None) -> "Plugin":
        """Return the plugin of a kubeconfig's user; `cluster` is its input, if any. Raises CredentialsError."""
        mode = spec.interactive_mode or (_IF_AVAILABLE if spec.api_version == _VERSIONS[1] else "")
        faults = []
        if not spec.command:
            faults.append("names no command")
        if spec.api_version not in _VERSIONS:
            faults.append(f"has apiVersion {spec.api_version or 'none'}, which is not {' or '.join(_VERSIONS)}")
        elif mode not in (_NEVER, _IF_AVAILABLE, _ALWAYS):
            faults.append(f"has interactiveMode {mode or 'none'}, which is not Never, IfAvailable or Always")
        if any(not item.name for item in spec.env):
            faults.append("has a variable without a name")
        if faults:
            raise CredentialsError(f"the exec plugin of user {user} {', and '.join(faults)}")
        return cls(
            user=user,
            command=spec.command,
            arguments=tuple(spec.args),
            environment=tuple((item.name, item.value) for item in spec.env),
            api_version=spec.api_version,
            install_hint=spec.install_hint,
            interactive_mode=mode,
            cluster="" if cluster is None else json.dumps(cluster),
        )

    async def run(self) -> Credentials:
        """Run the plugin for new credentials. Raises CredentialsError."""
        interactive = self._interactive()
        spec = {"interactive": interactive} | ({"cluster": json.loads(self.cluster)} if self.cluster else {})
        info = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec}
        try:
            process = await asyncio.create_subprocess_exec(
                self.command,
                *self.arguments,
                env={**os.environ, **dict(self.environment), _INFO: json.dumps(info)},
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if interactive else asyncio.subprocess.PIPE,  # the user has to see its prompts
            )
        except FileNotFoundError:
            hint = f"\n{_words(self.install_hint.encode())}" if self.install_hint else ""
            raise CredentialsError(f"{self}: there is no such program{hint}") from None
        except (OSError, ValueError) as error:
            raise CredentialsError(f"{self}: can't be run: {error}") from None
        try:
            async with asyncio.timeout(None if interactive else _TIMEOUT_S):
                stdout, stderr = await process.communicate()
        except TimeoutError:
            raise CredentialsError(f"{self}: did not end within {_TIMEOUT_S:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            words = f": {_words(stderr)}" if stderr and stderr.strip() else ""
            raise CredentialsError(f"{self}: ended with exit status {process.returncode}{words}")
        return self._credentials(stdout)

    def _interactive(self) -> bool:
        """Whether the plugin may prompt the user. Raises CredentialsError."""
        if self.interactive_mode == _NEVER:
            return False
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if self.interactive_mode == _ALWAYS and not terminal:
            raise CredentialsError(f"{self}: needs input, but standard input is not a terminal")
        return terminal

    def _credentials(self, output: bytes) -> Credentials:
        """Raises CredentialsError."""
        try:
            answer = msgspec.json.decode(output, type=_Credential)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CredentialsError(f"{self}: its output is not an ExecCredential: {error}") from None
        status = answer.status
        if answer.api_version != self.api_version or answer.kind != "ExecCredential":
            returned = f"{answer.kind or 'nothing'} of {answer.api_version or 'no version'}"
            raise CredentialsError(f"{self}: returned {returned}, not ExecCredential of {self.api_version}")
        if status is None or not (status.token or status.client_certificate_data or status.client_key_data):
            raise CredentialsError(f"{self}: returned neither a token nor a certificate")
        if bool(status.client_certificate_data) != bool(status.client_key_data):
            raise CredentialsError(f"{self}: returned a certificate without its key, or a key without its certificate")
        expires = status.expiration_timestamp
        return Credentials(
            token=status.token,
            certificate=status.client_certificate_data.encode(),
            key=status.client_key_data.encode(),
            expires=expires.replace(tzinfo=UTC) if expires is not None and expires.tzinfo is None else expires,
        )

    def __str__(self) -> str:
        return f"the exec plugin {self.command} of user {self.user}"


@dataclass
class PluginCredentials:
    """A plugin's credentials until they expire; concurrent callers share one run."""

    plugin: Plugin
    _current: Credentials | None = None
    _running: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def current(self) -> Credentials:
        """Return the credentials, renewed if expired. Raises CredentialsError."""
        if self._current is None or self._current.expired:
            await self.renew(self._current)
        return self._known()

    async def renew(self, refused: Credentials | None) -> Credentials:
        """Return other credentials than those the API server refused. Raises CredentialsError."""
        async with self._running:
            if self._current is refused or self._current is None:
                self._current = await self.plugin.run()
        return self._known()

    def _known(self) -> Credentials:
        if self._current is None:
            raise CredentialsError(f"{self.plugin}: returned nothing")
        return self._current


def _words(text: bytes) -> str:
    """Return the last lines of a plugin's message, without control characters."""
    lines = text.decode(errors="replace").strip().splitlines()
    return "\n".join(printable(line) for line in lines[-_MAX_LINES:])


_PORTS: Final = {"http": 80, "https": 443}


def proxy_of(server: str, proxy_url: str, environ: Mapping[str, str]) -> str:
    """Return a server's proxy URL, "" for none; `proxy_url` is from the kubeconfig. Raises CredentialsError."""
    if proxy_url:
        return _usable(proxy_url, "proxy-url")
    parts = urlsplit(server)
    variable = "HTTPS_PROXY" if parts.scheme == "https" else "HTTP_PROXY"
    proxy = _variable(environ, variable)
    if not proxy or _is_excepted(parts, _variable(environ, "NO_PROXY")):
        return ""
    return _usable(proxy if "://" in proxy else f"http://{proxy}", variable)


def _usable(proxy: str, named: str) -> str:
    try:
        parts = urlsplit(proxy)
        usable = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:  # not quoted: it may contain a password
        raise CredentialsError(f"{named} is not the URL of an HTTP proxy, such as http://proxy.example:3128")
    return proxy


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.lower(), "")


def _is_excepted(server: SplitResult, no_proxy: str) -> bool:
    """Whether a server is reached without a proxy, as loopback always is."""
    host, port = (server.hostname or "").lower(), server.port or _PORTS.get(server.scheme, 0)
    address = _ip_address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches(entry.strip().lower(), host, address, port) for entry in no_proxy.split(","))


def _matches(entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int) -> bool:
    """Whether an entry of NO_PROXY matches: `*`, an address, a network, a name with its subdomains, `.subdomains`."""
    if entry in ("", "*"):
        return entry == "*"
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, of_port = _with_port(entry)
    if of_port and of_port != str(port):
        return False
    if (excepted := _ip_address(name)) is not None or address is not None:
        return excepted == address
    name = name.removeprefix("*")
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _with_port(entry: str) -> tuple[str, str]:
    """Split a host and its port, "" without one."""
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = entry.partition(":")
    return (entry, "") if ":" in port else (name, port)


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


Header = tuple[str, str]

_EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_TOKEN_CHARS: Final = frozenset(string.ascii_letters + string.digits + "!#$&'*+-.^_`|~")
"""Characters allowed in a header's name, except %."""
_LEAST_LEFT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Access:
    """Address and credentials of an API server."""

    server: str
    """`https://host:port`, possibly with a path; no trailing slash."""
    who: str
    """The user, in words."""
    context: str = ""
    ca: bytes = b""
    """Trusted CAs, PEM; empty for the system's."""
    verify: bool = True
    tls_server_name: str = ""
    """Name expected in the server's certificate, "" for its host."""
    proxy: str = ""
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    token_file: Path | None = None
    username: str = ""
    password: str = ""
    plugin: Plugin | None = None
    """Source of the credentials, if there are no others."""
    impersonated: tuple[Header, ...] = ()
    """Impersonation headers."""

    @property
    def told(self) -> str:
        """The cluster and the user, shown by commands that write."""
        context = f", context {self.context}" if self.context else ""
        acting = f", acting as {self.impersonated[0][1]}" if self.impersonated else ""
        return f"{self.server}{context}, {self.who}{acting}"


def access_of(*, kubeconfig: str, context: str, service_account_dir: Path, environ: Mapping[str, str]) -> Access:
    """Return the access by a kubeconfig, by those of the environment, or as a pod. Raises CredentialsError."""
    merged = _load(kubeconfig, environ)
    name = context or merged.current_context
    if not name and not kubeconfig and environ.get(_HOST) and environ.get(_PORT):
        return _pod_access(service_account_dir, environ)
    files = ", ".join(map(str, merged.sources)) or "no file (KUBECONFIG names none)"
    if merged.is_empty:
        raise CredentialsError(f"{files}: no cluster is defined there")
    if not name:
        raise CredentialsError(f"{files}: no current-context; choose one with --context ({_some(merged.contexts)})")
    chosen = merged.contexts.get(name)
    if chosen is None:
        raise CredentialsError(f"{files}: no context is named {name} ({_some(merged.contexts)})")
    cluster = merged.clusters.get(chosen.cluster)
    if cluster is None:
        raise CredentialsError(f"{files}: no cluster is named {chosen.cluster}, as in context {name}")
    user = merged.users.get(chosen.user) if chosen.user else _User()
    if user is None:
        raise CredentialsError(f"{files}: no user is named {chosen.user}, as in context {name}")
    try:
        return _access(name, cluster, chosen.user, user, environ)
    except OSError as error:
        raise CredentialsError(f"context {name}: {error.filename}: {error.strerror}") from None


def _access(context: str, cluster: _Cluster, name: str, user: _User, environ: Mapping[str, str]) -> Access:
    """Raises CredentialsError, OSError."""
    faults = [*_faults_of_cluster(cluster), *_faults_of_user(user)]
    if faults:
        raise CredentialsError(f"context {context}: {'; '.join(faults)}")
    server = _address(cluster)
    ca = cluster.certificate_authority_data or _read(cluster.certificate_authority)
    proxy = proxy_of(server, cluster.proxy_url, environ)
    has_certificate = bool(user.client_certificate or user.client_certificate_data)
    has_credentials = bool(user.token or user.token_file or user.username or user.password or has_certificate)
    return Access(
        server=server,
        who=f"user {name}" if name else "anonymous",
        context=context,
        ca=ca,
        verify=not cluster.insecure_skip_tls_verify,
        tls_server_name=cluster.tls_server_name,
        proxy=proxy,
        certificate=user.client_certificate_data or _read(user.client_certificate),
        key=user.client_key_data or _read(user.client_key),
        token=user.token or (_id_token(user) if user.auth_provider is not None else ""),
        token_file=Path(user.token_file) if user.token_file else None,
        username=user.username,
        password=user.password,
        plugin=_plugin(name, cluster, user, server=server, ca=ca, proxy=proxy)
        if user.exec and not has_credentials
        else None,
        impersonated=tuple(_impersonating(user)),
    )


def _pod_access(directory: Path, environ: Mapping[str, str]) -> Access:
    """Return the access of a pod's service account. Raises CredentialsError."""
    host, port = environ[_HOST], environ[_PORT]
    token_file = directory / "token"
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    try:
        ca = (directory / "ca.crt").read_bytes()
        if not token_file.read_bytes().strip():
            raise CredentialsError(f"{token_file} is empty")
    except OSError as error:
        raise CredentialsError(f"{error.filename}: {error.strerror}") from None
    if not ca:
        raise CredentialsError(f"{directory / 'ca.crt'} is empty")
    return Access(server=server, who="the service account of this pod", ca=ca, token_file=token_file)


def _faults_of_cluster(cluster: _Cluster) -> list[str]:
    faults = []
    if not cluster.server:
        faults.append("its cluster has no server")
    if cluster.certificate_authority and cluster.certificate_authority_data:
        faults.append("certificate-authority and certificate-authority-data are both given")
    if cluster.insecure_skip_tls_verify and (cluster.certificate_authority or cluster.certificate_authority_data):
        faults.append("insecure-skip-tls-verify and a certificate-authority are both given")
    return faults


def _faults_of_user(user: _User) -> list[str]:
    faults = []
    if user.token and (user.username or user.password):
        faults.append("its user has a token and a password, and only one is allowed")
    if user.client_certificate and user.client_certificate_data:
        faults.append("client-certificate and client-certificate-data are both given")
    if user.client_key and user.client_key_data:
        faults.append("client-key and client-key-data are both given")
    if (user.client_certificate or user.client_certificate_data) and not (user.client_key or user.client_key_data):
        faults.append("its client certificate has no client-key")
    if user.exec and user.auth_provider:
        faults.append("exec and auth-provider are both given")
    if (user.as_uid or user.as_groups or user.as_user_extra) and not user.as_:
        faults.append("as-uid, as-groups or as-user-extra are given without as")
    texts = [user.as_, user.as_uid, *user.as_groups, *(value for more in user.as_user_extra.values() for value in more)]
    if any(not text.isprintable() for text in texts):
        faults.append("as, as-uid, as-groups or as-user-extra contain characters not allowed in a header")
    return faults


def _address(cluster: _Cluster) -> str:
    """Return the server's URL with a scheme, without query and fragment. Raises CredentialsError."""
    server = cluster.server
    if "://" not in server:
        secure = cluster.certificate_authority or cluster.certificate_authority_data or cluster.insecure_skip_tls_verify
        server = f"{'https' if secure else 'http'}://{server}"
    try:
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError(server)
    except ValueError:
        raise CredentialsError(f"server {cluster.server}: not a URL such as https://192.0.2.1:6443") from None
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def _id_token(user: _User) -> str:
    """Return the token of auth-provider oidc, which kubectl refreshes. Raises CredentialsError for other providers."""
    provider = user.auth_provider
    if provider is None or provider.name != "oidc":
        name = provider.name if provider else ""
        raise CredentialsError(
            f"auth-provider {name} has been removed from Kubernetes clients: use an exec plugin "
            "(https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins)"
        )
    token = provider.config.get("id-token", "")
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        left_s = float(claims["exp"]) - time.time()
    except (IndexError, KeyError, TypeError, ValueError):
        left_s = 0.0
    if left_s < _LEAST_LEFT_S:
        raise CredentialsError(
            "auth-provider oidc: its id-token has expired; any command of kubectl renews it, or use an exec plugin"
        )
    return token


def _plugin(name: str, cluster: _Cluster, user: _User, *, server: str, ca: bytes, proxy: str) -> Plugin:
    """Raises CredentialsError."""
    if user.exec is None:
        raise ValueError("no plugin is named")
    cluster_info: dict[str, Any] | None = None
    if user.exec.provide_cluster_info:
        config = next((item.extension for item in cluster.extensions if item.name == _EXEC_EXTENSION), None)
        fields = {
            "server": server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "certificate-authority-data": base64.b64encode(ca).decode(),
            "proxy-url": proxy,
            "disable-compression": cluster.disable_compression,
        }
        cluster_info = {key: value for key, value in fields.items() if value} | {"config": config}
    return Plugin.of(name, user.exec, cluster_info)


def _impersonating(user: _User) -> list[Header]:
    if not user.as_:
        return []
    headers = [("Impersonate-User", user.as_)]
    if user.as_uid:
        headers.append(("Impersonate-Uid", user.as_uid))
    headers += [("Impersonate-Group", group) for group in user.as_groups]
    for key, values in user.as_user_extra.items():
        name = "".join(chr(byte) if chr(byte) in _TOKEN_CHARS else f"%{byte:02X}" for byte in key.encode())
        headers += [(f"Impersonate-Extra-{name}", value) for value in values]
    return headers


def _read(path: str) -> bytes:
    """Raises OSError."""
    return Path(path).read_bytes() if path else b""


def _some(contexts: Mapping[str, object]) -> str:
    names = sorted(contexts)
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"there are {', '.join(names[:10])}{more}" if names else "there is none"
