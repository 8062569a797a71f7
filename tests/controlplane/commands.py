"""The command lines of a control plane's servers, all of which listen on loopback."""

from collections.abc import Sequence
from pathlib import Path

Command = list[str | Path]

WITH_SERVICE_ACCOUNTS = "--disable-admission-plugins=TaintNodesByCondition"
"""A flag of the API server's: pods get a service account and its token, as in clusters, where controllers make them."""
# Pods need no service account, and nodes no controller that takes the not-ready taint off again.
_WITHOUT = f"{WITH_SERVICE_ACCOUNTS},ServiceAccount"


def etcd(binary: Path, data: Path, url: str, peer_url: str) -> Command:
    """etcd, which loses its data with the machine."""
    return [
        *(binary, "--name=default", f"--data-dir={data}", "--unsafe-no-fsync"),
        *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
        *(f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}"),
        f"--initial-cluster=default={peer_url}",
    ]


def apiserver(binary: Path, etcd_url: str, key: Path, port: int, tokens: Path, flags: Sequence[str]) -> Command:
    """kube-apiserver with RBAC, which knows users by their tokens; `key` is that of the certificate that it makes."""
    return [
        *(binary, f"--etcd-servers={etcd_url}", f"--cert-dir={key.parent}"),
        # Loopback is not allowed as an endpoint of the service "kubernetes", which nothing here uses.
        *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"),
        *(f"--secure-port={port}", "--service-cluster-ip-range=10.0.0.0/24"),
        # The server makes its certificate at start-up, before it reads the keys of service accounts: one key does both.
        *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
        *("--service-account-issuer=https://kerf.test", f"--token-auth-file={tokens}", "--authorization-mode=RBAC"),
        *(() if WITH_SERVICE_ACCOUNTS in flags else (_WITHOUT,)),
        *("--max-requests-inflight=3000", "--max-mutating-requests-inflight=1500"),
        *flags,
    ]


def scheduler(binary: Path, config: Path, certificates: Path, port: int, gates: Sequence[str]) -> Command:
    """kube-scheduler, with features that are off by default, or `NAME=false` for one that is on."""
    return [
        *(binary, f"--config={config}", f"--cert-dir={certificates}"),
        *("--bind-address=127.0.0.1", f"--secure-port={port}", "--authentication-skip-lookup"),
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
        f"--feature-gates={','.join(gate if '=' in gate else f'{gate}=true' for gate in gates)}",
    ]


def controller_manager(
    binary: Path, kubeconfig: Path, ca: Path, certificates: Path, port: int, controllers: Sequence[str]
) -> Command:
    """kube-controller-manager with these controllers alone; `ca` is the API server's, for pods."""
    return [
        *(binary, f"--kubeconfig={kubeconfig}", f"--root-ca-file={ca}", f"--cert-dir={certificates}"),
        *("--bind-address=127.0.0.1", f"--secure-port={port}", "--authentication-skip-lookup"),
        *("--authorization-always-allow-paths=/healthz,/readyz", "--leader-elect=false"),
        *("--kube-api-qps=500", "--kube-api-burst=1000", f"--controllers={','.join(controllers)}"),
    ]
