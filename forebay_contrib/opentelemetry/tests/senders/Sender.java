import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.autoconfigure.AutoConfiguredOpenTelemetrySdk;

/** Send a log record, a span and a counter by OpenTelemetry's SDK of Java, configured by its environment alone. */
public class Sender {
    public static void main(String[] arguments) {
        try (OpenTelemetrySdk sdk = AutoConfiguredOpenTelemetrySdk.initialize().getOpenTelemetrySdk()) {
            sdk.getTracer("checkout").spanBuilder("order").startSpan().end();
            sdk.getMeter("checkout").counterBuilder("orders").build().add(3);
            sdk.getLogsBridge().get("checkout").logRecordBuilder().setBody("an order was placed").emit();
        }
    }
}
