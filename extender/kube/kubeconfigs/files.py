"""The files that a kubeconfig is made of, merged as client-go does it (`tools/clientcmd/loader.go`).

The first file that names a current-context, or has an entry of a name, wins; of an entry nothing is merged. Empty names
and missing files are passed over, but for one that was named as the only one. Paths are relative to their file.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml

from extender.kube.transport import CredentialsError
from extender.kube.yaml_faults import yaml_fault

_KUBECONFIG: Final = "KUBECONFIG"
_DEFAULT: Final = "~/.kube/config"


class _Entry(msgspec.Struct, kw_only=True):
    """Of a list of the file."""

    name: str = ""


_EntryT = TypeVar("_EntryT", bound=_Entry)


class ExecEnv(msgspec.Struct, kw_only=True):
    """A variable of a plugin's environment."""

    name: str = ""
    value: str = ""


class Exec(msgspec.Struct, rename="camel", kw_only=True):
    """A plugin that tells credentials."""

    command: str = ""
    args: list[str] = []
    env: list[ExecEnv] = []
    api_version: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class AuthProvider(msgspec.Struct, kw_only=True):
    """What came before exec plugins."""

    name: str = ""
    config: dict[str, str] = {}


class Extension(msgspec.Struct, kw_only=True):
    """What others keep in an entry."""

    name: str = ""
    extension: Any = None


class Cluster(msgspec.Struct, rename="kebab", kw_only=True):
    """Where an API server is, and by what it is known."""

    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: bytes = b""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: list[Extension] = []


class User(msgspec.Struct, rename="kebab", kw_only=True):
    """Who asks, and as whom."""

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
    auth_provider: AuthProvider | None = None
    exec: Exec | None = None


class Context(msgspec.Struct, kw_only=True):
    """A cluster and a user."""

    cluster: str = ""
    user: str = ""


class _NamedCluster(_Entry, kw_only=True):
    cluster: Cluster = msgspec.field(default_factory=Cluster)


class _NamedUser(_Entry, kw_only=True):
    user: User = msgspec.field(default_factory=User)


class _NamedContext(_Entry, kw_only=True):
    context: Context = msgspec.field(default_factory=Context)


class _File(msgspec.Struct, rename="kebab", kw_only=True):
    clusters: list[_NamedCluster] = []
    users: list[_NamedUser] = []
    contexts: list[_NamedContext] = []
    current_context: str = ""


@dataclass
class Kubeconfig:
    """What all files say together; paths are absolute."""

    sources: list[Path] = field(default_factory=list)
    """The files that were read, or looked for in vain where there is none."""
    clusters: dict[str, Cluster] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    contexts: dict[str, Context] = field(default_factory=dict)
    current_context: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing leads to a cluster."""
        return not (self.clusters or self.users or self.contexts or self.current_context)


def load(path: str, environ: Mapping[str, str]) -> Kubeconfig:
    """That of a file, or where none is named of those of the environment. Raises CredentialsError."""
    named = [str(Path(path).expanduser())] if path else _of_environment(environ)
    found = Kubeconfig()
    for name in named:
        try:
            text = Path(name).read_bytes()
        except FileNotFoundError as error:
            if path:
                raise CredentialsError(f"{name}: {error.strerror}") from None
            continue
        except OSError as error:
            raise CredentialsError(f"{name}: {error.strerror}") from None
        found.sources.append(Path(name))
        _add(found, _decoded(name, text), Path(name).absolute().parent)
    if not found.sources:
        found.sources = [Path(name) for name in named]
    return found


def _of_environment(environ: Mapping[str, str]) -> list[str]:
    """As kubectl: what a list of paths names, or the one of the home folder where there is no list."""
    listed = environ.get(_KUBECONFIG, "")
    if not listed:
        return [str(Path(_DEFAULT).expanduser())]
    return [name for name in dict.fromkeys(listed.split(os.pathsep)) if name]


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: no dates."""


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
        raise CredentialsError(f"{name}: no kubeconfig: {error}") from None


def _without_nulls(value: Any) -> Any:
    """As Go reads it, for which null is what is not there."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _add(found: Kubeconfig, file: _File, folder: Path) -> None:
    """What nobody before has said. Raises CredentialsError."""
    found.current_context = found.current_context or file.current_context
    for cluster in _once(file.clusters, found.sources[-1]):
        of = cluster.cluster
        of.certificate_authority = _absolute(of.certificate_authority, folder)
        found.clusters.setdefault(cluster.name, of)
    for user in _once(file.users, found.sources[-1]):
        who = user.user
        who.client_certificate = _absolute(who.client_certificate, folder)
        who.client_key = _absolute(who.client_key, folder)
        who.token_file = _absolute(who.token_file, folder)
        if who.exec is not None and os.sep in who.exec.command:
            who.exec.command = _absolute(who.exec.command, folder)
        found.users.setdefault(user.name, who)
    for context in _once(file.contexts, found.sources[-1]):
        found.contexts.setdefault(context.name, context.context)


def _once(entries: Sequence[_EntryT], source: Path) -> Sequence[_EntryT]:
    """The entries of a list. Raises CredentialsError where one name stands twice: Go refuses that too."""
    names = [entry.name for entry in entries]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise CredentialsError(f"{source}: two entries are named {twice}")
    return entries


def _absolute(path: str, folder: Path) -> str:
    return str(folder / path) if path else ""
