package schemas

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// fullName returns a definition's full name and the namespace within it.
func (p *parser) fullName(what string, o map[string]any, outer, path string) (full, ns string, ok bool) {
	name, ok := o["name"].(string)
	if !ok {
		p.fault(path, "the %s has no name", what)
		return "", "", false
	}
	ns = outer
	if v, has := o["namespace"]; has && v != nil {
		if ns, ok = v.(string); !ok || ns != "" && !isFullName(ns) {
			p.fault(path, "the namespace %v of %s is not names joined by dots", quote(v), quote(name))
			return "", "", false
		}
	}
	full = qualify(name, ns)
	if !isFullName(full) || len(full) > maxNameBytes {
		p.fault(path, "the %s has the name %s; names are letters, digits and _, not starting with a digit", what, quote(name))
		return "", "", false
	}
	if _, taken := primitives[shortName(full)]; taken {
		p.fault(path, "the %s has the name of a primitive type, %s", what, quote(name))
		return "", "", false
	}
	return full, strings.TrimSuffix(full[:len(full)-len(shortName(full))], "."), true
}

func (p *parser) aliases(o map[string]any, path string) (names []string) {
	v, ok := o["aliases"]
	if !ok {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		p.fault(path, "aliases is not a list")
	}
	if len(list) > maxAliases {
		p.fault(path, "there are %d aliases; at most %d are allowed", len(list), maxAliases)
		return nil
	}
	for _, v := range list {
		s, ok := v.(string)
		if !ok || !isFullName(s) {
			p.fault(path, "the alias %v is not a name", quote(v))
			continue
		}
		names = append(names, s)
	}
	return names
}

func qualify(name, ns string) string {
	if ns == "" || strings.Contains(name, ".") {
		return name
	}
	return ns + "." + name
}

var (
	nameForm     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	fullNameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)
)

func isName(s string) bool     { return len(s) <= maxNameBytes && nameForm.MatchString(s) }
func isFullName(s string) bool { return fullNameForm.MatchString(s) }

// quote renders a value of the file for a message, shortened.
func quote(v any) string {
	s := fmt.Sprint(v)
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return strconv.Quote(s)
}
