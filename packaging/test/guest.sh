#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Runs in a guest with systemd as its init: installs the package, uses it as an
# operator would, upgrades, removes and purges it, and looks at what is left.
# Says "good: ..." or "BAD: ..." of each thing; run.sh counts.

good() { echo "good: $*"; }
bad() { echo "BAD: $*"; }
# check NAME COMMAND...
check() {
	local name=$1
	shift
	if "$@" >/tmp/said 2>&1; then good "$name"; else
		bad "$name"
		sed 's/^/    /' /tmp/said
	fi
}
# until_true SECONDS COMMAND...
until_true() {
	local left=$(($1 * 5))
	shift
	until "$@" >/dev/null 2>&1; do
		((left-- > 0)) || return 1
		sleep 0.2
	done
}
says() { "${@:2}" 2>&1 | grep -q -- "$1"; }
none() { ! [[ -e $1 ]]; }
transfer() { ip netns exec far true && iperf3 -c 10.9.0.2 -n 20M >/dev/null; }

export DEBIAN_FRONTEND=noninteractive
before=$(find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /var/log -o -path /var/lib/dpkg \
	-o -path /var/cache -o -path /var/lib/apt -o -path /var/lib/systemd \) -prune -o -print | sort)

check "apt installs the package" apt-get install -y -q /packages/thalweg_*.deb
check "the unit is not enabled by itself" says disabled systemctl is-enabled thalweg
began=$(date +%s)
check "the unit starts" systemctl enable --now thalweg
check "it is active" systemctl is-active thalweg

ip netns add far
ip link add near type veth peer name eth0 netns far
ip address add 10.9.0.1/24 dev near
ip link set near up
ip -n far address add 10.9.0.2/24 dev eth0
ip -n far link set eth0 up
ip -n far link set lo up
ip netns exec far iperf3 -s -D
check "connections are carried" until_true 30 transfer
check "it is logged" until_true 30 says 10.9.0.2 thalweg events --limit 20
echo "figure: first event $(($(date +%s) - began)) s after enable --now"
check "the host is known" until_true 30 says 10.9.0.2 thalweg hosts
check "the check is well" says '^THALWEG OK' thalweg status --check
check "no problem" says 'problems *none' thalweg status
check "bbr was loaded from inside the sandbox" says bbr thalweg arms
check "the journal has fields" says THALWEG journalctl -u thalweg -o verbose
check "the journal has levels" says '"PRIORITY" *: *"6"' journalctl -u thalweg -o json

echo 'dry_run = true' >/etc/thalweg/thalweg.toml
check "reload takes a new configuration" systemctl reload thalweg
check "it is in force" says 'dry run' thalweg status
echo 'dry_run = yes' >/etc/thalweg/thalweg.toml
if systemctl reload thalweg 2>/dev/null; then bad "a faulty configuration is refused"; else good "a faulty configuration is refused"; fi
check "the old one stays in force" says 'dry run' thalweg --socket /run/thalweg/agent.sock status
echo '' >/etc/thalweg/thalweg.toml
check "reload again" systemctl reload thalweg

mkdir -p /run/systemd/system/thalweg.service.d
printf '[Service]\nWatchdogSec=3s\n' >/run/systemd/system/thalweg.service.d/test.conf
systemctl daemon-reload
systemctl restart thalweg
pid=$(systemctl show -p MainPID --value thalweg)
kill -STOP "$pid"
# shellcheck disable=SC2329 # until_true calls it.
replaced() { [[ $(systemctl show -p MainPID --value thalweg) != "$pid" ]] && systemctl is-active thalweg; }
check "the watchdog restarts an agent that hangs" until_true 60 replaced
check "what was learned is there" until_true 30 says 10.9.0.2 thalweg hosts

check "an upgrade" apt-get install -y -q --reinstall /packages/thalweg_*.deb
check "it is active after that" until_true 30 systemctl is-active thalweg
check "programs are attached" test -e /sys/fs/bpf/thalweg/link_sockops
systemd-analyze security thalweg.service | tail -1 | sed 's/^/figure: /'

check "apt removes it" apt-get remove -y -q thalweg
check "no pin" none /sys/fs/bpf/thalweg
check "the store stays" test -e /var/lib/thalweg/thalweg.db
check "apt purges it" apt-get purge -y -q thalweg
for path in /var/lib/thalweg /etc/thalweg /run/thalweg /usr/share/thalweg /usr/bin/thalweg; do
	check "no $path" none "$path"
done
after=$(find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /var/log -o -path /var/lib/dpkg \
	-o -path /var/cache -o -path /var/lib/apt -o -path /var/lib/systemd \) -prune -o -print | sort)
left=$(comm -13 <(echo "$before") <(echo "$after"))
if [[ -z $left ]]; then good "nothing is left"; else bad "left: $left"; fi
if systemctl list-unit-files | grep -q thalweg; then bad "a unit is left"; else good "no unit is left"; fi
echo "end of the checks"
