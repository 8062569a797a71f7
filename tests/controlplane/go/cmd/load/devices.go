package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// requestName is the name of a claim's request, and of the claim in its pod.
const requestName = "gpu"

// deviceSpec describes a driver that publishes whole GPUs, as NVIDIA's does.
type deviceSpec struct {
	prefix, driver, product, memory, taint string
	devices                                int
}

func deviceFlags(flags *flag.FlagSet) *deviceSpec {
	spec := &deviceSpec{}
	flags.StringVar(&spec.prefix, "prefix", "node", "nodes are PREFIX-00000 and so on, as are their pools")
	flags.StringVar(&spec.driver, "driver", "gpu.example.com", "name of the driver and of the device class")
	flags.StringVar(&spec.product, "product", "NVIDIA A100-SXM4-80GB", "attribute productName")
	flags.StringVar(&spec.memory, "memory", "80Gi", "capacity memory")
	flags.StringVar(&spec.taint, "taint", "", "KEY=VALUE:EFFECT on each device")
	flags.IntVar(&spec.devices, "devices", 8, "devices of each node")
	return spec
}

// class matches what publishes whole GPUs, in the words of NVIDIA's own class.
func (s *deviceSpec) class() *resourceapi.DeviceClass {
	expression := fmt.Sprintf("device.driver == '%s' && device.attributes['%s'].type == 'gpu'", s.driver, s.driver)
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: s.driver},
		Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
		},
	}
}

// slice is the one ResourceSlice of a node's pool.
func (s *deviceSpec) slice(idx int) (*resourceapi.ResourceSlice, error) {
	node := fmt.Sprintf("%s-%05d", s.prefix, idx)
	memory, err := resource.ParseQuantity(s.memory)
	if err != nil {
		return nil, err
	}
	taints, err := s.taints()
	if err != nil {
		return nil, err
	}
	devices := make([]resourceapi.Device, s.devices)
	for i := range devices {
		devices[i] = resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type":                            text("gpu"),
				"uuid":                            text(fmt.Sprintf("GPU-%08d-0000-0000-0000-%012d", idx, i)),
				"productName":                     text(s.product),
				"brand":                           text("Nvidia"),
				"architecture":                    text("Ampere"),
				"cudaComputeCapability":           version("8.0.0"),
				"driverVersion":                   version("550.163.1"),
				"cudaDriverVersion":               version("12.4.0"),
				"resource.kubernetes.io/pciBusID": text(fmt.Sprintf("0000:%02x:00.0", 16*i+7)),
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: memory}},
			Taints:   taints,
		}
	}
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-" + s.driver},
		Spec: resourceapi.ResourceSliceSpec{
			Driver:   s.driver,
			NodeName: &node,
			Pool:     resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
			Devices:  devices,
		},
	}, nil
}

func (s *deviceSpec) taints() ([]resourceapi.DeviceTaint, error) {
	if s.taint == "" {
		return nil, nil
	}
	pair, effect, hasEffect := strings.Cut(s.taint, ":")
	key, value, hasValue := strings.Cut(pair, "=")
	if !hasEffect || !hasValue {
		return nil, fmt.Errorf("%q is not KEY=VALUE:EFFECT", s.taint)
	}
	return []resourceapi.DeviceTaint{{Key: key, Value: value, Effect: resourceapi.DeviceTaintEffect(effect)}}, nil
}

func text(value string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{StringValue: &value}
}

func version(value string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{VersionValue: &value}
}

// createSlices publishes the devices of count nodes, and their class.
func createSlices(ctx context.Context, clients []kubernetes.Interface, spec *deviceSpec, count int) error {
	_, err := clients[0].ResourceV1().DeviceClasses().Create(ctx, spec.class(), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return each(ctx, clients, count, func(ctx context.Context, client kubernetes.Interface, idx int) error {
		slice, err := spec.slice(idx)
		if err == nil {
			_, err = client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{})
		}
		return err
	})
}

// claimSpec asks for the devices of a class in a claim of each pod's own.
func (s *podSpec) claimSpec() resourceapi.ResourceClaimSpec {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: s.class, Count: int64(s.devices)}
	return resourceapi.ResourceClaimSpec{
		Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: requestName, Exactly: exactly}}},
	}
}

// podClaims is what a pod says of its claim: its name, or the template it is made from.
func (s *podSpec) podClaims(pod string) []v1.PodResourceClaim {
	if s.class == "" {
		return nil
	}
	if s.template {
		return []v1.PodResourceClaim{{Name: requestName, ResourceClaimTemplateName: &s.prefix}}
	}
	return []v1.PodResourceClaim{{Name: requestName, ResourceClaimName: &pod}}
}

// createTemplate creates what the pods' claims are made from, where they have one.
func (s *podSpec) createTemplate(ctx context.Context, client kubernetes.Interface) error {
	if s.class == "" || !s.template {
		return nil
	}
	template := &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: s.prefix, Namespace: s.namespace},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: s.claimSpec()},
	}
	_, err := client.ResourceV1().ResourceClaimTemplates(s.namespace).Create(ctx, template, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// createClaim creates the claim of a pod, which has its name, where pods have claims without a template.
func (s *podSpec) createClaim(ctx context.Context, client kubernetes.Interface, pod string) error {
	if s.class == "" || s.template {
		return nil
	}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: s.namespace, Labels: s.labels},
		Spec:       s.claimSpec(),
	}
	_, err := client.ResourceV1().ResourceClaims(s.namespace).Create(ctx, claim, metav1.CreateOptions{})
	return err
}

// allocate writes what an allocator decides, in its order: finalizer, then devices of the node from the first-th on.
// The pools are those of createSlices.
func (s *podSpec) allocate(ctx context.Context, client kubernetes.Interface, name, node string, first int) error {
	claims := client.ResourceV1().ResourceClaims(s.namespace)
	finalizer := []byte(fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, resourceapi.Finalizer))
	claim, err := claims.Patch(ctx, name, types.StrategicMergePatchType, finalizer, metav1.PatchOptions{})
	if err != nil {
		return err
	}
	now := metav1.NewTime(time.Now())
	allocation := &resourceapi.AllocationResult{
		AllocationTimestamp: &now,
		NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchFields: []v1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{node},
			}},
		}}},
	}
	for i := range s.devices {
		allocation.Devices.Results = append(allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: requestName, Driver: s.class, Pool: node, Device: fmt.Sprintf("gpu-%d", first+i),
		})
	}
	claim.Status.Allocation = allocation
	_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	return err
}
