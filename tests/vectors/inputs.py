# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sequences of connections that take every branch of the learner: see generate.py."""

from learner import (
    ARM_FIELDS,
    ARMS,
    BUSY_TIME,
    CLASSIC,
    FIN_LOCAL,
    FIN_REMOTE,
    GROUP_ARM_FIELDS,
    HOST_FIELDS,
    NO_ARM,
    ONE,
    RESET,
    SAMPLE_FIELDS,
    STRETCH,
    SWITCH,
    THALWEG,
    TIMEOUT,
    U32,
    U64,
    change,
    connect,
    covered,
    empty_host,
    end_trial,
    fits,
    fnv1a,
    host_bytes,
    host_out,
    members,
    require,
    review,
    score,
)


class Random:
    """SplitMix64: the same numbers on every Python."""

    def __init__(self, seed):
        self.state = seed

    def u64(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & U64
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & U64
        z = (z ^ z >> 27) * 0x94D049BB133111EB & U64
        return z ^ z >> 31

    def u32(self):
        return self.u64() >> 32

    def below(self, n):
        return self.u64() % n

    def between(self, low, high):
        return low + self.below(high - low + 1)

    def pick(self, items):
        return items[self.below(len(items))]

    def one_in(self, n):
        return self.below(n) == 0

    def wide(self, bits):
        """Any length in bits alike, and often an end of the range."""
        if self.one_in(3):
            return self.pick([0, 1, 2**bits - 1, 2**bits - 2, 2 ** (bits - 1)])
        return self.u64() >> (64 - self.between(1, bits))


DEFAULTS = {
    "mode": THALWEG,
    "warm_up": 1,
    "gap_scale": 256,
    "weight_max_q16": 8 * ONE,
    "idle_shift": 6,
    "half_life_ns": 1800 * 10**9,
    "latency_weight_q16": ONE // 4,
    "latency_guard_us": 10_000,
    "score_min_bytes": 128 * 1024,
    "score_full_bytes": 1024 * 1024,
    "loss_shift": 6,
    "loss_min_segs": 128,
    "rescue_arm": NO_ARM,
}


def with_params(**changes):
    require(set(changes) <= set(DEFAULTS), f"unknown parameter in {changes}")
    return {**DEFAULTS, **changes}


def sample_of(**fields):
    """A sample; all of its segments count as sent after slow start unless it says otherwise."""
    steady = {"steady_segs": fields.get("segs_out", 0), "steady_retrans": fields.get("retrans", 0)}
    return {**dict.fromkeys(SAMPLE_FIELDS, 0), **steady, **fields}


def bulk(r, arm, noise):
    """A transfer on a path where arms differ by up to a factor of 2^(arm % 4)."""
    size = r.between(64 * 1024, 4 * 1024 * 1024)
    per_second = (5_000_000 << arm % 4) * r.between(100, 100 + noise) // 100
    segs = size // 1448 + 1
    srtt = r.between(20_000, 20_000 + 1_000 * noise)
    return sample_of(
        bytes=size,
        duration_us=size * 10**6 // per_second + 1,
        rate_delivered_bytes=14_480,
        rate_interval_us=14_480 * 10**6 // per_second + 1,
        srtt_us=srtt,
        min_rtt_us=r.between(18_000, srtt),
        segs_out=segs,
        retrans=segs // r.between(20, 2_000),
        flags=r.below(2),
        end=r.pick([FIN_LOCAL, FIN_REMOTE, RESET, SWITCH]),
    )


def equal(r, arm, noise):
    """The same transfer on every arm: ties."""
    return sample_of(
        bytes=2_000_000,
        duration_us=1_000_000,
        rate_delivered_bytes=14_480,
        rate_interval_us=7_240,
        srtt_us=30_000,
        min_rtt_us=25_000,
        segs_out=1_400,
        retrans=3,
    )


def overflowing(r, arm, noise):
    """Transfers that lose a little at random, and arms with odd numbers a lot by themselves."""
    sample = bulk(r, arm, noise)
    segs = sample["segs_out"] = r.pick([200, 2_000, 20_000])
    sample["steady_segs"] = segs - r.below(segs // 2)
    own = r.between(20, 60) if arm % 2 else 0
    sample["steady_retrans"] = sample["steady_segs"] * (r.between(5, 20) + own) // 1_000
    sample["retrans"] = sample["steady_retrans"] + r.below(9)
    return sample


def queueing(r, arm, noise):
    """Transfers on a path whose queue is mostly full."""
    sample = bulk(r, arm, noise)
    sample["min_rtt_us"] = r.pick([10_000, 11_000, 14_000, 30_000])
    sample["srtt_us"] = r.pick([9_000, 12_000, 14_000, 25_000, 40_000])
    sample["loss_srtt_us"] = r.pick([0, 0, 9_500, 13_000, 30_000])
    return sample


def odd(r, arm, noise):
    """Short transfers, time-outs and applications that pause."""
    sample = bulk(r, arm, noise)
    kind = r.below(5)
    if kind == 0:
        sample["bytes"] = r.below(200_000)
    elif kind == 1:
        sample.update(
            bytes=r.below(200_000),
            end=r.pick([TIMEOUT, TIMEOUT, SWITCH]),
            segs_out=r.between(30, 34),
            retrans=r.between(0, 12),
        )
    elif kind in (2, 3):
        sample["duration_us"] *= r.between(15, 19)
        sample["retrans"] = sample["segs_out"] // 256 + r.below(2)
        if kind == 3 and r.one_in(2):
            sample["end"] = TIMEOUT
    else:
        sample.update(rate_interval_us=0, min_rtt_us=0)
    return sample


def jumping(r, arm, noise):
    """Rates far apart on one arm: both sides of the clip."""
    sample = bulk(r, arm, noise)
    sample["duration_us"] = max(1, sample["duration_us"] * 2 ** r.below(14) // 2**7)
    sample["rate_interval_us"] = 0
    return sample


def stalling(r, arm, noise):
    """Transfers of which some take several times as long, on arms with odd numbers more of them."""
    sample = bulk(r, arm - arm % 4, noise)
    if r.one_in(6 if arm % 2 else 40):
        sample["duration_us"] *= r.pick([5, 8, 12, 40])
    sample["flags"] = BUSY_TIME
    return sample


def stretches(r, arm, noise):
    """Parts of long connections, and ends of short ones."""
    sample = bulk(r, arm, noise)
    if r.below(3):
        sample["end"] = STRETCH
    return sample


def limited(r, arm, noise):
    """Transfers whose receiver, or whose send buffer, is full for a part of the time."""
    sample = bulk(r, arm, noise)
    part = sample["duration_us"] // 8
    sample["receiver_us"] = part * r.pick([0, 0, 1, 2, 3, 8])
    sample["buffer_us"] = part * r.pick([0, 0, 1, 2])
    if r.one_in(8):
        sample.update(end=TIMEOUT, segs_out=40, retrans=9)
    return sample


def extreme(r, arm, noise):
    sample = {name: r.wide(bits) for name, bits in SAMPLE_FIELDS.items()}
    sample["end"] = r.below(5)
    return sample


def corners(r, arm, noise):
    """A transfer of which one field is at an end of its range."""
    sample = bulk(r, arm, noise)
    name = r.pick([n for n in SAMPLE_FIELDS if n != "end"])
    sample[name] = r.pick([0, 1, 2 ** SAMPLE_FIELDS[name] - 1])
    return sample


def seconds(low, high):
    return lambda r: r.between(low * 10**9, high * 10**9)


class Plan:
    """One sequence: parameters and where its steps are drawn from."""

    def __init__(
        self,
        name,
        samples=bulk,
        masks=(0xF,),
        systems=(0,),
        noise=50,
        elapse=seconds(0, 60),
        first_ns=10**12,
        steps=100,
        back=False,
        start=None,
        reviews=False,
        **changes,
    ):
        self.name = name
        self.samples = samples
        self.masks = masks
        self.systems = systems
        self.noise = noise
        self.elapse = elapse
        self.first_ns = first_ns
        self.steps = steps
        self.back = back
        self.start = start
        self.reviews = reviews
        self.params = with_params(**changes)


def full_counters():
    host = empty_host()
    host.update(connections=U32 - 3, scored=U32 - 2, switched=U32)
    for arm in host["arms"]:
        arm.update(chosen=U32 - 1, greedy=U32 - 2, scored=U32 - 1)
    return host


def counted_host():
    """Some arms have been compared with the system's for long, and were slow at times."""
    host = empty_host()
    for arm, slow in zip(host["arms"], (2, 3, 1, 12)):
        arm.update(counted=235, slow=slow)
    return host


def tied_host():
    """The system's arm, and one that is better by just its handicap."""
    host = empty_host()
    host.update(scored=9)
    host["arms"][0].update(value=40 * ONE, weight_q16=4 * ONE, scored=4)
    host["arms"][1].update(value=39 * ONE, weight_q16=4 * ONE, scored=5, caution_q16=ONE)
    return host


def full_host(harmful=2**ARMS - 1):
    """Every field as high as it can get."""
    host = {**empty_host(), **{name: 2**bits - 1 for name, bits in HOST_FIELDS.items()}}
    # What is remembered of segments has a limit of its own, and so have trials.
    host.update(harmful=harmful, unsteady=harmful, trials=2, queue_q16=64 * ONE - 1)
    arm = dict.fromkeys(GROUP_ARM_FIELDS, 0)
    arm.update({name: 2**bits - 1 for name, bits in ARM_FIELDS.items()})
    arm.update(value=U32, log_rate_q16=64 * ONE - 1, segs=65_543, retrans=65_543)
    arm.update(counted=255, slow=510)
    host["arms"] = [dict(arm) for _ in range(ARMS)]
    return host


def plans():
    every = tuple((1 << n) - 1 for n in range(1, ARMS + 1))
    mixed = (0xF, 0x7, 0x5, 0xA, 0x1, 0x8000, 0xFFFF, 0)
    anyone = (0, 1, 2, 3, 15, NO_ARM)
    minute, hour = 60 * 10**9, 3600 * 10**9
    return [
        # classic
        Plan("classic, as published", mode=CLASSIC),
        Plan("classic, equal arms", samples=equal, mode=CLASSIC),
        Plan("classic, one arm", masks=(1,), mode=CLASSIC),
        Plan("classic, two arms that are not neighbours", masks=(0x9,), mode=CLASSIC),
        Plan("classic, sixteen arms", masks=(0xFFFF,), mode=CLASSIC),
        Plan("classic, changing masks", masks=mixed, systems=anyone, mode=CLASSIC),
        Plan("classic, every number of arms", masks=every, mode=CLASSIC, noise=5),
        Plan("classic, short, paused and timed out", samples=odd, mode=CLASSIC),
        Plan("classic, one field at its end", samples=corners, mode=CLASSIC),
        Plan("classic, all fields extreme", samples=extreme, mode=CLASSIC, masks=(0xFFFF,)),
        Plan("classic, loss rule at once", mode=CLASSIC, loss_shift=63),
        Plan("classic, loss rule never", mode=CLASSIC, loss_shift=0),
        Plan("classic, counters full", mode=CLASSIC, start=full_counters()),
        # thalweg
        Plan("defaults", systems=(0,)),
        Plan("defaults, wide noise", noise=400),
        Plan("defaults, bbr to the rescue", rescue_arm=1, noise=200),
        Plan("equal arms", samples=equal, rescue_arm=2, systems=(0, 3)),
        Plan("two arms, judged alike", start=tied_host(), masks=(0x3,), steps=20),
        Plan("equal arms, system's own not in the table", samples=equal, systems=(NO_ARM,)),
        Plan(
            "equal arms, all of them known as well as can be",
            samples=equal,
            systems=(NO_ARM, 3),
            idle_shift=31,
            half_life_ns=0,
            weight_max_q16=ONE,
        ),
        Plan("dctcp only with ECN", masks=(0xF, 0x7, 0x7, 0x7), rescue_arm=3, noise=200),
        Plan("arms that overflow a queue", samples=overflowing, noise=200, rescue_arm=1),
        Plan(
            "arms that overflow a queue, and other defaults",
            samples=overflowing,
            systems=(0, 1, 3, NO_ARM),
            masks=(0xF, 0xE),
            rescue_arm=2,
            loss_min_segs=10,
        ),
        Plan("a bottleneck that is full", samples=queueing, noise=300),
        Plan(
            "a bottleneck that is full at times",
            samples=queueing,
            noise=300,
            systems=(0, 2),
            half_life_ns=minute,
        ),
        Plan("arms that stall", samples=stalling, steps=300),
        Plan(
            "arms that stall, one now and then", samples=stalling, start=counted_host(), steps=300
        ),
        Plan("trials one after the other", elapse=lambda r: r.below(11 * 10**9)),
        Plan(
            "trials that do not end",
            elapse=lambda r: r.below(2 * 10**9),
            masks=(0xFF,),
            rescue_arm=5,
        ),
        Plan("one arm", masks=(1,)),
        Plan("one arm, the last", masks=(0x8000,), systems=(15, 0)),
        Plan("two arms", masks=(0x3,)),
        Plan("three arms", masks=(0x7,), systems=(2,)),
        Plan("sixteen arms", masks=(0xFFFF,), systems=(5,), weight_max_q16=64 * ONE),
        Plan("every number of arms", masks=every, systems=anyone, idle_shift=10),
        Plan("changing masks", masks=mixed, systems=anyone, rescue_arm=3),
        Plan("default outside the mask", masks=(0xE,), systems=(0,)),
        Plan("long warm-up", warm_up=20),
        Plan("no warm-up", warm_up=0),
        Plan("endless warm-up", warm_up=U32),
        Plan("exploration free of gaps", gap_scale=0, noise=300),
        Plan("exploration falls at once", gap_scale=U32, noise=300),
        Plan("short, paused and timed out", samples=odd),
        Plan(
            "short, paused and timed out, two arms",
            samples=odd,
            masks=(0x3,),
            score_min_bytes=100_000,
            score_full_bytes=4 * 1024 * 1024,
        ),
        Plan("rates that jump", samples=jumping, masks=(0x3,)),
        Plan("rates that jump, little memory", samples=jumping, weight_max_q16=ONE // 2 - 1),
        Plan("memory of one measurement", weight_max_q16=ONE, noise=100),
        Plan("no memory", weight_max_q16=0),
        Plan("unbounded memory", weight_max_q16=U32, idle_shift=31, half_life_ns=0),
        Plan("idle arms lose all", idle_shift=0),
        Plan("idle arms lose half", idle_shift=1),
        Plan("idle arms lose nothing to speak of", idle_shift=31),
        Plan("half-life of a minute", half_life_ns=minute, elapse=seconds(0, 100)),
        Plan(
            "half-lives of silence",
            half_life_ns=minute,
            elapse=lambda r: r.pick([0, minute, 31 * minute, 32 * minute, hour, 40 * hour]),
        ),
        Plan("half-life of a nanosecond", half_life_ns=1, elapse=lambda r: r.below(40)),
        Plan("half-life longer than any clock", half_life_ns=U64),
        Plan("a clock that runs back", half_life_ns=minute, back=True),
        Plan(
            "a clock that starts at 0",
            first_ns=0,
            elapse=lambda r: r.below(3) * minute,
            half_life_ns=minute,
        ),
        Plan(
            "a clock near its end",
            first_ns=U64 - 10**12,
            elapse=lambda r: r.below(10**10),
            half_life_ns=10**9,
        ),
        Plan("latency above all", latency_weight_q16=U32, latency_guard_us=U32),
        Plan("latency ignored", latency_weight_q16=0, latency_guard_us=0, noise=200),
        Plan("latency without guard", latency_weight_q16=ONE, latency_guard_us=0, samples=corners),
        Plan("everything is scored", score_min_bytes=0, score_full_bytes=0, samples=odd),
        Plan("nothing is scored", score_min_bytes=U64, score_full_bytes=U64, samples=odd),
        Plan("full weight out of reach", score_full_bytes=U64, samples=corners),
        Plan("loss rule at once", loss_shift=63, loss_min_segs=0, noise=200, rescue_arm=2),
        Plan("loss rule never", loss_shift=0, loss_min_segs=U32, rescue_arm=1),
        Plan("one field at its end", samples=corners, rescue_arm=0, systems=anyone),
        Plan(
            "all fields extreme",
            samples=extreme,
            masks=(0xFFFF,),
            systems=anyone,
            score_min_bytes=0,
            rescue_arm=15,
        ),
        Plan(
            "all fields extreme, four arms",
            samples=extreme,
            systems=anyone,
            score_min_bytes=1,
            latency_weight_q16=ONE * 100,
            half_life_ns=1,
        ),
        Plan("counters full", start=full_counters()),
        Plan(
            "every field full",
            start=full_host(),
            samples=corners,
            masks=(0xFFFF,),
            systems=anyone,
            rescue_arm=7,
        ),
        Plan(
            "every field full, no arm harmful",
            start=full_host(harmful=0),
            samples=corners,
            masks=(0xFFFF,),
            systems=anyone,
            rescue_arm=7,
            steps=40,
        ),
        Plan(
            "rates that jump, evidence just enough to clip",
            samples=jumping,
            weight_max_q16=ONE // 2,
            idle_shift=31,
            half_life_ns=0,
        ),
        Plan("long connections", samples=stretches, reviews=True, noise=100),
        Plan(
            "long connections, masks that change",
            samples=stretches,
            reviews=True,
            masks=mixed,
            systems=anyone,
            rescue_arm=3,
        ),
        Plan(
            "long connections, arms that overflow a queue",
            samples=overflowing,
            reviews=True,
            noise=200,
            elapse=seconds(0, 600),
        ),
        Plan(
            "long connections, every field full",
            start=full_host(harmful=0),
            samples=stretches,
            reviews=True,
            masks=(0xFFFF, 0x00FF),
            systems=anyone,
        ),
        Plan("long connections, equal arms", samples=equal, reviews=True, idle_shift=31),
        Plan("long connections, classic", samples=stretches, reviews=True, mode=CLASSIC, steps=20),
        Plan("long connections, long warm-up", samples=stretches, reviews=True, warm_up=20),
        Plan("limited by receivers and buffers", samples=limited, noise=200),
        Plan(
            "limited, arms of other defaults",
            samples=limited,
            systems=(0, 1, NO_ARM),
            elapse=seconds(0, 600),
        ),
    ]


def sequence(plan, seed):
    r = Random(seed)
    params = plan.params
    host = empty_host()
    out = {"name": plan.name, "params": params}
    if plan.start:
        host = plan.start
        out["start"] = host_out(host)
    now_ns = plan.first_ns
    last = 0
    steps = []
    for number in range(plan.steps):
        kind = r.below(20)
        allowed = r.pick(plan.masks)
        system_arm = r.pick(plan.systems)
        if kind < 8 or number == 0:
            # Half of the tickets near the top: exploration has the highest ones.
            random = [r.u32(), r.u32(), r.u32()]
            if r.one_in(2):
                random[0] |= 0xFFFF
                random[0] -= r.below(2 ** r.below(15))
            if r.one_in(4):
                random[1] -= random[1] % 20
            arm, reason, propensity = connect(host, system_arm, allowed, params, random, now_ns)
            last = arm if arm < ARMS else last
            step = {
                "op": "connect",
                "system_arm": system_arm,
                "allowed": allowed,
                "random": random,
                "now_ns": now_ns,
                "arm": arm,
                "reason": reason,
                "propensity_q16": propensity,
            }
        elif kind < 17:
            now_ns = min(now_ns + plan.elapse(r), U64)
            if plan.back and r.one_in(3):
                now_ns -= min(now_ns, 90 * 10**9)
            scored_arm = last if r.one_in(2) else r.pick(members(plan.masks[0]))
            sample = plan.samples(r, scored_arm, plan.noise)
            trial = r.below(2)
            if trial:
                end_trial(host)
            outcome, weight, cost = score(host, scored_arm, system_arm, sample, params, now_ns)
            step = {
                "op": "score",
                "arm": scored_arm,
                "system_arm": system_arm,
                "trial": trial,
                "now_ns": now_ns,
                "sample": [fits(sample[n], b) for n, b in SAMPLE_FIELDS.items()],
                "outcome": outcome,
                "weight_q16": weight,
                "cost": cost,
            }
        elif plan.reviews:
            current = r.pick([last, r.pick(members(plan.masks[0])), system_arm])
            trial = r.below(2)
            decided_ns = max(0, now_ns - r.pick([now_ns, now_ns, r.below(2 * 3600) * 10**9]))
            random = r.u32() | r.pick([0, 0xFF00])
            found = review(
                host, current, system_arm, trial, decided_ns, allowed, params, random, now_ns
            )
            arm, reason, propensity = found or (NO_ARM, 0, 0)
            step = {
                "op": "review",
                "current": current,
                "system_arm": system_arm,
                "trial": trial,
                "decided_ns": decided_ns,
                "allowed": allowed,
                "random": random,
                "now_ns": now_ns,
                "arm": arm,
                "reason": reason,
                "propensity_q16": propensity,
            }
        else:
            current = r.pick([last, r.pick(members(plan.masks[0])), system_arm])
            segs = r.wide(32) if r.one_in(4) else r.between(0, 1_000)
            threshold = segs >> params["loss_shift"]
            retrans = min(threshold + r.pick([0, 1, 5, 20, segs // 8]), U32)
            random = r.u32()
            changed = change(host, current, system_arm, segs, retrans, allowed, params, random)
            arm, reason, propensity = changed or (NO_ARM, 0, 0)
            step = {
                "op": "change",
                "current": current,
                "system_arm": system_arm,
                "segs": segs,
                "retrans": retrans,
                "allowed": allowed,
                "random": random,
                "arm": arm,
                "reason": reason,
                "propensity_q16": propensity,
            }
        step["host"] = fnv1a(host_bytes(host))
        steps.append(step)
    out["steps"] = steps
    out["end"] = host_out(host)
    return out


BRANCHES = [
    "rate divides first",
    "cost saturates",
    "classic term saturates",
    "weight of a time-out",
    "skipped small",
    "small, but broken off",
    "paused by a time-out",
    "paused by losses",
    "skipped application-limited",
    "limited for a part, but shorter than jiffies tell",
    "a limited sample says nothing new",
    "a limited sample of an arm with evidence",
    "a limited sample, better than the system's",
    "a limited sample of the system's arm",
    "clock behind",
    "forgot all",
    "forgot some",
    "tie won by the system",
    "tie won by index",
    "handicap decides",
    "classic tie",
    "classic epsilon",
    "warm-up",
    "untried",
    "untried, fruitless so far",
    "explored",
    "greedy",
    "greedy, not the system's",
    "classic loss rule",
    "loss rule waits",
    "loss rule has no arm",
    "loss rule: no advantage",
    "loss rule moves",
    "loss rule: the draw is to stay",
    "withdrawn",
    "stays away from the system's arm",
    "no system arm to compare with",
    "an arm makes losses",
    "losses that chance explains",
    "an arm takes from others",
    "a queue without losses",
    "a deep queue without losses",
    "base RTT of the half-life before",
    "many segments count as 8192",
    "rescue arm first",
    "trials enough",
    "no trial for long",
    "system's own arm not measured",
    "a time-out and nothing beside it",
    "a time-out bounded by the best known",
    "clip worse",
    "clip better",
    "too little evidence to clip",
    "weight cap",
    "idle loss",
    "memory of a noisy arm",
    "memory at its limit",
    "retransmissions cost",
    "the system's arm deviates more",
    "handicap at its least",
    "handicap between",
    "handicap at its limit",
    "a slow measurement",
    "slower than the system's, as ever",
    "a very slow measurement",
    "counts of slow measurements halved",
    "an arm is unsteady",
    "an unsteady arm is judged",
    "slow, but no more than the system's",
    "steady again",
    "review: an arm without evidence",
    "review: on the best arm",
    "review: a bad arm",
    "review: an arm not allowed",
    "review: too soon",
    "review: hardly worse",
    "review: a trial is over",
    "review: another trial",
    "review: to the best arm",
]


def sequences():
    covered.clear()
    all_of_them = [sequence(plan, 1000 + n) for n, plan in enumerate(plans())]
    missing = [branch for branch in BRANCHES if not covered[branch]]
    require(not missing, f"no sequence reaches: {', '.join(missing)}")
    return {
        "sample_fields": list(SAMPLE_FIELDS),
        "arm_fields": list(ARM_FIELDS),
        "sequences": all_of_them,
    }
