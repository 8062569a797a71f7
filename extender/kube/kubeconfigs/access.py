"""Where an API server is, and as whom it is asked, as one value: by kubeconfigs, as client-go reads them, or as a pod.

Sources: `tools/clientcmd/client_config.go`, `validation.go` and `transport/round_trippers.go` of client-go.
"""

import base64
import json
import string
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from extender.kube.kubeconfigs.exec_plugins import Plugin
from extender.kube.kubeconfigs.files import Cluster, User, load
from extender.kube.kubeconfigs.proxies import proxy_of
from extender.kube.transport import CredentialsError

Header = tuple[str, str]

_EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_TOKEN_CHARS: Final = frozenset(string.ascii_letters + string.digits + "!#$&'*+-.^_`|~")
"""Of a header's name, but for %."""
_LEAST_LEFT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Access:
    """Where, and as whom."""

    server: str
    """`https://host:port`, perhaps with a path; without a slash at its end."""
    who: str
    """Whose credentials these are, in words."""
    context: str = ""
    ca: bytes = b""
    """PEM of who is trusted; the system's where there is none."""
    verify: bool = True
    tls_server_name: str = ""
    """For what the server's certificate has to be, "" for its host."""
    proxy: str = ""
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    token_file: Path | None = None
    username: str = ""
    password: str = ""
    plugin: Plugin | None = None
    """What tells credentials, where there are no others."""
    impersonated: tuple[Header, ...] = ()
    """The headers that make the API server take who asks for somebody else."""

    @property
    def told(self) -> str:
        """The cluster and the user, for whoever runs a command that writes."""
        context = f", context {self.context}" if self.context else ""
        acting = f", acting as {self.impersonated[0][1]}" if self.impersonated else ""
        return f"{self.server}{context}, {self.who}{acting}"


def access_of(*, kubeconfig: str, context: str, service_account_dir: Path, environ: Mapping[str, str]) -> Access:
    """By a kubeconfig, by those of the environment, or else as a pod. Raises CredentialsError."""
    found = load(kubeconfig, environ)
    name = context or found.current_context
    if not name and not kubeconfig and environ.get(_HOST) and environ.get(_PORT):
        return _of_pod(service_account_dir, environ)
    files = ", ".join(map(str, found.sources)) or "no file (KUBECONFIG names none)"
    if found.is_empty:
        raise CredentialsError(f"{files}: no cluster is named there")
    if not name:
        raise CredentialsError(f"{files}: no current-context; choose one with --context ({_some(found.contexts)})")
    chosen = found.contexts.get(name)
    if chosen is None:
        raise CredentialsError(f"{files}: no context is named {name} ({_some(found.contexts)})")
    cluster = found.clusters.get(chosen.cluster)
    if cluster is None:
        raise CredentialsError(f"{files}: no cluster is named {chosen.cluster}, which context {name} is of")
    user = found.users.get(chosen.user) if chosen.user else User()
    if user is None:
        raise CredentialsError(f"{files}: no user is named {chosen.user}, which context {name} is of")
    try:
        return _access(name, cluster, chosen.user, user, environ)
    except OSError as error:
        raise CredentialsError(f"context {name}: {error.filename}: {error.strerror}") from None


def _access(context: str, cluster: Cluster, name: str, user: User, environ: Mapping[str, str]) -> Access:
    """Raises CredentialsError, OSError."""
    faults = [*_faults_of_cluster(cluster), *_faults_of_user(user)]
    if faults:
        raise CredentialsError(f"context {context}: {'; '.join(faults)}")
    server = _address(cluster)
    ca = cluster.certificate_authority_data or _read(cluster.certificate_authority)
    proxy = proxy_of(server, cluster.proxy_url, environ)
    has_certificate = bool(user.client_certificate or user.client_certificate_data)
    has_own = bool(user.token or user.token_file or user.username or user.password or has_certificate)
    return Access(
        server=server,
        who=f"user {name}" if name else "nobody",
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
        plugin=_plugin(name, cluster, user, server=server, ca=ca, proxy=proxy) if user.exec and not has_own else None,
        impersonated=tuple(_impersonating(user)),
    )


def _of_pod(directory: Path, environ: Mapping[str, str]) -> Access:
    """As a pod's service account. Raises CredentialsError."""
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


def _faults_of_cluster(cluster: Cluster) -> list[str]:
    faults = []
    if not cluster.server:
        faults.append("its cluster has no server")
    if cluster.certificate_authority and cluster.certificate_authority_data:
        faults.append("certificate-authority and certificate-authority-data are both given")
    if cluster.insecure_skip_tls_verify and (cluster.certificate_authority or cluster.certificate_authority_data):
        faults.append("insecure-skip-tls-verify and a certificate-authority are both given")
    return faults


def _faults_of_user(user: User) -> list[str]:
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
        faults.append("as, as-uid, as-groups or as-user-extra hold characters that no header may")
    return faults


def _address(cluster: Cluster) -> str:
    """The server, with a scheme, without query and fragment. Raises CredentialsError."""
    server = cluster.server
    if "://" not in server:
        secure = cluster.certificate_authority or cluster.certificate_authority_data or cluster.insecure_skip_tls_verify
        server = f"{'https' if secure else 'http'}://{server}"
    try:
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError(server)
    except ValueError:
        raise CredentialsError(f"server {cluster.server}: no address such as https://192.0.2.1:6443") from None
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def _id_token(user: User) -> str:
    """What is left of an auth-provider: kubectl refreshes that of oidc, and no client knows the others any more.

    Raises CredentialsError.
    """
    provider = user.auth_provider
    if provider is None or provider.name != "oidc":
        named = provider.name if provider else ""
        raise CredentialsError(
            f"auth-provider {named} has been removed from Kubernetes clients: use an exec plugin "
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
            "auth-provider oidc: its id-token has run out; any command of kubectl renews it, or use an exec plugin"
        )
    return token


def _plugin(name: str, cluster: Cluster, user: User, *, server: str, ca: bytes, proxy: str) -> Plugin:
    """Raises CredentialsError."""
    if user.exec is None:
        raise ValueError("no plugin is named")
    told: dict[str, Any] | None = None
    if user.exec.provide_cluster_info:
        config = next((item.extension for item in cluster.extensions if item.name == _EXEC_EXTENSION), None)
        given = {
            "server": server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            "certificate-authority-data": base64.b64encode(ca).decode(),
            "proxy-url": proxy,
            "disable-compression": cluster.disable_compression,
        }
        told = {key: value for key, value in given.items() if value} | {"config": config}
    return Plugin.of(name, user.exec, told)


def _impersonating(user: User) -> list[Header]:
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
