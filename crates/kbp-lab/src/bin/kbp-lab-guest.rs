// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab's helper inside the guest: it makes the machine's clock fair, and measures whether it is.
//!
//! `kbp-lab-guest pit COUNT` programs channel 0 of the PIT as a periodic timer of COUNT ticks at 1.193 MHz. The end of
//! each period ends a vCPU's turn in QEMU.
//!
//! `kbp-lab-guest mask` masks the PIT's interrupt in the I/O APIC, before that. The kernel lives by the LAPIC timer and has
//! no use for it, and with a COUNT of 23 CPU 0 would take it 52,000 times a second.
//!
//! `kbp-lab-guest turns MILLISECONDS` pins one spinning thread to every CPU and prints one line
//! `turn_ns_max=N gap_ns_max=N back_ns_max=N cpus=N`:
//!
//! * a *turn* is a stretch in which a CPU ran without a gap while all others wanted to run as well;
//! * a *gap* is the longest absence that a spinning thread saw;
//! * *back* is by how much the clock of one CPU was seen behind that of another (0 on a sound clock).
//!
//! `kbp-lab-guest timers` sleeps for a moment on every CPU and fails if one of them does not wake: now and then an
//! emulated CPU loses the interrupts of its timer while the kernel boots, and whatever waits there waits for ever.
//!
//! Not here: what is done with the figures (`clock.rs`), and starting the machine (`guest/init.sh`).
//! It uses `std` alone, because `build.rs` compiles it with a single call of rustc.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A pause between two clock reads that is longer than this is another CPU's turn or an interrupt.
const GAP_NS: u64 = 600;
/// Time that all threads spin before they measure, so that the last one to arrive is in the race as well.
const SETTLE: Duration = Duration::from_millis(2);
/// How long each CPU sleeps when its timer is tried, and how long the others wait for it.
const NAP: Duration = Duration::from_millis(20);
const NAP_LIMIT: Duration = Duration::from_secs(10);
const SCHED_FIFO: i32 = 1;

extern "C" {
    fn sched_setaffinity(pid: i32, size: usize, mask: *const u64) -> i32;
    fn sched_setscheduler(pid: i32, policy: i32, priority: *const i32) -> i32;
    fn ioperm(from: u64, num: u64, turn_on: i32) -> i32;
    fn mmap(at: *mut u32, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u32;
}

/// What one thread saw, in nanoseconds.
#[derive(Default)]
struct Seen {
    turn_ns_max: u64,
    gap_ns_max: u64,
    back_ns_max: u64,
}

impl Seen {
    fn merge(self, other: Seen) -> Seen {
        Seen {
            turn_ns_max: self.turn_ns_max.max(other.turn_ns_max),
            gap_ns_max: self.gap_ns_max.max(other.gap_ns_max),
            back_ns_max: self.back_ns_max.max(other.back_ns_max),
        }
    }
}

/// What the threads share: the race starts when all have arrived and lasts until all have measured.
struct Race {
    epoch: Instant,
    arrived: AtomicUsize,
    measured: AtomicUsize,
    newest_ns: AtomicU64,
    pinned: AtomicBool,
}

impl Race {
    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }
}

/// Binds the calling thread to one CPU at the highest priority; false when the kernel refuses.
fn pin(cpu: usize) -> bool {
    let mut mask = [0u64; 16];
    mask[cpu / 64] = 1 << (cpu % 64);
    let priority = 99i32;
    // SAFETY: both calls only read the arrays given, whose sizes are those that the kernel expects
    // (`struct sched_param` is one int); pid 0 is the calling thread.
    unsafe {
        sched_setaffinity(0, std::mem::size_of_val(&mask), mask.as_ptr()) == 0
            && sched_setscheduler(0, SCHED_FIFO, &priority) == 0
    }
}

/// How many CPUs there are, those included that the kernel's command line keeps programs from (`isolcpus`): the calling
/// thread may be on all of them afterwards.
fn count_cpus() -> Result<usize, String> {
    let mask = [!0u64; 16];
    // SAFETY: the call only reads the array given, whose size is said; pid 0 is the calling thread.
    if unsafe { sched_setaffinity(0, std::mem::size_of_val(&mask), mask.as_ptr()) } != 0 {
        return Err("cannot run on all CPUs".to_string());
    }
    std::thread::available_parallelism()
        .map(std::num::NonZeroUsize::get)
        .map_err(|e| format!("cannot count CPUs: {e}"))
}

