// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whose turn it is within class normal.
 *
 * Owns nothing, takes no lock: everything that matters comes in. Called by the
 * poller thread only, once in a round.
 */
#include "rtlist.h"

/* Who is left in this lap, and still there. */
static enum kbp_turn kbp_turn_in_lap(struct kbp_normals *left,
				     const struct kbp_normals *now)
{
	if (left->listed && now->listed) {
		left->listed--;
		return KBP_TURN_LISTED;
	}
	if (left->held && now->held) {
		left->held--;
		return KBP_TURN_HELD;
	}
	if (left->backlog && now->backlog) {
		left->backlog = false;
		return KBP_TURN_BACKLOG;
	}
	return KBP_TURN_NONE;
}

/**
 * kbp_turn_next() - decide which poll of class normal is next
 * @lap: what is remembered
 * @now: what could be polled
 *
 * Who could be polled all the time is polled in each lap, and who comes while a lap
 * is on its way in the next one: nobody waits for more than two polls of any other.
 */
enum kbp_turn kbp_turn_next(struct kbp_lap *lap, const struct kbp_normals *now)
{
	enum kbp_turn turn = kbp_turn_in_lap(&lap->left, now);

	if (turn != KBP_TURN_NONE)
		return turn;
	lap->number++;
	lap->left = *now;
	return kbp_turn_in_lap(&lap->left, now);
}
