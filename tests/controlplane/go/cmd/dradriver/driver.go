package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// published is a device as the API names it.
type published struct{ pool, device string }

// driver keeps nothing that a file of its CDI folder does not tell: whatever
// was prepared is known after a new start.
type driver struct {
	name, cdiFolder string
	failed          context.CancelCauseFunc

	mu        sync.Mutex
	uuid      map[published]string
	shareable map[published]bool
}

func (d *driver) know(resources resourceslice.DriverResources) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.uuid, d.shareable = map[published]string{}, map[published]bool{}
	for pool, of := range resources.Pools {
		for _, slice := range of.Slices {
			for _, device := range slice.Devices {
				at := published{pool, device.Name}
				if uuid := device.Attributes["uuid"].StringValue; uuid != nil {
					d.uuid[at] = *uuid
				}
				d.shareable[at] = device.AllowMultipleAllocations != nil && *device.AllowMultipleAllocations
			}
		}
	}
}

// PrepareResourceClaims writes a CDI file for each claim.
func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) (devices []kubeletplugin.Device, err error) {
	held, err := d.held(claim.UID)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	file := cdiFile{Version: "0.6.0", Kind: d.kind()}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != d.name {
			continue
		}
		at := published{result.Pool, result.Device}
		uuid, known := d.uuid[at]
		admin := result.AdminAccess != nil && *result.AdminAccess
		switch {
		case !known:
			return nil, fmt.Errorf("there is no device %s in pool %s", result.Device, result.Pool)
		case held[at] != "" && !d.shareable[at] && !admin:
			return nil, fmt.Errorf("device %s of pool %s is prepared for claim %s", result.Device, result.Pool, held[at])
		}
		name := fmt.Sprintf("%s-%s", claim.UID, result.Device)
		if result.ShareID != nil {
			name += "-" + string(*result.ShareID)
		}
		file.Devices = append(file.Devices, described(name, at, uuid, claim, admin))
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device,
			ShareID: result.ShareID, CDIDeviceIDs: []string{file.Kind + "=" + name},
		})
	}
	return devices, file.write(d.path(claim.UID))
}

// UnprepareResourceClaims removes the files of claims.
func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(d.path(claim.UID))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (d *driver) HandleError(_ context.Context, err error, msg string) {
	log.Printf("%s: %v", msg, err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.failed(err)
	}
}

func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (d *driver) kind() string { return "k8s." + d.name + "/claim" }

func (d *driver) path(claim types.UID) string {
	return filepath.Join(d.cdiFolder, fmt.Sprintf("k8s.%s-claim_%s.json", d.name, claim))
}

// held says which devices are prepared for others than a claim, and for whom.
func (d *driver) held(but types.UID) (map[published]string, error) {
	paths, err := filepath.Glob(d.path("*"))
	if err != nil {
		return nil, err
	}
	held := map[published]string{}
	for _, path := range paths {
		if path == d.path(but) {
			continue
		}
		var file cdiFile
		content, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(content, &file)
		}
		if err != nil {
			return nil, err
		}
		for _, device := range file.Devices {
			if device.Annotations["admin"] == "" {
				held[published{device.Annotations["pool"], device.Annotations["device"]}] = device.Annotations["claim"]
			}
		}
	}
	return held, nil
}

// cdiFile is a CDI specification, of which the driver reads again what it needs.
type cdiFile struct {
	Version string      `json:"cdiVersion"`
	Kind    string      `json:"kind"`
	Devices []cdiDevice `json:"devices"`
}

type cdiDevice struct {
	Name        string            `json:"name"`
	Annotations map[string]string `json:"annotations"`
	Edits       map[string]any    `json:"containerEdits"`
}

// described is a device as a container gets it: the character device is that of
// /dev/null, under the device's name.
func described(name string, at published, uuid string, claim *resourceapi.ResourceClaim, admin bool) cdiDevice {
	notes := map[string]string{"pool": at.pool, "device": at.device, "claim": claim.Namespace + "/" + claim.Name}
	if admin {
		notes["admin"] = "true"
	}
	return cdiDevice{name, notes, map[string]any{
		"env":         []string{"DRA_" + strings.ReplaceAll(at.device, "-", "_") + "=" + uuid},
		"deviceNodes": []any{map[string]any{"path": "/dev/" + at.device, "hostPath": "/dev/null"}},
	}}
}

// write puts the file there whole or not at all.
func (f *cdiFile) write(path string) error {
	content, err := json.Marshal(f)
	if err != nil {
		return err
	}
	partial := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".partial")
	if err := os.WriteFile(partial, content, 0o644); err != nil {
		return err
	}
	return os.Rename(partial, path)
}
