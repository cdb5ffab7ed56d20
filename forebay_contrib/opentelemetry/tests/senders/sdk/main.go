// Command sdk sends a log record, a span and a counter by OpenTelemetry's SDK of Go, configured by its environment alone.
package main

import (
	"context"
	"log"
	"os"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploggrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otellog "go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
)

func must[T any](found T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return found
}

func main() {
	ctx := context.Background()
	var spans trace.SpanExporter
	var points metric.Exporter
	var records sdklog.Exporter
	if os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc" {
		spans = must(otlptracegrpc.New(ctx))
		points = must(otlpmetricgrpc.New(ctx))
		records = must(otlploggrpc.New(ctx))
	} else {
		spans = must(otlptracehttp.New(ctx))
		points = must(otlpmetrichttp.New(ctx))
		records = must(otlploghttp.New(ctx))
	}
	traces := trace.NewTracerProvider(trace.WithBatcher(spans))
	_, span := traces.Tracer("checkout").Start(ctx, "order")
	span.End()
	metrics := metric.NewMeterProvider(metric.WithReader(metric.NewPeriodicReader(points)))
	must(metrics.Meter("checkout").Int64Counter("orders")).Add(ctx, 3)
	logs := sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewBatchProcessor(records)))
	var record otellog.Record
	record.SetBody(attribute.StringValue("an order was placed"))
	logs.Logger("checkout").Emit(ctx, record)
	for _, shutdown := range []func(context.Context) error{traces.Shutdown, metrics.Shutdown, logs.Shutdown} {
		if err := shutdown(ctx); err != nil {
			log.Fatal(err)
		}
	}
}
