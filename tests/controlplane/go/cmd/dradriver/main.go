// Command dradriver is a DRA driver of GPUs that nobody has, on the library
// that real drivers are made with (k8s.io/dynamic-resource-allocation,
// kubeletplugin): it publishes ResourceSlices, registers with the kubelet, and
// prepares claims by CDI. In a container each device of its claims is a
// variable DRA_<device> with the device's UUID, and a node /dev/<device>.
//
// The file of -pools says what there is. SIGHUP has it read and published
// again; SIGTERM ends the program as its pod's end does: slices stay.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"kerf/controlplane/internal/kube"
	"kerf/controlplane/internal/records"
)

type settings struct {
	driver, node, pools, kubeconfig, registry, folder, cdiFolder, holds string
}

func main() {
	var is settings
	calls := flag.String("calls", "", "file that is told of every call, a line of JSON each")
	flag.StringVar(&is.driver, "driver", "gpu.nvidia.com", "name of the driver")
	flag.StringVar(&is.node, "node", "", "name of the node")
	flag.StringVar(&is.pools, "pools", "", "file: pools by name, each with slices of devices or of sharedCounters, as in the API")
	flag.StringVar(&is.kubeconfig, "kubeconfig", "", "how to reach the API server")
	flag.StringVar(&is.registry, "registry", kubeletplugin.KubeletRegistryDir, "where the kubelet looks for plugins")
	flag.StringVar(&is.folder, "folder", "", "where its own socket lies")
	flag.StringVar(&is.cdiFolder, "cdi-folder", "/var/run/cdi", "where container runtimes look for CDI devices")
	flag.StringVar(&is.holds, "holds", "", "folder: a call waits while a file of its name is there")
	flag.Parse()
	if *calls != "" {
		if err := records.Open(*calls); err != nil {
			log.Fatal(err)
		}
	}
	if err := run(is); err != nil {
		log.Fatal(err)
	}
}

func run(is settings) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	clients, err := kube.Clients(is.kubeconfig, 1)
	if err != nil {
		return err
	}
	for _, folder := range []string{is.folder, is.cdiFolder} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	d := &driver{name: is.driver, cdiFolder: is.cdiFolder, failed: cancel}
	resources, err := d.read(is.pools)
	if err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(is.driver),
		kubeletplugin.NodeName(is.node),
		kubeletplugin.KubeClient(clients[0]),
		kubeletplugin.RegistrarDirectoryPath(is.registry),
		kubeletplugin.PluginDataDirectoryPath(is.folder),
		kubeletplugin.NodeV1beta1(false),
		kubeletplugin.HealthService(false),
		kubeletplugin.GRPCInterceptor(grpc.UnaryServerInterceptor(records.TellCalls(is.driver, is.holds))),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
	for {
		if err := helper.PublishResources(ctx, resources); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case got := <-signals:
			if got != syscall.SIGHUP {
				return nil
			}
		}
		if resources, err = d.read(is.pools); err != nil {
			return err
		}
	}
}

// read gives the pools of a file, and remembers which UUID each device has.
func (d *driver) read(path string) (resources resourceslice.DriverResources, err error) {
	content, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(content, &resources.Pools)
	}
	if err == nil {
		d.know(resources)
	}
	return resources, err
}
