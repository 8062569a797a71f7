"""The API server's REST interface as plain dicts: one token, certificate verified."""

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import urllib3
import yaml

from extender.kube.decoding import shallow

Object = dict[str, Any]
"""A Kubernetes object as JSON gives it."""


class ApiError(Exception):
    """The server answered `status`, 400 or above; `message` is what it said."""

    def __init__(self, method: str, path: str, status: int, message: str) -> None:
        super().__init__(f"{method} {path}: {status} {message}")
        self.status = status
        self.message = message


class Api:
    """REST calls under one token; safe for threads, and can be pickled: another process has connections of its own."""

    def __init__(self, url: str, certificate: Path, token: str, headers: Mapping[str, str] | None = None) -> None:
        context = ssl.create_default_context(cafile=str(certificate))
        self._url = url
        self._access = url, certificate, token, headers
        self._pool = urllib3.PoolManager(ssl_context=context, maxsize=16, retries=False, timeout=120.0)
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", **(headers or {})}
        self._resources: dict[tuple[str, str], Object] = {}

    def __reduce__(self) -> tuple[type["Api"], tuple[object, ...]]:
        return Api, self._access

    def request(
        self, method: str, path: str, body: object | None = None, content_type: str = "application/json"
    ) -> Any:
        """Return the parsed answer (text where it is not JSON); `body` is JSON data, or bytes as they are."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = self._headers | ({} if data is None else {"Content-Type": content_type})
        response = self._pool.request(method, self._url + path, body=data, headers=headers)
        text = response.data.decode()
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        answer = _parsed(response.data) if is_json else text
        if response.status >= 400:
            raise ApiError(method, path, response.status, answer["message"] if isinstance(answer, dict) else text)
        return answer

    def warnings(self, path: str, body: object) -> list[str]:
        """What the API server warns of as it takes an object."""
        headers = self._headers | {"Content-Type": "application/json"}
        response = self._pool.request("POST", self._url + path, body=json.dumps(body).encode(), headers=headers)
        if response.status >= 400:
            raise ApiError("POST", path, response.status, response.data.decode())
        told = response.headers.getlist("Warning")
        return [json.loads(text.partition(" - ")[2]) for text in told]

    def apply(self, document: Mapping[str, Any]) -> Object:
        """Create or change one object by server-side apply, its status included; return what the server stored."""
        resource = self._resource(document["apiVersion"], document["kind"])
        path = _object_path(document, resource)
        query = "?fieldManager=kerf-tests&force=true"
        stored: Object = self.request("PATCH", path + query, document, "application/apply-patch+yaml")
        if "status" in document and resource["hasStatus"]:
            # The main path ignores the status, the status path everything else.
            stored = self.request("PATCH", f"{path}/status{query}", document, "application/apply-patch+yaml")
        return stored

    def validate(self, document: Mapping[str, Any]) -> None:
        """Have the server check an object, unknown fields included, without storing it; raises ApiError."""
        path = _object_path(document, self._resource(document["apiVersion"], document["kind"]))
        query = "?fieldManager=kerf-tests&force=true&dryRun=All&fieldValidation=Strict"
        self.request("PATCH", path + query, document, "application/apply-patch+yaml")

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.clear()

    def _resource(self, api_version: str, kind: str) -> Object:
        """The discovery entry (plural `name`, `namespaced`) of a kind, and whether it has a status path."""
        if (api_version, kind) not in self._resources:
            resources = self.request("GET", _group_path(api_version))["resources"]
            names = {entry["name"] for entry in resources}
            for entry in resources:
                if "/" not in entry["name"]:
                    entry["hasStatus"] = f"{entry['name']}/status" in names
                    self._resources[api_version, entry["kind"]] = entry
        try:
            return self._resources[api_version, kind]
        except KeyError:
            raise LookupError(f"the server knows no {kind} in {api_version}") from None


def read_documents(source: Mapping[str, Any] | Path | str) -> list[Mapping[str, Any]]:
    """The objects in a dict, a YAML file (several documents allowed) or YAML text."""
    if isinstance(source, Mapping):
        return [source]
    text = source.read_text() if isinstance(source, Path) else source
    return [document for document in yaml.safe_load_all(text) if document]


def _group_path(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _object_path(document: Mapping[str, Any], resource: Object) -> str:
    metadata = document["metadata"]
    scope = f"/namespaces/{metadata.get('namespace', 'default')}" if resource["namespaced"] else ""
    return f"{_group_path(document['apiVersion'])}{scope}/{resource['name']}/{metadata['name']}"


def _parsed(content: bytes) -> Any:
    """JSON of any depth, without what lies too deep for Python."""
    try:
        return json.loads(content)
    except RecursionError:
        return json.loads(shallow(content))
