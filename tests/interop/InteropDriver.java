import com.wepay.waltz.client.PartitionLocalLock;
import com.wepay.waltz.client.Serializer;
import com.wepay.waltz.client.Transaction;
import com.wepay.waltz.client.TransactionBuilder;
import com.wepay.waltz.client.TransactionContext;
import com.wepay.waltz.client.WaltzClient;
import com.wepay.waltz.client.WaltzClientCallbacks;
import com.wepay.waltz.client.WaltzClientConfig;
import org.yaml.snakeyaml.Yaml;

import java.io.BufferedOutputStream;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * Drives a Waltz cluster through the public Java client and writes down what it asked and what it was told.
 *
 * <p>It is the peer of the interoperability tests. Only the public client interface is used, so it runs against any
 * release that has that interface.
 *
 * <pre>
 * java … InteropDriver work   --config client.yml --name N --journal FILE --applied FILE
 *                             [--partitions 1] [--submitters 3] [--accounts 20] [--seed 0] [--count 0]
 * java … InteropDriver append --config client.yml [--partition 0] [--count 1] [--size 0] [--label t] [--header 0]
 *                             [--write LOCKS] [--read LOCKS] [--append LOCKS] [--on-conflict retry|give-up] [--in-flight 5]
 * java … InteropDriver read   --config client.yml [--partition 0] [--from -1] [--count N | --until ID] [--data hex|none]
 * java … InteropDriver mark   --config client.yml
 * every command:              [--set KEY=VALUE]… (client configuration)  [--timeout SECONDS=60]
 * </pre>
 *
 * <p>{@code work} submits until SIGTERM (or --count appends by each submitter), then lets its feed catch up and ends with
 * status 0; with --submitters 0 it only catches up. Its journal has the form that the checker of the process tests reads;
 * --applied gets a line {@code PARTITION ID REQUEST-ID NAME} for each transaction applied (NAME is - where the payload
 * was not fetched) and tells a later start where to go on.
 *
 * <p>LOCKS is a comma-separated list of {@code name:id}; the id {@code *} is the number of the append, {@code *K} that
 * number modulo K. The payload of append i is the text {@code LABEL-i}, padded with dots to --size bytes. Output is one
 * JSON object a line.
 *
 * <p>Exit status: 0 done, 1 an append failed or an exception, 2 wrong usage, 3 not done within --timeout.
 */
public final class InteropDriver {

    private static final int LARGE_EVERY = 50; // attempts
    private static final int LARGE = 200_000; // bytes
    private static final int FETCH_EVERY = 4; // the interface fetches payloads one by one; a sample keeps up with the feed

    private static final Serializer<byte[]> BYTES = new Serializer<byte[]>() {
        @Override
        public byte[] serialize(byte[] data) {
            return data;
        }

        @Override
        public byte[] deserialize(byte[] bytes) {
            return bytes;
        }
    };

