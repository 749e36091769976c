/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Fuzzes the learned rate controller's arithmetic (bpf/include/thalweg_network.h): any
 * model that user space accepts, then decisions of one flow. Networks are computed a
 * second time, weight by weight in 128 bits, and so are rates; tanh is compared with the
 * C library's.
 *
 * The input is little-endian: a model in the order of take_model(), then steps, each a
 * byte for its kind and its arguments. seeds.py writes the same format. Limits of models
 * are those of crates/rate.
 */
#include <math.h>
#include <string.h>

#include "input.h"
#include "thalweg_abi.h"
#include "thalweg_network.h"

#define GUARD 0x5a5aa5a5c3c33c3cull

/* The same model as plain numbers. */
struct plain {
	int weights[THALWEG_MODEL_LAYERS][THALWEG_MODEL_WIDTH][THALWEG_MODEL_WIDTH];
};

static __u32 within(__u64 number, __u32 low, __u32 high)
{
	return low + number % ((__u64)high - low + 1);
}

static void take_features(struct input *input, struct thalweg_model *model)
{
	__u32 i;

	model->features = within(take(input, 1), 1, THALWEG_MODEL_INPUTS);
	model->history = within(take(input, 1), 1, THALWEG_MODEL_INPUTS / model->features);
	for (i = 0; i < model->features; i++) {
		model->feature[i].kind = take(input, 1) % 5;
		model->feature[i].scale_q16 = within(take(input, 4), 1, 1 << 28);
		if (model->feature[i].kind == THALWEG_FEATURE_ACTION)
			model->feature[i].scale_q16 = THALWEG_ONE_Q16;
	}
	model->target_q24 = take(input, 4);
	model->target_q24 += !model->target_q24;
	model->offset_q16 = take(input, 4);
}

static void take_layers(struct input *input, struct thalweg_model *model, struct plain *plain)
{
	__u32 number, row, column, columns = model->features * model->history;

	model->input_multiplier = take(input, 4) & 0x7fffffff;
	model->input_shift = within(take(input, 1), 8, 56);
	model->layers = within(take(input, 1), 1, THALWEG_MODEL_LAYERS);
	for (number = 0; number < model->layers; number++) {
		struct thalweg_model_layer *layer = &model->layer[number];
		int last = number + 1 == model->layers;

		layer->columns = columns;
		layer->rows = within(take(input, 1), 1, THALWEG_MODEL_WIDTH);
		if (last)
			layer->rows = 1;
		layer->shift = within(take(input, 1), 8, 56);
		layer->low = last ? -THALWEG_ONE_Q15 : 0;
		layer->high = last ? THALWEG_ONE_Q15 : 127;
		for (row = 0; row < layer->rows; row++) {
			layer->bias[row] = (__s32)within(take(input, 4), 0, 1 << 25) - (1 << 24);
			layer->multiplier[row] = take(input, 4) & 0x7fffffff;
			for (column = 0; column < columns; column++) {
				int weight = (__s8)take(input, 1);

				if (weight == -128)
					weight = -127;
				plain->weights[number][row][column] = weight;
				layer->weights[row / 2][column] +=
					row % 2 ? (__s64)weight * ((__s64)1 << 32) : weight;
			}
		}
		columns = layer->rows;
	}
}

static void take_trees(struct input *input, struct thalweg_model *model)
{
	__u32 count = within(take(input, 2), 1, THALWEG_MODEL_NODES), i, depth[2];
	static __u8 depths[THALWEG_MODEL_NODES];

	for (i = 0; i < count; i++) {
		struct thalweg_model_node *node = &model->node[i];

		node->value_q15 = (__s32)within(take(input, 4), 0, 1 << 21) - (1 << 20);
		node->threshold_q15 = (__s16)take(input, 2);
		node->left = take(input, 2) % count;
		node->right = take(input, 2) % count;
		node->input = take(input, 1) % (model->features * model->history);
	}
	for (i = count; i-- > 0;) {
		struct thalweg_model_node *node = &model->node[i];

		depths[i] = 0;
		if (node->left > i && node->right > i) {
			depth[0] = depths[node->left];
			depth[1] = depths[node->right];
			depths[i] = 1 + (depth[0] > depth[1] ? depth[0] : depth[1]);
		}
		if (!depths[i] || depths[i] > THALWEG_MODEL_DEPTH) {
			depths[i] = 0;
			node->left = node->right = i;
		}
	}
	model->trees = within(take(input, 1), 1, THALWEG_MODEL_TREES);
	for (i = 0; i < model->trees; i++)
		model->root[i] = take(input, 2) % count;
}

static void take_model(struct input *input, struct thalweg_model *model, struct plain *plain)
{
	take_features(input, model);
	if (take(input, 1) & 1)
		take_trees(input, model);
	else
		take_layers(input, model, plain);
}

/* x / 2^shift to the nearest integer, ties upwards, within limits. */
static __s64 scaled(__int128 x, __u32 shift, __s64 low, __s64 high)
{
	__int128 half = (__int128)1 << (shift - 1), unit = (__int128)1 << shift;
	__int128 whole = (x + half) / unit;

	/* Division rounds towards zero. */
	if ((x + half) % unit < 0)
		whole--;
	return whole < low ? low : whole > high ? high : (__s64)whole;
}

