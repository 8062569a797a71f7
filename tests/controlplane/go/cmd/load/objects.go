package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const gpuResource = v1.ResourceName("nvidia.com/gpu")

type nodeSpec struct {
	prefix, product, cpu, memory string
	gpus, memoryMiB, pods        int
}

func nodeFlags(flags *flag.FlagSet) *nodeSpec {
	spec := &nodeSpec{}
	flags.StringVar(&spec.prefix, "prefix", "node", "names are PREFIX-00000 and so on")
	flags.IntVar(&spec.gpus, "gpus", 8, "nvidia.com/gpu of each node; 0: no GPU labels either")
	flags.StringVar(&spec.product, "product", "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.product")
	flags.IntVar(&spec.memoryMiB, "memory-mib", 81920, "nvidia.com/gpu.memory")
	flags.StringVar(&spec.cpu, "cpu", "96", "allocatable cpu")
	flags.StringVar(&spec.memory, "memory", "1Ti", "allocatable memory")
	flags.IntVar(&spec.pods, "pods", 110, "allocatable pods")
	return spec
}

// build returns the idx-th node, labelled as GPU feature discovery labels it.
func (s *nodeSpec) build(idx int) (*v1.Node, error) {
	name := fmt.Sprintf("%s-%05d", s.prefix, idx)
	labels := map[string]string{"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
	quantities := map[string]string{"cpu": s.cpu, "memory": s.memory, "pods": strconv.Itoa(s.pods)}
	if s.gpus > 0 {
		quantities[string(gpuResource)] = strconv.Itoa(s.gpus)
		labels["nvidia.com/gpu.present"] = "true"
		labels["nvidia.com/gpu.product"] = s.product
		labels["nvidia.com/gpu.count"] = strconv.Itoa(s.gpus)
		labels["nvidia.com/gpu.memory"] = strconv.Itoa(s.memoryMiB)
	}
	resources, err := resourceList(quantities)
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status: v1.NodeStatus{
			Capacity:    resources,
			Allocatable: resources,
			Conditions:  []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady"}},
		},
	}, err
}

type podSpec struct {
	namespace, prefix, scheduler, cpu, memory, gate, class string
	gpus, devices                                          int
	nominate, template                                     bool
	limits, labels, annotations                            keyValues
	nodes                                                  []v1.Node // to nominate
}

func podFlags(flags *flag.FlagSet) *podSpec {
	spec := &podSpec{limits: keyValues{}, labels: keyValues{}, annotations: keyValues{}}
	flags.StringVar(&spec.namespace, "namespace", "default", "namespace, created where it is missing")
	flags.StringVar(&spec.prefix, "prefix", "pod", "names are PREFIX-00000 and so on")
	flags.StringVar(&spec.scheduler, "scheduler", "default-scheduler", "schedulerName")
	flags.IntVar(&spec.gpus, "pod-gpus", 1, "nvidia.com/gpu limit of each pod; 0: none")
	flags.StringVar(&spec.cpu, "cpu", "100m", "cpu request")
	flags.StringVar(&spec.memory, "memory", "64Mi", "memory request")
	flags.StringVar(&spec.gate, "gate", "", "scheduling gate of each pod")
	flags.BoolVar(&spec.nominate, "nominate", false,
		"nominate a node for each gated pod, round-robin, and open its gate; claims are allocated there before")
	flags.StringVar(&spec.class, "claim", "", "device class that a claim of each pod's own asks for")
	flags.IntVar(&spec.devices, "claim-count", 1, "devices of each claim")
	flags.BoolVar(&spec.template, "claim-template", false, "have the claims made from a template, by a controller")
	flags.Var(spec.limits, "limit", "RESOURCE=QUANTITY to add to the limits; may be repeated")
	flags.Var(spec.labels, "label", "KEY=VALUE to add; may be repeated")
	flags.Var(spec.annotations, "annotation", "KEY=VALUE to add; may be repeated")
	return spec
}

// build returns a pod; an empty node leaves the choice to the scheduler.
func (s *podSpec) build(name, node string) (*v1.Pod, error) {
	limits, err := resourceList(s.limits)
	if err != nil {
		return nil, err
	}
	if s.gpus > 0 {
		limits[gpuResource] = *resource.NewQuantity(int64(s.gpus), resource.DecimalSI)
	}
	var gates []v1.PodSchedulingGate
	if s.gate != "" && node == "" {
		gates = []v1.PodSchedulingGate{{Name: s.gate}}
	}
	requests, err := resourceList(map[string]string{"cpu": s.cpu, "memory": s.memory})
	claims := s.podClaims(name)
	var used []v1.ResourceClaim
	for _, claim := range claims {
		used = append(used, v1.ResourceClaim{Name: claim.Name})
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace, Labels: s.labels, Annotations: s.annotations},
		Spec: v1.PodSpec{
			SchedulerName:   s.scheduler,
			SchedulingGates: gates,
			NodeName:        node,
			ResourceClaims:  claims,
			Containers: []v1.Container{{
				Name:      "main",
				Image:     "registry.k8s.io/pause:3.10",
				Resources: v1.ResourceRequirements{Requests: requests, Limits: limits, Claims: used},
			}},
		},
	}, err
}

