/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The learned rate controller in integers, freestanding: features of a flow, the network
 * or trees of a model, the next rate. It compiles for BPF (after <bpf/bpf_helpers.h>)
 * and natively. docs/reference/model.md specifies it, crates/rate is the documented
 * reference; vectors made by tests/vectors/network.py keep all bit-identical.
 *
 * For the verifier, bpf_loop() walks through rows and trees: it checks the body only
 * once. Limits are applied without branches, each of which would double its paths. Masks
 * repeat checks of user space. There is no division within a layer, and no floating
 * point. Right shifts of negative numbers keep the sign, as in every compiler used here.
 */
#ifndef THALWEG_NETWORK_H
#define THALWEG_NETWORK_H

#include "thalweg_algo.h"

/* Largest feature and action, just below one in Q15. */
#define THALWEG_ONE_Q15 32767
#define THALWEG_MAX_RTT_NS 10000000000ull
#define THALWEG_MAX_RATE (((__u64)1 << 40) - 1)
/* Differences between target and signal are limited to this: 128. */
#define THALWEG_MAX_DIFFERENCE_Q24 ((__s64)1 << 31)
/* The largest step, 0.2, for an action in Q15 and a step in Q16: 0.4 in Q16. */
#define THALWEG_STEP_Q16 26214

#ifdef __bpf__
#define thalweg_loop(count, body, context) bpf_loop(count, body, context, 0)
/* Keeps the compiler from turning arithmetic back into branches. */
#define THALWEG_OPAQUE(x) asm volatile("" : "+r"(x))
#else
static inline void thalweg_loop(__u32 count, long (*body)(__u32, void *), void *context)
{
	__u32 i;

	for (i = 0; i < count; i++)
		body(i, context);
}
#define THALWEG_OPAQUE(x) ((void)(x))
#endif

/* max(x, 0) */
static __always_inline __s64 thalweg_positive(__s64 x)
{
	__s64 negative = x >> 63;

	THALWEG_OPAQUE(negative);
	return x & ~negative;
}

/* The differences between x and the limits must fit 64 bits. */
static __always_inline __s64 thalweg_limit(__s64 x, __s64 low, __s64 high)
{
	x = low + thalweg_positive(x - low);
	return high - thalweg_positive(high - x);
}

/* x / 2^shift to the nearest integer, ties upwards; shift is 1 to 62. */
static __always_inline __s64 thalweg_rounded_shift(__s64 x, __u32 shift)
{
	return (x + ((__s64)1 << ((shift - 1) & 63))) >> (shift & 63);
}

/* Square root, rounded down, of a number below 2^50: digit by digit. */
static __always_inline __u64 thalweg_root(__u64 x)
{
	__u64 root = 0, digit;

	for (digit = (__u64)1 << 48; digit; digit >>= 2) {
		__u64 trial = root + digit;
		__u64 fits = ~(__u64)((__s64)(x - trial) >> 63);

		THALWEG_OPAQUE(fits);
		x -= trial & fits;
		root = (root >> 1) + (digit & fits);
	}
	return root;
}

/* Rate by line rate, rounded down: 2^8 to 2^48; 24 bits of the quotient at a time. */
static __always_inline __u64 thalweg_share_q48(__u64 rate, __u64 line_rate)
{
	__u64 high;

	line_rate = thalweg_min(line_rate, THALWEG_MAX_RATE);
	line_rate += !line_rate;
	rate = thalweg_min(rate, line_rate);
	rate += !rate;
	rate <<= 24;
	high = rate / line_rate;
	return (high << 24) + ((rate - high * line_rate) << 24) / line_rate;
}

/* Round-trip time by base round-trip time, rounded down, below 2^32. */
static __always_inline __u64 thalweg_inflation_q16(__u64 rtt_ns, __u64 base_rtt_ns)
{
	rtt_ns = thalweg_min(rtt_ns, THALWEG_MAX_RTT_NS);
	rtt_ns += !rtt_ns;
	base_rtt_ns = thalweg_min(base_rtt_ns, THALWEG_MAX_RTT_NS);
	base_rtt_ns += !base_rtt_ns;
	return thalweg_min((rtt_ns << 16) / base_rtt_ns, THALWEG_U32_MAX);
}