    /** The client's metrics and logging may print on standard output; only our lines go through this. */
    private static final PrintStream OUT = new PrintStream(new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), 1 << 16), false);

    private final Map<String, String> options;
    private final Map<Object, Object> config;

    private InteropDriver(Map<String, String> options, Map<Object, Object> config) {
        this.options = options;
        this.config = config;
    }

    public static void main(String[] args) throws Exception {
        int status;
        try {
            status = parse(args).run(args[0]);
        } catch (IllegalArgumentException ex) {
            System.err.println(ex.getMessage());
            status = 2;
        } catch (Exception ex) {
            ex.printStackTrace();
            status = 1;
        }
        OUT.flush();
        // The client's threads are not all daemons, and after a timeout some of them may be stuck.
        Runtime.getRuntime().halt(status);
    }

    private static InteropDriver parse(String[] args) throws Exception {
        if (args.length == 0 || args.length % 2 == 0) {
            throw new IllegalArgumentException("usage: InteropDriver work|append|read|mark --config FILE [--option value]...");
        }
        Map<String, String> options = new HashMap<>();
        Map<Object, Object> settings = new HashMap<>();
        for (int i = 1; i < args.length; i += 2) {
            String value = args[i + 1];
            if (args[i].equals("--set")) {
                int cut = value.indexOf('=');
                settings.put(value.substring(0, cut), new Yaml().load(value.substring(cut + 1)));
            } else if (args[i].startsWith("--")) {
                options.put(args[i].substring(2), value);
            } else {
                throw new IllegalArgumentException("not an option: " + args[i]);
            }
        }
        if (!options.containsKey("config")) {
            throw new IllegalArgumentException("--config FILE is missing");
        }
        Map<Object, Object> config;
        try (InputStream in = new FileInputStream(options.get("config"))) {
            config = new HashMap<>(new Yaml().<Map<Object, Object>>load(in));
        }
        config.putAll(settings);
        return new InteropDriver(options, config);
    }

    private int run(String command) throws Exception {
        switch (command) {
            case "work":
                return work();
            case "append":
                return append();
            case "read":
                return read();
            case "mark":
                return mark();
            default:
                throw new IllegalArgumentException("unknown command: " + command);
        }
    }

    private String option(String name, String otherwise) {
        return options.getOrDefault(name, otherwise);
    }

    private long number(String name, long otherwise) {
        String value = options.get(name);
        return value == null ? otherwise : Long.parseLong(value);
    }

    // ---- work

    private int work() throws Exception {
        final int partitions = (int) number("partitions", 1);
        final int submitters = (int) number("submitters", 3);
        final long count = number("count", 0);
        final String name = options.get("name");
        final AppliedFile applied = new AppliedFile(Paths.get(options.get("applied")), partitions);
        final Journal journal = new Journal(Paths.get(options.get("journal")));
        final Feed feed = new Feed(applied.marks) {
            @Override
            void seen(Transaction transaction) {
                String payload = transaction.transactionId % FETCH_EVERY == 0 ? nameOf(transaction.getTransactionData(BYTES)) : "-";
                applied.add(transaction, payload);
            }
        };
        final AtomicBoolean stopped = new AtomicBoolean();
        final Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopped.set(true);
            try {
                main.join(); // main halts the process with its own status
            } catch (InterruptedException ex) {
                Runtime.getRuntime().halt(1);
            }
        }));
        System.out.println("heeds signals"); // from now on SIGTERM has its meaning
        WaltzClient client = open(feed, IntStream.range(0, partitions).boxed().collect(Collectors.toSet()));
        List<Thread> threads = new ArrayList<>();
        AtomicInteger names = new AtomicInteger();
        for (int i = 0; i < partitions * submitters; i++) {
            final int partition = i % partitions;
            final Random random = new Random(number("seed", 0) * 1000 + i);
            threads.add(new Thread(() -> {
                for (long done = 0; !stopped.get() && (count == 0 || done < count); done++) {
                    Deed deed = new Deed(partition, random, (int) number("accounts", 20), () -> name + "." + names.incrementAndGet(), feed, journal);
                    try {
                        client.submit(deed);
                        deed.ended.await();
                    } catch (InterruptedException ex) {
                        return;
                    } catch (RuntimeException ex) {
                        continue; // onException has been called for it
                    }
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(number("timeout", 60));
        for (Map.Entry<Integer, Long> goal : highWaterMarks().entrySet()) {
            while (feed.mark(goal.getKey()) < goal.getValue()) {
                if (System.nanoTime() > end) {
                    return timedOut("partition", goal.getKey(), "applied", feed.mark(goal.getKey()), "committed", goal.getValue());
                }
                Thread.sleep(20);
            }
        }
        print("done", "client_id", client.clientId());
        client.close();
        return 0;
    }

    /** The name in a payload of the process tests, a JSON list that begins with it. */
    private static String nameOf(byte[] data) {
        String text = new String(data, StandardCharsets.UTF_8);
        return text.substring(2, text.indexOf('"', 2));
    }

    /** One submit: executed as often as the client wants, each execution an attempt with a name of its own. */
    private static final class Deed extends TransactionContext {
        private final int partition;
        private final Random random;
        private final int accounts;
        private final Supplier<String> names;
        private final Feed feed;
        private final Journal journal;
        private final CountDownLatch ended = new CountDownLatch(1);
        private String attempt;

        Deed(int partition, Random random, int accounts, Supplier<String> names, Feed feed, Journal journal) {
            this.partition = partition;
            this.random = random;
            this.accounts = accounts;
            this.names = names;
            this.feed = feed;
            this.journal = journal;
        }

        @Override
        public int partitionId(int numPartitions) {
            return partition;
        }

        @Override
        public synchronized boolean execute(TransactionBuilder builder) {
            if (attempt != null) {
                journal.failed(attempt, "decided again");
            }
            // The client took the mark that it sends before it called us, so what we read now is not older.
            long mark = feed.mark(partition);
            String[] locks = {"", "", ""};
            List<List<PartitionLocalLock>> lists = new ArrayList<>();
            int kind = random.nextInt(3);
            for (int i = 0; i < locks.length; i++) {
                // 0: two write locks; 1: read one, append to another; 2: write one, read another
                int wanted = kind == 0 ? (i == 0 ? 2 : 0) : kind == 1 ? (i == 0 ? 0 : 1) : (i == 2 ? 0 : 1);
                List<PartitionLocalLock> list = new ArrayList<>();
                for (int j = 0; j < wanted; j++) {
                    int account = random.nextInt(accounts);
                    list.add(new PartitionLocalLock("account", account));
                    locks[i] += (j == 0 ? "" : ",") + "[\"account\"," + account + "]";
                }
                lists.add(list);
            }
            attempt = names.get();
            String fields = quoted(attempt) + "," + mark + ",[" + locks[0] + "],[" + locks[1] + "],[" + locks[2] + "]";
            journal.write("\"invoked\"," + partition + "," + fields);
            builder.setHeader(kind);
            builder.setTransactionData(payload("[" + fields + ",null]", random.nextInt(LARGE_EVERY) == 0 ? LARGE : 0, ' '), BYTES);
            builder.setWriteLocks(lists.get(0));
            builder.setReadLocks(lists.get(1));
            builder.setAppendLocks(lists.get(2));
            return true;
        }

        @Override
        public synchronized void onApplication() {
            // Called right after applyTransaction of this very transaction, so the feed's mark is its id.
            journal.write("\"committed\"," + quoted(attempt) + "," + feed.mark(partition));
            ended.countDown();
        }

        @Override
        public void onException(Throwable ex) {
            print("exception", "partition", partition, "error", ex.toString());
            ended.countDown(); // what became of the last attempt is unknown
        }
    }

    /** What is asked and told, a line at a time; a line that was written survives kill -9. */
    private static final class Journal {
        private final FileOutputStream file;

        Journal(Path path) throws IOException {
            file = new FileOutputStream(path.toFile(), true);
        }

        void failed(String name, String why) {
            write("\"failed\"," + quoted(name) + "," + quoted(why) + ",-1");
        }

        synchronized void write(String fields) {
            try {
                file.write(("[" + System.nanoTime() + "," + fields + "]\n").getBytes(StandardCharsets.UTF_8));
            } catch (IOException ex) {
                throw new IllegalStateException(ex);
            }
        }
    }

    /** What was applied, a line at a time; a last line that a kill cut is taken away. */
    private static final class AppliedFile {
        private final RandomAccessFile file;
        final Map<Integer, Long> marks = new HashMap<>();

        AppliedFile(Path path, int partitions) throws IOException {
            IntStream.range(0, partitions).forEach(partition -> marks.put(partition, -1L));
            String text = Files.exists(path) ? new String(Files.readAllBytes(path), StandardCharsets.US_ASCII) : "";
            int whole = text.lastIndexOf('\n') + 1;
            for (String line : text.substring(0, whole).split("\n")) {
                if (!line.isEmpty()) {
                    String[] words = line.split(" ");
                    marks.put(Integer.parseInt(words[0]), Long.parseLong(words[1]));
                }
            }
            file = new RandomAccessFile(path.toFile(), "rw");
            file.setLength(whole);
            file.seek(whole);
        }

        synchronized void add(Transaction transaction, String name) {
            String reqId = String.format("%08x%08x%08x%08x", transaction.reqId.clientId(), transaction.reqId.generation(),
                transaction.reqId.partitionId(), transaction.reqId.seqNum());
            try {
                file.write((transaction.reqId.partitionId() + " " + transaction.transactionId + " " + reqId + " " + name + "\n")
                    .getBytes(StandardCharsets.US_ASCII));
            } catch (IOException ex) {
                throw new IllegalStateException(ex);
            }
        }
    }

    // ---- append, read, mark

    private int append() throws Exception {
        final int partition = (int) number("partition", 0);
        final int count = (int) number("count", 1);
        final int size = (int) number("size", 0);
        final int header = (int) number("header", 0);
        final String label = option("label", "t");
        final boolean giveUp = option("on-conflict", "retry").equals("give-up");
        final int inFlight = (int) number("in-flight", WaltzClientConfig.DEFAULT_MAX_CONCURRENT_TRANSACTIONS);
        final Locks locks = new Locks(option("write", ""), option("read", ""), option("append", ""));

        Feed feed = new Feed(highWaterMarks());
        CountDownLatch unresolved = new CountDownLatch(count);
        AtomicInteger failed = new AtomicInteger();
        config.put(WaltzClientConfig.MAX_CONCURRENT_TRANSACTIONS, inFlight);
        WaltzClient client = open(feed, Collections.singleton(partition));
        Thread submitter = new Thread(() -> {
            for (int i = 0; i < count; i++) {
                try {
                    client.submit(new Append(partition, i, header, payload(label + "-" + i, size, '.'), locks, giveUp, feed, unresolved, failed));
                } catch (RuntimeException ex) {
                    continue; // onException has already been called for it.
                }
            }
        });
        submitter.setDaemon(true);
        submitter.start();
        if (!unresolved.await(number("timeout", 60), TimeUnit.SECONDS)) {
            return timedOut("unresolved", unresolved.getCount());
        }
        print("done", "count", count, "failed", failed.get(), "client_id", client.clientId());
        client.close();
        return failed.get() == 0 ? 0 : 1;
    }

    private int read() throws Exception {
        final int partition = (int) number("partition", 0);
        final long from = number("from", -1);
        final String data = option("data", "hex");
        Map<Integer, Long> marks = highWaterMarks();
        long last = options.containsKey("until") ? number("until", 0)
            : options.containsKey("count") ? from + number("count", 0)
            : marks.get(partition);
        CountDownLatch reached = new CountDownLatch(last > from ? 1 : 0);
        marks.put(partition, from);
        Feed feed = new Feed(marks) {
            @Override
            void seen(Transaction transaction) {
                if (transaction.transactionId > last) {
                    return;
                }
                List<Object> fields = new ArrayList<>(Arrays.asList("partition", transaction.reqId.partitionId(),
                    "transaction_id", transaction.transactionId, "client_id", transaction.reqId.clientId(),
                    "generation", transaction.reqId.generation(), "seq_num", transaction.reqId.seqNum(),
                    "header", transaction.getHeader()));
                if (!data.equals("none")) {
                    fields.add("data");
                    fields.add(hex(transaction.getTransactionData(BYTES)));
                }
                print("transaction", fields.toArray());
                if (transaction.transactionId == last) {
                    reached.countDown();
                }
            }
        };
        WaltzClient client = open(feed, Collections.singleton(partition));
        if (!reached.await(number("timeout", 60), TimeUnit.SECONDS)) {
            return timedOut("applied", feed.mark(partition));
        }
        print("done", "last", last);
        client.close();
        return 0;
    }

    private int mark() throws Exception {
        for (Map.Entry<Integer, Long> entry : highWaterMarks().entrySet()) {
            print("mark", "partition", entry.getKey(), "high_water_mark", entry.getValue());
        }
        return 0;
    }

    // ---- the client

    /** Opens a client that works with some partitions and starts each feed at the feed's mark. */
    private WaltzClient open(Feed feed, Set<Integer> partitions) throws Exception {
        config.put(WaltzClientConfig.AUTO_MOUNT, false);
        WaltzClient client = new WaltzClient(feed, new WaltzClientConfig(config));
        client.setPartitions(partitions);
        return client;
    }

    /** Asks the cluster for the high-water mark of every partition, with a client of its own that mounts nothing. */
    private Map<Integer, Long> highWaterMarks() throws Exception {
        config.put(WaltzClientConfig.AUTO_MOUNT, false);
        WaltzClient client = new WaltzClient(new Feed(Collections.emptyMap()), new WaltzClientConfig(config));
        try {
            int partitions = client.getNumPartitions();
            return IntStream.range(0, partitions).boxed()
                .collect(Collectors.toMap(id -> id, id -> Math.max(-1L, client.getHighWaterMark(id))));
        } finally {
            client.close();
        }
    }

    /** Keeps, per partition, the id of the last transaction applied. */
    private static class Feed implements WaltzClientCallbacks {
        private final Map<Integer, Long> marks;

        Feed(Map<Integer, Long> marks) {
            this.marks = new ConcurrentHashMap<>(marks);
        }

        long mark(int partition) {
            return marks.getOrDefault(partition, -1L);
        }

        void seen(Transaction transaction) {
        }

        @Override
        public long getClientHighWaterMark(int partitionId) {
            return mark(partitionId);
        }

        @Override
        public void applyTransaction(Transaction transaction) {
            seen(transaction);
            marks.put(transaction.reqId.partitionId(), transaction.transactionId);
        }

        @Override
        public void uncaughtException(int partitionId, long transactionId, Throwable exception) {
            print("uncaught", "partition", partitionId, "transaction_id", transactionId, "error", exception.toString());
        }
    }

    /** One append; reports its outcome once. */
    private static final class Append extends TransactionContext {
        private final int partition;
        private final int index;
        private final int header;
        private final byte[] data;
        private final Locks locks;
        private final boolean giveUp;
        private final Feed feed;
        private final CountDownLatch unresolved;
        private final AtomicInteger failed;
        private final AtomicInteger executions = new AtomicInteger();
        private final AtomicInteger lockFailures = new AtomicInteger();

        Append(int partition, int index, int header, byte[] data, Locks locks, boolean giveUp, Feed feed, CountDownLatch unresolved, AtomicInteger failed) {
            this.partition = partition;
            this.index = index;
            this.header = header;
            this.data = data;
            this.locks = locks;
            this.giveUp = giveUp;
            this.feed = feed;
            this.unresolved = unresolved;
            this.failed = failed;
        }

        @Override
        public int partitionId(int numPartitions) {
            return partition;
        }

        @Override
        public boolean execute(TransactionBuilder builder) {
            executions.incrementAndGet();
            if (giveUp && lockFailures.get() > 0) {
                return false;
            }
            builder.setHeader(header);
            builder.setTransactionData(data, BYTES);
            locks.set(builder, index);
            return true;
        }

        @Override
        public void onLockFailure() {
            lockFailures.incrementAndGet();
        }

        @Override
        public void onCompletion(boolean result) {
            if (!result) {
                report("ignored");
            }
        }

        @Override
        public void onApplication() {
            // Called right after applyTransaction of this very transaction, so the feed's mark is its id.
            report("committed", "transaction_id", feed.mark(partition));
        }

        @Override
        public void onException(Throwable ex) {
            failed.incrementAndGet();
            report("failed", "error", ex.toString());
        }

        private void report(String event, Object... more) {
            List<Object> fields = new ArrayList<>(Arrays.asList("index", index, "partition", partition,
                "executions", executions.get(), "lock_failures", lockFailures.get()));
            fields.addAll(Arrays.asList(more));
            print(event, fields.toArray());
            unresolved.countDown();
        }
    }

    /** The locks of every append, with ids that may depend on its number. */
    private static final class Locks {
        private final String[] write;
        private final String[] read;
        private final String[] append;

        Locks(String write, String read, String append) {
            this.write = write.isEmpty() ? new String[0] : write.split(",");
            this.read = read.isEmpty() ? new String[0] : read.split(",");
            this.append = append.isEmpty() ? new String[0] : append.split(",");
        }

        void set(TransactionBuilder builder, int index) {
            builder.setWriteLocks(of(write, index));
            builder.setReadLocks(of(read, index));
            builder.setAppendLocks(of(append, index));
        }

        private static List<PartitionLocalLock> of(String[] texts, int index) {
            List<PartitionLocalLock> locks = new ArrayList<>(texts.length);
            for (String text : texts) {
                int cut = text.lastIndexOf(':');
                String id = text.substring(cut + 1);
                long value = id.equals("*") ? index
                    : id.startsWith("*") ? index % Long.parseLong(id.substring(1))
                    : Long.parseLong(id);
                locks.add(new PartitionLocalLock(text.substring(0, cut), value));
            }
            return locks;
        }
    }

    // ---- output

    /** A text, padded to a size. */
    private static byte[] payload(String content, int size, char padding) {
        byte[] text = content.getBytes(StandardCharsets.UTF_8);
        if (size <= text.length) {
            return text;
        }
        byte[] padded = Arrays.copyOf(text, size);
        Arrays.fill(padded, text.length, size, (byte) padding);
        return padded;
    }

    private static int timedOut(Object... fields) {
        print("timeout", fields);
        return 3;
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder(2 * bytes.length);
        for (byte b : bytes) {
            text.append(Character.forDigit((b >> 4) & 15, 16)).append(Character.forDigit(b & 15, 16));
        }
        return text.toString();
    }

    private static void print(String event, Object... fields) {
        StringBuilder line = new StringBuilder("{\"event\":").append(quoted(event));
        for (int i = 0; i < fields.length; i += 2) {
            Object value = fields[i + 1];
            line.append(',').append(quoted((String) fields[i])).append(':').append(value instanceof Number ? value.toString() : quoted(String.valueOf(value)));
        }
        line.append('}');
        synchronized (OUT) {
            OUT.println(line);
            OUT.flush();
        }
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }
}
