package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	resourcehelper "k8s.io/component-helpers/resource"
)

// runLabel marks the pods of one measurement, so that others are not counted.
const runLabel = "load.kerf.dev/run"

// outcome is what measure prints. Times count from the first creation; the rate
// is taken between the first and the last binding that was seen, without those
// pods that were bound before.
type outcome struct {
	Pods              int     `json:"pods"`
	BoundBefore       int     `json:"bound_before"`
	Bound             int     `json:"bound"`
	Unbound           int     `json:"unbound"`
	PodsPerS          float64 `json:"pods_per_s"`
	Seconds           float64 `json:"seconds"`
	FirstBindS        float64 `json:"first_bind_s"`
	MaxPerNode        int64   `json:"max_per_node"`
	OverCapacityNodes int     `json:"over_capacity_nodes"`
}

// measure creates the pods of a run, or finds them where they exist, and follows
// them until they are bound.
func measure(
	ctx context.Context, clients []kubernetes.Interface, spec *podSpec, count int, exist bool, timeout time.Duration,
) (*outcome, error) {
	if err := spec.prepare(ctx, clients[0]); err != nil {
		return nil, err
	}
	run := spec.labels[runLabel]
	if run == "" {
		run = fmt.Sprint(time.Now().UnixNano())
		spec.labels[runLabel] = run
	}
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	bindings := &bindings{seen: map[string]bool{}}
	options := metav1.ListOptions{LabelSelector: runLabel + "=" + run}
	// The first listing comes before the first creation: no binding is missed. Of
	// pods that exist, some may be bound by now.
	version, err := bindings.list(waiting, clients[0], spec.namespace, options)
	if err != nil {
		return nil, err
	}
	before := len(bindings.seen)
	watched := make(chan error, 1)
	start := time.Now()
	go func() { watched <- bindings.follow(waiting, clients[0], spec.namespace, options, version, count) }()
	created := createPending(waiting, clients, spec, count, exist)
	if created != nil {
		cancel()
	}
	followed := <-watched
	// Past the deadline the result still counts: it says how many are unbound.
	if err := errors.Join(created, followed); err != nil && waiting.Err() != context.DeadlineExceeded {
		return nil, err
	}
	bound := len(bindings.seen)
	result := &outcome{Pods: count, BoundBefore: before, Bound: bound, Unbound: count - bound}
	if result.Bound > 0 {
		result.FirstBindS = bindings.first.Sub(start).Seconds()
		result.Seconds = bindings.last.Sub(start).Seconds()
	}
	if between := bindings.last.Sub(bindings.first).Seconds(); between > 0 {
		result.PodsPerS = float64(result.Bound-max(before, 1)) / between
	}
	result.MaxPerNode, result.OverCapacityNodes, err = gpuLoad(ctx, clients[0])
	return result, err
}

// bindings records when the first and the last pod was seen on a node.
type bindings struct {
	seen        map[string]bool
	first, last time.Time
}

func (b *bindings) record(pod *v1.Pod) {
	if pod.Spec.NodeName == "" || b.seen[pod.Name] {
		return
	}
	b.seen[pod.Name] = true
	b.last = time.Now()
	if len(b.seen) == 1 {
		b.first = b.last
	}
}

func (b *bindings) list(
	ctx context.Context, client kubernetes.Interface, namespace string, options metav1.ListOptions,
) (string, error) {
	pods, err := client.CoreV1().Pods(namespace).List(ctx, options)
	if err != nil {
		return "", err
	}
	for i := range pods.Items {
		b.record(&pods.Items[i])
	}
	return pods.ResourceVersion, nil
}

// follow watches until count bindings were seen. The server may close a watch
// at any time; a new listing then finds what happened meanwhile.
func (b *bindings) follow(
	ctx context.Context, client kubernetes.Interface, namespace string, options metav1.ListOptions,
	version string, count int,
) error {
	for len(b.seen) < count {
		options.ResourceVersion = version
		watcher, err := client.CoreV1().Pods(namespace).Watch(ctx, options)
		if err != nil {
			return err
		}
		b.drain(watcher, count)
		watcher.Stop()
		if ctx.Err() != nil || len(b.seen) >= count {
			return ctx.Err()
		}
		options.ResourceVersion = ""
		if version, err = b.list(ctx, client, namespace, options); err != nil {
			return err
		}
	}
	return nil
}

// drain records bindings until there are count of them or the watch ends.
func (b *bindings) drain(watcher watch.Interface, count int) {
	for event := range watcher.ResultChan() {
		pod, isPod := event.Object.(*v1.Pod)
		if !isPod {
			return // an error event: the resource version is too old, say
		}
		b.record(pod)
		if len(b.seen) >= count {
			return
		}
	}
}

// gpuLoad returns the GPUs asked for on the most loaded node, and the number of
// nodes where all bound pods together ask for more than is allocatable.
func gpuLoad(ctx context.Context, client kubernetes.Interface) (most int64, over int, err error) {
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, 0, err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, 0, err
	}
	asked := map[string]int64{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Spec.NodeName == "" || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
			continue
		}
		gpus := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[gpuResource]
		asked[pod.Spec.NodeName] += gpus.Value()
	}
	for i := range nodes.Items {
		gpus := nodes.Items[i].Status.Allocatable[gpuResource]
		most = max(most, asked[nodes.Items[i].Name])
		if asked[nodes.Items[i].Name] > gpus.Value() {
			over++
		}
	}
	return most, over, nil
}
