"""What the API server writes down of its calls."""

_PODS_AUDITED = {"resources": [{"group": "", "resources": ["pods", "pods/eviction"]}], "namespaces": ["default"]}
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "verbs": ["create", "delete", "deletecollection"], **_PODS_AUDITED},
        {"level": "None"},
    ],
}
"""Who has created and deleted which pods: for the case that one is gone."""
