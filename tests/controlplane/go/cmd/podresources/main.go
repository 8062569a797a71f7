// Command podresources prints what a kubelet says of its pods' devices: the
// answer to List of its PodResources API, as JSON. Its argument is the socket.
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
	"k8s.io/kubelet/pkg/apis/podresources/v1"
)

func main() {
	connection, err := grpc.NewClient("unix:"+os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := v1.NewPodResourcesListerClient(connection).List(ctx, &v1.ListPodResourcesRequest{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(protojson.MarshalOptions{UseProtoNames: true}.Format(answer))
}
