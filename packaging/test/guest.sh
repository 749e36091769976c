#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Runs in a guest with systemd as its init: installs the packages, uses them as
# an operator would, upgrades, removes and purges them, and looks at what is left.
# Says "good: ..." or "BAD: ..." of each thing; run.sh counts.

good() { echo "good: $*"; }
bad() { echo "BAD: $*"; }
# check NAME COMMAND...
check() {
	local name=$1
	shift
	if "$@" >/tmp/said 2>&1; then good "$name"; else
		bad "$name"
		tail -n 20 /tmp/said | sed 's/^/    /'
		journalctl -q -u thalweg -n 12 -o short-monotonic | sed 's/^/    /'
	fi
}
# until_true SECONDS COMMAND...
until_true() {
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		((SECONDS < end)) || return 1
		sleep 0.2
	done
}
says() { "${@:2}" 2>&1 | grep -q -- "$1"; }
none() { ! [[ -e $1 ]]; }
fails() { ! "$@"; }
seconds_since() { awk -v began="$1" '{ printf "%.1f", $1 - began }' /proc/uptime; }
now() { cut -d' ' -f1 /proc/uptime; }
property() { systemctl show -p "$1" --value thalweg; }
is() { [[ $1 == "$2" ]] || { echo "found $1, expected $2" && false; }; }
# What the agent itself said, one line a message, since a cursor.
said() { journalctl -q -t thalweg -o cat --after-cursor "$1"; }
# The last line of the agent: with a match, systemd 252 leaves out the first line after a cursor that does not match.
cursor() { journalctl -t thalweg -n 1 -o cat --show-cursor | sed -n 's/^-- cursor: //p'; }

export DEBIAN_FRONTEND=noninteractive
new=(/packages/thalweg_*.deb)
lab=(/packages/thalweg-lab_*.deb)
old=(/packages/old/thalweg_*.deb)
rpm=(/packages/thalweg-[0-9]*.rpm)
lab_rpm=(/packages/thalweg-lab-*.rpm)
settings=/etc/thalweg/thalweg.toml
shipped=/usr/share/thalweg

# A host to connect to.
make_far() {
	ip netns add far
	ip link add near type veth peer name eth0 netns far
	ip address add 10.9.0.1/24 dev near
	ip link set near up
	ip -n far address add 10.9.0.2/24 dev eth0
	ip -n far link set eth0 up
	ip -n far link set lo up
	ip netns exec far iperf3 -s -D
	ip netns exec far iperf3 -s -D -p 5202
	ip netns exec far systemd-socket-activate --accept -l 5203 /bin/true >/dev/null 2>&1 &
}
transfer() { iperf3 -c 10.9.0.2 -n 20M >/dev/null; }

everything() {
	find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /tmp -o -path /var/log -o -path /var/lib/dpkg \
		-o -path /var/cache -o -path /var/lib/apt -o -path /var/lib/systemd -o -path /var/lib/rpm -o -path /root \) \
		-prune -o -print | sort
	find /sys/fs/bpf /run/thalweg /run/systemd/system 2>/dev/null | sort
	find /sys/fs/cgroup -type d -name '*thalweg*'
	getent passwd | cut -d: -f1
	getent group | cut -d: -f1
	systemctl list-unit-files --no-legend | grep thalweg
}

# Nothing else than before is there.
nothing_is_left() {
	local left
	left=$(comm -13 <(sort <<<"$before") <(everything | sort))
	if [[ -z $left ]]; then good "$1: nothing is left"; else bad "$1: left: $left"; fi
}

