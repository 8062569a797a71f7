// Command allocatortable prints the table tests of kube-scheduler's allocator
// of devices as JSON, one case per line, for cmd/allocator to read. The tests
// are internal to their module: binaries.py builds this file as a package of
// that module, by an overlay.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured/internal"
	"k8s.io/dynamic-resource-allocation/structured/internal/allocatortesting"
	"k8s.io/dynamic-resource-allocation/structured/internal/experimental"
)

type testCase struct {
	Features  []string                     `json:"features"`
	Nodes     []*v1.Node                   `json:"nodes"`
	Slices    []*resourceapi.ResourceSlice `json:"slices"`
	Classes   []*resourceapi.DeviceClass   `json:"classes"`
	Claims    []*resourceapi.ResourceClaim `json:"claims"`
	Allocated []*resourceapi.ResourceClaim `json:"allocated"`
}

// recorder is kube-scheduler's allocator, and writes down what it is asked.
type recorder struct {
	internal.Allocator
	recorded testCase
}

func (r *recorder) Allocate(ctx context.Context, node *v1.Node, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	r.recorded.Nodes = []*v1.Node{node}
	r.recorded.Claims = claims
	if err := json.NewEncoder(os.Stdout).Encode(r.recorded); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return r.Allocator.Allocate(ctx, node, claims)
}

func main() {
	tests := []testing.InternalTest{
		{Name: "TestAllocator", F: func(t *testing.T) { allocatortesting.TestAllocator(t, internal.FeaturesAll, record) }},
		{Name: "TestLexicographicalAllocator", F: func(t *testing.T) {
			allocatortesting.TestLexicographicalAllocator(t, internal.FeaturesAll, record)
		}},
	}
	match := func(string, string) (bool, error) { return true, nil }
	// Whether the tests pass is not looked at: their inputs are wanted.
	testing.Main(match, tests, nil, nil)
}

func record(
	ctx context.Context,
	features internal.Features,
	state internal.AllocatedState,
	classLister internal.DeviceClassLister,
	slices []*resourceapi.ResourceSlice,
	celCache *cel.Cache,
) (internal.Allocator, error) {
	allocator, err := experimental.NewAllocator(ctx, features, state, classLister, slices, celCache)
	if err != nil {
		return nil, err
	}
	classes, err := classLister.List()
	if err != nil {
		return nil, err
	}
	return &recorder{Allocator: allocator, recorded: testCase{
		Features: features.Set().UnsortedList(), Slices: slices, Classes: classes, Allocated: claimsOf(state),
	}}, nil
}

// claimsOf is a claim that has all that is allocated.
func claimsOf(state internal.AllocatedState) []*resourceapi.ResourceClaim {
	var results []resourceapi.DeviceRequestAllocationResult
	result := func(id internal.DeviceID) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{
			Request: "recorded", Driver: id.Driver.String(), Pool: id.Pool.String(), Device: id.Device.String(),
		}
	}
	for id := range state.AllocatedDevices {
		results = append(results, result(id))
	}
	counted := map[internal.DeviceID]bool{}
	for shared := range state.AllocatedSharedDeviceIDs {
		id := shared.GetDeviceID()
		one := result(id)
		share := types.UID(shared.ShareID.String())
		one.ShareID = &share
		if !counted[id] {
			counted[id] = true
			one.ConsumedCapacity = consumedOf(state.AggregatedCapacity[id])
		}
		results = append(results, one)
	}
	for id, consumed := range state.AggregatedCapacity {
		if counted[id] {
			continue
		}
		one := result(id)
		share := types.UID("recorded")
		one.ShareID = &share
		one.ConsumedCapacity = consumedOf(consumed)
		results = append(results, one)
	}
	if len(results) == 0 {
		return nil
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "recorded"}}
	claim.Status.Allocation = &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: results},
	}
	return []*resourceapi.ResourceClaim{claim}
}

func consumedOf(capacity internal.ConsumedCapacity) map[resourceapi.QualifiedName]resource.Quantity {
	consumed := map[resourceapi.QualifiedName]resource.Quantity{}
	for name, amount := range capacity {
		consumed[name] = *amount
	}
	return consumed
}
