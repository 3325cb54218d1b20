// Package reach opens the connections of commands and roles to Kafka, etcd, the schema
// registry and Millrace's own ports. It reads flags and the environment, and contexts, which
// give names to the clusters that somebody works on.
package reach

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/cmd/cli/config"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/cluster/dial"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/confluent"
	"github.com/millrace/millrace/internal/secure"
)

// Connections is how a role or a command reaches other systems than Millrace.
type Connections struct {
	Kafka          kafka.Access     `yaml:"kafka,omitempty"`
	Etcd           dial.Access      `yaml:"etcd,omitempty"`
	SchemaRegistry confluent.Access `yaml:"schema_registry,omitempty"`
}

// SettingsOf returns the settings of all connections, in the order in which help shows them.
// They write into s. A secret has no flag, and its Flag is empty: others on the machine can
// read the arguments of a process.
func SettingsOf(s *Security) (all []config.Setting) {
	add := func(name, usage string, text *string, on *bool) {
		all = append(all, config.Setting{Flag: name, Env: "MILLRACE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")), Usage: usage, Text: text, On: on})
	}
	secret := func(name, usage string, into *secure.Secret) {
		add(name, usage, (*string)(into), nil)
		all[len(all)-1].Flag = ""
	}
	plain := func(prefix, of string, on *bool) {
		add(prefix+"insecure", "speak plain text to "+of+" beyond loopback", nil, on)
	}
	tls := func(prefix, of string, t *secure.TLS) {
		add(prefix+"ca", `whose certificates `+of+` must show, a PEM file; "system": whom this machine trusts`, &t.CA, nil)
		add(prefix+"cert", "the certificate to show "+of+", a PEM file", &t.Cert, nil)
		add(prefix+"key", "its key, a PEM file", &t.Key, nil)
		add(prefix+"server-name", "the name in the certificate of "+of+" (default: the host of the address)", &t.ServerName, nil)
	}
	login := func(prefix, of string, l *secure.Login) {
		add(prefix+"username", "the user at "+of, &l.Username, nil)
		add(prefix+"password-file", "a file with the user's password", &l.PasswordFile, nil)
		secret(prefix+"password", "the user's password", &l.Password)
	}
	c := &s.Connections
	tls("", "Millrace's own ports", &s.TLS)
	plain("", "Millrace's own ports", &s.Insecure)
	tls("kafka-", "Kafka", &c.Kafka.TLS)
	add("kafka-sasl", "how Kafka knows the user: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER", &c.Kafka.SASL.Mechanism, nil)
	login("kafka-", "Kafka", &c.Kafka.SASL.Login)
	add("kafka-token-file", "a file with the token of OAUTHBEARER", &c.Kafka.SASL.TokenFile, nil)
	secret("kafka-token", "the token of OAUTHBEARER", &c.Kafka.SASL.Token)
	plain("kafka-", "Kafka", &c.Kafka.Insecure)
	tls("etcd-", "etcd", &c.Etcd.TLS)
	login("etcd-", "etcd", &c.Etcd.Login)
	plain("etcd-", "etcd", &c.Etcd.Insecure)
	tls("schema-registry-", "the schema registry", &c.SchemaRegistry.TLS)
	login("schema-registry-", "the schema registry", &c.SchemaRegistry.Login)
	plain("schema-registry-", "the schema registry", &c.SchemaRegistry.Insecure)
	return all
}

// Flags adds the flags of all connections. They are hidden in the help of each command, since
// the help on connections shows them.
func Flags(f *pflag.FlagSet) {
	for _, s := range SettingsOf(new(Security)) {
		switch {
		case s.Flag == "":
			continue
		case s.On != nil:
			f.Bool(s.Flag, false, s.Usage)
		default:
			f.String(s.Flag, "", s.Usage)
		}
		f.Lookup(s.Flag).Hidden = true
	}
}

// override sets in s what flags say, and what the environment says where no flag does.
func (s *Security) override(f *pflag.FlagSet) error { return config.Override(f, SettingsOf(s)) }

// Help returns the help topic on the flags that every command has.
func Help() *cobra.Command {
	var text strings.Builder
	t := display.NewTable(&text)
	for _, s := range SettingsOf(new(Security)) {
		flag := "--" + s.Flag
		if s.Flag == "" {
			flag = "(no flag)"
		}
		t.Printf("  %s\t%s\t%s\n", flag, s.Env, s.Usage)
	}
	_ = t.Flush() // into memory
	return &cobra.Command{
		Use:   "connections",
		Short: "How every command reaches Kafka, etcd, the schema registry and Millrace's own ports",
		Long: `Every command and role takes these flags. What no flag says, the environment
says, and then the configuration of a role, or the context of a command (see
"millrace context"). Files are read again when they change.

` + text.String() + `
Addresses have flags of their own in each command, and these variables:
` + strings.Join(addressVariables(), ", ") + `.

What has no TLS speaks plain text, on loopback alone unless insecure says
otherwise.`,
	}
}
