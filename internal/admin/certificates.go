package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/secure"
)

// Certificates returns metrics: when the certificates that the process shows to others
// begin and end to be valid.
func Certificates() prometheus.Collector { return certificates{} }

type certificates struct{}

var (
	begins = prometheus.NewDesc("millrace_certificate_begins_seconds", "From when the certificate that is shown is valid, in seconds since 1970, by the key of the configuration that names it.", []string{"field"}, nil)
	ends   = prometheus.NewDesc("millrace_certificate_ends_seconds", "Until when the certificate that is shown is valid, in seconds since 1970, by the key of the configuration that names it.", []string{"field"}, nil)
)

// Describe implements prometheus.Collector.
func (certificates) Describe(descs chan<- *prometheus.Desc) {
	descs <- begins
	descs <- ends
}

// Collect implements prometheus.Collector.
func (certificates) Collect(metrics chan<- prometheus.Metric) {
	for field, life := range secure.Lives() {
		metrics <- prometheus.MustNewConstMetric(begins, prometheus.GaugeValue, float64(life.Begins.Unix()), field)
		metrics <- prometheus.MustNewConstMetric(ends, prometheus.GaugeValue, float64(life.Ends.Unix()), field)
	}
}
