#!/usr/bin/env python3
"""Measures `paceline serve` under load, from this machine, with nothing but Python's standard library.

    python3 bench/serve_load.py --bin target/release/paceline MODEL [--draft D] [--save NAME]

For drafting off and on it starts a server and measures
  - one client, whole answers: tokens/s beside the same prompts in `paceline run`, one after the other (what HTTP costs);
  - 1, 8 and 32 clients, streamed: tokens/s of all together, beside that many times the first client of the run, which has no drafts
    unless --mode says so (what a pass of many rows would give if it cost as much as one of a single row), and the times between tokens;
  - the same times with 8 clients while long prompts arrive;
  - processor time of the threads that serve HTTP, for each streamed token: all that the kernel says they ran for, from reading
    requests to writing the last byte, sockets included. Handing an event over runs on the engine's thread; it is in tokens/s.
With --storm S it sends random requests for S seconds instead, from ten times as many clients as there are places. A third of them are
cut off, whole or in the middle of their stream, and some are read slowly through a small socket. It checks that nobody waits for
ever, that streams are whole, that memory stays, that slots, places and blocks come back, and that the server then answers at once what
it answered before.

Times between tokens are taken where a client reads them. Tokens of one round arrive together, so half of them may show 0.
The client shares the processors with the server: on a small machine the figures are a lower bound.
"""
import argparse
import asyncio
import itertools
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time

import record

ASKS = ["Tell me a short story about a fox.", "What is the capital of France?", "Count to ten.", "Name a fruit.", "Who are you?",
        "What is 17 plus 25?", "Tell me a story about a dog and a cat.", "Write about the sea."]

# Outputs that run and that wait in a storm, and the seconds after which a request is stuck.
STORM_RUNNING, STORM_QUEUE, STUCK = 8, 16, 60


class Server:
    def __init__(self, args, draft, *more):
        command = [args.bin, "serve", args.model, "--port", "0", "--log", "warn", "--threads", str(args.threads),
                   "--context", str(args.context), *more]
        if draft:
            command += ["--draft", args.draft, "--draft-tokens", args.draft_tokens]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.match(r"listening on http://([\d.]+):(\d+)", line)
        if not found:
            sys.exit("the server did not start: %r" % line)
        self.host, self.port = found[1], int(found[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def http_seconds(self):
        """Processor time of the threads that serve connections."""
        nanoseconds = 0
        base = "/proc/%d/task" % self.process.pid
        for task in os.listdir(base):
            with open("%s/%s/comm" % (base, task)) as f:
                serves = f.read().startswith("paceline-http")
            if serves:
                with open("%s/%s/schedstat" % (base, task)) as f:
                    nanoseconds += int(f.read().split()[0])
        return nanoseconds / 1e9

    def resident_kb(self):
        with open("/proc/%d/status" % self.process.pid) as f:
            return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])

    async def metrics(self):
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        page = (await reader.read()).decode()
        writer.close()
        return {m[1]: float(m[2]) for m in re.finditer(r'^([a-z:_0-9]+)\{model_name="[^"]*"\} (\S+)$', page, re.M)}


class Refused(Exception):
    """The server answered with a status that is not 200."""

    def __init__(self, status):
        super().__init__("HTTP %d" % status)
        self.status = status


