"""The part of CEL that selectors of devices are written in: parsed, type-checked and evaluated as Kubernetes does it.

Read in google/cel-go 0.29.2, `k8s.io/apiserver/pkg/cel` and `k8s.io/dynamic-resource-allocation/cel` 0.37.2. What of
CEL is not here is refused by name before anything is evaluated, never guessed at.
"""
