import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own producer, with so many records unacknowledged and no more.
 *
 * <p>Arguments: topic, bytes of a record, settings of the producer as KEY=VALUE. Each line of input is a load, records in
 * flight, records and seconds: it ends when that many were sent and that long has passed. The answer is a line of figures.
 *
 * <p>Kafka's ProducerPerformance bounds bytes and not records, counts whole milliseconds, and how long a record waits
 * because too many are in flight.
 */
public final class KafkaLoad {
    private static long[] took = new long[1 << 16];

    private KafkaLoad() {
    }

    public static void main(String[] arguments) throws Exception {
        ProducerRecord<byte[], byte[]> record =
            new ProducerRecord<>(arguments[0], 0, null, new byte[Integer.parseInt(arguments[1])]);
        Properties settings = new Properties();
        for (String setting : Arrays.asList(arguments).subList(2, arguments.length)) {
            String[] parts = setting.split("=", 2);
            settings.setProperty(parts[0], parts[1]);
        }
        ByteArraySerializer asTheyAre = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, asTheyAre, asTheyAre);
                BufferedReader loads = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line = loads.readLine(); line != null; line = loads.readLine()) {
                String[] words = line.split(" ");
                int inFlight = Integer.parseInt(words[0]);
                System.out.println(load(producer, record, inFlight, Long.parseLong(words[1]), Double.parseDouble(words[2])));
            }
        }
    }

    private static String load(
            KafkaProducer<byte[], byte[]> producer, ProducerRecord<byte[], byte[]> record, int inFlight, long count, double seconds)
            throws Exception {
        Semaphore free = new Semaphore(inFlight);
        AtomicReference<Exception> failed = new AtomicReference<>();
        int[] answered = {0}; // only the producer's thread calls back
        int sent = 0;
        long begin = System.nanoTime();
        while (failed.get() == null && (sent < count || System.nanoTime() - begin < seconds * 1e9)) {
            free.acquire();
            sent++;
            long at = System.nanoTime();
            producer.send(record, (metadata, error) -> {
                if (error != null) {
                    failed.set(error);
                }
                if (answered[0] == took.length) {
                    took = Arrays.copyOf(took, 2 * took.length);
                }
                took[answered[0]++] = System.nanoTime() - at;
                free.release();
            });
        }
        free.acquire(inFlight);
        double passed = (System.nanoTime() - begin) / 1e9;
        if (failed.get() != null) {
            throw failed.get();
        }
        Arrays.sort(took, 0, sent);
        return String.format(
            Locale.ROOT,
            "{\"commits\": %d, \"tx_per_s\": %.0f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}",
            sent, sent / passed, took[sent / 2] / 1e6, took[(int) (sent * 0.99)] / 1e6);
    }
}
