package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const cdiKind = "k8s.device-plugin.nvidia.com/gpu"

var (
	telling sync.Mutex
	told    *json.Encoder // nil: nobody wants to know
)

// tell writes down a call.
func tell(resource, call string, request, response proto.Message, err error) {
	if told == nil {
		return
	}
	record := map[string]any{"time": float64(time.Now().UnixMicro()) / 1e6, "resource": resource, "call": call}
	for name, message := range map[string]proto.Message{"request": request, "response": response} {
		if message != nil {
			record[name] = json.RawMessage(protojson.MarshalOptions{UseProtoNames: true}.Format(message))
		}
	}
	if err != nil {
		record["error"] = err.Error()
	}
	telling.Lock()
	defer telling.Unlock()
	_ = told.Encode(record)
}

// tellCalls has every call of a server written down, but for ListAndWatch, which
// does so itself.
func tellCalls(resource, holds string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		hold(holds, resource, filepath.Base(info.FullMethod))
		response, err := handle(ctx, request)
		answer, _ := response.(proto.Message)
		if err != nil {
			answer = nil
		}
		tell(resource, filepath.Base(info.FullMethod), request.(proto.Message), answer, err)
		return response, err
	}
}

// hold keeps a call waiting while a file of its name is in a folder, so that a
// test can kill somebody in the midst of it.
func hold(folder, resource, call string) {
	if folder == "" {
		return
	}
	for told := false; ; told = true {
		if _, err := os.Stat(filepath.Join(folder, call)); err != nil {
			return
		}
		if !told {
			tell(resource, "Held "+call, nil, nil, nil)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// writeCdi describes GPUs to container runtimes: each sets a variable CDI_GPU_...
func writeCdi(folder string, devices []*pluginapi.Device) error {
	described, seen := []any{}, map[string]bool{}
	for _, device := range devices {
		gpu := gpuOf(device.ID)
		if seen[gpu] {
			continue
		}
		seen[gpu] = true
		variable := "CDI_" + strings.ReplaceAll(gpu, "-", "_") + "=1"
		described = append(described, map[string]any{
			"name": gpu, "containerEdits": map[string]any{"env": []string{variable}},
		})
	}
	content, err := json.Marshal(map[string]any{"cdiVersion": "0.5.0", "kind": cdiKind, "devices": described})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "k8s.device-plugin.nvidia.com-gpu.json"), content, 0o644)
}
