// What Kafka's controller makes of a partition:
//
//   java -cp 'JARS/*' PartitionChangeOracle.java < cases > records
//
// A case is a line of fields separated by ';', a list of ids is separated by ','. A record is a line of its fields,
// with "null" for those that do not change, or "none".
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionChangeRecord;
import org.apache.kafka.controller.PartitionChangeBuilder;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.MetadataVersion;

public class PartitionChangeOracle {
    static List<Integer> ids(String field) {
        var list = new ArrayList<Integer>();
        if (!field.isEmpty()) for (String id : field.split(",")) list.add(Integer.parseInt(id));
        return list;
    }

    static int[] array(String field) {
        return ids(field).stream().mapToInt(Integer::intValue).toArray();
    }

    static Uuid directory(int broker) {
        return new Uuid(0, 1000 + broker);
    }

    static String text(List<?> list) {
        return list == null ? "null" : String.join(",", list.stream().map(Object::toString).toList());
    }

    public static void main(String[] args) throws Exception {
        var out = new StringBuilder();
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] f = line.split(";", -1);
            int[] replicas = array(f[0]);
            var directories = new Uuid[replicas.length];
            for (int i = 0; i < replicas.length; i++) directories[i] = directory(replicas[i]);
            var partition = new PartitionRegistration.Builder()
                .setReplicas(replicas).setDirectories(directories).setIsr(array(f[1]))
                .setLeader(Integer.parseInt(f[2])).setElr(array(f[3])).setLastKnownElr(array(f[4]))
                .setAddingReplicas(array(f[5])).setRemovingReplicas(array(f[6]))
                .setLeaderRecoveryState(LeaderRecoveryState.of(Byte.parseByte(f[7])))
                .setLeaderEpoch(4).setPartitionEpoch(9).build();
            var alive = new HashSet<>(ids(f[14]));
            var builder = new PartitionChangeBuilder(
                partition, new Uuid(0, 7), 3, alive::contains,
                MetadataVersion.fromFeatureLevel(Short.parseShort(f[17])), Integer.parseInt(f[15]),
                f[16].equals("1"))
                .setTargetIsr(ids(f[8])).setTargetReplicas(ids(f[9])).setTargetAdding(ids(f[10]))
                .setTargetRemoving(ids(f[11]))
                .setTargetLeaderRecoveryState(LeaderRecoveryState.of(Byte.parseByte(f[12])))
                .setElection(PartitionChangeBuilder.Election.valueOf(f[13]))
                .setDefaultDirProvider(PartitionChangeOracle::directory);
            if (!f[18].isEmpty()) builder.setUncleanShutdownReplicas(ids(f[18]));
            var change = builder.build();
            if (change.isEmpty()) {
                out.append("none\n");
                continue;
            }
            var record = (PartitionChangeRecord) change.get().message();
            out.append(String.join(";",
                Integer.toString(record.leader()), text(record.isr()), text(record.replicas()),
                text(record.addingReplicas()), text(record.removingReplicas()),
                Integer.toString(record.leaderRecoveryState()),
                record.directories() == null ? "null"
                    : text(record.directories().stream().map(Uuid::getLeastSignificantBits).toList()),
                text(record.eligibleLeaderReplicas()), text(record.lastKnownElr())));
            out.append('\n');
        }
        System.out.print(out);
    }
}
