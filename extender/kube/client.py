"""How Kerf speaks to an API server: four calls behind a seam, so that a cluster in memory can stand in for one.

kubeconfig, in-cluster credentials and TLS are the official client's work; requests go straight to the server, since
the client's models cost a hundred times what narrow decoding does.
"""

import os
from pathlib import Path

import aiohttp
import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_kube_config
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from yarl import URL

from extender.kube.connections import MAX_CONNECTIONS, MAX_IDLE_S, ConnectionPool
from extender.kube.http_transport import HEADERS, HttpTransport
from extender.kube.transport import ApiError, ClusterError, CredentialsError, Query, Transport, UnreachableError
from extender.kube.yaml_faults import yaml_fault

__all__ = ["ApiError", "ApiServer", "ClusterError", "CredentialsError", "Query", "Transport", "UnreachableError"]


class ApiServer(HttpTransport):
    """A real API server."""

    def __init__(
        self, *, kubeconfig: str = "", context: str = "", service_account_dir: Path, request_timeout_s: float = 10.0
    ) -> None:
        super().__init__(request_timeout_s)
        self._kubeconfig = kubeconfig
        self._context = context
        self._service_account_dir = service_account_dir
        self._configuration: Configuration | None = None
        self._connections: ConnectionPool | None = None

    async def start(self) -> None:
        """Make ready to be called. Raises CredentialsError."""
        configuration = await self._load_configuration()
        try:
            tls = RESTClientObject(configuration).ssl_context
        except OSError as error:  # certificates or keys that are missing, or none
            raise _unusable(error) from error
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=MAX_CONNECTIONS, keepalive_timeout=MAX_IDLE_S),
            headers=HEADERS,
        )
        self._configuration, self._session, self._host = configuration, session, configuration.host
        if configuration.tls_server_name:
            self._extra["server_hostname"] = configuration.tls_server_name
        if configuration.proxy:
            self._extra["proxy"] = configuration.proxy
            return
        self._connections = ConnectionPool(
            URL(configuration.host, encoded=True),
            headers=HEADERS,
            tls=tls,
            server_name=configuration.tls_server_name or "",
            timeout_s=self._request_timeout_s,
        )

    async def close(self) -> None:
        """Let go of all connections."""
        if self._connections is not None:
            self._connections.close()
        await super().close()

    async def exchange(self, method: str, path: str, query: Query | None, body: bytes | None) -> tuple[int, bytes]:
        """Status and body of one answer. Raises OSError, aiohttp.ClientError, CredentialsError."""
        if self._connections is not None and not query:
            return await self._connections.exchange(method, path, await self.headers(method, body), body)
        return await super().exchange(method, path, query, body)

    async def renew(self) -> None:
        """Read the credentials again. Raises CredentialsError."""
        self._configuration = await self._load_configuration()
        self._host = self._configuration.host

    async def authorization(self) -> str:
        """The header `Authorization`, "" for none. Raises CredentialsError."""
        if self._configuration is None:
            raise RuntimeError("ApiServer is used before start()")
        try:
            token = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        except ConfigException as error:  # a service account's token is read again every minute
            raise CredentialsError(f"the service account's token can't be read again: {error}") from error
        if token:
            return str(token).strip()  # a token file may end in a newline
        return (self._configuration.get_basic_auth_token() or "") if self._configuration.username else ""

    async def _load_configuration(self) -> Configuration:
        configuration = Configuration()
        try:
            if not self._kubeconfig and "KUBERNETES_SERVICE_HOST" in os.environ:
                InClusterConfigLoader(
                    token_filename=str(self._service_account_dir / "token"),
                    cert_filename=str(self._service_account_dir / "ca.crt"),
                ).load_and_set(configuration)
            else:
                await load_kube_config(
                    self._kubeconfig or None, context=self._context or None, client_configuration=configuration
                )
        except (ConfigException, OSError, TypeError, AttributeError, ValueError, yaml.YAMLError) as error:
            # The loader meets a missing file with TypeError and an empty one with AttributeError.
            raise _unusable(error) from error
        return configuration


def _unusable(error: Exception) -> CredentialsError:
    fault = yaml_fault(error) if isinstance(error, yaml.YAMLError) else error
    return CredentialsError(
        f"no usable credentials for an API server ({fault}); give a kubeconfig with --kubeconfig or KUBECONFIG, "
        "or run in a pod with a service account"
    )
