#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only
"""No wake-up is lost: every order of the steps by which a poller goes to sleep and others give it work.

A model of a poller that has nothing to do, kbp_idle() and kbp_sleep() in poller.c, against those who want it to run:
kbp_poller_enqueue() in enqueue.c, kbp_relieve() in handback.c, kbp_backlog_set() in backlog.c. Its sleep has no end here:
where it has one, a wake-up that is lost is late instead. A step is what is atomic there: a stretch under
kbp_poller.lock, or one access outside of it. All orders are gone through, and none may end with something that waits
for a thread that sleeps. The model is worth something only if it finds what is wrong: the variants below, each with one
step that is out of its place or left out, have to lose a wake-up.
"""

from collections import deque
from dataclasses import dataclass, replace
import unittest


@dataclass(frozen=True)
class State:
    """The poller as others see it."""

    thread: str = "polls"
    # The task is TASK_IDLE, and has left the CPU.
    idle: bool = False
    blocked: bool = False
    # Under the lock: instances on the list, whether one more wakes the thread, whether the watchdog has relieved it.
    listed: int = 0
    wake: bool = False
    relieved: bool = False
    # The backlog is to be attached, and is not yet.
    wanted: bool = False
    pending: bool = False
    # Of each other party the step that comes next.
    others: tuple = ()


def waits(state):
    """Something that only the thread can do."""
    return state.listed > 0 or state.relieved or state.wanted


# ---- the thread: each returns the state after one step ----


def polls(state):
    """kbp_thread(): takes itself back, takes one thing, or goes to sleep when nothing is left."""
    if state.relieved:
        return replace(state, relieved=False)
    if state.listed:
        return replace(state, listed=state.listed - 1)
    if state.wanted:
        return replace(state, wanted=False)
    return replace(state, thread="asks")


def asks(state):
    """kbp_sleep(), under the lock: looks at the lists, sets p->wake and the state of the task."""
    pending = state.listed > 0 or state.relieved
    sleeps = {} if pending else {"wake": True, "idle": True}
    return replace(state, pending=pending, thread="asks-again", **sleeps)


def asks_again(state):
    """kbp_sleep(), behind the lock: what is changed without it."""
    return replace(state, pending=state.pending or state.wanted, thread="schedules")


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
    "asks": asks,
    "asks-again": asks_again,
    "schedules": schedules,
    "wakes": wakes,
}

# ---- the others: each returns the state after one step, and its next step ----


def enqueue(state):
    """kbp_poller_enqueue(), under the lock: what a relieved poller does not take goes to softirq."""
    if state.relieved:
        return state, None
    after = replace(state, listed=state.listed + 1, wake=False)
    return after, wake_up if state.wake else None


def relieve(state):
    """kbp_relieve(), under the lock: takes everything, and wakes nobody. Without work there is no watchdog."""
    if not state.listed:
        return state, None
    return replace(state, relieved=True, listed=0), None


def want(state):
    """kbp_backlog_set(): writes, and wakes."""
    return replace(state, wanted=True), wake_up


def wake_up(state):
    """wake_up_process()"""
    return replace(state, idle=False, blocked=False), None


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
        if state.blocked and not any(state.others) and waits(state):
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
        [want],
        [enqueue, relieve],
        [enqueue, want, relieve, enqueue],
    )

    def test_no_wake_up_is_lost(self):
        for parties in self.PARTIES:
            lost, states = explore(THREAD, parties)
            self.assertEqual(lost, [], f"{[party.__name__ for party in parties]}, of {states} states")
            self.assertGreater(states, 5)

    def loses(self, **steps):
        """Whether the thread with other steps loses a wake-up."""
        thread = {**THREAD, **{name.replace("_", "-"): step for name, step in steps.items()}}
        return any(explore(thread, parties)[0] for parties in self.PARTIES)

    def test_looking_before_the_lock_loses_one(self):
        def looks(state):
            return replace(state, pending=waits(state), thread="sets")

        def sets(state):
            sleeps = {} if state.pending else {"wake": True, "idle": True}
            return replace(state, thread="asks-again", **sleeps)

        self.assertTrue(self.loses(asks=looks, sets=sets))

    def test_setting_the_state_of_the_task_behind_the_lock_loses_one(self):
        def asks_only(state):
            pending = state.listed > 0 or state.relieved
            return replace(state, pending=pending, wake=not pending, thread="sets")

        def sets(state):
            return replace(state, idle=not state.pending, thread="asks-again")

        self.assertTrue(self.loses(asks=asks_only, sets=sets))

    def test_not_asking_again_behind_the_lock_loses_one(self):
        def goes_on(state):
            return replace(state, thread="schedules")

        self.assertTrue(self.loses(asks_again=goes_on))

    def test_sleeping_though_relieved_loses_one(self):
        def forgets(state):
            pending = state.listed > 0
            sleeps = {} if pending else {"wake": True, "idle": True}
            return replace(state, pending=pending, thread="asks-again", **sleeps)

        self.assertTrue(self.loses(asks=forgets))


if __name__ == "__main__":
    unittest.main()
