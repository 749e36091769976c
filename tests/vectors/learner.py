# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The learner's arithmetic once more, in unbounded integers: see generate.py."""

from collections import Counter

ARMS = 16
NO_ARM = 255
ONE = 1 << 16  # 1 in Q16
U32 = (1 << 32) - 1
U64 = (1 << 64) - 1

FRUITLESS_HALF = 8  # trials without a measurement that halve an untried arm's share
FRUITLESS_MAX = 56  # ... and beyond which it does not fall

OWN_LOSS_SEGS = 1000  # no verdict on fewer segments
OWN_LOSS_GRACE = 8  # retransmissions that are nobody's fault
OWN_LOSS_DOUBT = 4  # ... that the system's arm may have had beyond those seen
OWN_LOSS_CHANCE = 256  # square of what chance adds, in roots of those expected
JITTER_US = 4000  # at most, and a half of the base RTT: no queue
LEAST_RTT_US = 3000  # a shorter one, with its jitter, counts as this
FULL_RETRANS = 4  # retransmissions of the system's arm where the bottleneck is full
QUEUE = ONE // 4  # bits by which the RTT is longer where the bottleneck is full
DEEP_QUEUE = ONE // 2  # the same where the system's arm retransmits less
TAKES = ONE // 4  # bits by which an arm then carries too much
BOLDER = ONE * 3 // 2  # bits up to which this is so of a path that loses a little, queue or not
HARM = 4 * ONE  # bits by which a harmful arm is judged worse than the system's
SEGS_MAX = 8192  # segments that one stretch adds at most to those remembered
TRIALS = 2  # of one host, under way at a time
TRIAL_NS = 10 * 10**9  # a trial is over after this time

EARN = ONE // 25  # credit for a measurement of full weight
CREDIT_MAX = 5 * ONE
CHARGE_MAX = 4 * ONE  # what one measurement counts as worse or better at most
PRICE = ONE // 5  # credit for a first trial, ...
PRICE_ARM = ONE // 50  # ... or this for each arm
PRICE_OLD = 4 * ONE  # the most that the trial of an old acquaintance needs
OLD = ONE // 256  # evidence below which it is one
FADED = ONE // 4  # evidence of the best below which nothing is tried
LEAVE = ONE // 2  # a long connection leaves an arm that much worse than the system's at once
ANEW = ONE // 8  # it is decided anew where its arm is that much worse than the best ...
ANEW_NS = 3600 * 10**9  # ... and not within this time of the last time
DEFAULT_GAP = 2 * ONE  # the system's arm is measured now and then while it is not further behind

CAUTION_MIN, CAUTION_MAX = ONE // 20, ONE // 2  # the handicap against luck
SLOW, VERY_SLOW = 5 * ONE // 2, 4 * ONE  # bits above the system's mean
COUNTED_MAX = 256  # measurements after which the counts of slow ones are halved
UNSTEADY = 3 * ONE // 2  # bits by which an arm is judged worse that is slow too often

HALF_LIVES = 48  # a group remembers that much longer, ...
GROUP_MEMORY = 8  # ... and that many times as many measurements
GROUP_IDLE = 8  # halvings by which a measurement takes less of a group's other arms
GROUP_GAP = 32  # a group explores as if gaps were that much smaller
GROUP_EARN = ONE // 5  # a group's credit for a measurement of full weight
WINDOWS = range(5, 8)  # levels whose arms are initial windows
FLEET = 8  # with this bit a level has what other agents told
WINDOW_OWN_EACH = 32  # the kernel's own has one connection in this many at least

CLASSIC, THALWEG = 0, 1
WARM_UP, GREEDY, EXPLORE, UNTRIED = 0, 1, 2, 3
LOSS, WITHDRAWN, ANEW_REASON, RETURNED = 6, 7, 9, 10
FIN_LOCAL, FIN_REMOTE, RESET, TIMEOUT, SWITCH, STRETCH = 0, 1, 2, 3, 4, 5
SCORED, SMALL, APP_LIMITED, SKIPPED_TIMEOUT = 0, 1, 2, 4
BUSY_TIME = 1  # flag of a sample

# Fields in the order of the header; a sample and an arm are stored as plain lists.
SAMPLE_FIELDS = {
    "bytes": 64,
    "duration_us": 64,
    "rate_delivered_bytes": 64,
    "rate_interval_us": 64,
    "srtt_us": 32,
    "min_rtt_us": 32,
    "segs_out": 32,
    "retrans": 32,
    "steady_segs": 32,
    "steady_retrans": 32,
    "loss_srtt_us": 32,
    "flags": 16,
    "end": 16,
    "receiver_us": 32,
    "buffer_us": 32,
}
ARM_FIELDS = {
    "value": 64,
    "max_rate": 64,
    "weight_q16": 32,
    "deviation_q16": 32,
    "log_rate_q16": 32,
    "srtt_us": 32,
    "min_rtt_us": 32,
    "chosen": 32,
    "greedy": 32,
    "scored": 32,
    "segs": 32,
    "retrans": 32,
    "caution_q16": 32,
    "counted": 16,
    "slow": 16,
}
HOST_FIELDS = {
    "connections": 32,
    "seen_ns": 64,
    "forgot_ns": 64,
    "max_rate": 64,
    "trial_ns": 64,
    "min_rtt_us": 32,
    "scored": 32,
    "switched": 32,
    "harmful": 32,
    "unsteady": 32,
    "credit_q16": 32,
    "queue_q16": 32,
    "base_rtt_us": 32,
    "last_base_rtt_us": 32,
    "trials": 32,
}
# Further fields of groups; a host has zeros.
GROUP_FIELDS = ("level", "usual_q16", "usual_log_rate_q16", "step", "step_scored")
GROUP_ARM_FIELDS = ("own_q16", "own_weight_q16")

