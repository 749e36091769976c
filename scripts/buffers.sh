#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A send buffer that is too small: what the agent says of it, and what its advice gives. Transfers of
# 8 MB over 200 ms and 100 Mbit/s, with a small buffer, with what twice the rate needs, and with the
# kernel's default. As root; a minute.
#   scripts/buffers.sh [BINARY]
set -euo pipefail

thalweg=$(realpath "${1:-target/release/thalweg}")
work=$(mktemp -d)
agent=
clean() {
	[[ -z $agent ]] || { kill "$agent" && wait "$agent" || true; }
	"$thalweg" --config "$work/agent.toml" detach >/dev/null 2>&1 || true
	rm -rf "$work"
}
trap clean EXIT

cat >"$work/agent.toml" <<END
dry_run = true
[paths]
pin = "/sys/fs/bpf/thalweg-buffers-$$"
state = "$work/state"
socket = "$work/agent.sock"
[hosts]
user_namespaces = true
END
cat >"$work/read.py" <<'END'
import socket
listener = socket.create_server(("", 5001))
while True:
    connection, _ = listener.accept()
    while connection.recv(1 << 20):
        pass
    connection.close()
END
cat >"$work/send.py" <<'END'
import os, socket, sys, time
with open("/proc/sys/net/ipv4/tcp_wmem", "w") as setting:
    setting.write(f"4096 16384 {sys.argv[1]}")
def send(size):
    with socket.create_connection((os.environ["THALWEG_LINK_FAR"], 5001)) as connection:
        connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
# The agent gets to know the namespace by its first connection.
while True:
    try:
        send(1000)
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
time.sleep(2)
for _ in range(3):
    began = time.time()
    send(8_000_000)
    print(f"{8 / (time.time() - began):.2f} MB/s", flush=True)
END

"$thalweg" --config "$work/agent.toml" run 2>"$work/log" &
agent=$!
until "$thalweg" --config "$work/agent.toml" status >/dev/null 2>&1; do sleep 0.2; done

# Transfers with this largest buffer; then what the agent says of their network, the latest.
try() {
	echo "net.ipv4.tcp_wmem up to $1 bytes:"
	"$(dirname "$thalweg")/thalweg-lab" link --delay 100ms --rate 100mbit --report "$work/link" --far "python3 $work/read.py" \
		--far-port 5001 -- python3 "$work/send.py" "$1" 2>/dev/null
	sleep 1
}
try 262144
"$thalweg" --config "$work/agent.toml" networks --limits --level prefix
needed=$("$thalweg" --config "$work/agent.toml" --json networks --limits --level prefix |
	python3 -c 'import json, sys; print(json.load(sys.stdin)["limits"][0]["limits"]["findings"][0]["needed_bytes"])')
echo
try "$needed"
try 4194304
