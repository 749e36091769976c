#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Sets up nats-server on Debian 12 as a server of a fleet, as root, with the files of /etc/thalweg-fleet.
set -e
apt-get update && apt-get install --yes nats-server
install -d -o nats -m 0700 /var/lib/nats/thalweg
install -d /etc/systemd/system/nats-server.service.d
cat >/etc/systemd/system/nats-server.service.d/thalweg.conf <<'END'
[Service]
ExecStart=
ExecStart=/usr/sbin/nats-server -c /etc/thalweg-fleet/nats-server.conf
Restart=on-failure
END
chown -R nats: /etc/thalweg-fleet
systemctl daemon-reload
systemctl enable nats-server
systemctl restart nats-server