covered = Counter()


def require(condition, what):
    if not condition:
        raise AssertionError(what)


def fits(value, bits):
    require(0 <= value < 1 << bits, f"{value} does not fit {bits} bits")
    return value


def is_window(host):
    """Whether the arms of a record are initial windows."""
    return host["level"] in WINDOWS


def is_fleet(host):
    """Whether a record has what other agents told."""
    return host["level"] & FLEET > 0


# ---------------------------------------------------------------- arithmetic


def log2_q16(x):
    """Between two powers of two: the chord plus a parabola of height 0.34375 / 4."""
    if x == 0:
        return 0
    whole = x.bit_length() - 1
    fraction = (x - (1 << whole)) * ONE >> whole  # cut to 16 bits
    bulge = (fraction * (ONE - fraction) >> 16) * 22528 >> 16  # 0.34375 = 22528 / 65536
    return fits(whole * ONE + fraction + bulge, 32)


def rate(amount, duration_us):
    """Bytes per second; divides first where the product has no room in 64 bits."""
    duration_us = duration_us or 1
    if amount * 10**6 <= U64:
        return amount * 10**6 // duration_us
    covered["rate divides first"] += 1
    return min(amount // duration_us * 10**6, U64)


def thalweg_cost(bytes_per_second, srtt_us, params):
    latency = log2_q16(srtt_us + params["latency_guard_us"]) * params["latency_weight_q16"]
    cost = 64 * ONE - log2_q16(bytes_per_second) + (latency >> 16)
    if cost > U32:
        covered["cost saturates"] += 1
    return fits(min(cost, U32), 32)


def classic_term(excess, base):
    """excess / base in millionths; half of the 64-bit range where the product has no room."""
    if base == 0:
        return 0
    if excess * 10**6 > U64:
        covered["classic term saturates"] += 1
        return U64 // 2
    return min(excess * 10**6 // base, U64 // 2)


def classic_cost(host, min_rtt_us, arm_rate):
    if host["min_rtt_us"] == 0 or min_rtt_us < host["min_rtt_us"]:
        host["min_rtt_us"] = min_rtt_us
    if host["max_rate"] == 0 or arm_rate > host["max_rate"]:
        host["max_rate"] = arm_rate
    slow = classic_term(min_rtt_us - host["min_rtt_us"], host["min_rtt_us"])
    thin = classic_term(host["max_rate"] - arm_rate, host["max_rate"])
    return fits(slow + thin, 64)


def classic_update(value, cost):
    """A quarter of the way, the distance rounded down; 0 is "unset"."""
    if value == 0:
        return cost
    quarter = abs(cost - value) // 4
    return fits(value + quarter if cost > value else value - quarter, 64)


def explore_share(gap, weight, arms, gap_scale):
    """1 / (2 arms + gap_scale * gap * evidence), gap and gap times evidence below 2^32."""
    known = min(min(gap, U32) * weight >> 16, U32)
    return fits(2**32 // (2 * arms * ONE + fits(known * min(gap_scale, 2**20), 64)), 32)


def weight_of(sample, params):
    full = min(params["score_full_bytes"], 2**47)
    if sample["bytes"] >= full:
        return ONE
    weight = max(fits(sample["bytes"] * ONE, 64) // full, ONE // 16)
    if sample["end"] == TIMEOUT:
        covered["weight of a time-out"] += 1
        weight = max(weight, ONE // 2)
    return weight


def assess(sample, params):
    stalled = sample["end"] in (TIMEOUT, SWITCH) and sample["segs_out"] >= 32
    if sample["bytes"] < params["score_min_bytes"]:
        if not stalled:
            covered["skipped small"] += 1
            return SMALL
        covered["small, but broken off"] += 1
    if sample["flags"] & BUSY_TIME:
        return SCORED  # pauses are left out of the duration already
    burst = rate(sample["rate_delivered_bytes"], sample["rate_interval_us"])
    mean = rate(sample["bytes"], sample["duration_us"])
    if sample["rate_interval_us"] == 0 or burst // 16 <= mean:
        return SCORED
    if sample["end"] == TIMEOUT:
        covered["paused by a time-out"] += 1
        return SCORED
    if sample["retrans"] > sample["segs_out"] // 256:
        covered["paused by losses"] += 1
        return SCORED
    covered["skipped application-limited"] += 1
    return APP_LIMITED


def forget(host, params, now_ns):
    half_life = params["half_life_ns"]
    if host["level"]:
        covered["a group forgets"] += 1
        half_life = min(half_life * HALF_LIVES, U64)
    if host["forgot_ns"] == 0 or half_life == 0:
        host["forgot_ns"] = now_ns
        return
    if now_ns < host["forgot_ns"]:
        covered["clock behind"] += 1
        return
    halvings = (now_ns - host["forgot_ns"]) // half_life
    if halvings == 0:
        return
    covered["forgot all" if halvings >= 32 else "forgot some"] += 1
    host["forgot_ns"] += halvings * half_life
    for arm in host["arms"]:
        known = arm["weight_q16"] > 0
        # 32 halvings leave nothing of 32 bits; no need to compute 2 to the power of more.
        for evidence in ("weight_q16", "segs", "retrans", "own_weight_q16"):
            arm[evidence] //= 2 ** min(halvings, 32)
        if known and arm["weight_q16"] == 0:
            covered["a trace of evidence"] += 1
            arm["weight_q16"] = 1
    # The base RTT is the lowest of this half-life and of the one before.
    covered["base RTT of the half-life before"] += halvings == 1 and host["base_rtt_us"] > 0
    host["last_base_rtt_us"] = host["base_rtt_us"] if halvings == 1 else 0
    host["base_rtt_us"] = 0


def too_many(system, segs, retrans):
    """More than half as many again as the system's arm would have, by 1 in 256, a few and chance."""
    if system["segs"] == 0 or segs < OWN_LOSS_SEGS:
        covered["too few segments to blame"] += system["segs"] > 0 and retrans > OWN_LOSS_GRACE
        return False
    expected = fits((system["retrans"] + OWN_LOSS_DOUBT) * segs, 64) // system["segs"]
    usual = fits(expected + expected // 2 + segs // 256 + OWN_LOSS_GRACE, 64)
    if retrans <= usual:
        return False
    chance = fits(OWN_LOSS_CHANCE * expected, 64)
    covered["losses that chance explains"] += (retrans - usual) ** 2 <= chance
    return fits((retrans - usual) ** 2, 64) > chance


def note_queue(host, index, system_arm, sample):
    """The base RTT, and by how many bits the RTT under the system's arm is longer."""
    if sample["min_rtt_us"]:
        host["base_rtt_us"] = min(host["base_rtt_us"] or U32, sample["min_rtt_us"])
    bases = [base for base in (host["base_rtt_us"], host["last_base_rtt_us"]) if base]
    srtt = sample["loss_srtt_us"] or sample["srtt_us"]
    if index != system_arm or not bases or not srtt:
        return
    base = min(bases)
    longer = 0
    if srtt > base:
        covered["a queue measured at its losses"] += sample["loss_srtt_us"] > 0
        quiet = base + min(base // 2, JITTER_US)
        covered["a base RTT below the guard"] += quiet < LEAST_RTT_US
        least = max(quiet, LEAST_RTT_US)
        longer = log2_q16(least + srtt - base) - log2_q16(least)
    if host["arms"][index]["weight_q16"] == 0:
        host["queue_q16"] = longer
        return
    old = host["queue_q16"]  # a quarter of the way, the distance rounded down
    host["queue_q16"] = old + (longer - old) // 4 if longer > old else old - (old - longer) // 4


def note_harm(host, system_arm, params):
    """The mask of the arms that lose much more than the system's, or take from others."""
    host["harmful"] = 0
    if system_arm >= ARMS:
        covered["no system arm to compare with"] += 1
        return
    system = host["arms"][system_arm]
    known = system["weight_q16"] > 0
    loses = known and system["retrans"] >= FULL_RETRANS
    lossy = system["retrans"] > system["segs"] >> (params["loss_shift"] & 31)
    covered["random losses and a queue"] += loses and lossy and host["queue_q16"] > QUEUE
    full = known and host["queue_q16"] > (QUEUE if loses and not lossy else DEEP_QUEUE)
    covered["a queue without losses"] += host["queue_q16"] > QUEUE and not loses and not full
    covered["a deep queue without losses"] += full and not loses
    for i, arm in enumerate(host["arms"]):
        if i == system_arm or arm["weight_q16"] == 0:
            continue
        makes = too_many(system, arm["segs"], arm["retrans"])
        gain = arm["log_rate_q16"] - system["log_rate_q16"]
        bolder = loses and not lossy and gain <= BOLDER
        takes = gain > TAKES and (full or bolder)
        covered["an arm on a lossy path"] += loses and gain > TAKES and lossy and not takes
        covered["an arm is bolder, and no queue"] += takes and not full
        covered["an arm carries a multiple"] += loses and gain > BOLDER and not full
        covered["an arm makes losses"] += makes
        covered["an arm takes from others"] += takes
        if makes or takes:
            host["harmful"] |= 1 << i


def judged(host, index, system_arm):
    """Mean cost; every arm but the system's carries its handicap on top.

    A harmful one is at least as bad as the system's, and 4 bits worse; an unsteady one is 1 1/2
    bits worse."""
    arm = host["arms"][index]
    if index == system_arm:
        return arm["value"]
    value = arm["value"]
    if system_arm < ARMS and host["harmful"] >> index & 1:
        value = max(value, host["arms"][system_arm]["value"]) + HARM
    if host["unsteady"] >> index & 1:
        covered["an unsteady arm is judged"] += 1
        value += UNSTEADY
    return fits(value + arm["caution_q16"], 64)


def members(mask):
    return [i for i in range(ARMS) if mask >> i & 1]


def best_arm(host, allowed, system_arm):
    """Lowest judgement of the measured; the system's own wins a tie, then the lowest index."""
    measured = [i for i in members(allowed) if host["arms"][i]["weight_q16"] > 0]
    if not measured:
        return NO_ARM
    judgements = {i: judged(host, i, system_arm) for i in measured}
    lowest = min(judgements.values())
    tied = [i for i in measured if judgements[i] == lowest]
    if len(tied) > 1:
        covered["tie won by the system" if system_arm in tied else "tie won by index"] += 1
    if min(measured, key=lambda i: host["arms"][i]["value"]) not in tied:
        covered["handicap decides"] += 1
    return system_arm if system_arm in tied else tied[0]


def classic_decide(host, allowed, random):
    arms = members(allowed)
    if host["connections"] <= 4 or not arms:
        return NO_ARM, WARM_UP, ONE
    lowest = min(host["arms"][i]["value"] for i in arms)
    tied = [i for i in arms if host["arms"][i]["value"] == lowest]
    if len(tied) > 1:
        covered["classic tie"] += 1
    greedy = tied[random[0] % len(tied)]
    pick = greedy
    if random[1] % 20 == 0:
        covered["classic epsilon"] += 1
        pick = arms[random[2] % len(arms)]
    propensity = ONE // (20 * len(arms))
    if pick in tied:
        propensity += ONE * 19 // (20 * len(tied))
    return pick, GREEDY if pick == greedy else EXPLORE, propensity


def trials(host, now_ns):
    """Those under way; one whose end does not come is over after a while."""
    if now_ns - host["trial_ns"] >= TRIAL_NS:
        covered["no trial for long"] += host["trials"] > 0
        return 0
    return host["trials"]


def first_trial_shares(host, system_arm, allowed, untried, params):
    """By arm without evidence: half of the connections, the rescue arm first if much is lost.

    The second result is that rescue arm, which needs no credit, or None."""

    def hope(i):
        state = host["arms"][i]
        fruitless = min(max(state["chosen"] - state["scored"], 0), FRUITLESS_MAX)
        covered["untried, fruitless so far"] += fruitless > 0
        return ONE * FRUITLESS_HALF // (FRUITLESS_HALF + fruitless)

    half, shares, others, rescued = ONE // 2, {}, list(untried), None
    rescue = params["rescue_arm"]
    if rescue in untried and is_window(host):
        covered["no window is a rescue arm"] += 1
    elif rescue in untried and system_arm < ARMS and allowed >> system_arm & 1:
        system = host["arms"][system_arm]
        if system["retrans"] > system["segs"] // 2 ** params["loss_shift"]:
            covered["rescue arm first"] += 1
            shares[rescue] = hope(rescue) // 2
            half -= shares[rescue]
            others.remove(rescue)
            rescued = rescue
    for i in others:
        shares[i] = (half * hope(i) >> 16) // len(others)
    return shares, rescued


def thalweg_decide(host, system_arm, allowed, params, random, now_ns):
    best = best_arm(host, allowed, system_arm)
    unknown = (
        system_arm < ARMS
        and allowed >> system_arm & 1
        and host["arms"][system_arm]["weight_q16"] == 0
    )
    if best == NO_ARM or host["scored"] < params["warm_up"] or unknown:
        covered["warm-up"] += 1
        covered["system's own arm not measured"] += best != NO_ARM and bool(unknown)
        return system_arm, WARM_UP, ONE
    if trials(host, now_ns) >= TRIALS:
        covered["trials enough"] += 1
        return best, GREEDY, ONE
    if host["arms"][best]["weight_q16"] < FADED:
        covered["evidence has faded"] += 1
        return best, GREEDY, ONE
    arms = members(allowed)
    untried = [i for i in arms if host["arms"][i]["weight_q16"] == 0]
    first_trials, rescued = first_trial_shares(host, system_arm, allowed, untried, params)
    lowest = judged(host, best, system_arm)
    # The others take the tickets from 65535 downwards, by index; the best has the rest.
    ticket = random[0] % ONE
    top = ONE
    pick, reason, propensity = best, GREEDY, None
    for i in arms:
        if i == best:
            continue
        price = max(PRICE, PRICE_ARM * len(arms))
        if i in untried:
            share = first_trials[i]
            if host["credit_q16"] < price and i != rescued:
                covered["no credit for a first trial"] += 1
                share = 0
        else:
            gap = judged(host, i, system_arm) - lowest
            scale = params["gap_scale"] // (GROUP_GAP if host["level"] else 1)
            share = explore_share(gap, host["arms"][i]["weight_q16"], len(arms), scale)
            old = host["arms"][i]["weight_q16"] < OLD
            covered["an old acquaintance"] += old and gap > PRICE_OLD
            if i == system_arm:
                if gap < DEFAULT_GAP:
                    system = host["arms"][system_arm]
                    measured = min(host["scored"], ONE)
                    if system["scored"] == 0:
                        covered["the system's arm is known by others"] += 1
                        measured += system["weight_q16"] // ONE
                    if not is_window(host):
                        covered["what the fleet told counts"] += host["step"] > 0
                        measured += min(host["step"], ONE)
                    if is_window(host):
                        covered["the kernel's own once more"] += 2 + measured > WINDOW_OWN_EACH
                        measured = min(measured, WINDOW_OWN_EACH - 2)
                    least = ONE // (2 + measured)
                    covered["the system's arm once more"] += share < least
                    share = max(share, least)
            elif host["credit_q16"] < max(price, min(gap, PRICE_OLD) if old else gap):
                covered["no credit for a trial"] += 1
                share = 0
        if top - share <= ticket < top:
            pick, reason, propensity = i, UNTRIED if i in untried else EXPLORE, share
            covered["untried" if i in untried else "explored"] += 1
        top -= share
    if pick == best:
        covered["greedy, not the system's" if best != system_arm else "greedy"] += 1
        propensity = top
    return pick, reason, fits(propensity, 32)


def connect(host, system_arm, allowed, params, random, now_ns):
    host["connections"] = min(host["connections"] + 1, U32)
    if host["level"]:
        forget(host, params, now_ns)
    if params["mode"] == CLASSIC:
        arm, reason, propensity = classic_decide(host, allowed, random)
    else:
        arm, reason, propensity = thalweg_decide(host, system_arm, allowed, params, random, now_ns)
    count_decision(host, arm, reason)
    if reason in (EXPLORE, UNTRIED):
        if host["level"] == 0:
            begin_trial(host, now_ns)
        elif arm != system_arm:
            covered["a group pays in advance"] += 1
            host["credit_q16"] = max(host["credit_q16"] - ONE // 10, 0)
    return arm, reason, propensity


def count_decision(host, arm, reason):
    if arm < ARMS:
        state = host["arms"][arm]
        full = state["chosen"] == U32  # the counts stop together
        state["chosen"] += not full
        if reason == GREEDY:
            state["greedy"] += not full


def begin_trial(host, now_ns):
    host["trials"] = trials(host, now_ns) + 1
    host["trial_ns"] = now_ns


def end_trial(host):
    host["trials"] = max(host["trials"] - 1, 0)


def change(host, current, system_arm, segs, retrans, allowed, params, random):
    """The arm, reason and propensity of a change mid-flow; None: nothing is due."""
    if retrans <= segs // 2 ** params["loss_shift"]:
        return None
    if params["mode"] == CLASSIC:
        covered["classic loss rule"] += 1
        return None if current == 1 else (1, LOSS, ONE)  # bbr is the second published arm
    if segs < params["loss_min_segs"]:
        covered["loss rule waits"] += 1
        return None
    if current >= ARMS or system_arm >= ARMS:
        return None
    system = host["arms"][system_arm]
    if current != system_arm:
        if not allowed >> system_arm & 1 or not too_many(system, segs, retrans):
            covered["stays away from the system's arm"] += 1
            return None
        covered["withdrawn"] += 1
        return system_arm, WITHDRAWN, ONE
    target = best_arm(host, allowed, system_arm)
    if target in (NO_ARM, current):
        covered["loss rule has no arm"] += 1
        return None
    # Half a bit of advantage over an arm that is known.
    if system["weight_q16"] == 0 or host["arms"][target]["value"] + ONE // 2 > system["value"]:
        covered["loss rule: no advantage"] += 1
        return None
    if random % ONE < ONE * 3 // 4:
        covered["loss rule moves"] += 1
        return target, LOSS, ONE * 3 // 4
    covered["loss rule: the draw is to stay"] += 1
    return current, LOSS, ONE // 4


def stretch_due(age_ns, amount, count, stretch_ns, full):
    """1 if the stretch is old enough and has full weight; a later one must be older."""
    doublings = min(count, 4)
    return int(stretch_ns > 0 and age_ns // 2**doublings >= stretch_ns // 2 and amount >= full)


def review(host, current, system_arm, trial, decided_ns, allowed, params, random, now_ns):
    """The arm, reason and propensity for a long connection whose stretch was scored; None: it stays."""
    if params["mode"] == CLASSIC or host["scored"] < params["warm_up"]:
        return None
    if current >= ARMS or system_arm >= ARMS:
        return None
    own, system = (host["arms"][i] for i in (current, system_arm))
    if own["weight_q16"] == 0 or system["weight_q16"] == 0:
        covered["review: an arm without evidence"] += 1
        return None
    best = best_arm(host, allowed, system_arm)
    if best in (NO_ARM, current):
        covered["review: on the best arm"] += best == current
        return None
    permitted = allowed >> current & 1
    value = judged(host, current, system_arm)
    if current != system_arm and allowed >> system_arm & 1:
        far = value >= judged(host, system_arm, system_arm) + LEAVE
        if far or not permitted:
            covered["review: a bad arm" if permitted else "review: an arm not allowed"] += 1
            count_decision(host, best, RETURNED)
            return best, RETURNED, ONE
    if decided_ns and now_ns - decided_ns < ANEW_NS:
        covered["review: too soon"] += 1
        return None
    if not trial and value < judged(host, best, system_arm) + ANEW:
        covered["review: hardly worse"] += 1
        return None
    covered["review: a trial is over"] += bool(trial)
    arm, reason, propensity = thalweg_decide(host, system_arm, allowed, params, [random], now_ns)
    count_decision(host, arm, ANEW_REASON)
    if reason in (EXPLORE, UNTRIED):
        covered["review: another trial"] += 1
        begin_trial(host, now_ns)
    else:
        covered["review: to the best arm"] += 1
    return arm, ANEW_REASON, propensity


def note_credit(host, index, system_arm, cost, weight, earns):
    """Earned by measuring; what an arm costs beyond the system's is paid, and the reverse."""
    change = (GROUP_EARN if host["level"] else EARN) if earns else 0
    if system_arm < ARMS and system_arm != index and host["arms"][system_arm]["weight_q16"]:
        excess = cost - host["arms"][system_arm]["value"]
        covered["a charge at its limit"] += abs(excess) > CHARGE_MAX
        excess = max(-CHARGE_MAX, min(excess, CHARGE_MAX))
        # A quarter more is charged, or less is earned, but of a group.
        change -= excess + (0 if host["level"] else abs(excess) // 4)
    step = fits(abs(change) * weight, 64) // ONE  # towards 0
    credit = host["credit_q16"] + (step if change > 0 else -step)
    covered["no credit left"] += credit < 0
    covered["credit enough"] += credit > CREDIT_MAX
    host["credit_q16"] = max(0, min(credit, CREDIT_MAX))


def blend(old, new, weight, total):
    step = fits(abs(new - old) * weight, 64) // total
    return old + step if new > old else old - step


def learn(arm, is_group, cost, log_rate, srtt_us, weight, weight_max, timeout):
    total = arm["weight_q16"] + weight
    # The memory grows with five mean deviations, up to threefold.
    multiple = min(max(5 * arm["deviation_q16"], ONE), 3 * ONE)
    covered["memory of a noisy arm"] += ONE < multiple < 3 * ONE
    covered["memory at its limit"] += multiple == 3 * ONE
    weight_max = fits(weight_max * multiple, 64) // ONE
    surprises = not is_group  # of many hosts some are always unlucky
    surprised = False
    accident = 0 < arm["weight_q16"] <= ONE and cost + ONE < arm["value"]
    covered["an accident is replaced"] += accident
    if arm["weight_q16"] == 0 or accident:
        total = weight
        arm.update(value=cost, deviation_q16=0, log_rate_q16=log_rate, srtt_us=srtt_us)
    else:
        if arm["weight_q16"] >= ONE // 2:
            worse = ONE if timeout else max(ONE, min(5 * arm["deviation_q16"] // 2, 4 * ONE))
            covered["clip at deviations"] += worse > ONE
            if cost > arm["value"] + worse:
                covered["clip worse"] += 1
                cost = arm["value"] + worse
                surprised = surprises
                covered["a group is not surprised"] += is_group
            elif cost < arm["value"] - 2 * ONE:
                covered["clip better"] += 1
                cost = arm["value"] - 2 * ONE
        else:
            covered["too little evidence to clip"] += 1
        distance = abs(cost - arm["value"])
        arm["deviation_q16"] = fits(blend(arm["deviation_q16"], distance, weight, total), 32)
        arm["value"] = fits(blend(arm["value"], cost, weight, total), 64)
        arm["log_rate_q16"] = fits(blend(arm["log_rate_q16"], log_rate, weight, total), 32)
        arm["srtt_us"] = fits(blend(arm["srtt_us"], srtt_us, weight, total), 32)
    if total > weight_max:
        covered["weight cap"] += 1
    kept = min(total, weight_max)
    arm["weight_q16"] = kept - kept // 4 if surprised else kept


def count_slow(host, index, system_arm, cost):
    """One more measurement; slow ones, against both means, are counted once or twice."""
    if system_arm >= ARMS or host["arms"][system_arm]["weight_q16"] == 0:
        return
    arm = host["arms"][index]
    system = host["arms"][system_arm]["value"]
    above = cost - max(system, arm["value"])
    covered["slower than the system's, as ever"] += cost - system > SLOW >= above
    arm["counted"] += 1
    arm["slow"] += (above > SLOW) + (above > VERY_SLOW)
    covered["a slow measurement"] += SLOW < above <= VERY_SLOW
    covered["a very slow measurement"] += above > VERY_SLOW
    if arm["counted"] >= COUNTED_MAX:
        covered["counts of slow measurements halved"] += 1
        arm["counted"] //= 2
        arm["slow"] //= 2


def note_caution(host, index, system_arm):
    """3.25 times the greater mean deviation / (4 + evidence), 1/20 to 1/2 bit."""
    arm = host["arms"][index]
    deviation = arm["deviation_q16"]
    if system_arm < ARMS:
        covered["the system's arm deviates more"] += (
            deviation < host["arms"][system_arm]["deviation_q16"]
        )
        deviation = max(deviation, host["arms"][system_arm]["deviation_q16"])
    caution = fits(13 * deviation * ONE // 4, 64) // (4 * ONE + arm["weight_q16"])
    covered["handicap at its least"] += caution < CAUTION_MIN
    covered["handicap at its limit"] += caution > CAUTION_MAX
    covered["handicap between"] += CAUTION_MIN < caution < CAUTION_MAX
    arm["caution_q16"] = max(CAUTION_MIN, min(caution, CAUTION_MAX))


def note_unsteady(host, index, system_arm):
    """Slow measurements beyond twice those expected by the system's arm, plus one and a half."""
    before = host["unsteady"]
    host["unsteady"] &= ~(1 << index)
    if system_arm >= ARMS or system_arm == index:
        return
    arm, system = host["arms"][index], host["arms"][system_arm]
    if arm["slow"] < 2:
        return
    # slow - 3/2 > 2 (slow + 1 of the system's) / (counted + 8 of the system's) * counted
    left = (2 * arm["slow"] - 3) * (system["counted"] + 8)
    if left > 4 * (system["slow"] + 1) * arm["counted"]:
        covered["an arm is unsteady"] += 1
        host["unsteady"] |= 1 << index
    else:
        covered["slow, but no more than the system's"] += 1
        covered["steady again"] += before >> index & 1


def remember(arm, sample, of_window):
    """Segments and retransmissions after slow start, 8192 at most; an eighth of the old goes.

    Of a window nothing goes here."""
    segs = sample["steady_segs"]
    retrans = min(sample["steady_retrans"], segs)
    if segs > SEGS_MAX:
        covered["many segments count as 8192"] += 1
        retrans = retrans * SEGS_MAX // segs
        segs = SEGS_MAX
    for name, new in (("segs", segs), ("retrans", retrans)):
        old = arm[name] if of_window else arm[name] - arm[name] // 8
        arm[name] = fits(old + new, 32)


def classic_score(host, arm, sample):
    interval = sample["rate_interval_us"]
    per_us = sample["rate_delivered_bytes"] // interval if interval else 0
    if arm["min_rtt_us"] == 0 or sample["min_rtt_us"] < arm["min_rtt_us"]:
        arm["min_rtt_us"] = sample["min_rtt_us"]
    arm["max_rate"] = max(arm["max_rate"], per_us)
    cost = classic_cost(host, sample["min_rtt_us"], arm["max_rate"])
    arm["value"] = classic_update(arm["value"], cost)
    for counted in (arm, host):
        counted["scored"] = min(counted["scored"] + 1, U32)
    return SCORED, ONE, cost


def least_news(host, index, system_arm):
    """A limited sample says that the path carries this much at least: news only above what is known."""
    arm = host["arms"][index]
    if arm["weight_q16"] >= ONE // 2:
        return arm["value"]
    if system_arm == index:
        return U64
    if system_arm < ARMS and host["arms"][system_arm]["weight_q16"] > 0:
        return host["arms"][system_arm]["value"]
    return 0


def prepare(host, index, params, now_ns):
    """Evidence is lost with time, and of all other arms."""
    forget(host, params, now_ns)
    idle = params["idle_shift"] + (GROUP_IDLE if host["level"] else 0)
    for i, other in enumerate(host["arms"]):
        if i != index:
            lost = other["weight_q16"] // 2 ** (idle % 32)
            covered["idle loss"] += lost > 0
            other["weight_q16"] -= lost


def take(host, index, system_arm, cost, log_rate, weight, sample, params):
    """One measurement of a host or group."""
    arm = host["arms"][index]
    count_slow(host, index, system_arm, cost)
    note_credit(host, index, system_arm, cost, weight, sample["end"] != STRETCH)
    timeout = sample["end"] == TIMEOUT
    is_group = host["level"] > 0
    memory = fits(params["weight_max_q16"] * (GROUP_MEMORY if is_group else 1), 32)
    learn(arm, is_group, cost, log_rate, sample["srtt_us"], weight, memory, timeout)
    remember(arm, sample, is_window(host))
    for holder in (arm, host):
        holder["scored"] = min(holder["scored"] + 1, U32)
    note_caution(host, index, system_arm)
    note_unsteady(host, index, system_arm)
    note_harm(host, system_arm, params)


def follow(host, index, system_arm, before):
    """Arms known by others alone keep their distance from the system's, or from any if it is one."""
    if before["weight_q16"] == 0 or system_arm >= ARMS:
        return
    if index != system_arm and host["arms"][system_arm]["scored"]:
        return
    after = host["arms"][index]
    for arm in host["arms"]:
        if arm["scored"] == 0 and arm["weight_q16"]:
            covered["an arm known by others follows"] += 1
            for name in ("value", "log_rate_q16"):
                arm[name] = max(0, min(arm[name] + after[name] - before[name], U32))


def score(host, index, system_arm, sample, params, now_ns):
    host["seen_ns"] = now_ns
    arm = host["arms"][index]
    if params["mode"] == CLASSIC:
        return classic_score(host, arm, sample)
    outcome = assess(sample, params)
    if outcome != SCORED:
        return outcome, 0, 0
    mean = rate(sample["bytes"], sample["duration_us"])
    cost = thalweg_cost(mean, sample["srtt_us"], params)
    # Three bits for each retransmission of all segments.
    retrans = min(sample["retrans"], sample["segs_out"])
    cost = min(cost + 3 * retrans * ONE // max(sample["segs_out"], 1), U32)
    covered["retransmissions cost"] += retrans > 0
    limited_us = sample["receiver_us"] + sample["buffer_us"]
    covered["limited for a part, but shorter than jiffies tell"] += (
        sample["duration_us"] // 4 < limited_us < 20_000
    )
    limited = limited_us >= 20_000 and limited_us > sample["duration_us"] // 4
    if limited and sample["flags"] & BUSY_TIME and sample["end"] != TIMEOUT:
        if cost >= least_news(host, index, system_arm):
            covered["a limited sample says nothing new"] += 1
            return APP_LIMITED, 0, 0
        covered["a limited sample of an arm with evidence"] += arm["weight_q16"] >= ONE // 2
        covered["a limited sample, better than the system's"] += index != system_arm
        covered["a limited sample of the system's arm"] += index == system_arm
    if sample["end"] == TIMEOUT:
        known = [other["value"] for other in host["arms"] if other["weight_q16"] > 0]
        if not known:
            covered["a time-out and nothing beside it"] += 1
            return SKIPPED_TIMEOUT, 0, 0
        if arm["weight_q16"] < ONE // 2:
            covered["a time-out bounded by the best known"] += cost > min(known) + ONE
            cost = min(cost, min(known) + ONE)
    weight = weight_of(sample, params)
    prepare(host, index, params, now_ns)
    note_queue(host, index, system_arm, sample)
    before = dict(arm)
    take(host, index, system_arm, cost, log2_q16(mean), weight, sample, params)
    follow(host, index, system_arm, before)
    for holder in (arm, host):
        holder["max_rate"] = max(holder["max_rate"], mean)
        if sample["min_rtt_us"]:
            lowest = holder["min_rtt_us"] or sample["min_rtt_us"]
            holder["min_rtt_us"] = min(lowest, sample["min_rtt_us"])
    return SCORED, weight, cost


# ------------------------------------------------------------- the host record


def mixed(value, *words):
    """Rounds of multiplication by 2^64 / golden ratio."""
    for word in words:
        value = (value ^ word) * 0x9E3779B97F4A7C15 & U64
        value ^= value >> 32
    return value


def tag(netns, prefix_and_level, first, second):
    """The hash of a key; never 0. The level is in the upper half of the second number."""
    prefix_len, level = prefix_and_level & U32, prefix_and_level >> 32
    return mixed(netns + prefix_len + 256 * level & U64, first, second, 0x7468616C77656721) | 1


def in_control(cluster, salt, now_ns, share, permanent):
    """1 for a cluster of the control group: drawn for this hour, or for good."""
    hour = mixed(cluster ^ salt, now_ns // (3600 * 10**9), salt) % ONE
    always = mixed(cluster, salt + 1 & U64, 0) % ONE
    return int(hour < share or always < permanent)


def drawn_arm(cluster, salt, now_ns, allowed):
    """The arm of a cluster's trials in this hour: the permitted one with the highest rank."""
    draw = mixed(cluster ^ salt, now_ns // (3600 * 10**9), salt + 2 & U64)
    arms = [arm for arm in range(ARMS) if allowed >> arm & 1]
    return max(arms, key=lambda arm: (mixed(draw, arm, salt), -arm))


def empty_host():
    # "used": the arms up to this one were ever known.
    host = dict.fromkeys([*HOST_FIELDS, *GROUP_FIELDS, "used"], 0)
    host["arms"] = [dict.fromkeys([*ARM_FIELDS, *GROUP_ARM_FIELDS], 0) for _ in range(ARMS)]
    return host


def host_bytes(host):
    """struct thalweg_host, little-endian; sequence numbers and tag are 0."""
    out = bytearray()

    def put(value, bits):
        out.extend(fits(value, bits).to_bytes(bits // 8, "little"))

    measured = [
        i + 1
        for i, arm in enumerate(host["arms"])
        if arm["scored"] or arm["weight_q16"] or arm["segs"]
    ]
    put(0, 32)  # seq_head
    put(host["connections"], 32)
    put(0, 64)  # tag
    for name in ("seen_ns", "forgot_ns"):
        put(host[name], 64)
    put(host["scored"], 32)
    put(host["harmful"], 16)
    put(min(host["trials"], 0xFFFF), 16)
    host["used"] = max([host["used"], *measured])
    put(host["used"], 16)
    put(host["unsteady"], 16)
    put(host["credit_q16"], 32)
    for arm in host["arms"]:
        put(arm["value"] & U32, 32)
        put(arm["weight_q16"], 32)
        put(arm["chosen"], 32)
        put(arm["caution_q16"], 32)
    for name in ("trial_ns", "max_rate"):
        put(host[name], 64)
    for name in ("min_rtt_us", "switched", "queue_q16", "base_rtt_us", "last_base_rtt_us"):
        put(host[name], 32)
    for name in GROUP_FIELDS:
        put(host[name], 32)
    for arm in host["arms"]:
        # A group keeps its own estimates where a host keeps what it does not need.
        high, low = arm["value"] >> 32, arm["min_rtt_us"]
        if host["level"]:
            require(high == low == 0, "no room for a group's own")
            high, low = arm["own_q16"], arm["own_weight_q16"]
        put(arm["max_rate"], 64)
        put(high, 32)
        for name in ("deviation_q16", "log_rate_q16", "srtt_us"):
            put(arm[name], 32)
        put(low, 32)
        put(arm["chosen"] - arm["greedy"], 32)
        for name in ("scored", "segs", "retrans"):
            put(arm[name], 32)
        put(arm["counted"], 16)
        put(arm["slow"], 16)
    put(0, 64)  # tag_tail, seq_tail
    require(len(out) == 48 + 17 * 64, "size of the host record")
    return bytes(out)


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & U64
    return f"{value:016x}"


def host_out(host):
    out = {name: host[name] for name in HOST_FIELDS}
    out["arms"] = [[arm[name] for name in ARM_FIELDS] for arm in host["arms"]]
    return out
