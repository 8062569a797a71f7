//go:build tools

// Package tools pins the commands that are built from this module although
// nothing here imports them: kube-apiserver, kube-scheduler,
// kube-controller-manager, kubelet and etcd.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
