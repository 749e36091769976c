#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Tries the packages of target/packages: lintian, and in a guest of QEMU with a
# clean Debian and systemd as its init what guest.sh says. Root; brings
# mmdebstrap and lintian.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

deb=(target/packages/thalweg_*.deb)
[[ -e ${deb[0]} ]] || {
	echo "error: no target/packages/thalweg_*.deb: run 'make packages' first" >&2
	exit 1
}
kernel=linux-image-6.12-cloud-amd64
missing=()
for tool in mmdebstrap lintian cpio qemu-system-x86_64; do
	command -v "$tool" >/dev/null || missing+=("${tool/qemu-system-x86_64/qemu-system-x86}")
done
if ((${#missing[@]})); then
	apt-get update -q
	apt-get install -y -q --no-install-recommends "${missing[@]}"
fi

work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT

echo '== lintian'
# Statically linked libraries are the purpose; there is no Debian bug to close.
lintian --fail-on error --suppress-tags embedded-library,initial-upload-closes-no-bugs "${deb[0]}"

echo '== sizes and libraries'
dpkg-deb --fsys-tarfile "${deb[0]}" | tar -x -C "$work" --wildcards './usr/bin/*' 2>/dev/null ||
	dpkg-deb --fsys-tarfile "${deb[0]}" | tar -x -C "$work" usr/bin
bytes=$(stat -c %s "$work/usr/bin/thalweg")
echo "binary: $bytes bytes"
((bytes <= 20000000)) || { echo 'error: more than 20 MB' >&2 && exit 1; }
needed=$(objdump -p "$work/usr/bin/thalweg" | awk '/NEEDED/ { print $2 }' | sort | tr '\n' ' ')
echo "libraries: $needed"
if [[ $needed =~ elf|libz|bpf ]]; then
	echo 'error: more than libc is needed' >&2
	exit 1
fi

echo '== a guest with systemd'
root=$work/root
mmdebstrap --quiet --variant=minbase \
	--include=systemd,systemd-sysv,kmod,iproute2,iperf3,apt bookworm "$root"
target/release/thalweg lab kernels add "$kernel" >/dev/null
image=$(target/release/thalweg --json lab kernels list |
	python3 -c 'import json, sys; print([k["image"] for k in json.load(sys.stdin) if k["name"].startswith("6.12")][0])')
modules=$(target/release/thalweg --json lab kernels list |
	python3 -c 'import json, sys; print([k["modules"] for k in json.load(sys.stdin) if k["name"].startswith("6.12")][0])')
version=$(basename "$modules")
mkdir -p "$root/lib/modules/$version/kernel/net" "$root/packages"
cp -a "$modules"/modules.* "$root/lib/modules/$version/"
cp -a "$modules/kernel/net/ipv4" "$root/lib/modules/$version/kernel/net/"
for name in drivers/net/veth.ko net/sched/sch_fq.ko; do
	mkdir -p "$root/lib/modules/$version/kernel/${name%/*}"
	cp -a "$modules/kernel/$name"* "$root/lib/modules/$version/kernel/${name%/*}/"
done
chroot "$root" depmod "$version"
cp "${deb[0]}" "$root/packages/"
install -m 0755 packaging/test/guest.sh "$root/guest.sh"
cat >"$root/etc/systemd/system/checks.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/guest.sh
ExecStopPost=/bin/systemctl poweroff --force --force
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=1500
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../checks.service "$root/etc/systemd/system/multi-user.target.wants/"
rm -rf "$root"/var/cache/apt/* "$root"/usr/share/{doc,man,locale}/*
(cd "$root" && find . | cpio --quiet -o -H newc) >"$work/initramfs"
timeout --foreground 1800 qemu-system-x86_64 -M q35 -cpu max -smp 2 -m 3G -nodefaults -no-reboot \
	-kernel "$image" -initrd "$work/initramfs" -append 'console=ttyS0 quiet systemd.mask=serial-getty@ttyS0.service rdinit=/sbin/init' \
	-serial file:"$work/console" -display none || true
grep -aE '^(good|BAD|figure|    |end of)' "$work/console" || true
if ! grep -aq '^end of the checks' "$work/console"; then
	tail -n 40 "$work/console"
	echo 'error: the guest did not come to the end' >&2
	exit 1
fi
if grep -aq '^BAD' "$work/console"; then exit 1; fi
printf '%s passed, 0 failed\n' "$(grep -ac '^good' "$work/console")"