// prepare creates the pods' namespace, and the template of their claims, where they are missing.
func (s *podSpec) prepare(ctx context.Context, client kubernetes.Interface) error {
	if s.class != "" && s.template && s.nominate {
		return fmt.Errorf("claims of a template are not known before a controller has made them: none can be allocated here")
	}
	namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	_, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return s.createTemplate(ctx, client)
}

func createNodes(ctx context.Context, clients []kubernetes.Interface, spec *nodeSpec, count int) error {
	return each(ctx, clients, count, func(ctx context.Context, client kubernetes.Interface, idx int) error {
		node, err := spec.build(idx)
		if err == nil {
			_, err = client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		}
		return err
	})
}

// createPending creates pods unless they exist, and lets them go where that is asked for.
func createPending(
	ctx context.Context, clients []kubernetes.Interface, spec *podSpec, count int, exist bool,
) error {
	if err := spec.findNodes(ctx, clients[0]); err != nil {
		return err
	}
	return each(ctx, clients, count, func(ctx context.Context, client kubernetes.Interface, idx int) error {
		if !exist {
			if err := spec.create(ctx, client, idx); err != nil {
				return err
			}
		}
		return spec.release(ctx, client, idx)
	})
}

func (s *podSpec) name(idx int) string { return fmt.Sprintf("%s-%05d", s.prefix, idx) }

// create creates the idx-th pod, and its claim.
func (s *podSpec) create(ctx context.Context, client kubernetes.Interface, idx int) error {
	pod, err := s.build(s.name(idx), "")
	if err == nil {
		err = s.createClaim(ctx, client, pod.Name)
	}
	if err == nil {
		_, err = client.CoreV1().Pods(s.namespace).Create(ctx, pod, metav1.CreateOptions{})
	}
	return err
}

// findNodes looks for nodes to nominate, where that is asked for.
func (s *podSpec) findNodes(ctx context.Context, client kubernetes.Interface) error {
	if !s.nominate {
		return nil
	}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err == nil && len(list.Items) == 0 {
		err = fmt.Errorf("nominations need nodes, and there are none")
	}
	s.nodes = list.Items
	return err
}

// release is planned mode at its least: two writes by who knows the idx-th pod's node already.
func (s *podSpec) release(ctx context.Context, client kubernetes.Interface, idx int) error {
	if !s.nominate {
		return nil
	}
	name, node := s.name(idx), s.nodes[idx%len(s.nodes)].Name
	if s.class != "" {
		if err := s.allocate(ctx, client, name, node, idx/len(s.nodes)*s.devices); err != nil {
			return err
		}
	}
	pods := client.CoreV1().Pods(s.namespace)
	status := fmt.Sprintf(`{"status":{"nominatedNodeName":%q}}`, node)
	_, err := pods.Patch(ctx, name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status")
	if err == nil {
		gates := []byte(`{"spec":{"schedulingGates":[]}}`)
		_, err = pods.Patch(ctx, name, types.MergePatchType, gates, metav1.PatchOptions{})
	}
	return err
}

// createBound creates pods that run already, as after a restart of the scheduler.
func createBound(ctx context.Context, clients []kubernetes.Interface, spec *podSpec, count int) error {
	if count == 0 {
		return nil
	}
	nodes, err := clients[0].CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(nodes.Items) == 0 {
		return fmt.Errorf("bound pods need nodes, and there are none")
	}
	return each(ctx, clients, count, func(ctx context.Context, client kubernetes.Interface, idx int) error {
		node := nodes.Items[idx%len(nodes.Items)].Name
		pod, err := spec.build(fmt.Sprintf("%s-bound-%05d", spec.prefix, idx), node)
		if err != nil {
			return err
		}
		pods := client.CoreV1().Pods(spec.namespace)
		if pod, err = pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
		// The server drops the status at creation, hence the second write.
		pod.Status.Phase = v1.PodRunning
		_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	})
}

// each calls do for 0..count-1, one worker per client, until the first error.
func each(
	ctx context.Context, clients []kubernetes.Interface, count int,
	do func(context.Context, kubernetes.Interface, int) error,
) error {
	group, ctx := errgroup.WithContext(ctx)
	for worker, client := range clients {
		group.Go(func() error {
			for idx := worker; idx < count && ctx.Err() == nil; idx += len(clients) {
				if err := do(ctx, client, idx); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	return group.Wait()
}

func resourceList(quantities map[string]string) (v1.ResourceList, error) {
	list := v1.ResourceList{}
	for name, text := range quantities {
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("%s=%s: %w", name, text, err)
		}
		list[v1.ResourceName(name)] = quantity
	}
	return list, nil
}

// keyValues is a flag that may be repeated: KEY=VALUE.
type keyValues map[string]string

func (kv keyValues) String() string { return "" }

func (kv keyValues) Set(text string) error {
	key, value, found := strings.Cut(text, "=")
	if !found {
		return fmt.Errorf("%q is not KEY=VALUE", text)
	}
	kv[key] = value
	return nil
}
