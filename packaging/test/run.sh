#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
#
# Tries the packages of target/packages: lintian, rpmlint, the schema of the
# bill of materials, and in a guest of QEMU with a clean Debian and systemd as
# its init what guest.sh says; then the image, as container.sh says. Root;
# brings what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

deb=(target/packages/thalweg_*.deb)
lab_deb=(target/packages/thalweg-lab_*.deb)
rpm=(target/packages/thalweg-[0-9]*.rpm)
lab_rpm=(target/packages/thalweg-lab-*.rpm)
bill=(target/packages/thalweg_*.cdx.json)
lab_bill=(target/packages/thalweg-lab_*.cdx.json)
for file in "${deb[0]}" "${lab_deb[0]}" "${rpm[0]}" "${lab_rpm[0]}" "${bill[0]}" "${lab_bill[0]}"; do
	[[ -e $file ]] || {
		echo "error: no $file: run 'make packages' first" >&2
		exit 1
	}
done
kernel=linux-image-6.12-cloud-amd64
missing=()
for tool in mmdebstrap lintian rpmlint rpm cpio podman qemu-system-x86_64; do
	command -v "$tool" >/dev/null || missing+=("${tool/qemu-system-x86_64/qemu-system-x86}")
done
if ((${#missing[@]})); then
	apt-get update -q
	apt-get install -y -q --no-install-recommends "${missing[@]}"
fi

work=$(mktemp --directory)
trap 'rm -rf "$work"' EXIT
unpacked=$work/unpacked lab_unpacked=$work/lab-unpacked
dpkg-deb -x "${deb[0]}" "$unpacked"
dpkg-deb -x "${lab_deb[0]}" "$lab_unpacked"
thalweg=$unpacked/usr/bin/thalweg laboratory=$lab_unpacked/usr/bin/thalweg-lab

echo '== lintian'
# Statically linked libraries are the purpose; there is no Debian bug to close.
lintian --fail-on error --suppress-tags embedded-library,initial-upload-closes-no-bugs "${deb[0]}" "${lab_deb[0]}"

echo '== rpmlint'
LC_ALL=C rpmlint --config packaging/test/rpmlint.toml "${rpm[0]}" "${lab_rpm[0]}" | tee "$work/rpmlint"
grep -q ' 0 errors' "$work/rpmlint"

echo '== bill of materials'
validator=target/tools/cyclonedx
[[ -x $validator/bin/python ]] || python3 -m venv "$validator"
"$validator/bin/pip" --disable-pip-version-check --quiet install 'cyclonedx-python-lib[json-validation]==11.12.0'
for file in "${bill[0]}" "${lab_bill[0]}"; do
"$validator/bin/python" - "$file" <<'END'
import json
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = Path(sys.argv[1]).read_text()
fault = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
if fault:
    sys.exit(f"error: {sys.argv[1]}: {fault}")
parts = {part["name"]: part for part in json.loads(text)["components"]}
absent = [name for name, part in parts.items() if not part.get("version") or not part.get("licenses")]
absent += {"libbpf", "libelf", "zlib"} - parts.keys()
if "thalweg-lab" not in sys.argv[1]:
    absent += {"sqlite", "tokio"} - parts.keys()
if absent:
    sys.exit(f"error: not told whole: {absent}")
print(f"{len(parts)} components, valid CycloneDX 1.5")
END
done

echo '== contents'
grep -q 'Permission is hereby granted' "$unpacked/usr/share/doc/thalweg/copyright"
zgrep -q '^tokio ' "$unpacked/usr/share/doc/thalweg/third-party-notices.gz"
dpkg-deb --info "${deb[0]}" md5sums | grep -q ' usr/bin/thalweg$'
rpm -qp --qf '%{LICENSE}\n' "${rpm[0]}" | grep -q 'GPL-2.0-only'
# RPM TREE: both packages have the same files.
same_files() {
	rpm -qpl "$1" | grep -v /man/ | grep -v /zsh/ | sort >"$work/of-rpm"
	(cd "$2" && find . -type f -printf '/%P\n') | grep -v -e /man/ -e /zsh/ -e changelog.Debian | sort >"$work/of-deb"
	# Debian's systemd is below /usr, where cargo-deb does not put it.
	sed -i 's:^/lib/systemd:/usr/lib/systemd:' "$work/of-deb"
	diff "$work/of-deb" "$work/of-rpm"
}
same_files "${rpm[0]}" "$unpacked"
same_files "${lab_rpm[0]}" "$lab_unpacked"

echo '== sizes and libraries'
for binary in "$thalweg" "$laboratory"; do
	echo "$(basename "$binary"): $(stat -c %s "$binary") bytes"
	needed=$(objdump -p "$binary" | awk '/NEEDED/ { print $2 }' | sort | tr '\n' ' ')
	echo "libraries: $needed"
	if [[ $needed =~ elf|libz|bpf ]]; then
		echo 'error: more than libc is needed' >&2
		exit 1
	fi
done
(($(stat -c %s "$thalweg") <= 20000000)) || { echo 'error: more than 20 MB' >&2 && exit 1; }
# A root daemon has no simulator in it: a message of its own is in the laboratory alone.
simulator='no controller is called'
grep --quiet --binary-files=text "$simulator" "$laboratory"
if grep --quiet --binary-files=text "$simulator" "$thalweg"; then
	echo 'error: the simulator is in the agent' >&2
	exit 1
fi

# An older version: one package, with the files of both, whose configuration was another.
older() {
	local tree=$work/older
	dpkg-deb -R "${deb[0]}" "$tree"
	dpkg-deb -x "${lab_deb[0]}" "$tree"
	rm "$tree/usr/bin/thalweg-lab"
	sed -i 's/^Version: .*/Version: 0.0.9-1/' "$tree/DEBIAN/control"
	sed -i '1i # An older sample.' "$tree/etc/thalweg/thalweg.toml"
	(cd "$tree" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | xargs -0 md5sum >DEBIAN/md5sums)
	dpkg-deb --root-owner-group -Zgzip -z1 -b "$tree" "$1"
}

echo '== a guest with systemd'
root=$work/root
mmdebstrap --quiet --variant=minbase \
	--include=systemd,systemd-sysv,kmod,iproute2,iperf3,apt,curl,rpm bookworm "$root"
"$laboratory" kernels add "$kernel" >/dev/null
# kernel_has KEY
kernel_has() {
	"$laboratory" --json kernels list | python3 -c '
import json, sys
print([k[sys.argv[1]] for k in json.load(sys.stdin) if k["name"].startswith("6.12")][0])' "$1"
}
modules=$(kernel_has modules)
version=$(basename "$modules")
mkdir -p "$root/lib/modules/$version/kernel/net" "$root/packages/old"
cp -a "$modules"/modules.* "$root/lib/modules/$version/"
cp -a "$modules/kernel/net/ipv4" "$root/lib/modules/$version/kernel/net/"
for name in drivers/net/veth.ko net/sched/sch_fq.ko; do
	mkdir -p "$root/lib/modules/$version/kernel/${name%/*}"
	cp -a "$modules/kernel/$name"* "$root/lib/modules/$version/kernel/${name%/*}/"
done
chroot "$root" depmod "$version"
cp "${deb[0]}" "${lab_deb[0]}" "${rpm[0]}" "${lab_rpm[0]}" "$root/packages/"
older "$root/packages/old/thalweg_0.0.9-1_amd64.deb" >/dev/null
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
TimeoutStartSec=2400
UNIT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../checks.service "$root/etc/systemd/system/multi-user.target.wants/"
rm -rf "$root"/var/cache/apt/* "$root"/usr/share/{doc,man,locale}/*
(cd "$root" && find . | cpio --quiet -o -H newc) >"$work/initramfs"
rm -rf "$root"
# A busy machine gives the guest its interrupts so late that the kernel's check of the timer fails, and it panics.
timeout --foreground 2700 qemu-system-x86_64 -M q35 -cpu max -smp 2 -m 3G -nodefaults -no-reboot \
	-kernel "$(kernel_has image)" -initrd "$work/initramfs" \
	-append 'console=ttyS0 quiet no_timer_check systemd.mask=serial-getty@ttyS0.service rdinit=/sbin/init' \
	-serial file:"$work/console" -display none || true
grep -aE '^(good|BAD|figure|    |end of)' "$work/console" || true
if ! grep -aq '^end of the checks' "$work/console"; then
	tail -n 40 "$work/console"
	echo 'error: the guest did not come to the end' >&2
	exit 1
fi
if grep -aq '^BAD' "$work/console"; then exit 1; fi
printf '%s passed, 0 failed\n' "$(grep -ac '^good' "$work/console")"

echo '== a container'
mmdebstrap --quiet --variant=minbase bookworm - | podman import --quiet - localhost/thalweg-base >/dev/null
packaging/test/container.sh localhost/thalweg-base
podman rmi localhost/thalweg-base >/dev/null
