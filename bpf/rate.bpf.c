// SPDX-License-Identifier: GPL-2.0-only
/*
 * rate: the learned rate controller as a congestion control. Once per round trip a model
 * (docs/reference/model.md) sees the queue and the rate, and multiplies the rate by 0.83
 * to 1.2. The arithmetic is in thalweg_network.h. This file turns TCP's state into
 * measurements, and has the other rules for the rate. docs/reference/cc.md explains
 * them, with the reasons.
 *
 * The model's inputs are not those of one simulated network, but fit its terms:
 *  - the line rate is a reference, the same for all flows (settings);
 *  - the base round-trip time is the shortest one, but at least a reference;
 *  - the round-trip time is the base plus the queue: the excess of this round's mean over
 *    the shortest one of the last seconds.
 *
 * On TCP's side:
 *  - TCP paces, at our rate; the window is only a cap. At rates beyond the reference TCP
 *    does not pace, because its timers would be the limit.
 *  - A flow is in one of four phases, three as in BBR. In STARTUP the rate doubles each
 *    round. It ends when the model's signal is at its target, much is lost, something is
 *    marked, or the delivery rate stops growing. In STEADY the model decides. In
 *    PROBE_RTT the queue is drained to measure the shortest round-trip time; all flows
 *    do that at the same moments. What is left then is other flows' queue: in COMPETE a
 *    flow has a window like theirs.
 *  - After a round that lost 2 % or more, or had marks, the rate is cut and does not
 *    grow. A round after a cut is not cut, or random loss would drive the rate to zero.
 */
#include "rate_decide.h"

/* Interval of probes for the shortest round-trip time, and their least duration. */
#define PROBE_PERIOD_NS 5000000000ull
#define PROBE_US 20000u
/* Longest time for the queue to drain. */
#define PROBE_QUEUE_US 500000u
/* A longer probe, after one that found nothing, waits for the fourth period. */
#define LONG_PROBE_US 250000u
/* Rounds with hardly more delivered after which STARTUP ends. */
#define FULL_ROUNDS 3
/*
 * Decisions in a row that reduce the rate, after which the shortest round-trip time must
 * have changed.
 */
#define FALLING_MAX 48
/* Interval at which flows that others starve probe. */
#define STARVED_PERIOD_NS 1000000000ull
/* A probe lasts so many times its duration at most, if nothing sent late in it arrives. */
#define LATE_PROBES 4
/* A pause after which a flow starts over. */
#define IDLE_US 1000000u
/* A coarse flow waits for so many round-trip times, but no longer than so many base ones. */
#define COARSE_SAMPLES 2
#define COARSE_ROUND_TRIPS 4
/* Samples of a round whose mean is exact; later ones weigh as the last of these. */
#define SAMPLES_MAX 1024

char LICENSE[] SEC("license") = "GPL";

THALWEG_KERNEL;

/*
 * Advances at the same moments for all flows, and on all hosts whose clocks agree: a
 * shared queue drains only if its flows probe together. If one probes alone, it takes
 * the others' queue for the length of the path.
 */
static __always_inline __u16 epoch_now(void)
{
	return bpf_ktime_get_tai_ns() / PROBE_PERIOD_NS;
}

static __always_inline __u8 second_now(void)
{
	return bpf_ktime_get_tai_ns() / STARVED_PERIOD_NS;
}

/*
 * Duration of a probe: at half the rate a queue takes twice its length to drain. Of a
 * very long queue a part drains each time.
 */
static __always_inline __u32 probe_us(const struct rate *ca, __u32 base_us)
{
	return 2 * base_us + thalweg_min(2 * (ca->mean_rtt >> MEAN_SHIFT), PROBE_QUEUE_US) +
	       PROBE_US;
}

SEC("struct_ops")
void BPF_PROG(rate_init, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct rate *ca = inet_csk_ca(sk);
	struct thalweg_rate_settings *set = the_settings();
	__u32 rtt_us = tp->srtt_us >> 3;
	__u64 rate;

	if (!set)
		return;
	/* The kernel has set all fields to 0, so the phase is STARTUP. */
	ca->min_rtt_us = rtt_us;
	ca->epoch = epoch_now();
	ca->second = second_now();
	ask_path(sk, ca, ca->epoch);
	start_round(ca, tp);
	rate = (__u64)tp->snd_cwnd * mss_of(tp) * US_PER_S / base_rtt_us(ca, set);
	ca->rate = max_u64(thalweg_min(rate, THALWEG_MAX_RATE), THALWEG_RATE_FLOOR);
	apply(sk, ca, ca->rate, base_rtt_us(ca, set), rtt_us);
	tp->snd_ssthresh = 0x7fffffff;
	/* The qdisc fq would have set its own status by now: this race does not matter. */
	pace(sk, 1);
}

