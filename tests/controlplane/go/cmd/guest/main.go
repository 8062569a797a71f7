// Command guest is what runs in the containers of the tests' nodes, their
// pause containers included: it prints its environment as one line of JSON, with
// DEVICES for the GPUs that it finds in /dev, and ends when it is told to by a
// signal, or by its flags.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	after := flag.Duration("after", 0, "end by itself after this time; 0: never")
	status := flag.Int("exit", 0, "exit status of that end")
	flag.Parse()

	environment := map[string]string{}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		environment[name] = value
	}
	if gpus, _ := filepath.Glob("/dev/gpu-*"); len(gpus) > 0 {
		environment["DEVICES"] = strings.Join(gpus, ",")
	}
	line, err := json.Marshal(environment)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	var end <-chan time.Time
	if *after > 0 {
		end = time.After(*after)
	}
	select {
	case <-signals:
	case <-end:
		os.Exit(*status)
	}
}
