# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Initial windows once more, in unbounded integers: see generate.py.

A family is a wide record of windows and narrow ones in it, one after the other. Its steps are
connections: a window is decided, and measured when the connection is over.
"""

from group import adopt, knows, score_group
from inputs import Random, sample_of, with_params
from learner import (
    ARMS,
    BUSY_TIME,
    FIN_LOCAL,
    FIN_REMOTE,
    ONE,
    RESET,
    SAMPLE_FIELDS,
    STRETCH,
    SWITCH,
    TIMEOUT,
    U32,
    connect,
    covered,
    empty_host,
    fits,
    fnv1a,
    forget,
    host_bytes,
    log2_q16,
    members,
    require,
)

OWN = 0  # the arm of the kernel's own window, ...
LEAST = 10  # ... which has this many segments; each further arm has two more
COUNT = 12  # windows
BYTES_MAX = 256 * 1024  # of a transfer that tells something
FIRST = 128  # measurements before the first step up
LATER = 1000  # ... and between a step and one up
KNOWN = 8 * ONE  # evidence of the largest window before a step up
SEGS = 2000  # no verdict on fewer segments
FULL = 2**15  # segments at which the counts of a window are halved
EXCESS = 3  # segments in 1000 beyond those of the kernel's own
CHANCE = 8  # square of what chance adds, in roots of those expected
PREFIX, NAMESPACE = 5, 7
NARROW = 2  # narrow records of a family

MANY = (10, 16, 24, 32)  # windows of a set


def mask(windows):
    return sum(1 << (window - LEAST) // 2 for window in windows)


def report(sample):
    """What a connection tells of its window, and the sample that counts; None: nothing."""
    segs = sample["segs_out"] - sample["retrans"]
    silent = {
        "a connection that was cut off": sample["end"] not in (FIN_LOCAL, FIN_REMOTE, RESET),
        "a transfer of one flight": segs <= LEAST,
        "a long transfer": sample["bytes"] > BYTES_MAX,
        "no RTT": sample["min_rtt_us"] == 0,
        "no duration": sample["duration_us"] == 0,
    }
    for why, holds in silent.items():
        covered[why] += holds and sum(silent.values()) == 1
    if any(silent.values()):
        return None
    rounds = log2_q16(segs + LEAST) - log2_q16(LEAST)
    cost = 32 * ONE + log2_q16(sample["duration_us"])
    cost += 3 * min(sample["retrans"], sample["segs_out"]) * ONE // sample["segs_out"]
    covered["retransmissions of a window cost"] += sample["retrans"] > 0
    told = {
        "cost_q16": fits(cost, 32),
        "log_rate_q16": 1,
        "weight_q16": ONE,
        # The number of rounds is in Q16: 16 bits more.
        "system_q16": fits(16 * ONE + log2_q16(sample["min_rtt_us"]) + log2_q16(rounds), 32),
        "system_log_rate_q16": 1,
        "queue_q16": 0,
    }
    counts = {"steady_segs": sample["segs_out"], "steady_retrans": sample["retrans"]}
    return told, {**sample, **counts}


def permitted(group, windows):
    return windows & (2 << group["step"]) - 1


def overflows(group, index):
    """Losses beyond those of the kernel's own by 3 in 1000, and by chance."""
    own, arm = group["arms"][OWN], group["arms"][index]
    if arm["segs"] < SEGS or own["segs"] < SEGS:
        covered["too few segments to blame a window"] += arm["retrans"] > 0
        return False
    expected = (own["retrans"] + 1) * arm["segs"] // own["segs"]
    beyond = arm["retrans"] - expected - EXCESS * arm["segs"] // 1000
    if beyond <= 0:
        return False
    covered["losses of a window that chance explains"] += beyond**2 <= CHANCE * expected
    return beyond**2 > CHANCE * expected


