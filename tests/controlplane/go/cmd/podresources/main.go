// Command podresources prints what a kubelet says of devices, as JSON: the
// answer of its PodResources API to List or GetAllocatableResources. Its
// arguments are the call and the socket.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/podresources/v1"
)

func main() {
	connection, err := grpc.NewClient("unix:"+os.Args[2], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client := v1.NewPodResourcesListerClient(connection)
	var answer proto.Message
	switch os.Args[1] {
	case "List":
		answer, err = client.List(ctx, &v1.ListPodResourcesRequest{})
	case "GetAllocatableResources":
		answer, err = client.GetAllocatableResources(ctx, &v1.AllocatableResourcesRequest{})
	default:
		log.Fatalf("no call %q", os.Args[1])
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(protojson.MarshalOptions{UseProtoNames: true}.Format(answer))
}