class Client:
    """One connection, kept open between requests. A slow one holds little that was not read."""

    def __init__(self, server, slow=False):
        self.server, self.streams, self.slow = server, None, slow

    async def connect(self):
        if not self.slow:
            return await asyncio.open_connection(self.server.host, self.server.port)
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.setblocking(False)
        await asyncio.get_running_loop().sock_connect(narrow, (self.server.host, self.server.port))
        return await asyncio.open_connection(sock=narrow, limit=4096)

    async def post(self, body):
        if self.streams is None:
            self.streams = await self.connect()
        reader, writer = self.streams
        data = json.dumps(body).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                     b"content-length: %d\r\n\r\n" % len(data) + data)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        return reader, int(head.split()[1]), head

    async def whole(self, body):
        reader, status, head = await self.post(body)
        answer = await reader.readexactly(int(re.search(r"content-length: (\d+)", head)[1]))
        return status, json.loads(answer)

    async def stream(self, body):
        """Times at which tokens arrived, and how many."""
        reader, status, _ = await self.post(dict(body, stream=True, return_token_ids=True))
        if status != 200:
            raise Refused(status)
        times = []
        while True:
            size = int(await reader.readline(), 16)
            part = await reader.readexactly(size + 2)
            if size == 0:
                return times
            now = time.perf_counter()
            times += [now] * part.count(b'"token_ids":[')

    async def slowly(self, body, pause, n_pauses):
        """Reads a stream with pauses; whether it came to its end in order."""
        reader, status, _ = await self.post(dict(body, stream=True))
        if status != 200:
            raise Refused(status)
        last = b""
        for i in itertools.count():
            size = int(await reader.readline(), 16)
            part = await reader.readexactly(size + 2)
            if size == 0:
                return last.endswith(b"data: [DONE]\n\n\r\n")
            last = part
            if i < n_pauses:
                await asyncio.sleep(pause)

    def close(self):
        if self.streams:
            self.streams[1].close()
            self.streams = None


def ask(i, n_tokens, **more):
    return dict({"messages": [{"role": "user", "content": ASKS[i % len(ASKS)]}], "temperature": 0, "max_tokens": n_tokens,
                 "ignore_eos": True}, **more)


async def clients(server, n, requests, n_tokens):
    """n clients, each with its requests one after the other: seconds, tokens, times between tokens."""
    gaps, tokens = [], 0

    async def one(i):
        nonlocal tokens
        client = Client(server)
        for j in range(requests):
            times = await client.stream(ask(i + j, n_tokens))
            gaps.extend(b - a for a, b in zip(times, times[1:]))
            tokens += len(times)
        client.close()
    start = time.perf_counter()
    await asyncio.gather(*(one(i) for i in range(n)))
    return time.perf_counter() - start, tokens, gaps