# Figures and no bounds: an emulated processor is as fast as the machine has time for it.
install_and_decide() {
	local began
	began=$(now)
	check "apt installs the package" apt-get install -y -q "${new[0]}"
	echo "figure: installed after $(seconds_since "$began") s"
	check "the unit is not enabled by itself" says disabled systemctl is-enabled thalweg
	check "the unit starts" systemctl enable --now thalweg
	echo "figure: enabled and started after $(seconds_since "$began") s"
	transfer
	check "the first decision is logged" until_true 30 says 10.9.0.2 thalweg events --limit 20
	echo "figure: first decision logged after $(seconds_since "$began") s"
	thalweg web >/tmp/web &
	web=$!
	check "the page is served" until_true 30 grep -q token= /tmp/web
	check "its address lets a browser in" curl -sS -f -L -c /tmp/jar -b /tmp/jar -o /tmp/page "$(head -n 1 /tmp/web)"
	check "it is the page" grep -qi '<!doctype html' /tmp/page
	check "what it shows has the host" until_true 30 says 10.9.0.2 curl -sS -b /tmp/jar http://127.0.0.1:9472/v1/hosts
	echo "figure: the page shows it after $(seconds_since "$began") s"
	kill "$web"
	check "it is active" systemctl is-active thalweg
}

operate() {
	check "the host is known" until_true 30 says 10.9.0.2 thalweg hosts
	check "the check is well" says '^THALWEG OK' thalweg status --check
	check "no problem" says 'problems *none' thalweg status
	check "bbr was loaded from inside the sandbox" says bbr thalweg arms
	check "the journal has fields" says THALWEG journalctl -u thalweg -o verbose
	check "the journal has levels" says '"PRIORITY" *: *"6"' journalctl -u thalweg -o json
	systemd-analyze security thalweg.service | tail -1 | sed 's/^/figure: /'

	echo 'dry_run = true' >$settings
	check "reload takes a new configuration" systemctl reload thalweg
	check "it is in force" says 'dry run' thalweg status
	echo 'dry_run = yes' >$settings
	check "a faulty configuration is refused" fails systemctl reload thalweg
	check "the old one stays in force" says 'dry run' thalweg --socket /run/thalweg/agent.sock status
	echo '' >$settings
	check "reload again" systemctl reload thalweg
}

