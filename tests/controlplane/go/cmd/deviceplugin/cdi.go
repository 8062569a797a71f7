package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const cdiKind = "k8s.device-plugin.nvidia.com/gpu"

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
