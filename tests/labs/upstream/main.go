// What the upstream Kubernetes helper would publish for the functions and NUMA nodes of recorded machines.
//
// Reads lines "ROOT PLACE": ROOT/sys is the sysfs of a machine, PLACE the address of a PCI function or the number of a
// NUMA node. Writes one line of JSON for each: the attributes as a ResourceSlice holds them, with numaNode as a scalar
// and as a list, and in place of what is not published the error.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// times is how often a list is asked for: the helper takes the socket of a node from any of its CPUs (it walks a Go
// map, whose order is random), so that its answer may be another the next time.
const times = 16

type attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

type answer struct {
	Scalar attributes   `json:"scalar"`
	Lists  []attributes `json:"lists"` // different answers
	First  attributes   `json:"first"` // the list where each node has no CPU but the first that it lists
	Errors []string     `json:"errors"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for lines.Scan() {
		end := strings.LastIndexByte(lines.Text(), ' ')
		if end < 0 {
			must(fmt.Errorf("%q: expected ROOT PLACE", lines.Text()))
		}
		must(encoder.Encode(ask(lines.Text()[:end], lines.Text()[end+1:])))
	}
	must(lines.Err())
	must(out.Flush())
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func ask(root, place string) answer {
	found := answer{Lists: []attributes{}, Errors: []string{}}
	sysfs := os.DirFS(root + "/sys").(fs.ReadLinkFS)
	found.Scalar = found.published(sysfs, place, deviceattribute.ScalarAttribute)
	found.First = found.published(firstCPU{sysfs}, place, deviceattribute.ListAttribute)
	seen := map[string]bool{}
	for range times {
		list := found.published(sysfs, place, deviceattribute.ListAttribute)
		text, err := json.Marshal(list)
		must(err)
		if !seen[string(text)] {
			seen[string(text)] = true
			found.Lists = append(found.Lists, list)
		}
	}
	return found
}

func (found *answer) published(tree fs.ReadLinkFS, place string, form deviceattribute.AttributeForm) attributes {
	sysfs := deviceattribute.WithFS(tree)
	said := attributes{}
	add := func(attribute deviceattribute.DeviceAttribute, err error) {
		if err == nil {
			said[attribute.Name] = attribute.Value
		} else if !slices.Contains(found.Errors, err.Error()) {
			found.Errors = append(found.Errors, err.Error())
		}
	}
	if node, err := strconv.Atoi(place); err == nil {
		add(deviceattribute.GetNUMANodeAttribute(node, form, sysfs))
		return said
	}
	add(deviceattribute.GetPCIBusIDAttribute(place))
	add(deviceattribute.GetPCIeRootAttributeByPCIBusID(place, sysfs))
	add(deviceattribute.GetNUMANodeAttributeByPCIBusID(place, form, sysfs))
	return said
}

// firstCPU is a sysfs whose nodes list their first CPU alone.
type firstCPU struct{ fs.ReadLinkFS }

var others = regexp.MustCompile(`^([0-9]+)[-,0-9]+`)

func (tree firstCPU) ReadFile(name string) ([]byte, error) {
	text, err := fs.ReadFile(tree.ReadLinkFS, name)
	if strings.HasSuffix(name, "/cpulist") {
		text = others.ReplaceAll(text, []byte("$1"))
	}
	return text, err
}
