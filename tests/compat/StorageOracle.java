// One log's folder, worked on by Kafka's own storage:
//
//   java -cp 'JARS/*' StorageOracle.java FOLDER clean|crashed NOW_MS [FIRST_DIRTY FIRST_UNCLEANABLE]... -- name=value...
//
// opens it as LogManager does, runs a cleaning for each pair of offsets, closes it, and prints where the log ends.
import java.io.File;
import java.util.ArrayList;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public class StorageOracle {
    record At(long milliseconds) implements Time {
        public long nanoseconds() { return TimeUnit.MILLISECONDS.toNanos(milliseconds); }
        public void sleep(long ms) { }
        public void waitObject(Object obj, Supplier<Boolean> condition, long deadlineMs) { }
    }

    public static void main(String[] args) throws Exception {
        var now = new At(Long.parseLong(args[2]));
        var properties = new Properties();
        var rounds = new ArrayList<long[]>();
        int at = 3;
        for (; at < args.length && !args[at].equals("--"); at += 2)
            rounds.add(new long[] {Long.parseLong(args[at]), Long.parseLong(args[at + 1])});
        for (at++; at < args.length; at++)
            properties.setProperty(args[at].split("=", 2)[0], args[at].split("=", 2)[1]);
        var scheduler = new KafkaScheduler(1);
        scheduler.startup();
        var log = UnifiedLog.create(
            new File(args[0]), new LogConfig(properties), 0, 0, scheduler, new BrokerTopicStats(), now, 900_000,
            new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(1),
            args[1].equals("clean"), Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        var throttler = new Throttler(Double.MAX_VALUE, Long.MAX_VALUE, "throttler", "entries", now);
        for (long[] round : rounds) {
            var map = new SkimpyOffsetMap(16 * 1024 * 1024);
            var cleaner = new Cleaner(0, map, 1 << 20, 1 << 20, 0.9, throttler, now, partition -> { });
            var done = cleaner.doClean(new LogToClean(log, round[0], round[1], true), now.milliseconds());
            System.out.println("clean to " + done.getKey());
        }
        System.out.println("end " + log.logEndOffset());
        log.close();
        scheduler.shutdown();
    }
}
