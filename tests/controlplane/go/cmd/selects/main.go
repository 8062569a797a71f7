// Command selects evaluates selectors of devices as kube-scheduler does, with
// its own package and the features that it has on by default: the yardstick
// that other evaluations are measured against.
//
// Each line of its input is a question, and each of its output the answer:
//
//	{"expression": "...", "driver": "...", "device": {...}}
//	{"matches": true, "cost": 12} or {"fault": "...", "compiles": true}
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"
)

type question struct {
	Expression string             `json:"expression"`
	Driver     string             `json:"driver"`
	Device     resourceapi.Device `json:"device"`
}

type answer struct {
	Matches  *bool  `json:"matches,omitempty"`
	Fault    string `json:"fault,omitempty"`
	Compiles bool   `json:"compiles"`
	Cost     uint64 `json:"cost,omitempty"`
}

func main() {
	cache := cel.NewCache(10, cel.Features{EnableConsumableCapacity: true})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var q question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			log.Fatalf("reading a question: %v", err)
		}
		if err := out.Encode(ask(cache, q)); err != nil {
			log.Fatalf("writing an answer: %v", err)
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatalf("reading questions: %v", err)
	}
}

func ask(cache *cel.Cache, q question) answer {
	compiled := cache.GetOrCompile(q.Expression)
	if compiled.Error != nil {
		return answer{Fault: compiled.Error.Detail}
	}
	matches, details, err := compiled.DeviceMatches(context.Background(), cel.Device{
		Driver:                   q.Driver,
		AllowMultipleAllocations: q.Device.AllowMultipleAllocations,
		Attributes:               q.Device.Attributes,
		Capacity:                 q.Device.Capacity,
	})
	if err != nil {
		return answer{Fault: err.Error(), Compiles: true}
	}
	return answer{Matches: &matches, Compiles: true, Cost: ptr.Deref(details.ActualCost(), 0)}
}
