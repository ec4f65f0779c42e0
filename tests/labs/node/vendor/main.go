// A driver of a vendor on a real kubelet: upstream's helper for kubelet plugins, over devices that are only described.
//
// Called with a kubeconfig, the node, the kubelet's root folder, a folder for CDI, the root of the machine, the name of
// the driver and the addresses of its PCI functions. It publishes them as the real driver of that name does, and
// prepares claims: the container is told each address. What the kubelet calls is a line of standard output. It ends in
// order with its standard input, and its slice stays, as it does when the pod of a plugin ends.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const nvidia = "gpu.nvidia.com"

type driver struct {
	name, kind, cdi string
	addresses       map[string]string // of a device
	lock            sync.Mutex
	users           map[string]types.UID // the claim that a device is prepared for
}

func main() {
	if len(os.Args) < 8 {
		must(errors.New("expected KUBECONFIG NODE KUBELET CDI MACHINE DRIVER ADDRESS..."))
	}
	kubeconfig, node, kubelet, machine := os.Args[1], os.Args[2], os.Args[3], os.Args[5]
	own := &driver{
		name: os.Args[6], kind: "nic", cdi: os.Args[4],
		addresses: map[string]string{}, users: map[string]types.UID{},
	}
	if own.name == nvidia {
		own.kind = "gpu"
	}
	var devices []resourceapi.Device
	for number, address := range os.Args[7:] {
		devices = append(devices, own.device(number, address, machine))
	}
	settings, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(err)
	settings.UserAgent = own.name
	client, err := kubernetes.NewForConfig(settings)
	must(err)
	data := filepath.Join(kubelet, "plugins", own.name)
	must(os.MkdirAll(data, 0o750))
	helper, err := kubeletplugin.Start(context.Background(), own,
		kubeletplugin.DriverName(own.name),
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(node),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(kubelet, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.GRPCInterceptor(told),
	)
	must(err)
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices}}}
	must(helper.PublishResources(context.Background(), resourceslice.DriverResources{
		Pools: map[string]resourceslice.Pool{node: pool},
	}))
	_, err = io.Copy(io.Discard, os.Stdin)
	must(err)
	helper.Stop()
}

// device has the attributes that the real drivers give: the GPU by the standard address, the NIC by one of its own.
func (own *driver) device(number int, address, machine string) resourceapi.Device {
	name := fmt.Sprintf("%s-%d", own.kind, number)
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	add := func(one deviceattribute.DeviceAttribute, err error) {
		must(err)
		attributes[one.Name] = one.Value
	}
	if own.name == nvidia {
		add(deviceattribute.GetPCIBusIDAttribute(address))
		attributes["type"] = text("gpu")
		attributes["productName"] = text("NVIDIA H100 80GB HBM3")
		attributes["architecture"] = text("Hopper")
		attributes["driverVersion"] = resourceapi.DeviceAttribute{VersionValue: new("535.129.3")}
	} else {
		name = "pci-" + strings.NewReplacer(":", "-", ".", "-").Replace(address)
		attributes[resourceapi.QualifiedName(own.name+"/pciAddress")] = text(address)
	}
	tree := deviceattribute.WithFSFromRoot(filepath.Join(machine, "sys"))
	add(deviceattribute.GetPCIeRootAttributeByPCIBusID(address, tree))
	add(deviceattribute.GetNUMANodeAttributeByPCIBusID(address, deviceattribute.ScalarAttribute, tree))
	own.addresses[name] = address
	return resourceapi.Device{Name: name, Attributes: attributes}
}

func text(value string) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{StringValue: &value}
}

func (own *driver) PrepareResourceClaims(
	_ context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	own.lock.Lock()
	defer own.lock.Unlock()
	found := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := own.prepare(claim)
		found[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return found, nil
}

func (own *driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	var devices []kubeletplugin.Device
	var specs []map[string]any
	for _, one := range claim.Status.Allocation.Devices.Results {
		if one.Driver != own.name {
			continue // a claim may have devices of several drivers
		}
		address, known := own.addresses[one.Device]
		if user, used := own.users[one.Device]; !known || used && user != claim.UID {
			return nil, fmt.Errorf("%s: known %t, prepared for %q", one.Device, known, user)
		}
		own.users[one.Device] = claim.UID
		name := fmt.Sprintf("%s-%s", claim.UID, one.Device)
		variable := fmt.Sprintf("LAB_%s=%s", strings.ToUpper(own.kind), address)
		specs = append(specs, map[string]any{"name": name, "containerEdits": map[string]any{"env": []string{variable}}})
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{one.Request}, PoolName: one.Pool, DeviceName: one.Device,
			CDIDeviceIDs: []string{fmt.Sprintf("%s/%s=%s", own.name, own.kind, name)},
		})
		fmt.Printf("prepared %s for %s\n", one.Device, claim.Name)
	}
	spec := map[string]any{"cdiVersion": "0.6.0", "kind": own.name + "/" + own.kind, "devices": specs}
	encoded, err := json.Marshal(spec)
	if err == nil {
		err = os.WriteFile(own.spec(claim.UID)+".new", encoded, 0o644)
	}
	if err == nil { // containerd never sees a part of it
		err = os.Rename(own.spec(claim.UID)+".new", own.spec(claim.UID))
	}
	return devices, err
}

func (own *driver) spec(claim types.UID) string {
	return filepath.Join(own.cdi, fmt.Sprintf("%s-%s.json", own.name, claim))
}

func (own *driver) UnprepareResourceClaims(
	_ context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	own.lock.Lock()
	defer own.lock.Unlock()
	found := map[types.UID]error{}
	for _, claim := range claims {
		for device, user := range own.users {
			if user == claim.UID {
				delete(own.users, device)
				fmt.Printf("unprepared %s of %s\n", device, claim.Name)
			}
		}
		err := os.Remove(own.spec(claim.UID))
		if errors.Is(err, os.ErrNotExist) { // it is asked more than once
			err = nil
		}
		found[claim.UID] = err
	}
	return found, nil
}

func (own *driver) HandleError(_ context.Context, err error, message string) {
	fmt.Printf("error: %s: %v\n", message, err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		os.Exit(1)
	}
}

func (own *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// told says what the kubelet called, once it was answered.
func told(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	answer, err := handler(ctx, request)
	if err == nil {
		fmt.Println(path.Base(info.FullMethod))
	} else {
		fmt.Printf("error: %s: %v\n", path.Base(info.FullMethod), err)
	}
	return answer, err
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