/// Spins without a PAUSE instruction until the time is over, and notes turns and gaps.
fn spin(race: &Race, cpu: usize, cpus: usize, length: Duration) -> Seen {
    if !pin(cpu) {
        race.pinned.store(false, Ordering::SeqCst);
    }
    race.arrived.fetch_add(1, Ordering::SeqCst);
    while race.arrived.load(Ordering::Relaxed) < cpus {}
    let start_ns = race.now_ns() + SETTLE.as_nanos() as u64;
    while race.now_ns() < start_ns {}

    let end_ns = start_ns + length.as_nanos() as u64;
    let mut seen = Seen::default();
    let mut turn_start_ns = 0;
    let mut last_ns = race.now_ns();
    while last_ns < end_ns {
        let newest_ns = race.newest_ns.load(Ordering::SeqCst);
        let now_ns = race.now_ns();
        seen.back_ns_max = seen.back_ns_max.max(newest_ns.saturating_sub(now_ns));
        race.newest_ns.fetch_max(now_ns, Ordering::SeqCst);
        let step_ns = now_ns.saturating_sub(last_ns);
        if step_ns > GAP_NS {
            seen.gap_ns_max = seen.gap_ns_max.max(step_ns);
            // The first stretch began before we looked, so it does not count.
            if turn_start_ns != 0 {
                seen.turn_ns_max = seen.turn_ns_max.max(last_ns - turn_start_ns);
            }
            turn_start_ns = now_ns;
        }
        last_ns = now_ns;
    }
    // A stretch that has not ended yet is at least this long.
    if turn_start_ns != 0 {
        seen.turn_ns_max = seen.turn_ns_max.max(last_ns - turn_start_ns);
    } else if cpus > 1 {
        seen.turn_ns_max = length.as_nanos() as u64;
    }
    race.measured.fetch_add(1, Ordering::SeqCst);
    while race.measured.load(Ordering::Relaxed) < cpus {}
    seen
}

fn turns(length: Duration) -> Result<String, String> {
    let cpus = count_cpus()?;
    let race = Arc::new(Race {
        epoch: Instant::now(),
        arrived: AtomicUsize::new(0),
        measured: AtomicUsize::new(0),
        newest_ns: AtomicU64::new(0),
        pinned: AtomicBool::new(true),
    });
    let threads: Vec<_> = (0..cpus)
        .map(|cpu| {
            let race = Arc::clone(&race);
            std::thread::spawn(move || spin(&race, cpu, cpus, length))
        })
        .collect();
    let mut all = Seen::default();
    for thread in threads {
        all = all.merge(
            thread
                .join()
                .map_err(|_| "a measuring thread died".to_string())?,
        );
    }
    if !race.pinned.load(Ordering::SeqCst) {
        return Err("cannot pin a thread to each CPU".to_string());
    }
    Ok(format!(
        "turn_ns_max={} gap_ns_max={} back_ns_max={} cpus={cpus}",
        all.turn_ns_max, all.gap_ns_max, all.back_ns_max
    ))
}

/// Has every CPU sleep and wake. Who waits for them spins, because it may be on the CPU whose timer is dead.
fn timers() -> Result<String, String> {
    let cpus = count_cpus()?;
    let woken: Arc<Vec<AtomicBool>> = Arc::new((0..cpus).map(|_| AtomicBool::new(false)).collect());
    for cpu in 0..cpus {
        let woken = Arc::clone(&woken);
        // Not joined: one that does not wake never ends.
        std::thread::spawn(move || {
            if pin(cpu) {
                std::thread::sleep(NAP);
                woken[cpu].store(true, Ordering::SeqCst);
            }
        });
    }
    let start = Instant::now();
    loop {
        let asleep = woken.iter().position(|woken| !woken.load(Ordering::SeqCst));
        match asleep {
            None => return Ok(format!("timers={cpus}")),
            Some(cpu) if start.elapsed() > NAP_LIMIT => {
                return Err(format!("CPU {cpu} gets no interrupt of its timer"))
            }
            Some(_) => std::hint::spin_loop(),
        }
    }
}

