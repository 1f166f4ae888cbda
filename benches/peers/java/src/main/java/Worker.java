import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.config.Config;

/** Redisson as a worker: see ../work.rs for what is said on standard input and output. */
public final class Worker {
    public static void main(String[] args) throws Exception {
        String lib = args[0], mode = args[2], name = args[5];
        long hold = Long.parseLong(args[3]) * 1000;
        double seconds = Double.parseDouble(args[4]);
        Config config = new Config();
        config.useSingleServer().setAddress(args[1].replaceAll("/$", ""));
        var client = Redisson.create(config);
        boolean fair = lib.equals("redisson-fair");
        RLock warm = client.getLock(name + ":warm:" + ProcessHandle.current().pid());
        for (int i = 0; i < 200; i++) {
            warm.lock();
            warm.unlock();
        }
        RLock lock = fair ? client.getFairLock(name) : client.getLock(name);
        System.out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        if (in.readLine() == null) {
            System.exit(1);
        }
        long until = System.nanoTime() + (long) (seconds * 1e9);
        long ends = until;
        List<long[]> times = new ArrayList<>();
        while (until != Long.MIN_VALUE && System.nanoTime() < until) {
            long start = System.nanoTime();
            // Renewed by its watchdog.
            lock.lock();
            long got = System.nanoTime();
            if (mode.equals("turns")) {
                System.out.println("got");
                while (System.nanoTime() - got < hold) {
                    Thread.onSpinWait();
                }
            } else if (hold > 0) {
                Thread.sleep(hold / 1_000_000, (int) (hold % 1_000_000));
            }
            long gave = System.nanoTime();
            lock.unlock();
            // Until the other one has it.
            if (mode.equals("turns") && in.readLine() == null) {
                until = Long.MIN_VALUE;
            }
            times.add(mode.equals("pair") ? new long[] {start, System.nanoTime()} : new long[] {got, gave});
        }
        StringBuilder out = new StringBuilder();
        if (mode.equals("hold")) {
            out.append(times.stream().filter(t -> t[0] < ends).count()).append('\n');
        } else {
            for (long[] t : times) {
                out.append(t[0]).append(' ').append(t[1]).append('\n');
            }
        }
        System.out.print(out.append("end\n"));
        System.out.flush();
        System.exit(0);
    }
}
