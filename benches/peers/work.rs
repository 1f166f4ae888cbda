// What a worker does, whichever library it uses; included by ours, and by the one for other crates.
//
// Arguments: library, URL, mode, hold (µs), seconds, name. It says `ready`, waits for a line, works until its time is up, and
// says what came of it, then `end`. Modes: `turns`: holds while it spins, says `got` when it has it, and tries again when
// it hears a line; in the end a line for each hold, when it had it and when it began to give it back (ns, CLOCK_MONOTONIC); `hold`: holds while it sleeps, says how often it had it in time; `pair`: says a line for each, when it
// began and when it was done. It ends when its standard input does.

/// On a clock that all processes share (ns).
fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn work(args: &[String], mut locked: impl FnMut(&str, &mut dyn FnMut())) {
    use std::io::Write;
    let [_, _, mode, hold_us, seconds, name] = args else {
        panic!("library, url, mode, hold, seconds and name")
    };
    let hold_ns = hold_us.parse::<u64>().expect("a number") * 1000;
    let seconds: f64 = seconds.parse().expect("a number");
    let warm = format!("{name}:warm:{}", std::process::id());
    for _ in 0..20 {
        locked(&warm, &mut || {});
    }
    println!("ready");
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).expect("a line") == 0 {
        return;
    }
    let mut until = now() + (seconds * 1e9) as u64;
    let ends = until;
    let mut times = Vec::new();
    while now() < until {
        let start = now();
        let (mut got, mut gave) = (0, 0);
        locked(name, &mut || {
            got = now();
            if mode == "turns" {
                println!("got");
                while now() - got < hold_ns {
                    std::hint::spin_loop();
                }
            } else if hold_ns > 0 {
                std::thread::sleep(std::time::Duration::from_nanos(hold_ns));
            }
            gave = now();
        });
        // Until the other one has it.
        if mode == "turns" && std::io::stdin().read_line(&mut line).expect("a line") == 0 {
            until = 0;
        }
        times.push(if mode == "pair" { (start, now()) } else { (got, gave) });
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if mode == "hold" {
        let had = times.iter().filter(|(got, _)| *got < ends).count();
        writeln!(out, "{had}").expect("written");
    } else {
        for (a, b) in times {
            writeln!(out, "{a} {b}").expect("written");
        }
    }
    writeln!(out, "end").and_then(|()| out.flush()).expect("written");
}
