// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One phase: actions under traffic for a while, then everything is undone, and the accounts have to be right.
//!
//! What is judged, in this order: what was sent has arrived or was counted as dropped, once with everything still
//! attached and once after the undo; every path and the backlog of every CPU carry packets again; the settings are
//! those from before; the kernel has not complained.
//!
//! Not here: what the actions do ([`crate::action`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use kbp_core::kmsg::Mark;
use kbp_measure::place::{run_at, Place};
use kbp_measure::rng::SplitMix64;
use kbp_measure::{Error, Result};

use crate::action::{self, Action, Outcome, Worker, World, ACTIONS};
use crate::drops::{self, Drops};
use crate::result::ActionCount;
use crate::state;
use crate::traffic::FlowCount;

/// Actions that are told when something fails.
const RECENT_MAX: usize = 30;
/// The longest pause between two actions of a thread.
const PAUSE_MS_MAX: u64 = 250;
/// An action that takes longer hangs.
const STUCK_LIMIT: Duration = Duration::from_secs(420);
/// Of one that takes longer it is told where it waits.
const SLOW_LIMIT: Duration = Duration::from_secs(15);
/// Packets that every flow has to carry after the undo.
const ALIVE_PACKETS: u64 = 20;
const ALIVE_LIMIT: Duration = Duration::from_secs(60);
/// Packets that each CPU sends to itself.
const PROBES: usize = 8;
const PROBE_LIMIT: Duration = Duration::from_secs(10);
/// Missing packets are told as ranges, so many of them.
const RANGES_SHOWN: usize = 8;
/// A failed phase ends early; its kernel's complaints are told up to this many.
const COMPLAINTS_SHOWN: usize = 40;

/// What a phase is to do.
#[derive(Debug)]
pub struct Phase<'a> {
    /// Its number, from 1.
    pub number: u32,
    /// From which its random numbers follow.
    pub seed: u64,
    /// How long actions are done.
    pub length: Duration,
    /// The kinds to take them from.
    pub actions: &'a [&'static Action],
}

/// What a phase did and found.
#[derive(Debug, Default)]
pub struct Ended {
    /// Actions by kind.
    pub actions: BTreeMap<String, ActionCount>,
    /// Packets of every flow.
    pub counts: Vec<FlowCount>,
    /// Drops by place.
    pub drops: Drops,
    /// What is wrong; empty when nothing is.
    pub failures: Vec<String>,
    /// What the kernel complained about.
    pub complaints: Vec<String>,
    /// The last actions, for who looks into a failure.
    pub recent: Vec<String>,
    /// What the module said about its version.
    pub module_version: String,
}

