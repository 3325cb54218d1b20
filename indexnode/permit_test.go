package indexnode

import (
	"testing"

	"github.com/millrace/millrace/internal/permit"
)

// Whatever a node serves, the table says who may call it.
func TestEveryMethodIsInTheTable(t *testing.T) {
	for service, of := range new(Node).server().GetServiceInfo() {
		for _, m := range of.Methods {
			if call := "/" + service + "/" + m.Name; permit.RolesFor(call) == nil {
				t.Errorf("nothing says who may call %s", call)
			}
		}
	}
}
