"""A real agent for a test: pins, cgroup and socket of its own, and connections that it sees."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
BINARY = CHECKOUT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/thalweg"
PATIENCE_S = 120

# A network device without hardware (linux/if_tun.h: TUNSETIFF, IFF_TUN | IFF_NO_PI).
TUN = """
import fcntl, os, struct
def tun(name):
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", name, 0x1001))
    return device
"""

# In a network namespace of its own: a host 6 ms away, which reads connections to their end.
SINK = f"""
import queue, selectors, socket, subprocess, sys, threading, time
{TUN}
near, far = int(sys.argv[1]), tun(b"far")
subprocess.run("ip link set far up; for n in $(seq 2 16); do ip address add 192.0.2.$n/24 dev far; done",
               shell=True, check=True)
def carry(source, to):
    waiting = queue.Queue()
    def deliver():
        while True:
            due, packet = waiting.get()
            time.sleep(max(0, due - time.monotonic()))
            os.write(to, packet)
    threading.Thread(target=deliver, daemon=True).start()
    while True:
        waiting.put((time.monotonic() + 0.003, os.read(source, 2048)))
for ends in [(near, far), (far, near)]:
    threading.Thread(target=carry, args=ends, daemon=True).start()
listener = socket.create_server(("0.0.0.0", 5001), backlog=256)
def sink():
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
            elif not key.fileobj.recv(1 << 20):
                selector.unregister(key.fileobj)
                key.fileobj.close()
threading.Thread(target=sink, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""

# In a network namespace of its own, as what a machine sends to itself is left alone: sends so many
# bytes from 192.0.2.1 to each address as it is told.
TRAFFIC = f"""
import socket, subprocess, sys
{TUN}
near = tun(b"near")
subprocess.run("ip link set near up; ip address add 192.0.2.1/24 dev near", shell=True, check=True)
far = subprocess.Popen(["unshare", "--net", sys.executable, "-c", {SINK!r}, str(near)],
                       pass_fds=[near], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
print(far.stdout.readline(), end="", flush=True)
for line in sys.stdin:
    address, size = line.split()
    with socket.create_connection((address, 5001)) as connection:
        connection.sendall(bytes(int(size)))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    print("done", flush=True)
"""


def needed(browser):
    """Skips a test that cannot run here, unless all are to run. Ubuntu has no package of the browser."""
    is_debian = "\nID=debian\n" in "\n" + Path("/etc/os-release").read_text()
    if not Path(browser).exists() and not is_debian:
        pytest.skip(f"not here: no {browser} (Debian's package chromium-headless-shell)")
    if os.environ.get("THALWEG_REQUIRE_PRIVILEGED"):
        return
    if os.geteuid() != 0:
        pytest.skip("an agent needs root")
    for program in (BINARY, browser):
        if not Path(program).exists():
            pytest.skip(f"no {program}")


def wait_for(what, look):
    """What `look` returns once that is true."""
    limit = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < limit, f"waited {PATIENCE_S} s for {what}"
        time.sleep(0.02)
    return found


def cgroup2():
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    raise AssertionError("no cgroup v2 is mounted")


class OverSocket(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(self.path))


class Agent:
    """An agent; `close` leaves nothing of it."""

    def __init__(self, directory, settings=""):
        name = f"thalweg-test-page-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.directory = directory
        self.cgroup = cgroup2() / name
        self.pin = Path("/sys/fs/bpf") / name
        self.socket = directory / "agent.sock"
        self.config = directory / "agent.toml"
        self.log = directory / "agent.log"
        self.process = None
        self.others = []
        self.cgroup.mkdir()
        self.config.write_text(
            f'cgroup = "{self.cgroup}"\n[control]\nshare = 0\npermanent = 0\n'
            f'[paths]\npin = "{self.pin}"\nsocket = "{self.socket}"\n'
            f'state = "{directory / "state"}"\n{settings}'
        )

    def command(self, *words):
        return [BINARY, "--config", self.config, *words]

    def run(self, *words):
        ended = subprocess.run(self.command(*words), capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def start(self):
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self.command("run"), stdout=log, stderr=log)

        def answers():
            assert self.process.poll() is None, self.log.read_text()
            try:
                return self.get("/v1/status")
            except OSError:
                return None

        wait_for("the agent", answers)
        return self

    def get(self, path):
        connection = OverSocket(self.socket)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return json.loads(body)

    def stop(self):
        end(self.process)
        self.process = None

    def traffic(self):
        """Connections from the agent's cgroup."""
        waiting = f"import sys; sys.stdin.readline()\n{TRAFFIC}"
        started = subprocess.Popen(
            ["unshare", "--net", sys.executable, "-c", waiting],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.others.append(started)
        (self.cgroup / "cgroup.procs").write_text(str(started.pid))
        say(started, "go")
        assert started.stdout.readline() == "ready\n"
        return started

    def connect(self, *addresses, size=1 << 20):
        """Sends so many bytes to each address of 192.0.2.0/28, one after the other."""
        for address in addresses:
            say(self.others[0], f"{address} {size}")
            assert self.others[0].stdout.readline() == "done\n"

    def close(self):
        for other in self.others:
            end(other, signal.SIGKILL)
        if self.process:
            self.stop()
        subprocess.run(self.command("policy", "remove"), capture_output=True)
        subprocess.run(self.command("detach"), capture_output=True)
        shutil.rmtree(self.pin, ignore_errors=True)
        wait_for("the cgroup to be empty", lambda: not (self.cgroup / "cgroup.procs").read_text())
        self.cgroup.rmdir()


def say(process, line):
    process.stdin.write(line + "\n")
    process.stdin.flush()


def end(process, how=signal.SIGTERM):
    """Ends a process; returns its exit code."""
    if process.poll() is None:
        process.send_signal(how)
    code = process.wait(PATIENCE_S)
    for stream in (process.stdin, process.stdout):
        if stream:
            stream.close()
    return code
