// Package kube makes the unthrottled API clients of the echo and load programs.
package kube

import (
	"net"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// unthrottled is far above what a test machine can do: client-go's default of
// five requests a second would be all that a benchmark measures.
const unthrottled = 50000

// Clients returns num clients, each on a connection of its own.
func Clients(kubeconfig string, num int) ([]kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = unthrottled, unthrottled
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	clients := make([]kubernetes.Interface, num)
	for i := range clients {
		own := rest.CopyConfig(config)
		// client-go shares one connection among equal configurations; a dial
		// function never equals another, so each client gets its own.
		own.Dial = (&net.Dialer{}).DialContext
		if clients[i], err = kubernetes.NewForConfig(own); err != nil {
			return nil, err
		}
	}
	return clients, nil
}
