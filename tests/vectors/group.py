# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Groups of hosts once more, in unbounded integers: see generate.py.

A family is a wide group, three narrow ones in it, one after the other, and hosts in those. Its steps
are connections and measurements of the hosts, told to both of their groups.
"""

from inputs import (
    Random,
    bulk,
    limited,
    overflowing,
    queueing,
    stalling,
    stretches,
    with_params,
)
from learner import (
    ARMS,
    FLEET,
    GREEDY,
    NO_ARM,
    ONE,
    SAMPLE_FIELDS,
    SCORED,
    U32,
    blend,
    connect,
    covered,
    empty_host,
    end_trial,
    fits,
    fnv1a,
    forget,
    host_bytes,
    is_fleet,
    is_window,
    log2_q16,
    note_caution,
    prepare,
    rate,
    require,
    score,
    take,
)

OFFSET = 32 * ONE  # cost and log2 of the rate of the system's arm in a group
KNOWN = 8 * ONE  # evidence of the system's arm with which a group decides
TOLD_EACH = 16
PREFIX, NAMED, NAMESPACE = 1, 2, 4
NARROW = 3  # narrow groups of a family


def report(before, after, index, system_arm, sample, cost, weight):
    """What the host tells of a measurement just scored; None: it has told enough."""
    if system_arm >= ARMS:
        covered["nothing to be told without a system's arm"] += 1
        return None
    if before["arms"][index]["scored"] and before["scored"] % TOLD_EACH:
        covered["a host that has told of the arm"] += 1
        return None
    system = before["arms"][system_arm]
    measured = system["scored"] > 0 and system["weight_q16"] > 0
    covered["an inherited mean is no reference"] += system["weight_q16"] > 0 and not measured
    return {
        "cost_q16": cost,
        "log_rate_q16": log2_q16(rate(sample["bytes"], sample["duration_us"])),
        "weight_q16": weight,
        "system_q16": system["value"] if measured else 0,
        "system_log_rate_q16": system["log_rate_q16"] if measured else 0,
        "queue_q16": after["queue_q16"],
    }


def relative(value, reference):
    covered["far from the reference"] += abs(value - reference) > OFFSET
    return max(0, min(OFFSET + value - reference, 2 * OFFSET))


def score_group(group, index, system_arm, told, sample, params, now_ns):
    group["seen_ns"] = now_ns
    weight, reference, reference_rate = (
        told[name] for name in ("weight_q16", "system_q16", "system_log_rate_q16")
    )
    if reference == 0:
        weight //= 2
        if index == system_arm:
            covered["a new host on the system's arm"] += 1
            if group["usual_q16"] == 0:
                group["usual_q16"] = told["cost_q16"]
                group["usual_log_rate_q16"] = told["log_rate_q16"]
        reference, reference_rate = group["usual_q16"], group["usual_log_rate_q16"]
        if reference == 0:
            covered["nothing to compare with"] += 1
            return
        if index == system_arm:
            for name, value in (("usual_q16", "cost_q16"), ("usual_log_rate_q16", "log_rate_q16")):
                group[name] = blend(group[name], told[value], 1, 16)
        else:
            covered["a new host on another arm"] += 1
    for arm in group["arms"]:
        arm["value"], arm["weight_q16"] = arm["own_q16"], arm["own_weight_q16"]
    if index == system_arm:
        first = group["arms"][index]["weight_q16"] == 0
        queue = told["queue_q16"]
        group["queue_q16"] = queue if first else blend(group["queue_q16"], queue, 1, 16)
    prepare(group, index, params, now_ns)
    cost = relative(told["cost_q16"], reference)
    log_rate = relative(told["log_rate_q16"], reference_rate)
    take(group, index, system_arm, cost, log_rate, weight, sample, params)
    for arm in group["arms"]:
        arm["own_q16"], arm["own_weight_q16"] = fits(arm["value"], 32), arm["weight_q16"]


def knows(group, system_arm):
    return system_arm < ARMS and group["arms"][system_arm]["weight_q16"] >= KNOWN


def adopt(group, wider, system_arm, worth):
    if not knows(wider, system_arm):
        return
    group["used"] = max(group["used"], wider["used"])
    if is_fleet(group):
        covered["the fleet takes over from a wide group"] += 1
    elif not is_window(group):
        covered["what the fleet told is passed on"] += wider["step"] > 0
        group["step"] = wider["step"]
    for index, arm in enumerate(group["arms"]):
        theirs = wider["arms"][index]
        weight = min(theirs["weight_q16"], worth[index])
        if weight == 0:
            continue
        covered["knowledge is worth less than its evidence"] += weight < theirs["weight_q16"]
        total = arm["own_weight_q16"] + weight
        if arm["own_weight_q16"] == 0:
            covered["an arm that only wider groups know"] += 1
            for name in ("value", "log_rate_q16", "deviation_q16"):
                arm[name] = theirs[name]
        else:
            covered["an arm that both know"] += 1
            arm["value"] = blend(arm["own_q16"], theirs["value"], weight, total)
        arm["weight_q16"] = min(total, U32)
        note_caution(group, index, system_arm)


def inherit(host, group, index, system_arm, worth):
    if not knows(group, system_arm):
        return
    known = group["arms"][index]
    if known["weight_q16"] == 0:
        covered["the group does not know the arm that was measured"] += 1
        return
    host["step"] = group["step"]
    own = host["arms"][index]
    for other, arm in enumerate(host["arms"]):
        theirs = group["arms"][other]
        weight = min(theirs["weight_q16"], worth[other])
        if other == index or weight == 0:
            continue
        covered["inherited"] += 1
        for name in ("value", "log_rate_q16"):
            arm[name] = max(0, min(own[name] + theirs[name] - known[name], U32))
        arm["weight_q16"] = weight
        for name in ("deviation_q16", "caution_q16", "segs", "retrans"):
            arm[name] = theirs[name]
        arm["srtt_us"] = own["srtt_us"]
    own["weight_q16"] += min(known["weight_q16"], worth[index])
    own["deviation_q16"], own["caution_q16"] = known["deviation_q16"], known["caution_q16"]
    covered["inherits a harmful arm"] += group["harmful"] > 0
    host["harmful"] |= group["harmful"]


class Plan:
    """One family: parameters and where its steps are drawn from."""

    def __init__(
        self,
        name,
        samples=bulk,
        masks=(0xF,),
        systems=(0,),
        noise=50,
        worth=8,
        elapse=60,
        hosts=50,
        revisits=3,
        steps=120,
        level=0,
        **changes,
    ):
        self.name = name
        # Of a narrow group of which other agents told; 0: they told of none.
        self.level = level
        self.samples = samples
        self.masks = masks
        self.systems = systems
        self.noise = noise
        self.worth = worth
        self.elapse = elapse
        self.hosts = hosts
        self.revisits = revisits
        self.steps = steps
        self.params = with_params(**changes)


def plans():
    return [
        Plan("a network"),
        Plan("a network, wide noise, knowledge of little worth", noise=400, worth=1),
        Plan("a network, knowledge of much worth", noise=200, worth=500),
        Plan("arms that overflow a queue", samples=overflowing, noise=200),
        Plan("a bottleneck that is full", samples=queueing, noise=300),
        Plan("arms that stall", samples=stalling, noise=100),
        Plan("limited by receivers and buffers", samples=limited),
        Plan("parts of long connections", samples=stretches, hosts=10, revisits=30),
        Plan("defaults that differ", systems=(0, 0, 0, 1, NO_ARM), masks=(0xF, 0xE)),
        Plan("one host", hosts=1, revisits=300),
        Plan("sixteen arms", masks=(0xFFFF,), systems=(5,), steps=200),
        Plan("hours of silence", elapse=40_000),
        Plan("a half-life beyond any clock", half_life_ns=2**63),
        Plan("much evidence", weight_max_q16=2**28, idle_shift=31, worth=2**15, steps=100),
        Plan("a prefix of which others told", level=PREFIX, steps=200),
        Plan("a named network of which others told", level=NAMED, noise=300, elapse=20_000),
    ]


def plan_told(plan, seed):
    """What the fleet told of the system's arm, in measurements, as a wide group has it."""
    return 0 if plan.level else seed % 3 * 20


