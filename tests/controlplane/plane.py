"""One control plane on loopback: etcd, kube-apiserver with RBAC, and any number of kube-schedulers."""

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import yaml

from tests.controlplane import commands, processes
from tests.controlplane.api import Api, ApiError, Object, read_documents
from tests.controlplane.binaries import Binaries, find_binaries, find_controller_manager
from tests.controlplane.processes import Process, wait_until

USERS = {"admin": "kerf-tests-admin", "scheduler": "system:kube-scheduler", "kerf": "kerf", "nobody": "nobody"}
"""Short name -> Kubernetes user name. The server's own bootstrap roles cover the scheduler; `kerf` has no rights."""


class ControlPlane:
    """Starts on entry, ends on exit; everything it writes, logs included, lies in `directory`.

    `users` adds to USERS or renames, for example {"kerf": "system:serviceaccount:kerf:kerf"}: then a shipped
    manifest that binds a role to that service account gives the rights to the `kerf` token. `flags` are more of
    kube-apiserver's.
    """

    def __init__(
        self,
        directory: Path,
        binaries: Binaries | None = None,
        users: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.url = ""
        self._binaries = binaries
        self._flags = flags
        self._users = USERS | dict(users or {})
        self._tokens = {user: secrets.token_hex(16) for user in self._users}
        self._processes: list[Process] = []
        self._commands: dict[str, tuple[Sequence[str | Path], str, Path | None, str]] = {}
        self._api: Api | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def binaries(self) -> Binaries:
        """The executables, found or built at the first need."""
        if self._binaries is None:
            self._binaries = find_binaries()
        return self._binaries

    @property
    def certificate(self) -> Path:
        """The API server's certificate with its CA, which a client verifies against."""
        return self.directory / "certificates" / "apiserver.crt"

    @property
    def running(self) -> list[Process]:
        """What was started and not yet stopped with the plane."""
        return list(self._processes)

    def start(self) -> None:
        """Return when the API server is ready; raise ProcessError with the end of the log when it is not."""
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            processes.retry_taken_port(self._start_servers)
            # The server creates the namespace some time after it calls itself ready.
            wait_until(lambda: self.exists("/api/v1/namespaces/default"), 30.0, "namespace default")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes, the newest first, and throw the cluster's data away; logs stay."""
        processes.stop_processes(self._processes[::-1])
        self._processes.clear()
        if self._api is not None:
            self._api.close()
            self._api = None
        for folder in ("etcd", "certificates"):
            shutil.rmtree(self.directory / folder, ignore_errors=True)

    def kill(self, name: str) -> None:
        """kill -9 of a server or scheduler; its data stay."""
        process = next(process for process in self._processes if process.name == name)
        self._processes.remove(process)
        process.kill()

    def revive(self, name: str) -> Process:
        """Start what was killed as it was; return when it is ready."""
        return self._launch(name, *self._commands[name])

    def revive_ended(self) -> list[str]:
        """Start again what has ended by itself, as its kubelet would; returns the names."""
        ended = [process for process in self._processes if not process.running]
        for process in ended:
            self._processes.remove(process)
            self.revive(process.name)
        return [process.name for process in ended]

    def request(
        self, method: str, path: str, body: object | None = None, content_type: str = "application/json"
    ) -> Any:
        """One REST call as admin; returns parsed JSON, raises ApiError with its `status` from 400 up."""
        return self._admin().request(method, path, body, content_type)

    def api(self, user: str) -> Api:
        """A REST client with that user's token; the caller closes it."""
        return Api(self.url, self.certificate, self._tokens[user])

    def kubelet(self, node: str) -> Api:
        """A REST client that speaks as the kubelet of a node; the caller closes it."""
        headers = {"Impersonate-User": f"system:node:{node}", "Impersonate-Group": "system:masters"}
        return Api(self.url, self.certificate, self.token("admin"), headers)

    def token(self, user: str) -> str:
        """A user's."""
        return self._tokens[user]

    def apply(self, *sources: Mapping[str, Any] | Path | str) -> list[Object]:
        """Create or change objects (dicts, YAML files, YAML text) as admin by server-side apply.

        Roles take effect when the server's authorizer has seen them, some milliseconds later.
        """
        return [self._admin().apply(document) for source in sources for document in read_documents(source)]

    def validate(self, document: Mapping[str, Any]) -> None:
        """Have the server check an object as it would at apply, admission included; nothing is stored."""
        self._admin().validate(document)

    def grant(self, user: str, *rules: Mapping[str, Any]) -> None:
        """Give a user the rights of cluster-wide RBAC rules, replacing an earlier grant; return when they hold."""
        name = f"kerf-tests-{user}"
        metadata, group = {"name": name}, "rbac.authorization.k8s.io"
        role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules}
        self.apply(
            role,
            {
                **{"apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding", "metadata": metadata},
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": group, "kind": "User", "name": self._users[user]}],
            },
        )
        wait_until(lambda: all(self._allowed(user, rule) for rule in rules), 10.0, f"rights of {user} in effect")

    def kubeconfig(self, user: str = "admin") -> Path:
        """Write the kubeconfig file of a user and return its path."""
        cluster = {"server": self.url, "certificate-authority": str(self.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "kerf-tests", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": user, "context": {"cluster": "kerf-tests", "user": user}}],
            "current-context": user,
        }
        path = self.directory / f"{user}.kubeconfig"
        text = json.dumps(config, indent=2)  # JSON is YAML
        if not path.exists() or path.read_text() != text:  # a running process may be reading it
            path.write_text(text)
        return path

    def start_scheduler(
        self,
        config: str | Path,
        name: str = "scheduler",
        replace: Mapping[str, str] | None = None,
        extender_url: str | None = None,
        leader_election: Mapping[str, Any] | None = None,
        hostname: str = "",
        user: str = "scheduler",
        gates: Sequence[str] = (),
    ) -> Process:
        """Start kube-scheduler from a KubeSchedulerConfiguration (text or file); return when it is ready.

        Only clientConnection.kubeconfig, that of `user`, and leaderElection are set (none unless given), and the
        address in the extenders' urlPrefix where `extender_url` is given; `replace` maps pieces of the text to others
        before it is parsed. With a `hostname` it runs as on a host of that name, where `own_hostname` allows; `gates`
        are features that are off by default, or `NAME=false` for one that is on. The process serves /metrics at its
        `url` without authorization.
        """
        text = config.read_text() if isinstance(config, Path) else config
        for old, new in (replace or {}).items():
            text = text.replace(old, new)
        settings = yaml.safe_load(text)
        settings.setdefault("clientConnection", {})["kubeconfig"] = str(self.kubeconfig(user))
        settings["leaderElection"] = {"leaderElect": bool(leader_election), **(leader_election or {})}
        if extender_url is not None:
            for extender in settings.get("extenders", []):
                extender["urlPrefix"] = extender_url + urlsplit(extender["urlPrefix"]).path
        path = self.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return processes.retry_taken_port(lambda: self._start_scheduler(name, path, hostname, gates))

    def start_controller_manager(self, *controllers: str) -> Process:
        """Start kube-controller-manager with these controllers alone, such as "job-controller"; return when ready."""

        def start() -> Process:
            port = processes.free_port()
            certificates = self.directory / "certificates" / "controller-manager"
            command = commands.controller_manager(
                find_controller_manager(), self.kubeconfig(), self.certificate, certificates, port, controllers
            )
            certificate = certificates / "kube-controller-manager.crt"
            return self._launch(
                "controller-manager", command, f"https://127.0.0.1:{port}", certificate, ready_path="/healthz"
            )

        return processes.retry_taken_port(start)

    def _start_scheduler(self, name: str, config: Path, hostname: str, gates: Sequence[str]) -> Process:
        port = processes.free_port()
        certificates = self.directory / "certificates" / name
        prefix = processes.own_hostname(hostname) if hostname else ()
        command = [*prefix, *commands.scheduler(self.binaries.kube_scheduler, config, certificates, port, gates)]
        return self._launch(name, command, f"https://127.0.0.1:{port}", certificates / "kube-scheduler.crt")

    def _start_servers(self) -> None:
        self.stop()  # nothing of an attempt before this one
        etcd_url, peer_url = (f"http://127.0.0.1:{processes.free_port()}" for _ in range(2))
        command = commands.etcd(self.binaries.etcd, self.directory / "etcd", etcd_url, peer_url)
        self._launch("etcd", command, etcd_url)
        port = processes.free_port()
        self.url = f"https://127.0.0.1:{port}"
        tokens = self.directory / "tokens.csv"
        tokens.write_text("".join(map(self._token_line, self._users)))
        command = commands.apiserver(
            self.binaries.kube_apiserver, etcd_url, self.certificate.with_suffix(".key"), port, tokens, self._flags
        )
        self._launch("kube-apiserver", command, self.url, self.certificate)
        self._api = self.api("admin")

    def _token_line(self, user: str) -> str:
        name = self._users[user]
        groups = ["system:masters"] if user == "admin" else []
        if name.startswith("system:serviceaccount:"):
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{name.split(':')[2]}"]
        return f'{self._tokens[user]},{name},{user},"{",".join(groups)}"\n'

    def _launch(
        self,
        name: str,
        command: Sequence[str | Path],
        url: str,
        certificate: Path | None = None,
        ready_path: str = "/readyz",
    ) -> Process:
        """Start a server and wait until it says that it is ready."""
        self._commands[name] = command, url, certificate, ready_path
        process = processes.start_process(name, command, self.directory / f"{name}.log", url)
        self._processes.append(process)
        try:
            process.wait_ready(lambda: processes.answers(f"{url}{ready_path}", certificate))
        except BaseException:
            self._processes.remove(process)
            process.stop()
            raise
        return process

    def _admin(self) -> Api:
        if self._api is None:
            raise RuntimeError("the control plane is not running")
        return self._api

    def exists(self, path: str) -> bool:
        """Whether the server has an object, or serves a list, at a path."""
        try:
            self.request("GET", path)
        except ApiError as error:
            if error.status not in (404, 429):  # 429: of a definition made a moment ago, whose storage is not ready
                raise
            return False
        return True

    def _allowed(self, user: str, rule: Mapping[str, Any]) -> bool:
        """Whether the authorizer lets the user do the rule's first verb on its first resource."""
        if "resources" not in rule:  # a rule on paths such as /metrics
            return True
        resource, _, subresource = rule["resources"][0].partition("/")
        attributes = {"group": rule["apiGroups"][0], "resource": resource, "subresource": subresource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": self._users[user], "resourceAttributes": attributes | {"verb": rule["verbs"][0]}},
        }
        answer = self.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])
