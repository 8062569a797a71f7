"""The settings of a node's kubelet, container runtime and network."""

from typing import Any

PAUSE = "registry.k8s.io/pause:3.10"
"""The image of every sandbox, and of the pods of `tests.controlplane.objects`: the tests' own program."""
API_ADDRESS = "10.0.0.1"
"""Of the Service `kubernetes`: the first of the control plane's range."""
RUNTIME_SOCKET = "/run/containerd/containerd.sock"

_CONTAINERD = """
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "{socket}"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "{folder}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def containerd(folder: str, cni: str) -> str:
    """containerd's, for a node whose files lie in a folder."""
    return _CONTAINERD.format(folder=folder, cni=cni, pause=PAUSE, socket=RUNTIME_SOCKET)


def network(pods: str) -> dict[str, Any]:
    """CNI's: each pod has a line of its own to the node; `pods` are their addresses."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": addresses}]}


def kubelet(folder: str, cgroup: str) -> dict[str, Any]:
    """The kubelet's: nothing is evicted, reserved or asked for credentials, and all is told within a second."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{RUNTIME_SOCKET}",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "evictionHard": {f"{signal}.available": "0%" for signal in ("memory", "nodefs", "imagefs")},
        "imageGCHighThresholdPercent": 100,
        "failSwapOn": False,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "healthzBindAddress": "0.0.0.0",  # noqa: S104 -- of the node's own network
        "makeIPTablesUtilChains": False,
        "clusterDNS": ["10.0.0.10"],
        "resolvConf": f"{folder}/resolv.conf",
        "nodeStatusUpdateFrequency": "1s",
        "syncFrequency": "2s",
    }


def kubeconfig(server: str, certificate: str, token: str, node: str) -> dict[str, Any]:
    """How a kubelet speaks to the API server: as itself, with all rights."""
    # The certificate is for loopback, where the server is to everyone but the nodes.
    cluster = {"server": server, "certificate-authority": certificate, "tls-server-name": "127.0.0.1"}
    user = {"token": token, "as": f"system:node:{node}", "as-groups": ["system:masters", "system:nodes"]}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": node, "user": user}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": node}}],
        "current-context": "tests",
    }