def told_record(plan, now_ns):
    """What other agents told of the narrow groups, as the agent writes it: never scored."""
    told = empty_host()
    told.update(level=plan.level | FLEET, scored=1, step=96, step_scored=24, used=3)
    told.update(seen_ns=now_ns, forgot_ns=now_ns)
    for index, arm in enumerate(told["arms"][:3]):
        arm.update(
            value=OFFSET - index * ONE // 2,
            own_q16=OFFSET - index * ONE // 2,
            weight_q16=(12 + 4 * index) * ONE,
            own_weight_q16=(12 + 4 * index) * ONE,
            log_rate_q16=OFFSET + index * ONE // 2,
            deviation_q16=ONE // 3,
            segs=20_000,
            retrans=10 * index,
        )
        note_caution(told, index, 0)
    return told


def family(plan, seed):
    r = Random(seed)
    params = plan.params
    wide, narrows, hosts = empty_host(), [empty_host() for _ in range(NARROW)], {}
    wide["level"], wide["step"] = NAMESPACE, plan_told(plan, seed)
    for narrow in narrows:
        narrow["level"] = plan.level or PREFIX
    worth = [min(plan.worth * ONE >> (i % 3), U32) for i in range(ARMS)]
    now_ns = 10**12
    told_of = told_record(plan, now_ns) if plan.level else None
    first = host_bytes(told_of).hex() if told_of else None
    steps = []
    for number in range(plan.steps):
        # Each host comes a number of times, then others do.
        index = min(number // plan.revisits + r.below(3), plan.hosts - 1)
        host = hosts.setdefault(index, empty_host())
        place = number * NARROW // plan.steps
        narrow = narrows[place]
        allowed, system_arm = r.pick(plan.masks), r.pick(plan.systems)
        now_ns += r.below(plan.elapse * 10**9)
        random = [r.u32() | r.pick([0, 0, 0xF000]), 0, 0]
        # The host decides, or the narrowest group that knows.
        record, decider = 0, host
        if host["scored"] == 0:
            # Evidence is lost with time before a group is asked.
            for group in filter(None, (narrow, told_of, wide)):
                forget(group, params, now_ns)
            if knows(narrow, system_arm):
                covered["the narrow group decides"] += 1
                record, decider = 1, narrow
            elif told_of and knows(told_of, system_arm):
                covered["what others told decides"] += 1
                record, decider = 3, told_of
            elif knows(wide, system_arm):
                covered["the wide group decides"] += 1
                record, decider = 2, wide
        arm, reason, propensity = connect(decider, system_arm, allowed, params, random, now_ns)
        covered["a group's choice is not the system's"] += (
            record > 0 and reason == GREEDY and arm != system_arm
        )
        steps.append(
            {
                "op": "connect",
                "host": index,
                "narrow": place,
                "record": record,
                "system_arm": system_arm,
                "allowed": allowed,
                "random": random,
                "now_ns": now_ns,
                "arm": arm,
                "reason": reason,
                "propensity_q16": propensity,
                "after": fnv1a(host_bytes(decider)),
            }
        )
        scored_arm = arm if arm < ARMS and r.below(6) else r.below(4)
        now_ns += r.below(10**9)
        sample = plan.samples(r, scored_arm, plan.noise)
        before = {**host, "arms": [dict(state) for state in host["arms"]]}
        end_trial(host)
        outcome, weight, cost = score(host, scored_arm, system_arm, sample, params, now_ns)
        if outcome == SCORED:
            told = report(before, host, scored_arm, system_arm, sample, cost, weight)
            if told:
                score_group(wide, scored_arm, system_arm, told, sample, params, now_ns)
                score_group(narrow, scored_arm, system_arm, told, sample, params, now_ns)
                # From wide to narrow, each from the last one that knows.
                wider = wide
                if told_of:
                    adopt(told_of, wide, system_arm, worth)
                    wider = told_of if knows(told_of, system_arm) else wide
                adopt(narrow, wider, system_arm, worth)
            if before["scored"] == 0:
                inherit(host, narrow, scored_arm, system_arm, worth)
        steps.append(
            {
                "op": "score",
                "host": index,
                "narrow": place,
                "arm": scored_arm,
                "system_arm": system_arm,
                "now_ns": now_ns,
                "sample": [fits(sample[n], b) for n, b in SAMPLE_FIELDS.items()],
                "outcome": outcome,
                "weight_q16": weight,
                "cost": cost,
                "after": [
                    fnv1a(host_bytes(record)) if record else ""
                    for record in (host, narrow, wide, told_of)
                ],
            }
        )
    return {
        "name": plan.name,
        "params": params,
        "told": plan_told(plan, seed),
        "others": first,
        "worth_q16": worth,
        "steps": steps,
    }


BRANCHES = [
    "a group forgets",
    "a group is not surprised",
    "a group pays in advance",
    "a group's choice is not the system's",
    "a host that has told of the arm",
    "a new host on another arm",
    "a new host on the system's arm",
    "an arm known by others follows",
    "an arm that both know",
    "an arm that only wider groups know",
    "an inherited mean is no reference",
    "inherited",
    "inherits a harmful arm",
    "knowledge is worth less than its evidence",
    "nothing to be told without a system's arm",
    "nothing to compare with",
    "the fleet takes over from a wide group",
    "the narrow group decides",
    "the system's arm is known by others",
    "the wide group decides",
    "what others told decides",
    "what the fleet told counts",
    "what the fleet told is passed on",
]


def families():
    covered.clear()
    all_of_them = [family(plan, 2000 + n) for n, plan in enumerate(plans())]
    missing = [branch for branch in BRANCHES if not covered[branch]]
    require(not missing, f"no family reaches: {', '.join(missing)}")
    return {"families": all_of_them}
