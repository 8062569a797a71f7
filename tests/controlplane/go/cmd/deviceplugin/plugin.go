package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"kerf/controlplane/internal/records"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// plugin serves one resource.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	resource, socket string
	is               settings
	server           *grpc.Server

	mu      sync.Mutex
	devices []*pluginapi.Device
	changed chan struct{} // closed when the devices have changed
}

func newPlugin(of resource, is settings) *plugin {
	_, name, _ := strings.Cut(of.Name, "/")
	p := &plugin{
		resource: of.Name,
		socket:   filepath.Join(is.folder, "nvidia-"+name+".sock"),
		is:       is,
		server:   grpc.NewServer(grpc.UnaryInterceptor(records.TellCalls(of.Name, is.holds))),
		changed:  make(chan struct{}),
	}
	p.set(of.Devices)
	pluginapi.RegisterDevicePluginServer(p.server, p)
	return p
}

// start serves, and registers with the kubelet.
func (p *plugin) start(kubeletSocket string) error {
	if slices.Contains(p.is.strategies, "cdi-cri") {
		if err := writeCdi(p.is.cdiFolder, p.listed()); err != nil {
			return err
		}
	}
	if err := os.Remove(p.socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", p.socket)
	if err != nil {
		return err
	}
	go p.server.Serve(listener)
	connection, err := grpc.NewClient("unix:"+kubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	options, _ := p.GetDevicePluginOptions(ctx, nil)
	request := &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: filepath.Base(p.socket), ResourceName: p.resource, Options: options,
	}
	// The kubelet's socket is there some moments before the kubelet listens.
	_, err = pluginapi.NewRegistrationClient(connection).Register(ctx, request, grpc.WaitForReady(true))
	records.Tell(p.resource, "Register", request, nil, err)
	return err
}

// stop ends the server; its socket goes with the listener.
func (p *plugin) stop() {
	p.server.Stop()
}

func (p *plugin) set(devices []device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = nil
	for _, device := range devices {
		of := &pluginapi.Device{ID: device.ID, Health: pluginapi.Unhealthy}
		if device.Healthy {
			of.Health = pluginapi.Healthy
		}
		if device.Numa != nil {
			of.Topology = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: *device.Numa}}}
		}
		p.devices = append(p.devices, of)
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *plugin) listed() []*pluginapi.Device {
	devices, _ := p.now()
	return devices
}

// now is the devices, and what is closed when they have changed.
func (p *plugin) now() ([]*pluginapi.Device, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.devices, p.changed
}

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (p *plugin) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	records.Hold(p.is.holds, p.resource, "ListAndWatch")
	for {
		devices, changed := p.now()
		list := &pluginapi.ListAndWatchResponse{Devices: devices}
		err := stream.Send(list)
		records.Tell(p.resource, "ListAndWatch", nil, list, err)
		if err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *plugin) GetPreferredAllocation(_ context.Context, request *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	response := &pluginapi.PreferredAllocationResponse{}
	for _, of := range request.ContainerRequests {
		ids, err := preferred(p.listed(), of.AvailableDeviceIDs, of.MustIncludeDeviceIDs, int(of.AllocationSize))
		if err != nil {
			return nil, err
		}
		response.ContainerResponses = append(
			response.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

func (p *plugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, of := range request.ContainerRequests {
		var gpus []string
		for _, id := range of.DevicesIds {
			if !slices.ContainsFunc(p.listed(), func(d *pluginapi.Device) bool { return d.ID == id }) {
				return nil, fmt.Errorf("invalid allocation request for %q: unknown device: %s", p.resource, id)
			}
			gpus = append(gpus, gpuOf(id))
		}
		response.ContainerResponses = append(response.ContainerResponses, p.allocated(gpus))
	}
	return response, nil
}

func (p *plugin) allocated(gpus []string) *pluginapi.ContainerAllocateResponse {
	response := &pluginapi.ContainerAllocateResponse{}
	if slices.Contains(p.is.strategies, "envvar") {
		response.Envs = map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(gpus, ",")}
	}
	if slices.Contains(p.is.strategies, "cdi-cri") {
		slices.Sort(gpus)
		for _, gpu := range slices.Compact(gpus) {
			response.CdiDevices = append(response.CdiDevices, &pluginapi.CDIDevice{Name: cdiKind + "=" + gpu})
		}
	}
	return response
}

func (p *plugin) PreStartContainer(context.Context, *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	return &pluginapi.PreStartContainerResponse{}, nil
}

// gpuOf is the GPU behind a device ID: "GPU-1" of "GPU-1::0".
func gpuOf(id string) string {
	gpu, _, _ := strings.Cut(id, "::")
	return gpu
}

// preferred spreads replicas over GPUs, and of equals takes the last: an order
// that nobody who knows the GPUs by index alone would guess.
func preferred(devices []*pluginapi.Device, available, required []string, size int) ([]string, error) {
	if len(available) < size || len(required) > size {
		return nil, fmt.Errorf("%d devices are asked for, %d available, %d required", size, len(available), len(required))
	}
	free := map[string]int{}
	for _, id := range available {
		free[gpuOf(id)]++
	}
	chosen := slices.Clone(required)
	for len(chosen) < size {
		best := ""
		for _, device := range devices {
			id := device.ID
			if slices.Contains(available, id) && !slices.Contains(chosen, id) && (best == "" || free[gpuOf(id)] >= free[gpuOf(best)]) {
				best = id
			}
		}
		if best == "" {
			return nil, fmt.Errorf("%v are not all devices of this plugin", available)
		}
		chosen = append(chosen, best)
		free[gpuOf(best)]--
	}
	return chosen, nil
}
