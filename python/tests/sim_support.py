# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Scenarios for tests."""

from thalweg.sim import Scenario


def many_to_one(
    flows: int,
    senders: int | None = None,
    duration: str = "4ms",
    warmup: str = "1ms",
    sender: str = "nic",
) -> Scenario:
    """Endless flows to one host at 100 Gbit/s, base RTT 12 us."""
    senders = min(flows, 64) if senders is None else senders
    return Scenario.from_text(
        f"""
        name = "{flows}-to-1"
        duration = "{duration}"
        warmup = "{warmup}"
        topology = {{ kind = "star", hosts = {senders + 1} }}
        link = {{ rate = "100gbit", delay = "1us", queue = "1mib" }}
        network = {{ base_rtt = "12us" }}
        hosts = {{ sender = "{sender}" }}
        workload = {{ kind = "many-to-one", flows = {flows} }}
        """
    )
