// A driver of a vendor, as far as the API server sees one: the controller that upstream's kubelet plugins publish with.
//
// Called with a kubeconfig, the name of the driver and that of the node. Each line of standard input is a list of
// devices as a ResourceSlice has them; they are the driver's pool from then on, named after the node. It ends with its
// input, and its slices stay, as they do when a plugin ends.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

func main() {
	if len(os.Args) != 4 {
		must(fmt.Errorf("expected KUBECONFIG DRIVER NODE"))
	}
	kubeconfig, driver, node := os.Args[1], os.Args[2], os.Args[3]
	settings, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(err)
	settings.UserAgent = driver
	client, err := kubernetes.NewForConfig(settings)
	must(err)
	delay := 500 * time.Millisecond // upstream's half a minute is long for a test
	controller, err := resourceslice.StartController(context.Background(), resourceslice.Options{
		DriverName: driver,
		KubeClient: client,
		Owner:      &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: node},
		Resources:  &resourceslice.DriverResources{},
		SyncDelay:  &delay,
		ErrorHandler: func(_ context.Context, err error, message string) {
			fmt.Fprintln(os.Stderr, message+":", err)
		},
	})
	must(err)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var devices []resourceapi.Device
		must(json.Unmarshal(lines.Bytes(), &devices))
		pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices}}}
		controller.Update(&resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}})
	}
	must(lines.Err())
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
