# What redis-py's own redis.lock.Lock does, told line by line to the test that started this: interop.rs.
import sys
import time

import redis


def say(*words):
    print(*words, flush=True)


def hear(word):
    line = sys.stdin.readline().strip()
    if line != word:
        sys.exit(f"heard {line!r} instead of {word!r}")


def count(client, name, rounds):
    """Reads, then writes: lost updates show if two are inside at once. `inside` shows it directly."""
    lock = client.lock(name, timeout=20, sleep=0.005, blocking_timeout=60)
    for _ in range(rounds):
        if not lock.acquire():
            sys.exit("not acquired within a minute")
        if client.incr("inside") != 1:
            sys.exit("two are inside at once")
        n = int(client.get("counter") or 0)
        time.sleep(0.0005)
        client.set("counter", n + 1)
        client.decr("inside")
        lock.release()


def main():
    port, name, part = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    client = redis.Redis("127.0.0.1", port, socket_timeout=10)
    if part == "hold":
        timeout = None if sys.argv[4] == "forever" else float(sys.argv[4])
        lock = client.lock(name, timeout=timeout)
        say("got" if lock.acquire(blocking=False) else "busy")
        hear("release")
        lock.release()
        say("released")
    elif part == "try":
        lock = client.lock(name, timeout=20)
        say("got" if lock.acquire(blocking=False) else "busy")
    elif part == "wait":
        lock = client.lock(name, timeout=20, sleep=0.05)
        say("waiting")
        got = lock.acquire(blocking_timeout=30)
        say("got" if got else "busy")
        if got:
            lock.release()
    elif part == "stale":
        # Holds past its timeout; its release must not take away what somebody else has by then.
        lock = client.lock(name, timeout=float(sys.argv[4]))
        say("got" if lock.acquire(blocking=False) else "busy")
        hear("release")
        try:
            lock.release()
            say("released")
        except redis.exceptions.LockError as e:
            say("refused", type(e).__name__)
    elif part == "count":
        count(client, name, int(sys.argv[4]))
        say("counted")
    else:
        sys.exit(f"no part {part}")


main()
