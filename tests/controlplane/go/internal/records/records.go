// Package records writes down what a gRPC server of the tests is asked and
// answers, and holds calls up where a test wants to kill somebody in their midst.
package records

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

var (
	telling sync.Mutex
	told    *json.Encoder // nil: nobody wants to know
)

// Open has calls written to a file, a line of JSON each.
func Open(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	told = json.NewEncoder(file)
	return nil
}

// Tell writes down a call.
func Tell(resource, call string, request, response proto.Message, err error) {
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

// TellCalls has every call of a server written down, but for ListAndWatch, which
// does so itself.
func TellCalls(resource, holds string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		Hold(holds, resource, filepath.Base(info.FullMethod))
		response, err := handle(ctx, request)
		answer, _ := response.(proto.Message)
		if err != nil {
			answer = nil
		}
		Tell(resource, filepath.Base(info.FullMethod), request.(proto.Message), answer, err)
		return response, err
	}
}

// Hold keeps a call waiting while a file of its name is in a folder, so that a
// test can kill somebody in the midst of it.
func Hold(folder, resource, call string) {
	if folder == "" {
		return
	}
	for told := false; ; told = true {
		if _, err := os.Stat(filepath.Join(folder, call)); err != nil {
			return
		}
		if !told {
			Tell(resource, "Held "+call, nil, nil, nil)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
