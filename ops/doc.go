// Package ops has what those who run Millrace load into other programs:
// alerts for Prometheus, with tests for promtool, and dashboards for Grafana.
// docs/runbook.md says what to do about each alert. There is no code here but
// tests, which hold these files against the metrics that roles register and
// against the runbook.
package ops
