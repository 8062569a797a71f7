"""Answers that the API server never gave."""

from tests.tools.chaos.faults import Kind

_STATUSES = {
    Kind.CONFLICT: (409, "Conflict", "the object has been modified; please apply your changes to the latest version"),
    Kind.GONE: (410, "Expired", "too old resource version"),
    Kind.THROTTLED: (429, "TooManyRequests", "the server has received too many requests"),
    Kind.SERVER_ERROR: (500, "InternalError", "etcdserver: leader changed"),
    Kind.ERROR_AFTER_WRITE: (500, "InternalError", "etcdserver: request timed out"),
}
_STATUSES |= {
    Kind.CLAIM_CONFLICT: _STATUSES[Kind.CONFLICT],
    Kind.CLAIM_ERROR: _STATUSES[Kind.SERVER_ERROR],
    Kind.CLAIM_ERROR_AFTER_WRITE: _STATUSES[Kind.ERROR_AFTER_WRITE],
    Kind.EVICTION_ERROR: _STATUSES[Kind.SERVER_ERROR],
    Kind.EVICTION_ERROR_AFTER_WRITE: _STATUSES[Kind.ERROR_AFTER_WRITE],
    Kind.RECORD_CONFLICT: _STATUSES[Kind.CONFLICT],
    Kind.RECORD_ERROR: _STATUSES[Kind.SERVER_ERROR],
}


def status_of(kind: Kind) -> tuple[int, dict[str, object]]:
    """Code and body of the answer to a call that a fault of such a kind befalls."""
    code, reason, message = _STATUSES[kind]
    return code, {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}