/// What the two threads and the one that watches them share.
#[derive(Debug)]
struct Log {
    since: Instant,
    recent: Mutex<VecDeque<String>>,
    busy: Mutex<BTreeMap<&'static str, Instant>>,
    slow: Mutex<BTreeSet<(&'static str, Instant)>>,
    failures: Mutex<Vec<String>>,
    stop: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            recent: Mutex::default(),
            busy: Mutex::default(),
            slow: Mutex::default(),
            failures: Mutex::default(),
            stop: AtomicBool::new(false),
        }
    }

    fn tell(&self, words: &str) {
        let mut recent = lock(&self.recent);
        if recent.len() == RECENT_MAX {
            recent.pop_front();
        }
        recent.push_back(format!(
            "{:8.3} {words}",
            self.since.elapsed().as_secs_f64()
        ));
    }

    fn fail(&self, why: String) {
        lock(&self.failures).push(why);
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// Carries out a phase. The traffic is held before and after.
///
/// # Errors
/// What keeps the phase from being judged at all.
pub fn run(world: &World, phase: &Phase) -> Result<Ended> {
    let mut mark = Mark::now(&world.host);
    let log = Log::new();
    let before = drops::read(&world.host)?;
    world.traffic.begin(phase.number);
    world.traffic.resume_all();
    let mut ended = Ended::default();
    let started = action::load(world);
    if let Ok(Some(version)) = world.host.read_optional("sys/module/kbp/version") {
        ended.module_version = version;
    }
    match started {
        Ok(Outcome::Done) => ended.actions = act(world, phase, &log),
        Ok(Outcome::Refused(why)) => log.fail(format!("loading the module was refused: {why}")),
        Err(error) => log.fail(format!("loading the module failed: {error}")),
    }
    world.traffic.pause_all();
    ended.failures.append(&mut lock(&log.failures));
    let drops = drops::between(&before, &drops::read(&world.host)?);
    let found = judge(&world.traffic.counts(), &drops);
    ended.failures.extend(
        found
            .into_iter()
            .map(|why| format!("before the undo: {why}")),
    );

    world.traffic.resume_all();
    log.tell("undo");
    if let Err(error) = undo(world, &ended.actions) {
        ended.failures.push(format!("the undo failed: {error}"));
    }
    if !world.traffic.wait_for(ALIVE_PACKETS, ALIVE_LIMIT) {
        ended
            .failures
            .push("a path took no packets after the undo".into());
    }
    world.traffic.pause_all();
    ended.counts = world.traffic.counts();
    ended.drops = drops::between(&before, &drops::read(&world.host)?);
    ended.failures.extend(judge(&ended.counts, &ended.drops));
    ended.failures.extend(probe_cpus(world));
    let now = state::snapshot(&world.host)?;
    ended
        .failures
        .extend(state::differences(&world.baseline, &now));
    let went = ended
        .actions
        .get("cpu-offline")
        .is_some_and(|count| count.done > 0);
    ended.complaints = state::complaints(&mut mark, went);
    ended.complaints.truncate(COMPLAINTS_SHOWN);
    if !ended.complaints.is_empty() {
        ended.failures.push("the kernel complained".into());
    }
    ended.recent = lock(&log.recent).iter().cloned().collect();
    Ok(ended)
}

/// Both threads do actions until the time is over or something fails.
fn act(world: &World, phase: &Phase, log: &Log) -> BTreeMap<String, ActionCount> {
    let end = Instant::now() + phase.length;
    let mut counts = BTreeMap::new();
    std::thread::scope(|scope| {
        let start = |worker: Worker, salt: u64| {
            let rng = SplitMix64::new(phase.seed ^ salt);
            scope.spawn(move || work(world, phase, worker, rng, end, log))
        };
        let threads = [
            start(Worker::Ours, 0x6f75_7273),
            start(Worker::Around, 0x6172_6f75_6e64),
        ];
        while !threads.iter().all(|thread| thread.is_finished()) {
            sleep(Duration::from_millis(50));
            note_slow(world, log);
            watch(world, phase, log);
        }
        for thread in threads {
            match thread.join() {
                Ok(done) => done
                    .into_iter()
                    .for_each(|(name, count): (String, ActionCount)| {
                        counts
                            .entry(name)
                            .or_insert_with(ActionCount::default)
                            .add(&count);
                    }),
                Err(_) => log.fail("a thread of the torture panicked".into()),
            }
        }
    });
    counts
}

/// Says once of an action that is slow where each thread of ours waits in the kernel.
fn note_slow(world: &World, log: &Log) {
    let busy = lock(&log.busy).clone();
    for (name, since) in busy
        .iter()
        .filter(|(_, since)| since.elapsed() > SLOW_LIMIT)
    {
        if !lock(&log.slow).insert((*name, *since)) {
            continue;
        }
        println!("note: {name} takes more than {} s", SLOW_LIMIT.as_secs());
        // A thread that ended meanwhile has no stack.
        for tid in world.host.list("proc/self/task").unwrap_or_default() {
            let frames = world.host.kernel_stack(&format!("proc/self/task/{tid}"));
            println!("  thread {tid}: {}", frames.join(" < "));
        }
    }
}

/// An action that hangs can't be ended, so the program ends with what is known; the kernel's own log gets the stacks.
fn watch(world: &World, phase: &Phase, log: &Log) {
    let stuck = lock(&log.busy)
        .iter()
        .find(|(_, since)| since.elapsed() > STUCK_LIMIT)
        .map(|(name, _)| *name);
    let Some(name) = stuck else { return };
    println!(
        "FAILED: phase {}, seed {}: {name} has not come back in {} s",
        phase.number,
        phase.seed,
        STUCK_LIMIT.as_secs()
    );
    lock(&log.recent)
        .iter()
        .for_each(|line| println!("  {line}"));
    for key in ["w", "l"] {
        // Whoever reads the kernel's log sees where everything waits; nothing else can be done here.
        let _ = world.host.write("proc/sysrq-trigger", key);
    }
    std::process::exit(1);
}

fn work(
    world: &World,
    phase: &Phase,
    worker: Worker,
    mut rng: SplitMix64,
    end: Instant,
    log: &Log,
) -> BTreeMap<String, ActionCount> {
    let mine: Vec<&Action> = phase
        .actions
        .iter()
        .copied()
        .filter(|action| action.worker == worker)
        .collect();
    let mut counts: BTreeMap<String, ActionCount> = BTreeMap::new();
    while Instant::now() < end && !log.stop.load(Ordering::SeqCst) {
        let Some(action) = pick(&mine, &mut rng) else {
            break;
        };
        let since = Instant::now();
        lock(&log.busy).insert(action.name, since);
        log.tell(action.name);
        let outcome = (action.act)(world, &mut rng);
        lock(&log.busy).remove(action.name);
        let count = counts.entry(action.name.into()).or_default();
        count.longest_ms = count.longest_ms.max(since.elapsed().as_millis() as u64);
        match outcome {
            Ok(Outcome::Done) => count.done += 1,
            Ok(Outcome::Refused(reason)) => {
                log.tell(&format!("{} refused: {reason}", action.name));
                *count.refused.entry(reason).or_default() += 1;
            }
            Err(error) => log.fail(format!("{}: {error}", action.name)),
        }
        sleep(Duration::from_millis(rng.in_range(5, PAUSE_MS_MAX)));
    }
    counts
}

fn pick<'a>(actions: &[&'a Action], rng: &mut SplitMix64) -> Option<&'a Action> {
    let total: u64 = actions.iter().map(|action| action.weight).sum();
    let mut at = rng.in_range(0, total.checked_sub(1)?);
    actions.iter().copied().find(|action| {
        let here = at < action.weight;
        at = at.wrapping_sub(action.weight);
        here
    })
}

