// Messages as Kafka itself writes them. Reads lines "NAME version json", prints "NAME version hex":
//
//   python tests/unit/protocol/codec/golden_messages.py | java -cp 'JARS/*' \
//     tests/unit/protocol/codec/GoldenMessages.java > tests/unit/protocol/codec/golden_messages.txt
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

public class GoldenMessages {
    public static void main(String[] args) throws Exception {
        var mapper = new ObjectMapper();
        var lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line; (line = lines.readLine()) != null; ) {
            String[] parts = line.split(" ", 3);
            short version = Short.parseShort(parts[1]);
            var converter = Class.forName("org.apache.kafka.common.message." + parts[0] + "DataJsonConverter");
            var message = (ApiMessage) converter.getMethod("read", JsonNode.class, short.class)
                .invoke(null, mapper.readTree(parts[2]), version);
            var cache = new ObjectSerializationCache();
            var buffer = java.nio.ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(buffer), cache, version);
            System.out.println(parts[0] + " " + version + " " + HexFormat.of().formatHex(buffer.array()));
        }
    }
}
