// Metadata records as Kafka itself writes them. Reads lines "NAME version json", prints "NAME version hex":
//
//   python tests/unit/metadata/metadata_cases.py | java -cp 'JARS/*' tests/unit/metadata/GoldenRecords.java \
//     > tests/unit/metadata/golden.txt
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.common.metadata.MetadataJsonConverters;
import org.apache.kafka.common.metadata.MetadataRecordType;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;

public class GoldenRecords {
    public static void main(String[] args) throws Exception {
        var serde = MetadataRecordSerde.INSTANCE;
        var mapper = new ObjectMapper();
        var lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] parts = line.split(" ", 3);
            short version = Short.parseShort(parts[1]);
            short key = MetadataRecordType.valueOf(parts[0]).id();
            var record = MetadataJsonConverters.readJson(mapper.readTree(parts[2]), key, version);
            var message = new ApiMessageAndVersion(record, version);
            var cache = new ObjectSerializationCache();
            var buffer = java.nio.ByteBuffer.allocate(serde.recordSize(message, cache));
            serde.write(message, cache, new ByteBufferAccessor(buffer));
            System.out.println(parts[0] + " " + version + " " + HexFormat.of().formatHex(buffer.array()));
        }
    }
}
