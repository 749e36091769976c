#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Golden vectors of policies: policy.json. Policies as TOML, flows, and the rule each flow gets.

This is an implementation of its own, on Python's `ipaddress`, written from what docs/reference/policy.md
says about the order of rules, not from the code. Half of the policies are random, from few
enough words that several rules hold for most flows. A set in which some condition never
decides, or some step of the order never does, is refused.

usage: policy.py          writes the file
       policy.py --check  compares; exit status 1 if it differs
"""

import ipaddress
import json
import pathlib
import random
import sys

FILE = pathlib.Path(__file__).with_name("policy.json")

PREFIXES = [
    "10.0.0.0/8",
    "10.0.0.0/12",
    "10.1.0.0/16",
    "10.1.2.0/24",
    "10.1.2.3",
    "0.0.0.0/0",
    "192.168.0.0/16",
    "::/0",
    "::/1",
    "2001:db8::/32",
    "2001:db8::/44",
    "2001:db8:1::/48",
    "2001:db8:1::1",
]
ADDRESSES = {
    4: ["10.1.2.3", "10.1.2.4", "10.1.9.9", "10.200.0.1", "192.168.1.1", "203.0.113.9"],
    6: ["2001:db8:1::1", "2001:db8:1::2", "2001:db8:2::1", "2001:db8:ff00::1", "fe80::1"],
}
PORTS = [80, 81, 443, 8000, 8999, 9000]
RANGES = [80, "80-443", "8000-8999", "1-65535"]
CGROUPS = ["/thalweg/a", "/thalweg/a/b", "/thalweg/c"]
FLOW_CGROUPS = [None, "/thalweg/a", "/thalweg/a/b/c", "/thalweg/ab", "/thalweg/c"]
SAMPLES = {"50%": 1 << 31, "25%": 1 << 30, "100%": 1 << 32}
DRAWS = [0, (1 << 30) - 1, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
NETNS = [7, 8]

decided = {}


def listed(value):
    return value if isinstance(value, list) else [value]


def within(prefix, address):
    """Length of a prefix if an address lies in it, else None."""
    network = ipaddress.ip_network(prefix)
    if network.version == address.version and address in network:
        return network.prefixlen
    return None


def longest(prefixes, address):
    lengths = [within(prefix, address) for prefix in listed(prefixes)]
    return max((length for length in lengths if length is not None), default=None)


def in_range(ranges, port):
    for one in listed(ranges):
        first, last = (one, one) if isinstance(one, int) else map(int, one.split("-"))
        if first <= port <= last:
            return True
    return False


def below(path, ancestors):
    parts = path.split("/")
    return any(parts[: len(ancestor.split("/"))] == ancestor.split("/") for ancestor in ancestors)


def holds(conditions, flow):
    """Its place in the order (remote, local), or the name of a condition that does not hold."""
    remote = ipaddress.ip_address(flow["remote"])
    local = ipaddress.ip_address(flow["local"])
    listener = flow["kind"] == "listener"
    remote_length = local_length = 0
    if "remote" in conditions:
        # A listener has no peer: only "anywhere" holds for it.
        prefixes = listed(conditions["remote"])
        if listener:
            prefixes = [prefix for prefix in prefixes if prefix.endswith("/0")]
        remote_length = longest(prefixes, remote)
        if remote_length is None:
            return "remote"
    if "local" in conditions:
        local_length = longest(conditions["local"], local)
        if local_length is None:
            return "local"
    if "same_prefix" in conditions:
        same = conditions["same_prefix"]
        bits = same if isinstance(same, int) else same.get(f"ipv{remote.version}")
        if isinstance(same, int) and remote.version == 4:
            bits = None
        if bits is None or listener:
            return "same_prefix"
        shift = remote.max_prefixlen - bits
        if int(remote) >> shift != int(local) >> shift:
            return "same_prefix"
        remote_length = max(remote_length, bits)
    for key in ("remote_port", "local_port"):
        if key in conditions:
            if (key == "remote_port" and listener) or not in_range(conditions[key], flow[key]):
                return key
    if "direction" in conditions:
        if (conditions["direction"] == "active") != (flow["kind"] == "active"):
            return "direction"
    if "cgroup" in conditions:
        if flow["cgroup"] is None or not below(flow["cgroup"], listed(conditions["cgroup"])):
            return "cgroup"
    if "netns" in conditions and conditions["netns"] != flow["netns"]:
        return "netns"
    if "sample" in conditions and flow["draw"] >= SAMPLES[conditions["sample"]]:
        return "sample"
    return remote_length, local_length


def decide(rules, flow):
    holding = []
    for place, rule in enumerate(rules):
        held = holds(rule["match"], flow)
        if isinstance(held, str):
            decided[held] = decided.get(held, 0) + 1
        else:
            holding.append(((rule["never"], *held, -place), rule["name"]))
    holding.sort(reverse=True)
    if len(holding) > 1:
        first, second = holding[0][0], holding[1][0]
        step = next(i for i in range(4) if first[i] != second[i])
        step = ("never", "longer remote", "longer local", "earlier in the file")[step]
        decided[step] = decided.get(step, 0) + 1
    return holding[0][1] if holding else None


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


def text(name, rules):
    lines = [f'name = "{name}"', ""]
    for rule in rules:
        lines += ["[[rule]]", f'name = "{rule["name"]}"']
        if rule["match"]:
            lines.append(f"match = {toml(rule['match'])}")
        mark = int(rule["name"][1:]) + 1
        lines += ["never = true" if rule["never"] else f"set = {{ mark = {mark} }}", ""]
    return "\n".join(lines)


def rule(place, match, never=False):
    return {"name": f"r{place}", "match": match, "never": never}


WRITTEN = [
    ("one rule for all", [{}]),
    ("longest remote prefix", [{}, {"remote": "10.0.0.0/8"}, {"remote": "10.1.0.0/16"}]),
    (
        "remote before local, local before place",
        [
            {"remote": "10.1.0.0/16"},
            {"remote": "10.0.0.0/8", "local": "10.1.2.3"},
            {"remote": "10.1.0.0/16", "local": "10.0.0.0/8"},
            {"remote": "10.1.0.0/16"},
        ],
    ),
    (
        "same_prefix between prefixes",
        [
            {"remote": "2001:db8::/32"},
            {"same_prefix": 44},
            {"remote": "2001:db8:1::/48"},
            {"same_prefix": {"ipv4": 12}},
            {"remote": "10.0.0.0/8"},
            {"remote": "10.1.0.0/16"},
        ],
    ),
    (
        "both conditions on the peer",
        [
            {"remote": "10.0.0.0/8", "same_prefix": {"ipv4": 24}},
            {"remote": "10.1.0.0/16"},
            {"remote": "10.1.2.3"},
        ],
    ),
    ("nothing of a family", [{"remote": "0.0.0.0/0"}, {}, {"remote": "::/0"}]),
    (
        "lists in one rule",
        [{"remote": ["10.0.0.0/8", "10.1.2.0/24"]}, {"remote": "10.1.0.0/16"}],
    ),
    (
        "local lists",
        [
            {"local": ["10.0.0.0/8", "10.1.2.3"]},
            {"local": "10.1.0.0/16"},
            {"local": ["2001:db8::/32", "0.0.0.0/0"]},
        ],
    ),
    (
        "ports, direction, listeners",
        [
            {"remote_port": [80, "8000-8999"], "direction": "active"},
            {"local_port": 80, "direction": "passive"},
            {"local_port": "80-443"},
            {"direction": "passive", "remote": "0.0.0.0/0"},
        ],
    ),
    ("cgroups", [{"cgroup": "/thalweg/a/b"}, {"cgroup": ["/thalweg/a", "/thalweg/c"]}]),
    ("namespaces", [{"netns": 7}, {"netns": 8, "remote": "10.0.0.0/8"}]),
    ("samples", [{"sample": "25%"}, {"sample": "50%"}, {"sample": "100%", "remote_port": 80}]),
]


def flows_for(draw, count):
    flows = []
    for _ in range(count):
        version = draw.choice([4, 6])
        kind = draw.choice(["active", "active", "passive", "passive", "listener"])
        remote, local = draw.choice(ADDRESSES[version]), draw.choice(ADDRESSES[version])
        remote_port = draw.choice(PORTS)
        if kind == "listener":
            remote, remote_port = {4: "0.0.0.0", 6: "::"}[version], 0
        flows.append(
            {
                "remote": remote,
                "local": local,
                "remote_port": remote_port,
                "local_port": draw.choice(PORTS),
                "kind": kind,
                "cgroup": draw.choice(FLOW_CGROUPS),
                "netns": draw.choice(NETNS),
                "draw": draw.choice(DRAWS),
            }
        )
    return flows


def some(draw, words):
    return draw.sample(words, draw.randint(1, 3)) if draw.random() < 0.5 else draw.choice(words)


def random_match(draw):
    makers = {
        "remote": lambda: some(draw, PREFIXES),
        "local": lambda: some(draw, PREFIXES),
        "same_prefix": lambda: draw.choice([44, 1, {"ipv4": 12}, {"ipv6": 48, "ipv4": 24}]),
        "remote_port": lambda: some(draw, RANGES),
        "local_port": lambda: some(draw, RANGES),
        "direction": lambda: draw.choice(["active", "passive"]),
        "cgroup": lambda: some(draw, CGROUPS),
        "netns": lambda: draw.choice(NETNS),
        "sample": lambda: draw.choice(list(SAMPLES)),
    }
    keys = ["remote"] * 3 + ["local", "same_prefix"] * 2 + list(makers)
    chosen = {draw.choice(keys) for _ in range(draw.randint(0, 3))}
    return {key: make() for key, make in makers.items() if key in chosen}


def build():
    draw = random.Random(1)
    policies = []

    def add(name, rules):
        flows = flows_for(draw, 40)
        for flow in flows:
            flow["rule"] = decide(rules, flow)
        policies.append({"name": name, "toml": text("vector", rules), "flows": flows})

    for name, matches in WRITTEN:
        add(name, [rule(place, match) for place, match in enumerate(matches)])
    add(
        "never before all others",
        [
            rule(0, {"remote": "10.1.2.3"}),
            rule(1, {"same_prefix": {"ipv4": 24, "ipv6": 48}}),
            rule(2, {"remote": "10.0.0.0/8", "remote_port": 80}, True),
            rule(3, {"remote_port": "80-443", "remote": "2001:db8::/32"}, True),
            rule(4, {}),
        ],
    )
    for number in range(len(policies)):
        rules = []
        for place in range(draw.randint(2, 8)):
            rules.append(rule(place, random_match(draw), draw.random() < 0.15))
        add(f"random {number}", rules)
    for step in [
        "remote",
        "local",
        "same_prefix",
        "remote_port",
        "local_port",
        "direction",
        "cgroup",
        "netns",
        "sample",
        "never",
        "longer remote",
        "longer local",
        "earlier in the file",
    ]:
        if decided.get(step, 0) < 10:
            sys.exit(f"error: {step!r} decides {decided.get(step, 0)} times only")
    rows = []
    for policy in policies:
        flows = ",\n".join("  " + json.dumps(flow) for flow in policy["flows"])
        head = json.dumps({"name": policy["name"], "toml": policy["toml"]})[:-1]
        rows.append(f'{head}, "flows": [\n{flows}\n]}}')
    return '{"policies": [\n' + ",\n".join(rows) + "\n]}\n"


def main():
    made = build()
    if sys.argv[1:] == ["--check"]:
        if FILE.read_text() != made:
            sys.exit(f"error: {FILE} is not what this program makes")
    elif sys.argv[1:]:
        sys.exit(__doc__.strip().splitlines()[-2] + "\n" + __doc__.strip().splitlines()[-1])
    else:
        FILE.write_text(made)


if __name__ == "__main__":
    main()
