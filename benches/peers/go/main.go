// Three libraries for Go as workers: see ../work.rs for what is said on standard input and output.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"golang.org/x/sys/unix"
)

// On a clock that all processes share.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Takes the lock; what it returns gives it back. The second one ends it all.
func locker(lib, address string) (func(name string) func(), func()) {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: address})
	switch lib {
	case "redsync":
		rs := redsync.New(goredis.NewPool(client))
		return func(name string) func() {
			mutex := rs.NewMutex(name, redsync.WithExpiry(30*time.Second), redsync.WithTries(1<<30))
			if err := mutex.Lock(); err != nil {
				panic(err)
			}
			return func() { must(mutex.Unlock()) }
		}, func() {}
	case "redislock":
		locks := redislock.New(client)
		options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
		return func(name string) func() {
			bounded, cancel := context.WithTimeout(ctx, 10*time.Minute)
			lock := must(locks.Obtain(bounded, name, 30*time.Second, options))
			return func() {
				if err := lock.Release(ctx); err != nil {
					panic(err)
				}
				cancel()
			}
		}, func() {}
	default:
		locks := must(rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{address}},
			KeyMajority:  1,
		}))
		return func(name string) func() {
			_, cancel, err := locks.WithContext(ctx, name)
			if err != nil {
				panic(err)
			}
			return cancel
		}, locks.Close
	}
}

func main() {
	lib, mode, name := os.Args[1], os.Args[3], os.Args[6]
	address := must(url.Parse(os.Args[2])).Host
	hold := time.Duration(must(strconv.Atoi(os.Args[4]))) * time.Microsecond
	seconds := must(strconv.ParseFloat(os.Args[5], 64))
	lock, end := locker(lib, address)
	for i := 0; i < 20; i++ {
		lock(fmt.Sprintf("%s:warm:%d", name, os.Getpid()))()
	}
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		os.Exit(1)
	}
	until := now() + int64(seconds*1e9)
	ends := until
	var times [][2]int64
	for now() < until {
		start := now()
		unlock := lock(name)
		got := now()
		if mode == "turns" {
			fmt.Println("got")
			for now()-got < hold.Nanoseconds() {
			}
		} else if hold > 0 {
			time.Sleep(hold)
		}
		gave := now()
		unlock()
		if mode == "turns" {
			// Until the other one has it.
			if _, err := in.ReadString('\n'); err != nil {
				until = 0
			}
		}
		if mode == "pair" {
			times = append(times, [2]int64{start, now()})
		} else {
			times = append(times, [2]int64{got, gave})
		}
	}
	out := bufio.NewWriter(os.Stdout)
	if mode == "hold" {
		had := 0
		for _, t := range times {
			if t[0] < ends {
				had++
			}
		}
		fmt.Fprintln(out, had)
	} else {
		for _, t := range times {
			fmt.Fprintln(out, t[0], t[1])
		}
	}
	end()
	fmt.Fprintln(out, "end")
	out.Flush()
}
