// Kafka's own classes replay a metadata log into an image, as a broker does that starts:
//
//   java -cp 'JARS/*' ImageReplay.java DATA_DIR
//
// prints what it took as JSON. Every batch's CRC is checked, as KafkaRaftLog's readers do.
import java.io.File;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;
import org.apache.kafka.metadata.MetadataRecordSerde;

public class ImageReplay {
    static long usedBytes() throws InterruptedException {
        for (int round = 0; round < 3; round++) {
            System.gc();
            Thread.sleep(50);
        }
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }

    public static void main(String[] args) throws Exception {
        long before = usedBytes();
        long began = System.nanoTime();
        var file = new File(args[0], "__cluster_metadata-0/00000000000000000000.log");
        var delta = new MetadataDelta.Builder().setImage(MetadataImage.EMPTY).build();
        long lastOffset = -1;
        int lastEpoch = -1;
        try (var records = FileRecords.open(file, false)) {
            for (var batch : records.batches()) {
                batch.ensureValid();
                if (!batch.isControlBatch())
                    for (var record : batch)
                        delta.replay(MetadataRecordSerde.INSTANCE
                            .read(new ByteBufferAccessor(record.value()), record.valueSize()).message());
                lastOffset = batch.lastOffset();
                lastEpoch = batch.partitionLeaderEpoch();
            }
        }
        var image = delta.apply(new MetadataProvenance(lastOffset, lastEpoch, 0, true));
        double tookS = (System.nanoTime() - began) / 1e9;
        delta = null;
        long imageBytes = usedBytes() - before;
        int partitions = image.topics().topicsById().values().stream().mapToInt(topic -> topic.partitions().size()).sum();
        System.out.printf(
            java.util.Locale.ROOT, "{\"replay_s\": %.6f, \"image_bytes\": %d, \"partitions\": %d}%n",
            tookS, imageBytes, partitions);
    }
}