/* Moves the flow's history on by one decision. */
static __always_inline void thalweg_observe(const struct thalweg_model *model,
					    struct thalweg_rate_flow *flow,
					    const struct thalweg_measurement *measurement)
{
	/* By enum thalweg_feature: unscaled, and the sum of their fixed points less 15. */
	__s64 values[8] = {};
	const __u32 shifts = 16 | 25 << 5 | 21 << 10 | 17 << 15 | 25 << 20;
	__u32 i, inputs = model->features * model->history;
	__u64 inflation, share, signal;

	inflation = thalweg_inflation_q16(measurement->rtt_ns, measurement->base_rtt_ns);
	share = thalweg_share_q48(measurement->rate, measurement->line_rate);
	/* Below 2^32 times at most 2^24. */
	signal = thalweg_positive((__s64)(inflation - model->offset_q16));
	signal = (signal * thalweg_root(share)) >> 16;

	values[THALWEG_FEATURE_ACTION] = flow->action_q15;
	values[THALWEG_FEATURE_ERROR] =
		thalweg_limit((__s64)model->target_q24 - (__s64)signal, -THALWEG_MAX_DIFFERENCE_Q24,
			      THALWEG_MAX_DIFFERENCE_Q24);
	values[THALWEG_FEATURE_LOG_RATE] = (__s64)thalweg_log2_q16(share) - (48 << 16);
	values[THALWEG_FEATURE_QUEUE] = (__s64)inflation - THALWEG_ONE_Q16;
	if (flow->decided)
		values[THALWEG_FEATURE_ERROR_CHANGE] =
			thalweg_limit((__s64)flow->signal_q24 - (__s64)signal,
				      -THALWEG_MAX_DIFFERENCE_Q24, THALWEG_MAX_DIFFERENCE_Q24);
	flow->signal_q24 = signal;
	flow->decided = 1;

	for (i = 0; i < THALWEG_MODEL_INPUTS; i++) {
		if (i + model->features >= inputs)
			break;
		flow->inputs[i] = flow->inputs[(i + model->features) & (THALWEG_MODEL_INPUTS - 1)];
	}
	for (i = 0; i < THALWEG_MODEL_INPUTS; i++) {
		__u32 kind = model->feature[i].kind & 7;
		__u32 at = inputs - model->features + i;
		__s64 scaled;

		if (i >= model->features)
			break;
		/* At most 2^60 either way. */
		scaled = values[kind] * (__s64)model->feature[i].scale_q16;
		scaled = thalweg_rounded_shift(scaled, (shifts >> (5 * kind)) & 31);
		flow->inputs[at & (THALWEG_MODEL_INPUTS - 1)] =
			thalweg_limit(scaled, -THALWEG_ONE_Q15, THALWEG_ONE_Q15);
	}
}

/* Data of a layer's rows. */
struct thalweg_rows {
	const struct thalweg_model_layer *layer;
	const __s64 *in;
	__s64 *out;
};

/* Scales a row's sum to the range of the next layer: below 2^25 times below 2^31. */
static __always_inline __s64 thalweg_requantise(const struct thalweg_model_layer *layer, __u32 row,
						__s64 sum)
{
	sum = (sum + layer->bias[row]) * (__s64)layer->multiplier[row];
	return thalweg_limit(thalweg_rounded_shift(sum, layer->shift), layer->low, layer->high);
}

