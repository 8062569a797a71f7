"""AdmissionReviews of mutating webhooks. The answer always allows the pod, optionally with a patch and warnings."""

from typing import Any, Final, Protocol

import msgspec

from extender.kube import objects
from extender.kube.decoding import Decoder

_API_VERSION: Final = "admission.k8s.io/v1"
_MAX_WARNING_CHARS: Final = 250  # the API server cuts longer ones off
_MAX_WARNINGS: Final = 8


class GroupKind(objects.Object):
    """Kind and API group of an object; "" is the core group."""

    group: str = ""
    kind: str = ""


class AdmissionRequest(objects.Object, rename="camel"):
    """The object that the API server is about to store."""

    uid: str = ""
    kind: GroupKind = msgspec.field(default_factory=GroupKind)
    sub_resource: str = ""
    operation: str = ""
    object: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))


class AdmissionReview(objects.Object, rename="camel"):
    """The request body, of `k8s.io/api/admission/v1`."""

    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


class AdmissionResponse(msgspec.Struct, gc=False, omit_defaults=True, rename="camel"):
    """The verdict; it always allows the object."""

    uid: str
    allowed: bool
    patch_type: str = ""
    patch: bytes = b""
    """JSON Patch, encoded as base64."""
    warnings: tuple[str, ...] = ()


class AdmissionAnswer(msgspec.Struct, gc=False, rename="camel"):
    """The answer body, also an AdmissionReview."""

    response: AdmissionResponse
    api_version: str = _API_VERSION
    kind: str = "AdmissionReview"


Operation = dict[str, Any]
"""One operation of a JSON Patch (RFC 6902)."""


class RewritesRequests(Protocol):
    """Rewrites pods' requests into an equivalent form."""

    def operations(self, body: msgspec.Raw, *, annotated: bool) -> tuple[list[Operation], list[str]]:
        """The patch for a pod, given as JSON, and warnings. `annotated`: annotations exist when the patch applies."""


_review_decoder: Final = Decoder(AdmissionReview)


def read_creation(body: bytes) -> AdmissionRequest | bytes:
    """The request to create a pod; for any other request, the answer."""
    try:
        review = _review_decoder.decode(body)
    except msgspec.DecodeError as error:
        return allow("", f"the AdmissionReview can't be read: {error}")
    request = review.request
    if request is None or not request.uid or review.api_version != _API_VERSION or review.kind != "AdmissionReview":
        return allow("" if request is None else request.uid, f"the body is not an AdmissionReview of {_API_VERSION}")
    if (request.kind.group, request.kind.kind) != ("", "Pod") or request.operation != "CREATE" or request.sub_resource:
        return allow(request.uid)
    return request


def allow(uid: str, *warnings: str, patch: list[Operation] | None = None) -> bytes:
    """The answer that allows a pod, with warnings and a patch."""
    response = AdmissionResponse(
        uid,
        True,
        "JSONPatch" if patch else "",
        msgspec.json.encode(patch) if patch else b"",
        tuple(_printable(f"kerf: {warning}") for warning in warnings[:_MAX_WARNINGS]),
    )
    return msgspec.json.encode(AdmissionAnswer(response))


def _printable(text: str) -> str:
    """A warning in the characters and length that HTTP headers allow."""
    plain = "".join(char if char.isascii() and char.isprintable() else "?" for char in text)
    return plain if len(plain) <= _MAX_WARNING_CHARS else plain[: _MAX_WARNING_CHARS - 3] + "..."