/// Under traffic: ours first, then the module, then what is around.
fn undo(world: &World, done: &BTreeMap<String, ActionCount>) -> Result<()> {
    let of = |worker| {
        let mine = ACTIONS.iter().filter(move |action| action.worker == worker);
        mine.filter(|action| done.get(action.name).is_some_and(|count| count.done > 0))
    };
    for action in of(Worker::Ours) {
        (action.undo)(world)?;
    }
    action::unload(world)?;
    for action in of(Worker::Around) {
        (action.undo)(world)?;
    }
    Ok(())
}

/// What is wrong with the accounts: sent = received + counted drops, and nothing twice or foreign.
fn judge(counts: &[FlowCount], drops: &Drops) -> Vec<String> {
    let mut found = Vec::new();
    let lost: u64 = counts.iter().map(FlowCount::lost).sum();
    let counted: u64 = drops.values().sum();
    if lost != counted {
        let mut why = format!("{lost} packets are missing and {counted} were counted as dropped");
        for count in counts.iter().filter(|count| count.lost() > 0) {
            let ranges: Vec<String> = count
                .account
                .missing(count.sent, RANGES_SHOWN)
                .iter()
                .map(|(from, to)| format!("{from}-{to}"))
                .collect();
            why.push_str(&format!(
                "\n  {}: {} of {} missing, numbers {}",
                count.name,
                count.lost(),
                count.sent,
                ranges.join(" ")
            ));
        }
        for (place, count) in drops {
            why.push_str(&format!("\n  counted: {place}: {count}"));
        }
        found.push(why);
    }
    for count in counts {
        let account = &count.account;
        for (number, what) in [
            (account.duplicated, "came twice"),
            (account.foreign, "are damaged, or of another phase or flow"),
            (
                u64::from(account.is_beyond(count.sent)),
                "came without being sent",
            ),
        ] {
            if number > 0 {
                found.push(format!("{}: {number} packets {what}", count.name));
            }
        }
    }
    found
}