const PIT_CHANNEL_0: u16 = 0x40;
const PIT_COMMAND: u16 = 0x43;
/// Channel 0, both bytes of the count, mode 2 (periodic), binary.
const PIT_PERIODIC: u8 = 0x34;

/// Writes a byte to an I/O port.
fn outb(port: u16, value: u8) {
    // SAFETY: the instruction touches no memory; the caller asked for leave to use these ports, and without it the
    // processor ends this program instead.
    unsafe {
        std::arch::asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags));
    }
}

/// Where a PC has its I/O APIC.
const IO_APIC: i64 = 0xfec0_0000;
const PAGE: usize = 4096;
/// Its two registers, as indices of words: which of its inner registers is meant, and that one's contents.
const SELECT: usize = 0;
const WINDOW: usize = 4;
/// Inner registers: the version, and the lower half of the entry for the pin that a PC has its timer on.
const VERSION: u32 = 1;
const TIMER_ENTRY: u32 = 0x10 + 2 * 2;
const MASKED: u32 = 1 << 16;
const PROT_READ_WRITE: i32 = 3;
const MAP_SHARED: i32 = 1;
const O_SYNC: i32 = 0o4_010_000;

/// Masks the timer's interrupt. Needs `iomem=relaxed` on the kernel's command line.
///
/// Once, while nothing else goes on in the machine: the kernel selects and writes under a lock, which is not ours. It
/// writes this entry again when it moves the interrupt to another CPU or enables it anew, which nothing here makes it do.
fn mask() -> Result<String, String> {
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(O_SYNC)
        .open("/dev/mem")
        .map_err(|why| format!("cannot open /dev/mem: {why}"))?;
    // SAFETY: the mapping is new, and of a device's page, not of the program's memory.
    let page = unsafe {
        mmap(
            std::ptr::null_mut(),
            PAGE,
            PROT_READ_WRITE,
            MAP_SHARED,
            memory.as_raw_fd(),
            IO_APIC,
        )
    };
    if page as isize == -1 {
        let why = std::io::Error::last_os_error();
        return Err(format!("cannot map the I/O APIC: {why}"));
    }
    // SAFETY: both words are in the page, which stays mapped until this program ends.
    let window = |register: u32| unsafe {
        page.add(SELECT).write_volatile(register);
        page.add(WINDOW)
    };
    // SAFETY: as above.
    let (pins, entry) = unsafe {
        let pins = window(VERSION).read_volatile() >> 16 & 0xff;
        (pins, window(TIMER_ENTRY).read_volatile())
    };
    if pins != 23 {
        return Err(format!("there is no I/O APIC at {IO_APIC:#x}"));
    }
    // SAFETY: as above.
    let masked = unsafe {
        window(TIMER_ENTRY).write_volatile(entry | MASKED);
        window(TIMER_ENTRY).read_volatile() & MASKED != 0
    };
    match masked {
        true => Ok("mask=pit".to_string()),
        false => Err("the I/O APIC does not mask the timer's interrupt".to_string()),
    }
}

fn pit(count: u16) -> Result<String, String> {
    // SAFETY: the call only changes which I/O ports this process may use.
    if unsafe { ioperm(u64::from(PIT_CHANNEL_0), 4, 1) } != 0 {
        return Err(format!(
            "no leave to program the timer: {}",
            std::io::Error::last_os_error()
        ));
    }
    let [low, high] = count.to_le_bytes();
    outb(PIT_COMMAND, PIT_PERIODIC);
    outb(PIT_CHANNEL_0, low);
    outb(PIT_CHANNEL_0, high);
    Ok(format!("pit={count}"))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["turns", ms] => match ms.parse() {
            Ok(ms) if (1..=10_000).contains(&ms) => turns(Duration::from_millis(ms)),
            _ => Err(format!(
                "'{ms}' is not a number of milliseconds from 1 to 10000"
            )),
        },
        ["timers"] => timers(),
        ["mask"] => mask(),
        ["pit", count] => match count.parse() {
            Ok(count) if count > 1 => pit(count),
            _ => Err(format!("'{count}' is not a count from 2 to 65535")),
        },
        _ => Err("usage: kbp-lab-guest turns MILLISECONDS | timers | mask | pit COUNT".to_string()),
    };
    match result {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("kbp-lab-guest: {reason}");
            ExitCode::FAILURE
        }
    }
}
