// Two libraries for Node as workers: see ../work.rs for what is said on standard input and output.
const readline = require('node:readline');
const Redis = require('ioredis');

const [lib, url, mode, holdUs, seconds, name] = process.argv.slice(2);
const hold = BigInt(holdUs) * 1000n;
const now = () => process.hrtime.bigint();
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// Runs `section` under the lock, and calls `giving` just before it is given back.
function locker(client, name) {
  if (lib === 'redis-semaphore') {
    const { Mutex } = require('redis-semaphore');
    return async (section) => {
      const mutex = new Mutex(client, name, { lockTimeout: 30000, acquireTimeout: 600000 });
      await mutex.acquire();
      await section();
      await mutex.release();
    };
  }
  const { default: Redlock } = require('redlock');
  const redlock = new Redlock([client], { retryCount: -1 });
  return (section) => redlock.using([name], 30000, section);
}

async function main() {
  const client = new Redis(url);
  const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  const warm = locker(client, `${name}:warm:${now()}`);
  for (let i = 0; i < 20; i += 1) await warm(async () => {});
  const locked = locker(client, name);
  process.stdout.write('ready\n');
  if ((await lines.next()).done) process.exit(1);
  let until = now() + BigInt(Math.round(Number(seconds) * 1e9));
  const ends = until;
  const times = [];
  while (now() < until) {
    const start = now();
    let got;
    let gave;
    await locked(async () => {
      got = now();
      if (mode === 'turns') {
        process.stdout.write('got\n');
        while (now() - got < hold);
      }
      if (mode === 'hold' && hold > 0n) await sleep(Number(hold) / 1e6);
      gave = now();
    });
    // Until the other one has it.
    if (mode === 'turns' && (await lines.next()).done) until = 0n;
    times.push(mode === 'pair' ? [start, now()] : [got, gave]);
  }
  const out = mode === 'hold' ? `${times.filter(([got]) => got < ends).length}\n` : times.map(([a, b]) => `${a} ${b}\n`).join('');
  process.stdout.write(`${out}end\n`, () => process.exit(0));
}

main().catch((e) => {
  console.error(e);
  process.exit(1);
});