/// The backlog of each CPU takes what that CPU sends to itself.
fn probe_cpus(world: &World) -> Vec<String> {
    let online = match world.host.online_cpus() {
        Ok(online) => online,
        Err(error) => return vec![error.to_string()],
    };
    let probe = |cpu: u32| {
        let place = Place {
            cpu: Some(cpu),
            ..Place::default()
        };
        run_at(&place, probe_here)
            .err()
            .map(|error| format!("CPU {cpu} does not receive what it sends to itself: {error}"))
    };
    online.iter().filter_map(probe).collect()
}

fn probe_here() -> Result<()> {
    let failed = |e| Error::sys("send over lo and receive it", e);
    let receiver = UdpSocket::bind("127.0.0.1:0").map_err(failed)?;
    receiver
        .set_read_timeout(Some(PROBE_LIMIT))
        .map_err(failed)?;
    let to = receiver.local_addr().map_err(failed)?;
    let sender = UdpSocket::bind("127.0.0.1:0").map_err(failed)?;
    for number in 0..PROBES {
        sender.send_to(&[number as u8], to).map_err(failed)?;
        let mut byte = [0];
        receiver.recv(&mut byte).map_err(failed)?;
        if usize::from(byte[0]) != number {
            return Err(Error::Invalid(format!(
                "{} came instead of {number}",
                byte[0]
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Account, Packet, PAYLOAD_LEN_MAX};

    fn count(sent: u64, arrive: impl Iterator<Item = u64>) -> FlowCount {
        let mut account = Account::default();
        for seq in arrive {
            let packet = Packet {
                flow: 0,
                phase: 1,
                seq,
            };
            account.book(0, 1, packet.write(&mut [0; PAYLOAD_LEN_MAX]));
        }
        FlowCount {
            name: "veth in".into(),
            path: 1,
            sent,
            not_taken: 0,
            account,
        }
    }

    #[test]
    fn a_loss_needs_a_count_and_a_count_needs_a_loss() {
        let none = Drops::new();
        let one: Drops = [("softnet: CPU 2".to_string(), 1)].into();
        assert!(judge(&[count(100, 0..100)], &none).is_empty());
        let gap = || count(100, (0..100).filter(|&seq| seq != 40));
        let found = judge(&[gap()], &none);
        assert!(
            found[0].contains("1 packets are missing") && found[0].contains("40-40"),
            "{found:?}"
        );
        assert!(judge(&[gap()], &one).is_empty());
        assert_eq!(judge(&[count(100, 0..100)], &one).len(), 1);
    }

    #[test]
    fn what_comes_twice_or_was_not_sent_is_wrong() {
        assert_eq!(
            judge(&[count(10, (0..10).chain([3]))], &Drops::new()).len(),
            1
        );
        let beyond = judge(&[count(10, 0..11)], &Drops::new());
        assert!(
            beyond.iter().any(|why| why.contains("without being sent")),
            "{beyond:?}"
        );
    }

    #[test]
    fn every_action_is_picked_as_often_as_its_weight_says() {
        let all: Vec<&Action> = ACTIONS.to_vec();
        let total: u64 = all.iter().map(|action| action.weight).sum();
        let mut rng = SplitMix64::new(5);
        let mut picked: BTreeMap<&str, u64> = BTreeMap::new();
        for _ in 0..total * 200 {
            *picked
                .entry(pick(&all, &mut rng).unwrap().name)
                .or_default() += 1;
        }
        for action in &all {
            let share = picked.get(action.name).copied().unwrap_or(0);
            let wanted = action.weight * 200;
            assert!(
                share > wanted / 2 && share < wanted * 2,
                "{}: {share} of {wanted}",
                action.name
            );
        }
        assert!(pick(&[], &mut rng).is_none());
    }
}
