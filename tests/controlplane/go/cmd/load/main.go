// Command load fills an API server with nodes and pods and measures how fast a
// scheduler binds them. Run "load nodes|pods|measure -h" for the flags.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"

	"kerf/controlplane/internal/kube"
)

const usage = `usage: load COMMAND -kubeconfig F [flags]

  nodes    create nodes
  slices   publish devices of nodes in ResourceSlices, and their class
  pods     create pods, pending and already bound
  measure  create pods, wait until all are bound, print one JSON object`

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal(usage)
	}
	flags := flag.NewFlagSet("load "+os.Args[1], flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "kubeconfig file (required)")
	connections := flags.Int("connections", 50, "connections, each with one worker")
	command := commands(os.Args[1], flags)
	if command == nil {
		log.Fatal(usage)
	}
	if err := flags.Parse(os.Args[2:]); err != nil {
		log.Fatal(err)
	}
	if *kubeconfig == "" || *connections < 1 || flags.NArg() > 0 {
		log.Fatal(usage)
	}
	clients, err := kube.Clients(*kubeconfig, *connections)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, clients); err != nil {
		log.Fatal(err)
	}
}

// commands registers one command's flags; what it returns runs after they are parsed.
func commands(name string, flags *flag.FlagSet) func(context.Context, []kubernetes.Interface) error {
	switch name {
	case "nodes":
		nodes := nodeFlags(flags)
		count := flags.Int("count", 1, "nodes to create")
		return func(ctx context.Context, clients []kubernetes.Interface) error {
			return createNodes(ctx, clients, nodes, *count)
		}
	case "slices":
		devices := deviceFlags(flags)
		count := flags.Int("count", 1, "nodes whose devices to publish")
		return func(ctx context.Context, clients []kubernetes.Interface) error {
			return createSlices(ctx, clients, devices, *count)
		}
	case "pods":
		pods := podFlags(flags)
		count := flags.Int("count", 0, "pending pods to create")
		bound := flags.Int("bound", 0, "Running pods to create, round-robin over the nodes")
		return func(ctx context.Context, clients []kubernetes.Interface) error {
			if err := pods.prepare(ctx, clients[0]); err != nil {
				return err
			}
			if err := createBound(ctx, clients, pods, *bound); err != nil {
				return err
			}
			return createPending(ctx, clients, pods, *count, false)
		}
	case "measure":
		pods := podFlags(flags)
		count := flags.Int("count", 1, "pods to create")
		exist := flags.Bool("exist", false, "the pods were created before, with the same -prefix and -label "+runLabel)
		timeout := flags.Duration("timeout", 5*time.Minute, "how long to wait for the last binding")
		stream := flags.Duration("stream", 0, "for how long to create pods as others are bound, instead of -count at once")
		waiting := flags.Int("waiting", 100, "pods of a stream that wait at any time")
		return func(ctx context.Context, clients []kubernetes.Interface) error {
			source := atOnce(clients, pods, *count, *exist)
			if *stream > 0 {
				source = inStream(clients, pods, *waiting, *stream)
			}
			result, err := measure(ctx, clients[0], pods, source, *timeout)
			if err != nil {
				return err
			}
			line, err := json.Marshal(result)
			fmt.Println(string(line))
			return err
		}
	}
	return nil
}