/* Starts a phase that a probe may follow. */
static __always_inline void enter(struct rate *ca, __u8 phase)
{
	ca->phase = phase;
	ca->full_rounds = 0; /* which is also `falls` */
}

/*
 * Whether STARTUP has found the capacity: at twice the rate hardly more is delivered,
 * round after round. A flow that starts in a queue of others sees none grow. A round that the
 * application limited tells nothing of the path, because its rate was held, and begins the
 * count anew: the rounds after it deliver what was sent at the held rate.
 */
static __always_inline int is_full(struct rate *ca, const struct round *round)
{
	__u64 delivered = round->delivered_rate >> 10;

	if (round->flags & THALWEG_RATE_LIMITED) {
		ca->full_rounds = 0;
	} else if (delivered * 4 >= (__u64)ca->last_delivered * 5) {
		ca->last_delivered = thalweg_min(delivered, THALWEG_U32_MAX);
		ca->full_rounds = 0;
	} else {
		ca->full_rounds++;
	}
	return ca->full_rounds >= FULL_ROUNDS;
}

/* A round of STARTUP: twice the rate, or on to STEADY. */
static __always_inline void start_up(struct sock *sk, struct rate *ca,
				     const struct thalweg_rate_settings *set, struct round *round,
				     __u16 epoch)
{
	int full = is_full(ca, round);

	if (full || round->keep_q16 < THALWEG_ONE_Q16 ||
	    signal_q24(set, round->delivered_rate, round->rtt_us, round->base_us) >=
		    set->model.target_q24) {
		/* Full without a queue: the path seems longer than it is. */
		if (full)
			round->flags |= THALWEG_RATE_PROBING;
		/* Flows that started at the same time may have found a shorter path meanwhile. */
		ask_path(sk, ca, epoch);
		tell_path(sk, ca, epoch, 0);
		enter(ca, STEADY);
		if (ca->rate > round->delivered_rate)
			ca->rate = max_u64(round->delivered_rate, THALWEG_RATE_FLOOR);
	} else {
		ca->rate = thalweg_min(2 * ca->rate, round->cap);
	}
	apply(sk, ca, ca->rate, round->base_us, round->rtt_us);
}

/* On to PROBE_RTT; `common`: all flows do so now. */
static __always_inline void begin_probe(struct sock *sk, struct rate *ca, const struct round *round,
					int common)
{
	/*
	 * Half of the delivery rate, because the rate may exceed the flow's share. An
	 * application with little to send makes no queue, and is not held up.
	 */
	__u64 rate = thalweg_min(ca->rate, round->arriving) / 2;

	if (round->flags & THALWEG_RATE_LIMITED)
		rate = max_u64(ca->rate / 2, round->arriving);
	/* The result of a flow that probes alone may include the others' queue. */
	ca->flags &= ~(SURE | LATE | STARVED);
	if (common)
		ca->flags |= SURE;
	if (round->starved)
		ca->flags |= STARVED;
	ca->resumed = ca->phase;
	ca->phase = PROBE_RTT;
	ca->prior_min_rtt_us = ca->min_rtt_us;
	apply(sk, ca, max_u64(rate, THALWEG_RATE_FLOOR), round->base_us, round->base_us);
}

/*
 * A common probe left a queue. One such probe may be bad luck, as when flows start: others fill
 * the queue if a second one does, too.
 */
static __always_inline void end_undrained(struct sock *sk, struct rate *ca, __u32 base_us)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (ca->resumed == COMPETE) {
		ca->undrained++;
	} else if (ca->flags & SUSPECT) {
		ca->resumed = COMPETE;
		start_competing(ca, tp);
	}
	ca->flags |= SUSPECT;
	enter(ca, ca->resumed);
	if (ca->phase == COMPETE)
		apply_fair(sk, ca);
	else
		apply(sk, ca, ca->rate, base_us, ca->min_rtt_us);
	start_round(ca, tp);
}

/* Half the rate, long enough for the queue to drain: this is the remaining round-trip time. */
static __always_inline void end_probe(struct sock *sk, struct rate *ca,
				      const struct thalweg_rate_settings *set)
{
	__u16 epoch = epoch_now();
	__u32 found_us = ca->round_rtt_us, base_us;

	ca->min_rtt_us = ca->prior_min_rtt_us;
	base_us = base_rtt_us(ca, set);
	if (is_undrained(ca, ca->min_rtt_us, base_us)) {
		end_undrained(sk, ca, base_us);
		return;
	}
	ca->undrained = 0;
	ca->flags &= ~SUSPECT;
	if (ca->resumed == COMPETE) {
		ca->resumed = STEADY;
		ca->last_delivered = 0;
	}
	if (found_us)
		ca->min_rtt_us = found_us;
	/* A flow that probes alone finds the others' queue. */
	if (ca->flags & SURE)
		tell_path(sk, ca, epoch, 1);
	else
		ask_path(sk, ca, epoch);
	if (ca->min_rtt_us < ca->prior_min_rtt_us - ca->prior_min_rtt_us / 8)
		ca->flags &= ~SURE;
	enter(ca, ca->resumed);
	apply(sk, ca, ca->rate, base_rtt_us(ca, set), ca->min_rtt_us);
	start_round(ca, tcp_sk(sk));
}

