/* SPDX-License-Identifier: GPL-2.0-only */
/* Random numbers that a seed repeats, for the tests of this folder: splitmix64. */
#ifndef KBP_TESTS_RANDOM_H
#define KBP_TESTS_RANDOM_H

#include <stdint.h>

static uint64_t rnd_state;

static uint64_t rnd(void)
{
	uint64_t z = (rnd_state += 0x9e3779b97f4a7c15ULL);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

#endif /* KBP_TESTS_RANDOM_H */
