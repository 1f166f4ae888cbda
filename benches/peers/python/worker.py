"""Two Python libraries as workers: see ../work.rs for what is said on standard input and output."""
import sys
import time

import redis


def locker(lib, url, name):
    client = redis.Redis.from_url(url)
    if lib == "redis-py":
        return lambda: client.lock(name, timeout=30)
    import redis_lock

    return lambda: redis_lock.Lock(client, name, expire=30, auto_renewal=True)


def main():
    lib, url, mode, hold_us, seconds, name = sys.argv[1:]
    hold, seconds = int(hold_us) / 1e6, float(seconds)
    warm = locker(lib, url, name + ":warm:" + str(time.monotonic_ns()))
    for _ in range(3):
        lock = warm()
        lock.acquire()
        lock.release()
    make = locker(lib, url, name)
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    until = time.monotonic() + seconds
    ends = until * 1e9
    times = []
    while time.monotonic() < until:
        lock = make()
        start = time.monotonic_ns()
        lock.acquire()
        got = time.monotonic_ns()
        if mode == "turns":
            print("got", flush=True)
            while time.monotonic_ns() - got < hold * 1e9:
                pass
        elif hold:
            time.sleep(hold)
        gave = time.monotonic_ns()
        lock.release()
        # Until the other one has it.
        if mode == "turns" and not sys.stdin.readline():
            until = 0
        if mode == "pair":
            times.append((start, time.monotonic_ns()))
        else:
            times.append((got, gave))
    if mode == "hold":
        print(sum(got < ends for got, _ in times))
    else:
        sys.stdout.write("".join(f"{a} {b}\n" for a, b in times))
    print("end", flush=True)


main()