/* The round is over. */
static __always_inline void end_round(struct sock *sk, struct rate *ca,
				      const struct thalweg_rate_settings *set, __u32 base_us)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct round round = {};
	__u16 epoch;
	__u8 second;
	int common;

	if (ca->phase == PROBE_RTT) {
		end_probe(sk, ca, set);
		return;
	}
	measure(ca, tp, set, base_us, &round);
	bound(ca, tp, &round);

	epoch = epoch_now();
	second = second_now();
	/* The start of a flow that the application limits fills no queue. A probe would delay it. */
	common = ca->epoch != epoch && !(ca->phase == STARTUP && ca->flags & LIMITED) &&
		 (!(ca->flags & SURE) || !(epoch & 3) || probe_us(ca, base_us) < LONG_PROBE_US);
	/* Others' queue starves all flows: they soon probe at the same moments, too. */
	common |= round.starved && ca->second != second;
	if (common || (ca->phase == STEADY && ca->falls >= FALLING_MAX))
		round.flags |= THALWEG_RATE_PROBING;
	if (ca->phase == STARTUP)
		start_up(sk, ca, set, &round, epoch);
	else if (!decide(sk, ca, set, &round))
		return;
	ca->epoch = epoch;
	ca->second = second;
	if (round.flags & THALWEG_RATE_PROBING)
		begin_probe(sk, ca, &round, common);

	pace(sk, round.at_target || ca->phase == PROBE_RTT || ca->rate < set->reference_rate);
	ca->flags &= ~CUT;
	if (round.keep_q16 < THALWEG_ONE_Q16)
		ca->flags |= CUT;
	start_round(ca, tp);
	if (ca->phase == PROBE_RTT)
		ca->prior_mean_us = ca->mean_rtt >> MEAN_SHIFT;
}

/*
 * Takes a round-trip time. One that is much longer than usual counts as a base round trip
 * more: the ACK of a single segment comes up to 40 ms late, and Linux marks as delayed
 * only that of a short one.
 */
static __always_inline void measure_rtt(struct rate *ca, __u32 rtt_us, int is_ack_delayed,
					__u32 base_us)
{
	__u32 now = rtt_us << MEAN_SHIFT;

	if (is_ack_delayed && rtt_us > ca->min_rtt_us)
		return;
	if (ca->mean_rtt)
		now = thalweg_min(now, ca->mean_rtt + (base_us << MEAN_SHIFT));
	if (ca->samples < SAMPLES_MAX)
		ca->samples++;
	if (ca->samples == 1)
		ca->mean_rtt = now;
	else if (now > ca->mean_rtt)
		ca->mean_rtt += (now - ca->mean_rtt) / ca->samples;
	else
		ca->mean_rtt -= (ca->mean_rtt - now) / ca->samples;
	if (!ca->round_rtt_us || rtt_us < ca->round_rtt_us)
		ca->round_rtt_us = rtt_us;
	if (!ca->min_rtt_us || rtt_us < ca->min_rtt_us)
		ca->min_rtt_us = rtt_us;
}

/* Whether a round that is long enough waits for one more round-trip time. */
static __always_inline int is_waiting(const struct rate *ca, __u32 elapsed_us, __u32 length_us,
				      __u32 base_us)
{
	if (ca->phase == PROBE_RTT)
		return !(ca->flags & LATE) && elapsed_us < LATE_PROBES * length_us;
	return ca->samples < COARSE_SAMPLES && is_coarse(ca, base_us) &&
	       elapsed_us < COARSE_ROUND_TRIPS * base_us;
}

