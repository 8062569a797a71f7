"""The node agent: watches the node's pods, reports GPUs, steers the device plugin."""

import asyncio
import logging
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from extender.kube.background import Tasks, until_set
from extender.kube.transport import PODS_PATH, Transport
from extender.kube.watches import Reflector
from extender.parts.agent.health import Health
from extender.parts.agent.inventory import Inventory
from extender.parts.agent.kubelet import PodResources
from extender.parts.agent.pods import NodePods, Pod
from extender.parts.agent.preference import Preference
from extender.parts.agent.report import Reporter
from extender.parts.agent.steering import Steering

logger = logging.getLogger(__name__)

_CHECK_S: Final = 1.0


class AgentError(Exception):
    """The agent can't continue and should be restarted."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the agent."""

    node: str
    steer: bool = False
    device_plugins: Path = Path("/var/lib/kubelet/device-plugins")
    """The kubelet's folder for device plugins."""
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    """The socket of its PodResources API."""
    health_port: int = 8889
    """Port of /healthz and /readyz, 0 for none."""


class Agent:
    """The agent of one node."""

    def __init__(self, options: Options, transport: Transport, inventory: Inventory | None = None) -> None:
        self._options = options
        self._transport = transport
        self._pods = NodePods()
        self._kubelet = PodResources(options.pod_resources)
        self._urgent = PodResources(options.pod_resources)
        """A separate connection, so that calls that the kubelet waits for don't wait for a report."""
        self._inventory = inventory or Inventory()
        self._reflector = Reflector(
            transport, PODS_PATH, Pod, self._pods, time.monotonic, field_selector=f"spec.nodeName={options.node}"
        )
        self.preference = Preference(
            self._pods,
            self._urgent,
            lambda: self._inventory.uuids,
            self._find_gpus,
            lambda: self._reflector.synced and not self._reflector.last_error,
        )
        self.steering = Steering(options.device_plugins, self.preference.answer) if options.steer else None
        self._reporter = Reporter(
            node=options.node,
            transport=transport,
            pods=self._pods,
            kubelet=self._kubelet,
            inventory=self._inventory,
            listed=self.preference.settle,
            steers=lambda: self.steering.resources if self.steering else [],
        )
        self._mirror = Tasks()

    async def run(self) -> None:
        """Run until SIGINT or SIGTERM. Raises CredentialsError, AgentError, OSError."""
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        health = Health(self._options.health_port, self.needs_restart, self.unready)
        await self._transport.start()
        try:
            if self._options.health_port:
                await health.start()
            self._mirror.begin("mirror of the node's pods", self._reflector.run)
            self._reporter.start()
            if self.steering is not None:
                self.steering.start()
            while not ended.is_set() and not self.needs_restart():
                await until_set(ended, _CHECK_S)
        finally:
            for part in (self.steering, self._reporter):
                if part is not None:
                    await part.stop()
            await self._mirror.end()
            await health.stop()
            await self._kubelet.close()
            await self._urgent.close()
            await self._transport.close()
        if why := self.needs_restart():
            raise AgentError(why)

    async def _find_gpus(self) -> None:
        """Have the inventory find the node's GPUs. Raises KubeletError."""
        await self._inventory.gpus(await self._kubelet.allocatable(), time.monotonic())

    def needs_restart(self) -> str:
        """Why the agent needs a restart, "" if it doesn't."""
        tasks = [self._mirror, self._reporter.tasks, *([self.steering.tasks] if self.steering else [])]
        return next((why for part in tasks if (why := part.needs_restart())), "")

    def unready(self) -> str:
        """Why the agent is not ready, "" if it is."""
        if not self._reporter.asked:
            return "the kubelet has not reported its allocations yet"
        if self.steering is not None and not self.steering.offered:
            return "the kubelet accepts no device plugins now"
        return ""
