// Command echo is the least that a scheduler extender can do, in Go with
// encoding/json: the yardstick that an extender under test is measured against.
//
//	/filter      answers every node name it got
//	/prioritize  answers score 0 for every node
//	/bind        posts the binding through client-go
//	/raw?bytes=N reads the body and answers N bytes of JSON, decoding nothing
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"kerf/controlplane/internal/kube"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to serve on")
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the bind verb")
	flag.Parse()

	http.HandleFunc("POST /filter", filter)
	http.HandleFunc("POST /prioritize", prioritize)
	http.HandleFunc("POST /raw", raw)
	http.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	if *kubeconfig != "" {
		clients, err := kube.Clients(*kubeconfig, 1)
		if err != nil {
			log.Fatal(err)
		}
		http.HandleFunc("POST /bind", bind(clients[0]))
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("listening on %s\n", listener.Addr())
	log.Fatal(http.Serve(listener, nil))
}

func filter(w http.ResponseWriter, r *http.Request) {
	var args extenderv1.ExtenderArgs
	if !decode(w, r, &args) {
		return
	}
	reply(w, extenderv1.ExtenderFilterResult{Nodes: args.Nodes, NodeNames: args.NodeNames})
}

func prioritize(w http.ResponseWriter, r *http.Request) {
	var args extenderv1.ExtenderArgs
	if !decode(w, r, &args) {
		return
	}
	scores := extenderv1.HostPriorityList{}
	if args.NodeNames != nil {
		for _, name := range *args.NodeNames {
			scores = append(scores, extenderv1.HostPriority{Host: name})
		}
	} else if args.Nodes != nil {
		for i := range args.Nodes.Items {
			scores = append(scores, extenderv1.HostPriority{Host: args.Nodes.Items[i].Name})
		}
	}
	reply(w, scores)
}

func bind(client kubernetes.Interface) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var args extenderv1.ExtenderBindingArgs
		if !decode(w, r, &args) {
			return
		}
		binding := &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: args.PodNamespace, Name: args.PodName, UID: types.UID(args.PodUID)},
			Target:     v1.ObjectReference{Kind: "Node", Name: args.Node},
		}
		var result extenderv1.ExtenderBindingResult
		if err := client.CoreV1().Pods(args.PodNamespace).Bind(r.Context(), binding, metav1.CreateOptions{}); err != nil {
			result.Error = err.Error()
		}
		reply(w, result)
	}
}

func raw(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	size, err := strconv.Atoi(r.URL.Query().Get("bytes"))
	if err != nil || size < 2 {
		http.Error(w, "bytes must be a number of at least 2", http.StatusBadRequest)
		return
	}
	// A JSON string: two quotes around filler.
	body := bytes.Repeat([]byte{'x'}, size)
	body[0], body[size-1] = '"', '"'
	send(w, body)
}

func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

func reply(w http.ResponseWriter, result any) {
	body, err := json.Marshal(result)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	send(w, body)
}

func send(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if _, err := w.Write(body); err != nil {
		log.Print(err)
	}
}
