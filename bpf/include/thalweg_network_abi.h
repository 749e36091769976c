/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The part of thalweg_abi.h for the learned rate controller (included there, under its
 * rules): a model as user space writes it into a map, and the state of a flow for
 * thalweg_network.h. docs/reference/model.md specifies it.
 *
 * User space has checked a model before the kernel sees it; the limits are those of
 * crates/rate.
 */
#ifndef THALWEG_NETWORK_ABI_H
#define THALWEG_NETWORK_ABI_H

#include <linux/types.h>

/* Largest number of inputs: features times history. */
#define THALWEG_MODEL_INPUTS 16
/* Largest number of outputs of a layer. */
#define THALWEG_MODEL_WIDTH 32
/* Largest number of layers, including the output. */
#define THALWEG_MODEL_LAYERS 3
/* Limits of trees: nodes of all trees together, trees, decisions from a root to a leaf. */
#define THALWEG_MODEL_NODES 2048
#define THALWEG_MODEL_TREES 128
#define THALWEG_MODEL_DEPTH 16

/* Kinds of features. */
enum thalweg_feature {
	THALWEG_FEATURE_ACTION = 0, /* the previous decision's action */
	THALWEG_FEATURE_ERROR = 1, /* target - signal */
	THALWEG_FEATURE_LOG_RATE = 2, /* log2(rate / line rate) / 16 */
	THALWEG_FEATURE_QUEUE = 3, /* RTT / base RTT - 1 */
	THALWEG_FEATURE_ERROR_CHANGE = 4, /* previous signal - signal */
};

struct thalweg_model_feature {
	__u32 kind; /* enum thalweg_feature */
	__u32 scale_q16;
};

/* A layer; elements beyond its rows and columns are 0. */
struct thalweg_model_layer {
	__u32 rows;
	__u32 columns;
	__u32 shift;
	__s32 low; /* output limits: 0, 127; for the output layer -32767, 32767 */
	__s32 high;
	__u32 reserved;
	__u32 multiplier[THALWEG_MODEL_WIDTH]; /* by row */
	__s32 bias[THALWEG_MODEL_WIDTH]; /* by row */
	/*
	 * By pair of rows, then by column: weight of the second row * 2^32 + weight of the
	 * first, so that one multiplication serves two rows. Their sums stay below 2^20 either
	 * way and never overlap.
	 */
	__s64 weights[THALWEG_MODEL_WIDTH / 2][THALWEG_MODEL_WIDTH];
};

/* A decision (left if input <= threshold), or a leaf, whose children are itself. */
struct thalweg_model_node {
	__s32 value_q15;
	__s16 threshold_q15;
	__u16 left;
	__u16 right;
	__u8 input;
	__u8 reserved;
};

struct thalweg_model {
	__u32 features; /* number used in `feature` */
	__u32 history; /* number of decisions */
	__u32 target_q24;
	__u32 offset_q16;
	__u32 input_multiplier;
	__u32 input_shift;
	__u32 layers; /* number used in `layer`; 0 for trees */
	__u32 trees; /* number used in `root`; 0 for layers */
	struct thalweg_model_feature feature[THALWEG_MODEL_INPUTS];
	struct thalweg_model_layer layer[THALWEG_MODEL_LAYERS];
	struct thalweg_model_node node[THALWEG_MODEL_NODES];
	__u16 root[THALWEG_MODEL_TREES];
};

/* State of a flow between its decisions; zero before the first. */
struct thalweg_rate_flow {
	__s16 inputs[THALWEG_MODEL_INPUTS]; /* Q15, oldest decision first */
	__s16 action_q15;
	__u16 decided; /* whether there was a decision */
	__u32 reserved;
	__u64 signal_q24; /* of the last decision */
};

/* Input of a decision. Both rates have the same unit, whichever it is. */
struct thalweg_measurement {
	__u64 rtt_ns;
	__u64 base_rtt_ns;
	__u64 rate;
	__u64 line_rate;
};

/* Activations of a running network: too large for a BPF program's stack. */
struct thalweg_scratch {
	__s64 values[2][THALWEG_MODEL_WIDTH];
};

_Static_assert(sizeof(struct thalweg_model_feature) == 8, "no padding");
_Static_assert(sizeof(struct thalweg_model_layer) ==
		       24 + 8 * THALWEG_MODEL_WIDTH + 4 * THALWEG_MODEL_WIDTH * THALWEG_MODEL_WIDTH,
	       "no padding");
_Static_assert(sizeof(struct thalweg_model_node) == 12, "no padding");
_Static_assert(sizeof(struct thalweg_model) ==
		       32 + 8 * THALWEG_MODEL_INPUTS +
			       sizeof(struct thalweg_model_layer) * THALWEG_MODEL_LAYERS +
			       12 * THALWEG_MODEL_NODES + 2 * THALWEG_MODEL_TREES,
	       "no padding");
_Static_assert(sizeof(struct thalweg_rate_flow) == 48, "no padding; fits icsk_ca_priv");
_Static_assert(sizeof(struct thalweg_measurement) == 32, "no padding");
_Static_assert(sizeof(struct thalweg_scratch) == 512, "no padding");

#endif
