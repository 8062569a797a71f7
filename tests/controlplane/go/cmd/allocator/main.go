// Command allocator says what kube-scheduler's own allocator of devices makes
// of claims: one case in JSON per line of stdin, one answer per line of
// stdout. Features are those that a kube-scheduler of this release has by
// default.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// A pod waits for an allocation at most so long on one node.
const timeout = 10 * time.Second

var features = structured.Features{
	AdminAccess:             true,
	ConsumableCapacity:      true,
	DeviceBindingAndStatus:  true,
	DeviceTaints:            true,
	FractionalCapacityRange: true,
	PartitionableDevices:    true,
	PrioritizedList:         true,
}

type testCase struct {
	Nodes     []*v1.Node                   `json:"nodes"`
	Slices    []*resourceapi.ResourceSlice `json:"slices"`
	Classes   []*resourceapi.DeviceClass   `json:"classes"`
	Claims    []*resourceapi.ResourceClaim `json:"claims"`
	Allocated []*resourceapi.ResourceClaim `json:"allocated"`
}

type answer struct {
	Outcome string                         `json:"outcome"`
	Error   string                         `json:"error,omitempty"`
	Results []resourceapi.AllocationResult `json:"results,omitempty"`
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("no class %s", name)
}

func main() {
	cache := cel.NewCache(1000, cel.Features{EnableConsumableCapacity: true})
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := bufio.NewWriter(os.Stdout)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		var tc testCase
		if err := json.Unmarshal(line, &tc); err != nil {
			log.Fatalf("case: %v", err)
		}
		answers := make([]answer, 0, len(tc.Nodes))
		for _, node := range tc.Nodes {
			answers = append(answers, allocate(&tc, node, cache))
		}
		if err := json.NewEncoder(output).Encode(answers); err != nil {
			log.Fatal(err)
		}
		if err := output.Flush(); err != nil {
			log.Fatal(err)
		}
	}
}

func allocate(tc *testCase, node *v1.Node, cache *cel.Cache) answer {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	allocator, err := structured.NewAllocator(ctx, features, stateOf(tc.Allocated), classes(tc.Classes), tc.Slices, cache)
	if err != nil {
		return answer{Outcome: "error", Error: err.Error()}
	}
	claims := slices.Clone(tc.Claims)
	results, err := allocator.Allocate(ctx, node, claims)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return answer{Outcome: "timeout"}
	case err != nil:
		return answer{Outcome: "error", Error: err.Error()}
	case results == nil:
		return answer{Outcome: "impossible"}
	}
	return answer{Outcome: "possible", Results: results}
}

// stateOf collects what claims have, as kube-scheduler's dynamicresources
// plugin does (allocateddevices.go).
func stateOf(claims []*resourceapi.ResourceClaim) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.AdminAccess != nil && *result.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if result.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
			}
		}
	}
	return state
}
