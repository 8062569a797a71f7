// Command deviceplugin hands out GPUs that nobody has, in the ways of NVIDIA's
// device plugin: UUIDs as device IDs, replicas of a GPU as "UUID::0", a server
// for each resource, an order of preference of its own, NVIDIA_VISIBLE_DEVICES
// and CDI names in its answers, and a new start of all servers when the
// kubelet's socket is made anew.
//
// The file of -resources says what there is. SIGHUP has it read again, so that
// devices turn sick and well; SIGTERM ends the program as its pod's end does.
package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"kerf/controlplane/internal/records"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// NVIDIA's waits so long before it tries again to register.
const retry = 30 * time.Second

type settings struct {
	resources, kubeletSocket, folder, cdiFolder, holds string
	strategies                                         []string
}

// resource is an entry of the file of -resources.
type resource struct {
	Name    string   `json:"name"`
	Devices []device `json:"devices"`
}

type device struct {
	ID      string `json:"id"`
	Healthy bool   `json:"healthy"`
	Numa    *int64 `json:"numa"`
}

func main() {
	var is settings
	socket := cmp.Or(os.Getenv("KUBELET_SOCKET"), pluginapi.KubeletSocket)
	strategy := flag.String("device-list-strategy", "envvar", "how containers are told of their GPUs: envvar, cdi-cri, or both")
	calls := flag.String("calls", "", "file that is told of every call, a line of JSON each")
	flag.StringVar(&is.resources, "resources", "", "file: resources with their devices")
	flag.StringVar(&is.kubeletSocket, "kubelet-socket", socket, "where to register")
	flag.StringVar(&is.folder, "plugin-folder", pluginapi.DevicePluginPath, "where its own sockets lie")
	flag.StringVar(&is.cdiFolder, "cdi-folder", "/var/run/cdi", "where container runtimes look for CDI devices")
	flag.StringVar(&is.holds, "holds", "", "folder: a call waits while a file of its name is there")
	flag.Parse()
	is.strategies = strings.Split(*strategy, ",")
	if *calls != "" {
		if err := records.Open(*calls); err != nil {
			log.Fatal(err)
		}
	}
	run(is)
}

func run(is settings) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Fatal(err)
	}
	if err := watcher.Add(filepath.Dir(is.kubeletSocket)); err != nil {
		log.Fatal(err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
	plugins, again := start(is)
	for {
		select {
		case event := <-watcher.Events:
			if event.Name != is.kubeletSocket || !event.Has(fsnotify.Create) {
				continue
			}
			log.Printf("%s is new: starting again", event.Name)
		case <-again:
		case got := <-signals:
			if got != syscall.SIGHUP {
				stop(plugins)
				return
			}
			if update(plugins, read(is.resources)) {
				continue
			}
		}
		stop(plugins)
		plugins, again = start(is)
	}
}

// start serves and registers every resource; where one fails, a channel tells
// when to try again.
func start(is settings) (plugins []*plugin, again <-chan time.Time) {
	for _, resource := range read(is.resources) {
		plugin := newPlugin(resource, is)
		plugins = append(plugins, plugin)
		if err := plugin.start(is.kubeletSocket); err != nil {
			log.Printf("%s: %v; trying again in %s", resource.Name, err, retry)
			again = time.After(retry)
		}
	}
	return plugins, again
}

func stop(plugins []*plugin) {
	for _, plugin := range plugins {
		plugin.stop()
	}
}

// update gives the plugins their devices anew; not if the resources are others.
func update(plugins []*plugin, resources []resource) bool {
	same := slices.EqualFunc(plugins, resources, func(p *plugin, r resource) bool { return p.resource == r.Name })
	if same {
		for i, plugin := range plugins {
			plugin.set(resources[i].Devices)
		}
	}
	return same
}

func read(path string) (resources []resource) {
	content, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(content, &resources)
	}
	if err != nil {
		log.Fatal(err)
	}
	return resources
}