# The agent in its sandbox sees what commands outside have pinned.
beside_others() {
	check "a policy" thalweg policy apply $shipped/policies/pacing-cap.toml
	check "a congestion control" thalweg cc load $shipped/models/adpg-plus.safetensors
	local kernel=(curl -sS --unix-socket /run/thalweg/agent.sock http://localhost/v1/kernel)
	check "the agent reads the policy" says rsync-server "${kernel[@]}"
	check "the agent reads the congestion control" says thalweg_rl "${kernel[@]}"
	check "the learner takes it up" until_true 60 says thalweg_rl thalweg arms
	printf '[http]\nlisten = "127.0.0.1:9471"\n' >$settings
	check "a port by reload" systemctl reload thalweg
	check "metrics through the sandbox's filter" says '^thalweg' curl -sS http://127.0.0.1:9471/metrics
	check "no problem beside all that" says 'problems *none' thalweg status
	check "the programs are removed by command" thalweg policy remove
	check "the congestion control too" until_true 30 thalweg cc unload thalweg_rl
	echo '' >$settings
	check "no port by reload" systemctl reload thalweg
}

# The unit speaks to this machine alone, until a drop-in lets the servers of a fleet in.
reach_a_fleet() {
	local drop=/etc/systemd/system/thalweg.service.d reached=/run/reached
	ip netns exec far systemd-socket-activate --accept -l 4222 /usr/bin/touch $reached >/dev/null 2>&1 &
	local server=$!
	printf '[fleet]\nservers = ["tls://10.9.0.2:4222"]\nname = "guest"\n' >$settings
	check "a fleet by reload" systemctl reload thalweg
	check "its server is away" until_true 30 says 'unreachable\|slow' thalweg fleet status
	check "the sandbox keeps it away" none $reached
	mkdir -p $drop
	printf '[Service]\nIPAddressAllow=10.9.0.2\n' >$drop/fleet.conf
	systemctl daemon-reload
	systemctl reset-failed thalweg
	check "a restart with the drop-in" systemctl restart thalweg
	check "the server is reached" until_true 30 test -e $reached
	kill $server
	rm -r $drop $reached
	echo '' >$settings
	systemctl daemon-reload
	check "a restart without the drop-in" systemctl restart thalweg
}

# refuses_to_start NAME TEXT LEAST MOST: so many tries say TEXT in a line each, and nothing else.
refuses_to_start() {
	local from
	systemctl stop thalweg
	systemctl reset-failed thalweg
	from=$(cursor)
	check "$1: refused" fails systemctl restart thalweg
	check "$1: the unit fails for good" until_true 90 is_failed
	check "$1: one line of a try" until_true 30 told_at_least "$from" "$2" "$3"
	check "$1: no more tries than $4" test "$(said "$from" | wc -l)" -le "$4"
	check "$1: nothing else is said" is "$(said "$from" | grep -vc -- "$2")" 0
	echo "figure: $1: $(property NRestarts) restarts, status $(property ExecMainStatus), $(said "$from" | tail -n 1)"
}
told_at_least() { (($(said "$1" | grep -c -- "$2") >= $3)); }
is_failed() { [[ $(property ActiveState) == failed ]]; }

start_faults() {
	echo 'dry_run = yes' >$settings
	refuses_to_start "a configuration with a fault" 'thalweg.toml:1:11: found "yes"' 1 1
	check "it is not tried again" is "$(property NRestarts) $(property ExecMainStatus)" "0 78"
	check "its level is that of an error" says '"PRIORITY":"3"' journalctl -q -t thalweg -n 1 -o json

	printf '[http]\nlisten = "127.0.0.1:9471"\ntoken_file = "/etc/thalweg/token"\n' >$settings
	echo 0123456789abcdef0123456789abcdef >/etc/thalweg/token
	chmod 644 /etc/thalweg/token
	refuses_to_start "a token that all can read" 'http.token_file: .*chmod 600' 1 1
	check "it is not tried again" is "$(property NRestarts) $(property ExecMainStatus)" "0 78"
	chmod 600 /etc/thalweg/token

	iperf3 -s -D -B 127.0.0.1 -p 9471 -I /tmp/taken
	check "the port is taken" until_true 20 test -s /tmp/taken
	check "a port in use keeps no agent away" systemctl restart thalweg
	check "it is a problem" says 'http.listen: 127.0.0.1:9471: Address already in use' thalweg status
	kill "$(tr -d '\0' </tmp/taken)"
	check "the port is had once it is free" until_true 30 says 'problems *none' thalweg status
	check "the token opens it" says '"session"' \
		curl -sS -H 'Authorization: Bearer 0123456789abcdef0123456789abcdef' http://127.0.0.1:9471/v1/status
	rm /etc/thalweg/token
	echo '' >$settings
	check "reload after all that" systemctl reload thalweg
}

# A fault that passes is tried until it has passed.
passing_faults() {
	local from
	systemctl stop thalweg
	from=$(cursor)
	mount -t tmpfs -o size=64k,nr_inodes=1,mode=0700 full /var/lib/thalweg
	check "no inodes: refused" fails systemctl start thalweg
	check "no inodes: tried more than five times" until_true 180 tried_more_than 5
	check "no inodes: named" told_at_least "$from" 'no free inodes' 5
	check "no inodes: the unit has not failed for good" is "$(property ActiveState)" activating
	umount -l /var/lib/thalweg
	check "it runs once there is room" until_true 90 systemctl is-active thalweg

	check "nothing is attached" thalweg detach
	umount -l /sys/fs/bpf
	check "a start without a BPF file system" systemctl restart thalweg
	check "the pins are the machine's" test -e /sys/fs/bpf/thalweg/link_sockops
}
tried_more_than() { (($(property NRestarts) > $1)); }

# More events than lines: the agent counts what it leaves out, and journald drops nothing.
floods_no_journal() {
	local from lines began=$SECONDS
	printf '[events]\nlog = "all"\nlog_rate = 1\n' >$settings
	check "every event is logged" systemctl reload thalweg
	from=$(cursor)
	for _ in {1..30}; do timeout 5 bash -c ': >/dev/tcp/10.9.0.2/5203'; done
	check "the log says what it leaves out" until_true 30 leaves_out "$from"
	lines=$(said "$from" | grep -c '^decision')
	check "one decision a second is logged ($lines)" test "$lines" -gt 0 -a "$lines" -le $((SECONDS - began + 1))
	check "journald suppresses nothing" fails says Suppressed journalctl -q --after-cursor "$from"
	echo '' >$settings
	systemctl reload thalweg
}
leaves_out() { said "$1" | grep -q 'log limit reached'; }

hangs() {
	mkdir -p /run/systemd/system/thalweg.service.d
	printf '[Service]\nWatchdogSec=3s\n' >/run/systemd/system/thalweg.service.d/test.conf
	systemctl daemon-reload
	systemctl restart thalweg
	pid=$(property MainPID)
	kill -STOP "$pid"
	check "the watchdog restarts an agent that hangs" until_true 60 replaced
	check "what was learned is there" until_true 30 says 10.9.0.2 thalweg hosts
	rm -r /run/systemd/system/thalweg.service.d
	systemctl daemon-reload
}
replaced() { [[ $(property MainPID) != "$pid" ]] && systemctl is-active thalweg; }

# Off is off: systemd starts no agent again that was detached, however it ended.
detaches_for_good() {
	kill -STOP "$(property MainPID)"
	check "detach ends a stopped agent" thalweg detach
	stays_off "a stopped agent"
	check "it starts once it is told to" systemctl start thalweg
	kill -KILL "$(property MainPID)"
	check "systemd waits to start a killed agent" until_true 20 is_waiting
	check "detach ends the wait" says 'thalweg.service was stopped' thalweg detach
	stays_off "a killed agent"
	check "it starts once it is told to, again" systemctl start thalweg
}
# stays_off NAME: for longer than the first pause of the unit, 5 s.
stays_off() {
	sleep 10
	check "$1: the unit is off" is_off
	check "$1: nothing is attached" none /sys/fs/bpf/thalweg/link_sockops
}
is_waiting() { [[ $(property SubState) == auto-restart* ]]; }
is_off() { [[ $(property ActiveState) == @(inactive|failed) ]]; }

remove_deb() {
	local ccs=/proc/sys/net/ipv4
	printf '[paths]\npin = "/sys/fs/bpf/other"\n' >/tmp/other.toml
	check "a congestion control of another directory" thalweg --config /tmp/other.toml cc load htcp --name mine
	echo mine >$ccs/tcp_congestion_control
	check "apt removes it" eval 'apt-get remove -y -q thalweg >/tmp/removal 2>&1'
	check "it says what stays" grep -q 'mine is the default of 1 network namespace' /tmp/removal
	check "the congestion control is withdrawn" until_true 10 fails grep -qw mine $ccs/tcp_available_congestion_control
	echo cubic >$ccs/tcp_congestion_control
	check "no pin" none /sys/fs/bpf/thalweg
	check "the store stays" test -e /var/lib/thalweg/thalweg.db
	mkdir -p /etc/thalweg/fleet
	touch /etc/thalweg/fleet/agent.nk
	check "apt purges it" apt-get purge -y -q thalweg
	nothing_is_left "purge"
}

# What a change of the version must not touch.
scored() { thalweg --json hosts | tr -d ' \n' | grep -o '"scored":[0-9]*' | head -n 1; }
# The open connection is scored on its way, too.
is_known() { (($(scored | cut -d: -f2) >= ${known#*:})); }
stays() {
	check "$1: the agent is active" until_true 60 systemctl is-active thalweg
	check "$1: hosts stay" is_known
	check "$1: the agent took over what was in force" \
		says '"THALWEG_TOOK_OVER":"true"' journalctl -q -t thalweg -o json --after-cursor "$from"
	check "$1: the administrator's configuration stays" grep -q warm_up $settings
	check "$1: the policy stays" says rsync-server thalweg policy show
	check "$1: the open connection goes on" kill -0 "$open"
	check "$1: no problem" says 'problems *none' thalweg status
}

change_versions() {
	local force=(-o Dpkg::Options::=--force-confold)
	check "an older version" apt-get install -y -q "${old[0]}"
	printf '[learning]\nwarm_up = 2\n' >$settings
	check "it starts" systemctl enable --now thalweg
	check "it learns" transfer
	check "it has learned" until_true 30 says '"scored":[1-9]' scored
	check "it has a policy" thalweg policy apply $shipped/policies/pacing-cap.toml
	iperf3 -c 10.9.0.2 -p 5202 -b 1M -t 600 >/dev/null 2>&1 &
	open=$!
	sleep 1
	known=$(scored)
	from=$(cursor)
	check "an upgrade" apt-get install -y -q "${force[@]}" "${new[0]}" "${lab[0]}"
	check "the new version is installed" says "$(dpkg-deb -f "${new[0]}" Version)" dpkg -s thalweg
	stays upgrade
	check "the laboratory has its scenarios" says loss-5 thalweg-lab list $shipped/scenarios/lab
	check "a command that moved says its name" says 'is now .thalweg-lab run x' thalweg lab run x
	from=$(cursor)
	check "installed again" apt-get install -y -q --reinstall "${force[@]}" "${new[0]}"
	stays reinstall
	check "apt does not go back by itself" fails apt-get install -y -q "${force[@]}" "${old[0]}"
	from=$(cursor)
	check "a downgrade" apt-get install -y -q --allow-downgrades "${force[@]}" "${old[0]}"
	stays downgrade
	check "the laboratory is one package with the agent again" none /usr/bin/thalweg-lab
	kill "$open"
	check "the older version is purged" apt-get purge -y -q thalweg
	nothing_is_left "purge after an upgrade"
}

# Debian's rpm knows no packages, hence --nodeps; these directories are of its distributions' base.
of_base=(/usr/share/man/man1 /usr/share/bash-completion/completions /usr/share/fish/vendor_completions.d /usr/share/zsh/site-functions)
use_rpm() {
	mkdir -p "${of_base[@]}"
	check "rpm installs the package" rpm -i --nodeps "${rpm[0]}"
	check "its unit starts" systemctl enable --now thalweg
	check "connections are carried" transfer
	check "it is logged" until_true 30 says 10.9.0.2 thalweg events --limit 20
	echo '# mine' >>$settings
	check "rpm replaces it by itself" rpm -U --force --nodeps "${rpm[0]}"
	check "it is active after that" until_true 60 systemctl is-active thalweg
	check "the configuration stays" grep -q mine $settings
	check "the laboratory installs beside it" rpm -i --nodeps "${lab_rpm[0]}"
	check "its scenarios are there" says loss-5 thalweg-lab list $shipped/scenarios/lab
	check "rpm erases the laboratory" rpm -e thalweg-lab
	check "rpm verifies it" is "$(rpm -V --nodeps thalweg | grep -v $settings)" ""
	check "rpm erases it" rpm -e thalweg
	check "no pin" none /sys/fs/bpf/thalweg
	# rpm has no purge: the store and a changed configuration stay.
	rm -r /var/lib/thalweg $settings.rpmsave
	rmdir /etc/thalweg
	rmdir --parents --ignore-fail-on-non-empty "${of_base[@]}"
	nothing_is_left "rpm"
}

make_far
before=$(everything)
install_and_decide
operate
beside_others
reach_a_fleet
start_faults
passing_faults
floods_no_journal
hangs
detaches_for_good
remove_deb
change_versions
use_rpm
echo "end of the checks"