/* The output layer's input of tanh(), Q12, weight by weight. */
static __s64 forward(const struct thalweg_model *model, const struct plain *plain,
		     const __s16 *inputs)
{
	__s64 in[THALWEG_MODEL_WIDTH] = {}, out[THALWEG_MODEL_WIDTH] = {};
	__u32 number, row, column;

	for (column = 0; column < model->layer[0].columns; column++)
		in[column] = scaled((__int128)inputs[column] * model->input_multiplier,
				    model->input_shift, -127, 127);
	for (number = 0; number < model->layers; number++) {
		const struct thalweg_model_layer *layer = &model->layer[number];

		for (row = 0; row < layer->rows; row++) {
			__int128 sum = layer->bias[row];

			for (column = 0; column < layer->columns; column++)
				sum += plain->weights[number][row][column] * in[column];
			out[row] = scaled(sum * layer->multiplier[row], layer->shift, layer->low,
					  layer->high);
		}
		memcpy(in, out, sizeof(in));
	}
	return in[0];
}

/* The sum of the leaves for these inputs, by the definition of a tree. */
static __s64 leaves(const struct thalweg_model *model, const __s16 *inputs)
{
	__s64 sum = 0;
	__u32 tree;

	for (tree = 0; tree < model->trees; tree++) {
		const struct thalweg_model_node *node = &model->node[model->root[tree]];

		while (&model->node[node->left] != node)
			node = &model->node[inputs[node->input] <= node->threshold_q15
						    ? node->left
						    : node->right];
		sum += node->value_q15;
	}
	return sum < -THALWEG_ONE_Q15  ? -THALWEG_ONE_Q15
	       : sum > THALWEG_ONE_Q15 ? THALWEG_ONE_Q15
				       : sum;
}

static void check_action(const struct thalweg_model *model, const struct plain *plain,
			 const __s16 *inputs, __s32 action)
{
	double exact;

	if (!model->layers) {
		CHECK(action == leaves(model, inputs), "trees say %d", action);
		return;
	}
	exact = 32767.0 * tanh((double)forward(model, plain, inputs) / 4096);
	/* A chord over 1/32: at most max|tanh''| / (8 * 32^2) = 9.4e-5, 3.1 units, and rounding. */
	CHECK(fabs(action - exact) <= 5, "the network says %d, tanh %f", action, exact);
}

static void check_rate(__u64 rate, __s32 action, __u64 floor, __u64 cap)
{
	__u64 next = thalweg_next_rate(rate, action, floor, cap);
	double used = rate > THALWEG_MAX_RATE ? (double)THALWEG_MAX_RATE : (double)rate;
	double u = action / 32767.0,
	       exact = action < 0 ? used / (1 - 0.2 * u) : used * (1 + 0.2 * u);

	/* The multiplier has a resolution of 2^-16, and is rounded twice if the rate falls. */
	double slack = 1 + used * 2 / 65536;

	if (exact > (double)cap)
		exact = (double)cap;
	if (exact < (double)floor)
		exact = (double)floor;
	CHECK(fabs((double)next - exact) <= slack, "rate %llu by %d to %llu, not %f",
	      (unsigned long long)rate, action, (unsigned long long)next, exact);
}

struct room {
	__u64 before[8];
	struct thalweg_scratch scratch;
	__u64 after[8];
};

static void step(struct input *input, const struct thalweg_model *model, const struct plain *plain,
		 struct thalweg_rate_flow *flow, struct room *room)
{
	__u32 i, inputs = model->features * model->history;
	struct thalweg_measurement measurement;
	__s16 old[THALWEG_MODEL_INPUTS];
	__u64 floor, cap;
	__s32 action;

	memcpy(old, flow->inputs, sizeof(old));
	measurement.rtt_ns = take(input, 8);
	measurement.base_rtt_ns = take(input, 8);
	measurement.rate = take(input, 8);
	measurement.line_rate = take(input, 8);
	/* As in rate.bpf.c. */
	floor = thalweg_min(take(input, 8), THALWEG_MAX_RATE);
	cap = thalweg_min(take(input, 8), THALWEG_MAX_RATE);
	action = thalweg_act(model, flow, &measurement, &room->scratch);
	CHECK(flow->action_q15 == action && flow->decided, "the decision is not remembered");
	for (i = 0; i < THALWEG_MODEL_INPUTS; i++) {
		CHECK(flow->inputs[i] >= -THALWEG_ONE_Q15, "input %u is %d", i, flow->inputs[i]);
		if (i + model->features < inputs)
			CHECK(flow->inputs[i] == old[i + model->features], "history, input %u", i);
		if (i >= inputs)
			CHECK(!flow->inputs[i], "input %u is none of the model's", i);
	}
	check_action(model, plain, flow->inputs, action);
	check_rate(measurement.rate, action, floor, cap);
}

int LLVMFuzzerTestOneInput(const __u8 *data, size_t size)
{
	static struct thalweg_model model;
	static struct plain plain;
	struct input input = { data, size };
	struct thalweg_rate_flow flow = {};
	struct room room = {};
	int i;

	memset(&model, 0, sizeof(model));
	memset(&plain, 0, sizeof(plain));
	for (i = 0; i < 8; i++)
		room.before[i] = room.after[i] = GUARD;
	take_model(&input, &model, &plain);
	while (input.left) {
		if (take(&input, 1) & 1) {
			struct thalweg_rate_flow other = {};

			for (i = 0; i < THALWEG_MODEL_INPUTS; i++) {
				other.inputs[i] = take(&input, 2);
				if (other.inputs[i] < -THALWEG_ONE_Q15)
					other.inputs[i] = -THALWEG_ONE_Q15;
			}
			check_action(&model, &plain, other.inputs,
				     thalweg_infer(&model, &other, &room.scratch));
		} else {
			step(&input, &model, &plain, &flow, &room);
		}
	}
	for (i = 0; i < 8; i++)
		CHECK(room.before[i] == GUARD && room.after[i] == GUARD,
		      "beyond the scratch memory");
	return 0;
}
