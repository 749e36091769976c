#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# container.sh BASE: builds the image upon the image BASE, and runs the command
# that packaging/Containerfile names, with directories, pins and a cgroup of its
# own: the agent starts, decides on a connection, and detaches. Root, podman.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

name=thalweg-test-$$
image=localhost/$name
work=$(mktemp --directory)
cgroup=$(findmnt --noheadings --first-only --types cgroup2 --output TARGET)/$name
clean() {
	podman rm --force --ignore "$name" >/dev/null 2>&1 || true
	podman rmi --force "$image" >/dev/null 2>&1 || true
	ip netns pids "$name" 2>/dev/null | xargs --no-run-if-empty kill || true
	ip netns del "$name" 2>/dev/null || true
	rmdir "$cgroup" 2>/dev/null || true
	rm -rf "/sys/fs/bpf/$name" "$work"
}
trap clean EXIT
good() { echo "good: $*"; }
until_true() {
	for _ in {1..300}; do
		"$@" >"$work/said" 2>&1 && return
		sleep 0.2
	done
	echo "BAD: $*"
	cat "$work/said"
	podman logs "$name" | tail -n 20
	return 1
}
inside() { podman exec "$name" thalweg "$@"; }
knows() { inside events --limit 20 | grep -q 10.219.77.2; }

# crun refuses machines with both versions of cgroups.
if command -v runc >/dev/null; then
	printf '[engine]\nruntime = "runc"\n' >"$work/containers.conf"
	export CONTAINERS_CONF=$work/containers.conf
fi
BASE=$1 scripts/image.sh "$image"
good "the image is built"

mkdir -p "$cgroup" "$work"/{etc,state,run}
cat >"$work/etc/thalweg.toml" <<END
cgroup = "$cgroup"
[paths]
pin = "/sys/fs/bpf/$name"
[arms]
allow = ["cubic", "reno"]
END
ip netns add "$name"
ip link add "tw$$" type veth peer name eth0 netns "$name"
ip address add 10.219.77.1/24 dev "tw$$"
ip link set "tw$$" up
ip -n "$name" address add 10.219.77.2/24 dev eth0
ip -n "$name" link set eth0 up
ip netns exec "$name" iperf3 --server --daemon

# The command of the Containerfile, with other names and places.
command=$(sed -n '/^#   podman run/,/localhost/{s/^# *//; s/\\$//; p}' packaging/Containerfile | tr '\n' ' ')
command=${command/--name thalweg/--name $name --ulimit nofile=1024:1024 --ulimit nproc=4096:4096}
command=${command/localhost\/thalweg/$image}
command=${command/\/etc\/thalweg:/$work/etc:}
command=${command/\/var\/lib\/thalweg:/$work/state:}
command=${command/\/run\/thalweg:/$work/run:}
# A kernel without modules has no such directory.
[[ -d /lib/modules ]] || command=${command/--volume \/lib\/modules:\/lib\/modules:ro/}
read -ra words <<<"$command"
"${words[@]}" >/dev/null
until_true inside status
good "the agent runs"
inside status --check
bash -c "echo \$\$ >$cgroup/cgroup.procs && exec iperf3 --client 10.219.77.2 --bytes 20M" >/dev/null
until_true knows
good "it decides on a connection of the machine"
test -S "$work/run/agent.sock"
good "the machine has its socket"
inside detach >/dev/null
until_true test ! -e "/sys/fs/bpf/$name/link_sockops"
good "it detaches"
podman stop --time 30 "$name" >/dev/null 2>&1 || true
[[ $(podman inspect --format '{{.State.ExitCode}}' "$name") == 0 ]]
good "it ends well"
