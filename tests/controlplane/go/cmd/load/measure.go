package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	resourcehelper "k8s.io/component-helpers/resource"
)

// runLabel marks the pods of one measurement, so that others are not counted.
const runLabel = "load.kerf.dev/run"

// maxPods is more than a run has.
const maxPods = 1 << 20

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

// source creates the pods of a run. It is told of each binding, and returns the number of its pods when all exist.
type source func(ctx context.Context, bound <-chan struct{}) (int, error)

// atOnce creates pods as fast as it can, or finds them where they exist.
func atOnce(clients []kubernetes.Interface, spec *podSpec, count int, exist bool) source {
	return func(ctx context.Context, _ <-chan struct{}) (int, error) {
		return count, createPending(ctx, clients, spec, count, exist)
	}
}

// inStream creates pods for some time, so that always as many wait.
func inStream(clients []kubernetes.Interface, spec *podSpec, waiting int, length time.Duration) source {
	return func(ctx context.Context, bound <-chan struct{}) (int, error) {
		if err := spec.findNodes(ctx, clients[0]); err != nil {
			return 0, err
		}
		over := time.After(length)
		group, creating := errgroup.WithContext(ctx)
		group.SetLimit(len(clients))
		created := 0
		create := func() {
			idx, client := created, clients[created%len(clients)]
			created++
			group.Go(func() error {
				if err := spec.create(creating, client, idx); err != nil {
					return err
				}
				return spec.release(creating, client, idx)
			})
		}
		for range waiting {
			create()
		}
		for {
			select {
			case <-bound:
				create()
			case <-over:
				return created, group.Wait()
			case <-creating.Done():
				return created, group.Wait()
			}
		}
	}
}

// measure has the pods of a run created, and follows them until they are bound.
func measure(
	ctx context.Context, client kubernetes.Interface, spec *podSpec, create source, timeout time.Duration,
) (*outcome, error) {
	if err := spec.prepare(ctx, client); err != nil {
		return nil, err
	}
	run := spec.labels[runLabel]
	if run == "" {
		run = fmt.Sprint(time.Now().UnixNano())
		spec.labels[runLabel] = run
	}
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	bindings := &bindings{seen: map[string]bool{}, told: make(chan struct{}, maxPods), created: make(chan int, 1), total: -1}
	options := metav1.ListOptions{LabelSelector: runLabel + "=" + run}
	// The first listing comes before the first creation: no binding is missed. Of
	// pods that exist, some may be bound by now.
	version, err := bindings.list(waiting, client, spec.namespace, options)
	if err != nil {
		return nil, err
	}
	before := len(bindings.seen)
	watched := make(chan error, 1)
	start := time.Now()
	go func() { watched <- bindings.follow(waiting, client, spec.namespace, options, version) }()
	count, created := create(waiting, bindings.told)
	bindings.created <- count
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
	result.MaxPerNode, result.OverCapacityNodes, err = gpuLoad(ctx, client)
	return result, err
}

// bindings records when the first and the last pod was seen on a node.
type bindings struct {
	seen        map[string]bool
	first, last time.Time
	told        chan struct{} // of each binding
	created     chan int      // the number of pods, once all exist
	total       int           // the same, -1 until then
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
	select {
	case b.told <- struct{}{}:
	default: // nobody asks
	}
}

// complete says whether all pods exist and are bound.
func (b *bindings) complete() bool { return b.total >= 0 && len(b.seen) >= b.total }

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

// follow watches until all are bound. The server may close a watch at any time; a
// new listing then finds what happened meanwhile.
func (b *bindings) follow(
	ctx context.Context, client kubernetes.Interface, namespace string, options metav1.ListOptions, version string,
) error {
	for !b.complete() {
		options.ResourceVersion = version
		watcher, err := client.CoreV1().Pods(namespace).Watch(ctx, options)
		if err != nil {
			return err
		}
		b.drain(watcher)
		watcher.Stop()
		if ctx.Err() != nil || b.complete() {
			return ctx.Err()
		}
		options.ResourceVersion = ""
		if version, err = b.list(ctx, client, namespace, options); err != nil {
			return err
		}
	}
	return nil
}

// drain records bindings until all are bound or the watch ends.
func (b *bindings) drain(watcher watch.Interface) {
	for !b.complete() {
		select {
		case b.total = <-b.created:
		case event := <-watcher.ResultChan():
			pod, isPod := event.Object.(*v1.Pod)
			if !isPod {
				return // the watch has ended, or an error event: the resource version is too old, say
			}
			b.record(pod)
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
