// Package ops has files for other programs of those who run Millrace: alerts for
// Prometheus, with tests for promtool, and dashboards for Grafana. docs/runbook.md says what
// to do about each alert. The only code here is tests, which compare these files with the
// metrics that roles register and with the runbook.
package ops