/* Two rows of a layer. */
static long thalweg_pair_of_rows(__u32 pair, void *context)
{
	const struct thalweg_rows *rows = context;
	const struct thalweg_model_layer *layer = rows->layer;
	const __s64 *in = rows->in, *weights;
	__s64 sum = 0, first;
	__u32 i;

	pair &= THALWEG_MODEL_WIDTH / 2 - 1;
	weights = layer->weights[pair];
	/* Beyond the last column weights are 0. */
	for (i = 0; i < THALWEG_MODEL_WIDTH; i += 4) {
		if (i >= layer->columns)
			break;
		sum += weights[i] * in[i];
		sum += weights[i + 1] * in[i + 1];
		sum += weights[i + 2] * in[i + 2];
		sum += weights[i + 3] * in[i + 3];
	}
	first = (__s64)((__u64)sum << 32) >> 32;
	rows->out[2 * pair] = thalweg_requantise(layer, 2 * pair, first);
	rows->out[2 * pair + 1] = thalweg_requantise(layer, 2 * pair + 1, (sum - first) >> 32);
	return 0;
}

/* tanh(i / 32) in Q15, rounded to nearest, at most THALWEG_ONE_Q15. */
/* clang-format off */
static const __s16 thalweg_tanh_q15[257] = {
	0, 1024, 2045, 3063, 4075, 5079, 6073, 7056, 8025, 8980, 9919, 10840,
	11743, 12625, 13486, 14326, 15143, 15936, 16706, 17452, 18173, 18870, 19542, 20189,
	20813, 21411, 21986, 22538, 23066, 23571, 24054, 24516, 24956, 25376, 25776, 26157,
	26519, 26864, 27191, 27502, 27797, 28076, 28341, 28592, 28830, 29055, 29268, 29470,
	29660, 29840, 30010, 30170, 30322, 30465, 30600, 30727, 30847, 30960, 31067, 31167,
	31262, 31351, 31435, 31515, 31589, 31659, 31726, 31788, 31846, 31901, 31953, 32002,
	32048, 32091, 32132, 32170, 32206, 32240, 32271, 32301, 32329, 32356, 32381, 32404,
	32426, 32447, 32466, 32484, 32501, 32517, 32532, 32547, 32560, 32573, 32584, 32596,
	32606, 32616, 32625, 32634, 32642, 32649, 32657, 32663, 32670, 32676, 32681, 32686,
	32691, 32696, 32700, 32704, 32708, 32712, 32715, 32718, 32721, 32724, 32727, 32729,
	32732, 32734, 32736, 32738, 32740, 32741, 32743, 32745, 32746, 32747, 32749, 32750,
	32751, 32752, 32753, 32754, 32755, 32755, 32756, 32757, 32758, 32758, 32759, 32759,
	32760, 32760, 32761, 32761, 32762, 32762, 32762, 32763, 32763, 32763, 32764, 32764,
	32764, 32764, 32765, 32765, 32765, 32765, 32765, 32766, 32766, 32766, 32766, 32766,
	32766, 32766, 32766, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
	32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
	32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
	32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
	32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
	32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
	32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
	32767, 32767, 32767, 32767, 32767,
};
/* clang-format on */

/* tanh of a number in Q12, -32767 to 32767, by linear interpolation in the table. */
static __always_inline __s32 thalweg_tanh(__s64 z_q12)
{
	__s64 sign = z_q12 >> 63, value;
	__u64 size = (z_q12 ^ sign) - sign;
	__u32 i = (size >> 7) & 255, rest = size & 127;

	value = thalweg_tanh_q15[i];
	value += ((thalweg_tanh_q15[i + 1] - value) * rest + 64) >> 7;
	return (value ^ sign) - sign;
}

/* The action of a network for the flow's inputs, Q15. */
static __always_inline __s32 thalweg_infer_layers(const struct thalweg_model *model,
						  const struct thalweg_rate_flow *flow,
						  struct thalweg_scratch *scratch)
{
	__s64 *in = scratch->values[0], *out = scratch->values[1];
	struct thalweg_rows rows;
	__u32 i;

