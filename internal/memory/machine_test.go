package memory

import (
	"os"
	"path/filepath"
	"testing"
)

// A process may take what the least of the limits around it says, wherever in the
// hierarchy its control group is.
func TestMachine(t *testing.T) {
	const meminfo = "MemTotal:       16777216 kB\nMemFree:         1000000 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing is known":           {nil, 0},
		"there is no limit":          {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 16 << 30},
		"a container":                {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "8589934592\n"}, 8 << 30},
		"a limit beyond the machine": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "99999999999999\n"}, 16 << 30},
		"a service": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/other\n0::/system.slice/node.service\n",
			"sys/fs/cgroup/system.slice/memory.max": "max\n", "sys/fs/cgroup/system.slice/node.service/memory.max": "4294967296\n",
		}, 4 << 30},
		"a service of a slice that has less": {map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/some.slice/node.service\n",
			"sys/fs/cgroup/some.slice/memory.max": "2147483648\n", "sys/fs/cgroup/some.slice/node.service/memory.max": "4294967296\n",
		}, 2 << 30},
		"a group outside of the namespace": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/../../other\n", "sys/fs/cgroup/memory.max": "8589934592\n"}, 8 << 30},
	} {
		root := t.TempDir()
		for file, text := range c.files {
			at := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := machine(root); got != c.want {
			t.Errorf("%s: %d bytes, want %d", name, got, c.want)
		}
	}
}