SEC("struct_ops")
int rate_control(__u64 *ctx)
{
	struct sock *sk = (void *)ctx[0];
	struct tcp_sock *tp = tcp_sk(sk);
	struct inet_connection_sock *icsk = inet_csk(sk);
	struct rate *ca = inet_csk_ca(sk);
	struct thalweg_rate_settings *set = the_settings();
	const struct rate_sample *sample;
	__u32 base_us, length_us, elapsed_us;
	long rtt_us;

	if (thalweg_kernel.cong_control_args == 4) {
		sample = (void *)ctx[3];
		/* Keeps the compiler from making one load at an unknown place of the two. */
		asm volatile("" ::: "memory");
	} else {
		sample = (void *)ctx[1];
	}
	if (!set)
		return 0;
	rtt_us = sample->rtt_us;
	base_us = base_rtt_us(ca, set);
	if (rtt_us >= 0)
		measure_rtt(ca, rtt_us > 10000000 ? 10000000 : rtt_us + !rtt_us,
			    sample->is_ack_delayed, base_us);
	if (sample->is_app_limited)
		ca->flags |= LIMITED;

	base_us = base_rtt_us(ca, set);
	length_us = ca->phase == PROBE_RTT ? probe_us(ca, base_us) : base_us;
	elapsed_us = (__u32)tp->tcp_mstamp - ca->round_us;
	if (ca->phase == PROBE_RTT && rtt_us >= 0 && !sample->is_ack_delayed &&
	    elapsed_us > rtt_us + length_us / 2)
		ca->flags |= LATE;
	if (sample->prior_mstamp && !seq_before(sample->prior_delivered, ca->round_delivered) &&
	    elapsed_us >= length_us && !is_waiting(ca, elapsed_us, length_us, base_us))
		end_round(sk, ca, set, base_us);

	if (BPF_CORE_READ_BITFIELD(icsk, icsk_ca_state) == CA_STATE_LOSS) {
		/* As much may enter the network as leaves it. */
		__u32 window = tp->snd_cwnd + sample->acked_sacked;

		tp->snd_cwnd = window < ca->window ? window : ca->window;
	} else if (tp->snd_cwnd != ca->window) {
		tp->snd_cwnd = ca->window;
	}
	return 0;
}

/*
 * The rate after a pause: half for each second, as the path may have changed. It does not fall
 * below that of a new connection's first window (RFC 6928), which would need no more caution.
 */
static __always_inline __u64 rate_after_pause(const struct rate *ca, const struct tcp_sock *tp,
					      const struct thalweg_rate_settings *set,
					      __u32 idle_us)
{
	__u64 first = FIRST_WINDOW * mss_of(tp) * US_PER_S / base_rtt_us(ca, set);

	return max_u64(ca->rate >> thalweg_min(idle_us / IDLE_US, 4), thalweg_min(ca->rate, first));
}

/* Sets phase and rate outside the rounds. */
static __always_inline void restart(struct sock *sk, struct rate *ca, __u8 phase, __u64 rate)
{
	struct thalweg_rate_settings *set = the_settings();

	ca->rate = max_u64(rate, THALWEG_RATE_FLOOR);
	/* What was delivered, and what probes found before a pause, says nothing of the path after it. */
	if (phase == STARTUP) {
		ca->flags &= ~SUSPECT;
		ca->undrained = 0;
	}
	if (phase == STARTUP || (phase != COMPETE && is_competing(ca)))
		ca->last_delivered = 0; /* which is also `fair_window` */
	/* One phase would count on from the other's counter. */
	if (phase == STARTUP || ca->phase == PROBE_RTT)
		enter(ca, phase);
	ca->phase = phase;
	ca->flags &= ~CUT;
	start_round(ca, tcp_sk(sk));
	pace(sk, 1);
	if (phase == COMPETE)
		apply_fair(sk, ca);
	else if (set)
		apply(sk, ca, ca->rate, base_rtt_us(ca, set), ca->min_rtt_us);
}

SEC("struct_ops")
void BPF_PROG(rate_cwnd_event, struct sock *sk, int event)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct rate *ca = inet_csk_ca(sk);
	struct thalweg_rate_settings *set = the_settings();
	__u32 idle_us = (__u32)tp->tcp_mstamp - ca->round_us;

	if (event == CA_EVENT_LOSS) {
		if (is_competing(ca)) {
			halve_fair(ca);
			restart(sk, ca, COMPETE, ca->rate / 2);
		} else {
			restart(sk, ca, STEADY, ca->rate / 2);
		}
	} else if (set && event == CA_EVENT_TX_START && idle_us > IDLE_US &&
		   idle_us > ca->min_rtt_us * 4) {
		restart(sk, ca, STARTUP, rate_after_pause(ca, tp, set, idle_us));
	}
}

/* The window does not measure the path's capacity: losses never cut it. */
SEC("struct_ops")
__u32 BPF_PROG(rate_ssthresh, struct sock *sk)
{
	return tcp_sk(sk)->snd_ssthresh;
}

SEC("struct_ops")
__u32 BPF_PROG(rate_undo_cwnd, struct sock *sk)
{
	return tcp_sk(sk)->snd_cwnd;
}

SEC(".struct_ops.link")
struct tcp_congestion_ops rate = {
	.init = (void *)rate_init,
	.ssthresh = (void *)rate_ssthresh,
	.cong_control = (void *)rate_control,
	.cwnd_event = (void *)rate_cwnd_event,
	.undo_cwnd = (void *)rate_undo_cwnd,
	.name = "thalweg_rl",
};
