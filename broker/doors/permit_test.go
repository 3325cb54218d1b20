package doors

import (
	"testing"

	"google.golang.org/grpc"

	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/internal/permit"
)

// Whatever a broker serves, the table says who may call it.
func TestEveryMethodAndPathIsInTheTable(t *testing.T) {
	b := New(Config{Admission: admission.New(nil, 256<<20)})
	s := grpc.NewServer()
	b.RegisterGRPC(s)
	var calls []string
	for service, of := range s.GetServiceInfo() {
		for _, m := range of.Methods {
			calls = append(calls, "/"+service+"/"+m.Name)
		}
	}
	for path := range b.routes() {
		calls = append(calls, path)
	}
	for _, call := range calls {
		if permit.RolesFor(call) == nil {
			t.Errorf("nothing says who may call %s", call)
		}
	}
	if len(calls) < 8 {
		t.Errorf("a broker serves %v", calls)
	}
}
