// Command sbom prints the bill of materials of a Go binary, as CycloneDX in JSON: the
// modules that the linker put into it, with their checksums, and the standard
// library. The same binary and version give the same text.
//
//	go run ./scripts/sbom VERSION BINARY
package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: sbom VERSION BINARY")
	}
	b, err := read(args[0], args[1])
	if err != nil {
		return err
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(b)
}

// bom is a bill of materials, with the names of CycloneDX 1.6.
type bom struct {
	Schema       string       `json:"$schema"`
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Serial       string       `json:"serialNumber"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Purl       string     `json:"purl"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Alg     string `json:"alg"`
	Content string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// read returns the bill of materials of the binary in a file, which has the version.
func read(version, file string) (*bom, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, err
	}
	bytes, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(bytes)
	main := componentOf("application", info.Main.Path, version)
	main.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum[:])}}
	for _, s := range info.Settings {
		main.Properties = append(main.Properties, property{"millrace:build:" + s.Key, s.Value})
	}
	b := &bom{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", Spec: "1.6", Version: 1,
		Serial: serial(sum), Metadata: metadata{main},
		Components: []component{componentOf("library", "std", strings.TrimPrefix(info.GoVersion, "go"))},
	}
	for _, m := range info.Deps {
		c, err := module(m)
		if err != nil {
			return nil, err
		}
		b.Components = append(b.Components, c)
	}
	of := dependency{Ref: main.Ref}
	for _, c := range b.Components {
		of.DependsOn = append(of.DependsOn, c.Ref)
	}
	b.Dependencies = []dependency{of}
	return b, nil
}

// module returns the component of a module that the linker put in, or, if go.mod replaces
// it, of the module that takes its place.
func module(m *debug.Module) (component, error) {
	m = cmp.Or(m.Replace, m)
	c := componentOf("library", m.Path, m.Version)
	if m.Sum == "" { // the module is a directory
		return c, nil
	}
	sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
	if err != nil || len(sum) != sha256.Size {
		return c, fmt.Errorf("%s: %q is no checksum of go.sum", m.Path, m.Sum)
	}
	c.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum)}} // of the module's tree: what go.sum holds
	return c, nil
}

// componentOf returns a component without hashes; kind is application or library.
func componentOf(kind, path, version string) component {
	purl := "pkg:golang/" + path
	if version != "" {
		purl += "@" + strings.ReplaceAll(version, "+", "%2B")
	}
	return component{Type: kind, Ref: purl, Name: path, Version: version, Purl: purl}
}

// serial returns a UUID made from the binary's hash. It is of version 8, whose bits the
// maker chooses.
func serial(sum [sha256.Size]byte) string {
	u := sum[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
