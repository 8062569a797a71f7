"""The subset of CEL used in device selectors, parsed, type-checked and evaluated like Kubernetes does.

Follows google/cel-go 0.29.2, `k8s.io/apiserver/pkg/cel` and `k8s.io/dynamic-resource-allocation/cel` 0.37.2.
Unsupported constructs are refused by name at compile time.
"""