def at(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


async def long_prompts(server, words, until):
    """Long prompts, one after the other."""
    client, n = Client(server), 0
    while not until.is_set():
        body = ask(0, 1)
        body["messages"][0]["content"] = "word%d " % n + "Tell me a story about a fox. " * (words // 7)
        await client.whole(body)
        n += 1
    client.close()
    return n


class Figures:
    def __init__(self):
        self.list = []

    def add(self, name, value, unit, limit=None, spread=None):
        figure = {"name": name, "value": round(value, 4), "unit": unit}
        if spread:
            figure.update(min=round(min(spread), 4), max=round(max(spread), 4))
        if limit is not None:
            figure["limit"] = round(limit, 4)
        self.list.append(figure)
        print("%-44s %10.3f %s%s" % (name, value, unit, "" if limit is None else "   of %.3f" % limit), flush=True)


def run_seconds(args, i, n_tokens, draft):
    """The same prompt without a server: prefill and decode as `paceline run` measures them."""
    command = [args.bin, "run", args.model, "-p", ASKS[i % len(ASKS)], "-n", str(n_tokens), "--ignore-eos", "--json",
               "--threads", str(args.threads)]
    if draft:
        command += ["--draft", args.draft, "--draft-tokens", args.draft_tokens]
    timings = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["timings"]
    return (timings["prefill_ms"] + timings["decode_ms"]) / 1e3


def whole_seconds(server, body):
    """The shorter of two whole answers, for a client that does nothing else. `paceline run` decodes with weights that it has just
    packed, so an answer that nobody measures goes before and brings them into the caches."""
    data = json.dumps(body).encode()
    request = (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
               b"content-length: %d\r\n\r\n" % len(data) + data)
    times = []
    with socket.create_connection((server.host, server.port)) as stream:
        for _ in range(3):
            start = time.perf_counter()
            stream.sendall(request)
            got = b""
            while b"\r\n\r\n" not in got:
                got += stream.recv(1 << 16)
            head, _, answer = got.partition(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
            while len(answer) < length:
                answer += stream.recv(1 << 16)
            times.append(time.perf_counter() - start)
            usage = json.loads(answer)["usage"]
            assert usage["completion_tokens"] == body["max_tokens"], usage
    return min(times[1:])


async def measure(args):
    figures, single = Figures(), None
    for mode in ["plain", "drafted"] if args.mode == "both" else [args.mode]:
        draft = mode == "drafted"
        with Server(args, draft, "--max-running", "32", "--queue", "64") as server:
            await clients(server, 2, 2, args.tokens)
            overheads, speeds = [], []
            for i in range(args.rounds * len(ASKS)):
                direct = min(run_seconds(args, i, args.tokens, draft) for _ in range(2))
                seconds = whole_seconds(server, ask(i, args.tokens))
                overheads.append(100 * (seconds / direct - 1))
                speeds.append(args.tokens / seconds)
            figures.add("serve.%s.whole_tokens_per_s" % mode, statistics.median(speeds), "tokens/s", spread=speeds)
            figures.add("serve.%s.http_overhead" % mode, statistics.median(overheads), "%", limit=5, spread=overheads)
            for n in (1, 8, 32):
                before = server.http_seconds()
                runs = [await clients(server, n, max(1, 16 // n), args.tokens) for _ in range(args.rounds)]
                used = server.http_seconds() - before
                tokens = sum(run[1] for run in runs)
                speeds = [run[1] / run[0] for run in runs]
                speed = statistics.median(speeds)
                if single is None:
                    single = speed
                name = "serve.%s.%d_clients." % (mode, n)
                figures.add(name + "tokens_per_s", speed, "tokens/s", limit=n * single, spread=speeds)
                gaps = [gap * 1e3 for run in runs for gap in run[2]]
                figures.add(name + "between_tokens_p50", at(gaps, 0.5), "ms")
                figures.add(name + "between_tokens_p99", at(gaps, 0.99), "ms")
                figures.add(name + "http_cpu_per_token", used / tokens * 1e6, "us", limit=25)
            until = asyncio.Event()
            arriving = asyncio.create_task(long_prompts(server, args.long, until))
            gaps = []
            for _ in range(args.rounds):
                gaps += [gap * 1e3 for gap in (await clients(server, 8, 2, args.tokens))[2]]
            until.set()
            prompts = await arriving
            name = "serve.%s.8_clients_long_prompts." % mode
            figures.add(name + "between_tokens_p50", at(gaps, 0.5), "ms")
            figures.add(name + "between_tokens_p99", at(gaps, 0.99), "ms")
            figures.add(name + "prompts", prompts, "prompts")
    return figures.list


async def storm(args):
    """Random requests, a third of them cut off, from ten times as many clients as there are places."""
    sizes = ["--max-running", str(STORM_RUNNING), "--queue", str(STORM_QUEUE), "--kv-memory", str(args.storm_kv)]
    with Server(args, bool(args.draft), *sizes) as server:
        counts = {"answered": 0, "read slowly": 0, "cut off": 0, "refused": 0}
        resident, waits = [], []
        calm = [await answer(server, i) for i in range(len(ASKS))]
        end = time.monotonic() + args.storm

        async def one(seed):
            dice = random.Random(seed)
            while time.monotonic() < end:
                body = ask(dice.randrange(100), dice.randint(1, 120), n=dice.choice([1, 1, 2, 4]), stream=dice.random() < 0.5,
                           temperature=dice.choice([0, 0.8]), draft={"enabled": dice.random() < 0.7})
                kind = dice.choices(["whole", "cut off", "slow"], [6, 3, 1])[0]
                client, start = Client(server, kind == "slow"), time.monotonic()
                try:
                    status = 200
                    if kind == "cut off":
                        long = dict(body, max_tokens=400)
                        if body["stream"]:
                            await asyncio.wait_for(client.stream(long), dice.random())
                        else:
                            status, _ = await asyncio.wait_for(client.whole(long), dice.random())
                    elif kind == "slow":
                        long = dict(body, max_tokens=400, logprobs=True, top_logprobs=20)
                        if not await asyncio.wait_for(client.slowly(long, dice.random() / 10, 20), STUCK):
                            sys.exit("a stream that was read slowly is not whole: %r" % long)
                        counts["read slowly"] += 1
                        continue
                    elif body["stream"]:
                        await asyncio.wait_for(client.stream(body), STUCK)
                    else:
                        status, _ = await asyncio.wait_for(client.whole(body), STUCK)
                    if status != 200:
                        raise Refused(status)
                    counts["answered"] += 1
                    waits.append(time.monotonic() - start)
                except asyncio.TimeoutError:
                    if time.monotonic() - start >= STUCK:
                        sys.exit("a request is stuck: %r" % body)
                    counts["cut off"] += 1
                except Refused as refused:
                    if refused.status != 429:
                        sys.exit("HTTP %d for %r" % (refused.status, body))
                    counts["refused"] += 1
                    await asyncio.sleep(dice.random())
                finally:
                    client.close()

        async def watch():
            while time.monotonic() < end:
                await asyncio.sleep(args.storm / 30)
                resident.append(server.resident_kb())
        await asyncio.gather(watch(), *(one(i) for i in range(10 * (STORM_RUNNING + STORM_QUEUE))))
        for _ in range(100):
            left = await server.metrics()
            if left["vllm:num_requests_running"] + left["vllm:num_requests_waiting"] == 0 and left["paceline:free_places"] == left["paceline:places"]:
                break
            await asyncio.sleep(0.1)
        else:
            sys.exit("requests are left: %r" % left)
        if left["vllm:kv_cache_usage_perc"] != 0:
            sys.exit("blocks are left: %r" % left)
        if [await answer(server, i) for i in range(len(ASKS))] != calm:
            sys.exit("the answers are not what they were")
        preemptions = int(left["vllm:num_preemptions_total"])
        # The first third fills what is kept for later.
        third = len(resident) // 3
        growth = 100 * (statistics.median(resident[2 * third:]) / statistics.median(resident[third:2 * third]) - 1)
        print(counts, "preemptions", preemptions, "resident kB", resident)
        if growth > 5 or preemptions == 0 or min(counts.values()) == 0:
            sys.exit("memory grew by %.1f %%, or nothing of a kind happened" % growth)
        figures = Figures()
        figures.add("serve.storm.seconds", args.storm, "s")
        figures.add("serve.storm.clients", 10 * (STORM_RUNNING + STORM_QUEUE), "clients")
        figures.add("serve.storm.places", STORM_RUNNING + STORM_QUEUE, "outputs")
        for kind, count in counts.items():
            figures.add("serve.storm." + kind.replace(" ", "_"), count, "requests")
        figures.add("serve.storm.preemptions", preemptions, "preemptions")
        figures.add("serve.storm.tokens", left["vllm:generation_tokens_total"], "tokens")
        figures.add("serve.storm.answer_p50", at(waits, 0.5), "s")
        figures.add("serve.storm.answer_p99", at(waits, 0.99), "s")
        figures.add("serve.storm.longest_answer", max(waits), "s", limit=STUCK)
        figures.add("serve.storm.resident_at_end", resident[-1] / 1024, "MiB", spread=[kb / 1024 for kb in resident])
        figures.add("serve.storm.memory_growth", growth, "%", limit=5)
        return figures.list


async def answer(server, i):
    """A text that nothing else should change."""
    client = Client(server)
    status, whole = await client.whole(ask(i, 60))
    client.close()
    if status != 200:
        sys.exit("HTTP %d when nobody else asks" % status)
    return whole["choices"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--bin", default="target/release/paceline")
    p.add_argument("--draft")
    p.add_argument("--draft-tokens", default="auto")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--context", type=int, default=1024)
    p.add_argument("--tokens", type=int, default=128, help="of each answer")
    p.add_argument("--long", type=int, default=700, help="words of a long prompt")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--mode", choices=["plain", "drafted", "both"], help="left out, both where there is a drafter")
    p.add_argument("--storm", type=float, help="seconds of random traffic instead")
    p.add_argument("--storm-kv", type=int, default=2, help="MiB of K/V for it")
    p.add_argument("--save", metavar="NAME", help="write bench/results/DATE-NAME.json")
    args = p.parse_args()
    args.mode = args.mode or ("both" if args.draft else "plain")
    if args.mode != "plain" and not args.draft:
        p.error("--mode %s: expected a drafter, with --draft" % args.mode)
    figures = asyncio.run(storm(args) if args.storm else measure(args))
    if args.save:
        path = os.path.join(os.path.dirname(__file__), "results", "%s-%s.json" % (time.strftime("%Y-%m-%d"), args.save))
        record.save(path, "bench/serve_load.py " + " ".join(sys.argv[1:]), figures)
        print(path)


if __name__ == "__main__":
    main()