def take_step(group, windows):
    for arm in group["arms"][:COUNT]:
        if arm["segs"] >= FULL:
            covered["segments of a window halved"] += 1
            arm["segs"] //= 2
            arm["retrans"] //= 2
    in_set = [i for i in members(windows) if 0 < i < COUNT]
    tried = [i for i in in_set if i <= group["step"]]
    further = [i for i in in_set if i > group["step"]]
    harmful = [i for i in tried if overflows(group, i)]
    if harmful:
        below = max((i for i in tried if i < harmful[0]), default=OWN)
        covered["a step down to the kernel's own"] += below == OWN
        covered["a step down to a larger one"] += below > OWN
        covered["a step down below two that cause losses"] += len(harmful) > 1
        covered["the largest window causes losses"] += harmful[0] == tried[-1]
        covered["a smaller window causes losses"] += harmful[0] < tried[-1]
        group["step"], group["step_scored"] = below, group["scored"]
        return
    if not further:
        covered["no larger window in the set"] += 1
        return
    covered["a step outside of the set"] += group["step"] > OWN and group["step"] not in tried
    largest = group["arms"][tried[-1] if tried else OWN]
    wait = LATER if group["step_scored"] else FIRST
    if group["scored"] - group["step_scored"] < wait:
        covered["too soon for the first step" if wait == FIRST else "too soon for a step"] += 1
        return
    if largest["weight_q16"] < KNOWN:
        covered["too little is known of the largest window"] += 1
        return
    others = [arm for arm in (group["arms"][i] for i in tried) if arm["weight_q16"]]
    if largest["value"] > min(arm["value"] for arm in [group["arms"][OWN], *others]):
        covered["the largest window is not the best"] += 1
        return
    covered["the first step up" if wait == FIRST else "a step up"] += 1
    covered["a step up over a gap"] += further[0] > group["step"] + 1
    group["step"], group["step_scored"] = further[0], group["scored"]
    arm = group["arms"][further[0]]
    arm["segs"] = arm["retrans"] = 0
    covered["a trace is left of a window"] += arm["weight_q16"] > 1
    for evidence in ("weight_q16", "own_weight_q16"):
        arm[evidence] = min(arm[evidence], 1)


def start(group, wider):
    if not knows(wider, OWN):
        return
    covered["a record of two measurements does not start anew"] += (
        group["scored"] == 2 and group["step"] < wider["step"]
    )
    covered["a record that is not new does not start anew"] += (
        group["scored"] > 1 and group["step"] < wider["step"]
    )
    if group["scored"] <= 1 and group["step"] < wider["step"]:
        covered["a record starts where the wider one is"] += 1
        group["step"], group["step_scored"] = wider["step"], group["scored"]


