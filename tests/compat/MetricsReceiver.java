// A plug-in of Kafka that receives the metrics of clients (KIP-714), and drops them: with it in metric.reporters, Kafka
// advertises the APIs of client metrics.
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetryExporter;
import org.apache.kafka.server.telemetry.ClientTelemetryExporterProvider;

public class MetricsReceiver implements MetricsReporter, ClientTelemetryExporterProvider {
    public void init(List<KafkaMetric> metrics) {}

    public void metricChange(KafkaMetric metric) {}

    public void metricRemoval(KafkaMetric metric) {}

    public void configure(Map<String, ?> configs) {}

    public void close() {}

    public ClientTelemetryExporter clientTelemetryExporter() {
        return (context, payload) -> {};
    }
}
