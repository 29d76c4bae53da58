// One log's folder, worked on by Kafka's own storage:
//
//   java -cp 'JARS/*' StorageOracle.java FOLDER clean|crashed NOW_MS name=value... < STEPS
//
// opens it as LogManager does, takes these steps, one a line, closes it, and prints what each step says and the log's end:
//
//   lead EPOCH NOW_MS CLIENT|COORDINATOR HEX   append a batch as the leader
//   copy EPOCH HEX                             append batches as a follower
//   truncate OFFSET | restart OFFSET | trim OFFSET | roll | retain
//   clean FIRST_DIRTY FIRST_UNCLEANABLE        one round of the cleaner
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public class StorageOracle {
    static class Clock implements Time {
        long nowMs;
        public long milliseconds() { return nowMs; }
        public long nanoseconds() { return TimeUnit.MILLISECONDS.toNanos(nowMs); }
        public void sleep(long ms) { }
        public void waitObject(Object obj, Supplier<Boolean> condition, long deadlineMs) { }
    }

    static MemoryRecords records(String hex) {
        return MemoryRecords.readableRecords(ByteBuffer.wrap(HexFormat.of().parseHex(hex)));
    }

    public static void main(String[] args) throws Exception {
        var clock = new Clock();
        clock.nowMs = Long.parseLong(args[2]);
        var properties = new Properties();
        for (int at = 3; at < args.length; at++)
            properties.setProperty(args[at].split("=", 2)[0], args[at].split("=", 2)[1]);
        var scheduler = new KafkaScheduler(1);
        scheduler.startup();
        var log = UnifiedLog.create(
            new File(args[0]), new LogConfig(properties), 0, 0, scheduler, new BrokerTopicStats(), clock, 900_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(1),
            args[1].equals("clean"), Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        var throttler = new Throttler(Double.MAX_VALUE, Long.MAX_VALUE, "throttler", "entries", clock);
        var steps = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = steps.readLine()) != null; ) {
            String[] step = line.split(" ");
            switch (step[0]) {
                case "lead" -> {
                    clock.nowMs = Long.parseLong(step[2]);
                    log.appendAsLeader(
                        records(step[4]), Integer.parseInt(step[1]), AppendOrigin.valueOf(step[3]),
                        RequestLocal.noCaching(), VerificationGuard.SENTINEL, (short) 0);
                }
                case "copy" -> log.appendAsFollower(records(step[2]), Integer.parseInt(step[1]));
                case "truncate" -> log.truncateTo(Long.parseLong(step[1]));
                case "restart" -> log.truncateFullyAndStartAt(Long.parseLong(step[1]), Optional.empty());
                case "trim" -> {
                    log.updateHighWatermark(log.logEndOffset());
                    log.maybeIncrementLogStartOffset(
                        Long.parseLong(step[1]), LogStartOffsetIncrementReason.ClientRecordDeletion);
                }
                case "roll" -> log.roll();
                case "retain" -> {
                    log.updateHighWatermark(log.logEndOffset());
                    log.deleteOldSegments();
                }
                case "clean" -> {
                    log.updateHighWatermark(log.logEndOffset());
                    var cleaner = new Cleaner(
                        0, new SkimpyOffsetMap(16 << 20), 1 << 20, 1 << 20, 0.9, throttler, clock, partition -> { });
                    var wanted = new LogToClean(log, Long.parseLong(step[1]), Long.parseLong(step[2]), true);
                    System.out.println("clean to " + cleaner.doClean(wanted, clock.nowMs).getKey());
                }
                default -> throw new IllegalArgumentException(line);
            }
        }
        System.out.println("end " + log.logEndOffset());
        log.close();
        scheduler.shutdown();
    }
}