def transfer(r, arm, lost):
    """Slow start of 21 to 180 segments; `lost` of 1000 flights lose a tenth to a half."""
    window, sent, rounds = LEAST + 2 * arm, 0, 0
    segs = r.between(21, 180)
    while sent < segs:
        sent += window << rounds
        rounds += 1
    retrans = r.between(segs // 10, segs // 2) if r.below(1000) < lost else r.below(40) // 39
    rtt = r.between(20_000, 24_000)
    return sample_of(
        bytes=segs * 1448,
        duration_us=rounds * rtt * r.between(95, 110) // 100 + 1_000 * retrans,
        srtt_us=rtt,
        min_rtt_us=r.between(19_500, rtt),
        segs_out=segs + retrans,
        retrans=retrans,
        flags=BUSY_TIME,
        end=r.pick([FIN_LOCAL, FIN_REMOTE, RESET]),
    )


def deep(r, arm):
    return transfer(r, arm, 1)


def shallow(r, arm):
    """A buffer that windows above 20 segments overflow."""
    return transfer(r, arm, 200 if arm > 5 else 1)


def tiny(r, arm):
    """A buffer that all larger windows overflow."""
    return transfer(r, arm, 300 if arm else 5)


def lossy(r, arm):
    """Losses that do not depend on the window, or hardly."""
    return transfer(r, arm, 40 + 3 * arm)


def evenly(r, arm):
    """Losses of all transfers, of larger windows by a little more than they may cause."""
    sample = transfer(r, arm, 0)
    retrans = sample["segs_out"] * (r.between(10, 30) + min(arm, 5)) // 1000
    sample.update(retrans=retrans)
    return sample


def hardly(r, arm):
    """Larger windows lose a few segments, and the kernel's own none."""
    sample = transfer(r, arm, 0)
    sample["retrans"] = r.below(5) // 3 if arm else 0
    return sample


def useless(r, arm):
    """A path where larger windows take longer."""
    sample = transfer(r, 0, 0)
    sample["duration_us"] += 2_000 * arm
    return sample


def silent(r, arm):
    """Half of the connections tell nothing."""
    sample = transfer(r, arm, 50)
    kind = r.below(12)
    if kind == 0:
        sample["segs_out"] = sample["retrans"] + r.pick([9, 10, 11])
    elif kind == 1:
        sample["bytes"] = BYTES_MAX + r.below(2)
    elif kind == 2:
        sample["min_rtt_us"] = r.below(2)
    elif kind == 3:
        sample["duration_us"] = r.below(2)
    elif kind == 4:
        sample["end"] = r.pick([TIMEOUT, SWITCH, STRETCH])
    elif kind == 5:
        sample["retrans"] = sample["segs_out"] + r.below(2)
    return sample


def corners(r, arm):
    """A transfer of which one field is at an end of its range."""
    sample = transfer(r, arm, 50)
    name = r.pick([n for n in SAMPLE_FIELDS if n not in ("end", "bytes")])
    sample[name] = r.pick([0, 1, 2 ** SAMPLE_FIELDS[name] - 1])
    return sample


class Plan:
    """One family: where its records begin, and where its steps are drawn from."""

    def __init__(
        self,
        name,
        samples=deep,
        sets=(MANY,),
        begun=(0, 0, 0),
        narrow_begun=(0, 0, 0),
        arms=(),
        worth=8,
        elapse=10,
        steps=120,
        **changes,
    ):
        self.name = name
        # One after the other.
        self.samples = samples if isinstance(samples, tuple) else (samples,)
        self.sets = sets
        # Step, measurements, and those at the last step, of the wide and the narrow records.
        self.begun = begun
        self.narrow_begun = narrow_begun
        # Arms of most measurements, else those that were decided.
        self.arms = arms
        self.worth = worth
        self.elapse = elapse
        self.steps = steps
        self.params = with_params(**changes)


def plans():
    ready = (3, 1500, 600)
    return [
        Plan("a network of which nothing is known", steps=200),
        Plan("a deep buffer", begun=ready, narrow_begun=ready, steps=200),
        Plan("all windows", sets=(range(10, 34, 2),), begun=(0, 90, 0), steps=160),
        Plan(
            "a shallow buffer", samples=shallow, begun=(7, 1600, 700), narrow_begun=(11, 1600, 700)
        ),
        Plan("a tiny buffer", samples=tiny, begun=(11, 999, 500), narrow_begun=(3, 999, 500)),
        Plan(
            "a deep buffer that becomes shallow",
            samples=(deep, shallow, deep),
            begun=(7, 1600, 700),
            narrow_begun=(7, 1600, 700),
            steps=300,
        ),
        Plan("losses of any window", samples=lossy, begun=ready, narrow_begun=ready, steps=300),
        Plan("larger windows take longer", samples=useless, begun=ready, narrow_begun=ready),
        Plan("only the kernel's own", sets=((10,),), begun=(0, 120, 0)),
        Plan("one other, the largest", sets=((10, 32),), begun=(0, 120, 0)),
        Plan("a set without the kernel's own", sets=((14, 20),), begun=(0, 120, 0)),
        Plan(
            "sets that change",
            samples=shallow,
            sets=(MANY, (10, 12, 20, 30), (10, 14)),
            begun=ready,
            narrow_begun=ready,
            steps=300,
        ),
        Plan("connections that tell nothing", samples=silent, begun=ready, steps=200),
        Plan("one field at its end", samples=corners, begun=ready, narrow_begun=ready, steps=200),
        Plan("hours of silence", begun=ready, elapse=40_000),
        Plan(
            "a rescue arm among the windows",
            samples=lossy,
            begun=ready,
            narrow_begun=ready,
            rescue_arm=3,
        ),
        Plan("many segments", begun=ready, narrow_begun=ready, arms=(0, 0, 3), steps=600),
        Plan("few losses", samples=hardly, begun=ready, narrow_begun=ready, arms=(0, 3)),
        Plan("a wide record that knows too late", begun=ready, arms=(0,), steps=12),
        Plan(
            "a set without the step",
            sets=((10, 24), (10, 20, 30)),
            begun=(7, 3000, 2000),
            narrow_begun=(7, 1500, 600),
        ),
        Plan("even losses", samples=evenly, begun=ready, narrow_begun=ready, arms=(0, 0, 3)),
        Plan(
            "the kernel's own measured least",
            samples=tiny,
            begun=(11, 1600, 700),
            narrow_begun=(11, 1600, 700),
            arms=(0, 3, 3, 7, 7, 11, 11),
            steps=200,
        ),
        Plan("knowledge of much worth", begun=(11, 3000, 1000), worth=500),
    ]


def begin(level, begun):
    group = empty_host()
    group["level"] = level
    group["step"], group["scored"], group["step_scored"] = begun
    return group


def family(plan, seed):
    r = Random(seed)
    params = plan.params
    wide = begin(NAMESPACE, plan.begun)
    narrows = [begin(PREFIX, plan.narrow_begun) for _ in range(NARROW)]
    worth = [min(plan.worth * ONE >> (i % 3), U32) for i in range(ARMS)]
    now_ns = 10**12
    steps = []
    for number in range(plan.steps):
        place, part, which = (
            number * len(items) // plan.steps for items in (narrows, plan.samples, plan.sets)
        )
        narrow, windows = narrows[place], mask(plan.sets[which])
        now_ns += r.below(plan.elapse * 10**9)
        random = r.u32() | r.pick([0, 0, 0xF000])
        # The narrowest record that knows decides; evidence is lost with time before it is asked.
        for group in (narrow, wide):
            forget(group, params, now_ns)
        arm, reason, propensity, allowed, record = OWN, 0, ONE, 0, 0
        for record, decider in ((1, narrow), (2, wide)):
            if knows(decider, OWN):
                covered["the narrow record decides" if record == 1 else "the wide one does"] += 1
                allowed = permitted(decider, windows)
                draw = [random, 0, 0]
                arm, reason, propensity = connect(decider, OWN, allowed, params, draw, now_ns)
                break
        else:
            covered["no record knows enough"] += 1
            record = 0
        require(arm == OWN or windows >> arm & 1, "a window outside of the set")
        step = {
            "narrow": place,
            "windows": windows,
            "random": random,
            "now_ns": now_ns,
            "record": record,
            "allowed": allowed,
            "arm": arm,
            "reason": reason,
            "propensity_q16": propensity,
        }
        # Some were decided before a step, or have the window of another record.
        kind, scored_arm = r.below(12), arm
        if kind == 0:
            scored_arm = r.below(COUNT)
        elif plan.arms:
            scored_arm = r.pick(plan.arms)
        now_ns += r.below(10**9)
        sample = plan.samples[part](r, scored_arm)
        told = report(sample)
        if told:
            for group in (wide, narrow):
                score_group(group, scored_arm, OWN, *told, params, now_ns)
                take_step(group, windows)
            adopt(narrow, wide, OWN, worth)
            start(narrow, wide)
        step.update(
            scored_arm=scored_arm,
            ended_ns=now_ns,
            sample=[fits(sample[n], b) for n, b in SAMPLE_FIELDS.items()],
            cost_q16=told[0]["cost_q16"] if told else 0,
            system_q16=told[0]["system_q16"] if told else 0,
            after=[fnv1a(host_bytes(group)) for group in (narrow, wide)],
        )
        steps.append(step)
    return {
        "name": plan.name,
        "params": params,
        "worth_q16": worth,
        "begun": [plan.narrow_begun, plan.begun],
        "steps": steps,
    }


BRANCHES = [
    "a connection that was cut off",
    "a long transfer",
    "a record starts where the wider one is",
    "a record of two measurements does not start anew",
    "a record that is not new does not start anew",
    "a smaller window causes losses",
    "a step down below two that cause losses",
    "a step down to a larger one",
    "a step down to the kernel's own",
    "a step outside of the set",
    "a step up",
    "a step up over a gap",
    "a trace is left of a window",
    "a transfer of one flight",
    "explored",
    "losses of a window that chance explains",
    "no RTT",
    "no duration",
    "no larger window in the set",
    "no record knows enough",
    "no window is a rescue arm",
    "retransmissions of a window cost",
    "segments of a window halved",
    "the first step up",
    "the kernel's own once more",
    "the largest window causes losses",
    "the largest window is not the best",
    "the narrow record decides",
    "the wide one does",
    "too few segments to blame a window",
    "too little is known of the largest window",
    "too soon for a step",
    "too soon for the first step",
    "untried",
]


def windows():
    covered.clear()
    all_of_them = [family(plan, 3000 + n) for n, plan in enumerate(plans())]
    missing = [branch for branch in BRANCHES if not covered[branch]]
    require(not missing, f"no family of windows reaches: {', '.join(missing)}")
    return {"families": all_of_them}
