#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# fleet-agents.sh HOST…: gives each host its key and the fleet's configuration (fleet.toml, fleet.conf), and
# restarts its agent. From the directory in which `thalweg fleet init fleet` was called.
set -e
for host; do
	name=$(ssh "root@$host" uname -n | sed 's/_/__/g; s/\./_/g')
	ssh "root@$host" 'install -d -m 0700 /etc/thalweg/fleet; install -d /etc/systemd/system/thalweg.service.d'
	scp "fleet/agents/$name"/* "root@$host:/etc/thalweg/fleet/"
	scp fleet.conf "root@$host:/etc/systemd/system/thalweg.service.d/"
	ssh "root@$host" 'grep -q ^servers /etc/thalweg/thalweg.toml || cat >>/etc/thalweg/thalweg.toml' <fleet.toml
	ssh "root@$host" 'thalweg config check /etc/thalweg/thalweg.toml && systemctl daemon-reload && systemctl restart thalweg'
done