	for (i = 0; i < THALWEG_MODEL_INPUTS; i++) {
		if (i >= model->layer[0].columns)
			break;
		in[i] = thalweg_limit(
			thalweg_rounded_shift(flow->inputs[i] * (__s64)model->input_multiplier,
					      model->input_shift),
			-127, 127);
	}
	for (i = 0; i < THALWEG_MODEL_LAYERS; i++) {
		__s64 *swap = in;

		if (i >= model->layers)
			break;
		rows.layer = &model->layer[i];
		rows.in = in;
		rows.out = out;
		thalweg_loop((rows.layer->rows + 1) / 2, thalweg_pair_of_rows, &rows);
		in = out;
		out = swap;
	}
	return thalweg_tanh(in[0]);
}

/* Data of a walk through the trees. */
struct thalweg_walk {
	const struct thalweg_model *model;
	const struct thalweg_rate_flow *flow;
	__s64 sum;
};

/* From the root of a tree to its leaf. */
static long thalweg_walk_tree(__u32 tree, void *context)
{
	struct thalweg_walk *walk = context;
	const struct thalweg_model *model = walk->model;
	__u32 step, at = model->root[tree & (THALWEG_MODEL_TREES - 1)];
	__s64 right;

	/* A leaf leads to itself. */
	for (step = 0; step < THALWEG_MODEL_DEPTH; step++) {
		const struct thalweg_model_node *node =
			&model->node[at & (THALWEG_MODEL_NODES - 1)];

		if (node->left == at)
			break;
		right = ((__s64)node->threshold_q15 -
			 walk->flow->inputs[node->input & (THALWEG_MODEL_INPUTS - 1)]) >>
			63;
		THALWEG_OPAQUE(right);
		at = node->left ^ ((node->left ^ node->right) & right);
	}
	walk->sum += model->node[at & (THALWEG_MODEL_NODES - 1)].value_q15;
	return 0;
}

/* The action of trees for the flow's inputs, Q15: the sum of their leaves, limited. */
static __always_inline __s32 thalweg_infer_trees(const struct thalweg_model *model,
						 const struct thalweg_rate_flow *flow)
{
	struct thalweg_walk walk = { .model = model, .flow = flow };

	thalweg_loop(model->trees, thalweg_walk_tree, &walk);
	return thalweg_limit(walk.sum, -THALWEG_ONE_Q15, THALWEG_ONE_Q15);
}

/* The action for the flow's inputs, Q15. */
static __always_inline __s32 thalweg_infer(const struct thalweg_model *model,
					   const struct thalweg_rate_flow *flow,
					   struct thalweg_scratch *scratch)
{
	return model->layers ? thalweg_infer_layers(model, flow, scratch)
			     : thalweg_infer_trees(model, flow);
}

/* Observes, decides and stores the action; returns it, Q15. */
static __always_inline __s32 thalweg_act(const struct thalweg_model *model,
					 struct thalweg_rate_flow *flow,
					 const struct thalweg_measurement *measurement,
					 struct thalweg_scratch *scratch)
{
	thalweg_observe(model, flow, measurement);
	flow->action_q15 = thalweg_infer(model, flow, scratch);
	return flow->action_q15;
}

/*
 * The rate after an action: times 1 + 0.2u for u >= 0, times 1 / (1 - 0.2u) for u < 0.
 * It is rounded to the nearest integer, then limited to at most `cap`, then to at least
 * `floor`.
 */
static __always_inline __u64 thalweg_next_rate(__u64 rate, __s32 action_q15, __u64 floor, __u64 cap)
{
	__u64 size = action_q15 < 0 ? -action_q15 : action_q15;
	__u64 multiplier = THALWEG_ONE_Q16 + ((size * THALWEG_STEP_Q16 + (1 << 15)) >> 16);

	if (action_q15 < 0)
		multiplier = (((__u64)1 << 32) + multiplier / 2) / multiplier;
	/* Below 2^40 times below 2^17. */
	rate = (thalweg_min(rate, THALWEG_MAX_RATE) * multiplier + (1 << 15)) >> 16;
	rate = thalweg_min(rate, cap);
	return rate < floor ? floor : rate;
}

#endif
