/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the fuzzers of this directory: a reader of the input, which returns zeroes
 * after its end, and a check that ends the run with a message.
 */
#ifndef THALWEG_FUZZ_INPUT_H
#define THALWEG_FUZZ_INPUT_H

#include <linux/types.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition, ...)                                                           \
	do {                                                                            \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: %s; ", __FILE__, __LINE__, #condition); \
			fprintf(stderr, __VA_ARGS__);                                   \
			fprintf(stderr, "\n");                                          \
			abort();                                                        \
		}                                                                       \
	} while (0)

struct input {
	const __u8 *at;
	size_t left;
};

/* The next `bytes` bytes as one number, the lowest first. */
static inline __u64 take(struct input *input, int bytes)
{
	__u64 number = 0;
	int i;

	for (i = 0; i < bytes && input->left; i++) {
		number |= (__u64)*input->at++ << (8 * i);
		input->left--;
	}
	return number;
}

int LLVMFuzzerTestOneInput(const __u8 *data, size_t size);

#endif
