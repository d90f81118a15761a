#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only
"""No wake-up is lost: every order of the steps by which a poller goes to sleep and others give it work.

A model of kbp_sleep() in poller.c against kbp_poller_enqueue() in enqueue.c, the kernel's schedule request for an armed
backlog, and kbp_relieve() in handback.c. A step here is what is atomic there: a stretch under kbp_poller.lock, or one
access outside of it. All orders are gone through, and none may end with work that waits for a thread that sleeps.
The model is worth something only if it finds what is wrong: the variants below, each with one line out of its place,
have to lose a wake-up.
"""

from collections import deque
from dataclasses import dataclass, replace
import unittest


@dataclass(frozen=True)
class State:
    """The poller as others see it."""

    thread: str = "polls"
    # The task, and whether it has left the CPU.
    idle: bool = False
    blocked: bool = False
    # Under the lock: what waits for the thread, and whether an instance may wake it.
    listed: int = 0
    wake: bool = False
    relieved: bool = False
    # The backlog: armed by the thread, due when a sender has scheduled it.
    armed: bool = False
    due: bool = False
    pending: bool = False
    # Of each other party the step that comes next.
    others: tuple = ()


def awake(state):
    """wake_up_process()"""
    return replace(state, idle=False, blocked=False)


# ---- the thread: each returns the state after one step ----


def polls(state):
    """kbp_round(): takes one thing, or goes to sleep when nothing is left."""
    if state.listed and not state.relieved:
        return replace(state, listed=state.listed - 1)
    if state.due:
        return replace(state, due=False, armed=False)
    return replace(state, thread="arms")


def arms(state):
    """kbp_backlog_arm()"""
    return replace(state, armed=True, thread="asks")


def asks(state):
    """kbp_sleep(), under the lock: looks at the lists, sets p->wake and the state of the task."""
    pending = state.listed > 0 or state.relieved
    sleeps = {} if pending else {"wake": True, "idle": True}
    return replace(state, pending=pending, thread="asks-backlog", **sleeps)


def asks_backlog(state):
    """kbp_backlog_is_waiting()"""
    return replace(state, pending=state.pending or (state.armed and state.due), thread="schedules")


def schedules(state):
    """schedule(): leaves the CPU unless somebody has made it runnable."""
    if state.pending or not state.idle:
        return replace(state, thread="wakes")
    return replace(state, blocked=True, thread="wakes")


def wakes(state):
    """Behind schedule(): not before it runs again."""
    return replace(state, idle=False, wake=False, pending=False, thread="polls")


THREAD = {
    "polls": polls,
    "arms": arms,
    "asks": asks,
    "asks-backlog": asks_backlog,
    "schedules": schedules,
    "wakes": wakes,
}

# ---- the others: each returns the state after one step, and its next step ----


def enqueue(state):
    """kbp_poller_enqueue(), under the lock."""
    if state.relieved:
        return state, None
    after = replace(state, listed=state.listed + 1, wake=False)
    return after, wake_up if state.wake else None


def send(state):
    """enqueue_to_backlog(): schedules an armed backlog as it does threaded NAPI; one that is not is polled anyway."""
    if state.armed and not state.due:
        return replace(state, due=True), wake_up
    return state, None


def relieve(state):
    """kbp_relieve(), under the lock: takes everything, and wakes nobody."""
    return replace(state, relieved=True, listed=0), None


def wake_up(state):
    """wake_up_process()"""
    return awake(state), None


def explore(thread, others):
    """Every state that can be reached; returns those in which nothing happens any more though work waits."""
    start = State(others=tuple(others))
    seen, queue, lost = {start}, deque([start]), []
    while queue:
        state = queue.popleft()
        after = []
        # A task that is off the CPU runs only when somebody wakes it.
        if not state.blocked:
            after.append(thread[state.thread](state))
        for at, step in enumerate(state.others):
            if step:
                changed, then = step(state)
                after.append(replace(changed, others=(*state.others[:at], then, *state.others[at + 1 :])))
        if state.blocked and not any(state.others) and (state.listed or state.due):
            lost.append(state)
        for one in after:
            if one not in seen:
                seen.add(one)
                queue.append(one)
    return lost, len(seen)


class WakeModel(unittest.TestCase):
    """The steps as they are, and as they must not be."""

    PARTIES = (
        [enqueue],
        [enqueue, enqueue, enqueue],
        [send, send],
        [enqueue, send, enqueue, send],
        [enqueue, relieve, enqueue, send],
    )

    def test_no_wake_up_is_lost(self):
        for parties in self.PARTIES:
            lost, states = explore(THREAD, parties)
            self.assertEqual(lost, [], f"{[party.__name__ for party in parties]}, of {states} states")
            self.assertGreater(states, 10)

    def loses(self, **steps):
        """Whether the thread with other steps loses a wake-up."""
        return any(explore({**THREAD, **steps}, parties)[0] for parties in self.PARTIES)

    def test_looking_before_the_lock_loses_one(self):
        def looks(state):
            return replace(state, pending=state.listed > 0, thread="sets")

        def sets(state):
            sleeps = {} if state.pending else {"wake": True, "idle": True}
            return replace(state, thread="asks-backlog", **sleeps)

        self.assertTrue(self.loses(asks=looks, sets=sets))

    def test_setting_the_state_of_the_task_behind_the_lock_loses_one(self):
        def asks_only(state):
            pending = state.listed > 0
            return replace(state, pending=pending, wake=not pending, thread="sets")

        def sets(state):
            return replace(state, idle=not state.pending, thread="asks-backlog")

        self.assertTrue(self.loses(asks=asks_only, sets=sets))

    def test_not_asking_for_the_backlog_again_loses_one(self):
        def asks_first(state):
            return replace(asks(state), thread="schedules")

        def schedules_at_once(state):
            # The task turns idle only here, behind the last look.
            return schedules(replace(state, idle=not state.pending))

        self.assertTrue(self.loses(asks=asks_first, schedules=schedules_at_once))


if __name__ == "__main__":
    unittest.main()
