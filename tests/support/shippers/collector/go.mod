module forebay.example/collector

go 1.26.0

require (
	github.com/open-telemetry/opentelemetry-collector-contrib/exporter/prometheusremotewriteexporter v0.157.0
	github.com/open-telemetry/opentelemetry-collector-contrib/exporter/splunkhecexporter v0.157.0
	github.com/open-telemetry/opentelemetry-collector-contrib/receiver/filelogreceiver v0.157.0
	go.opentelemetry.io/collector/component v1.63.0
	go.opentelemetry.io/collector/confmap v1.63.0
	go.opentelemetry.io/collector/confmap/provider/fileprovider v1.63.0
	go.opentelemetry.io/collector/exporter v1.63.0
	go.opentelemetry.io/collector/otelcol v0.157.0
	go.opentelemetry.io/collector/receiver v1.63.0
	go.opentelemetry.io/collector/receiver/otlpreceiver v0.157.0
	go.opentelemetry.io/collector/service v0.157.0
)
