// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The processes in the cgroups: each allocates and frees pages now and then, so that the statistics of its cgroup
//! have to be brought up to date by whoever reads them.
//!
//! A cgroup's memory is accounted to a process, so threads will not do. They are forks of this process that never
//! return to its code: they enter their cgroup, close every file, and end by themselves when their parent is gone.
//! Not here: the cgroups ([`super::groups`]).

use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::groups::Groups;
use super::MemoryConfig;
use crate::error::{Error, Result};
use crate::load::{failed, Load};
use crate::place::{run_at, Place};

const PAGE_BYTES: usize = 4_096;

/// How long the processes may take to enter their cgroups.
const ENTER_LIMIT: Duration = Duration::from_secs(10);

/// Counters that this process shares with its forks.
#[derive(Debug)]
struct Counters {
    /// Pages that were allocated and freed.
    pages: AtomicU64,
    /// Processes that are in their cgroups and at work.
    entered: AtomicU64,
}

/// The memory of these counters.
#[derive(Debug)]
struct Shared(NonNull<Counters>);

// SAFETY: what it points to are atomics that live until this is dropped.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Result<Self> {
        let memory = map(PAGE_BYTES, libc::MAP_SHARED);
        let failed = || Error::sys("allocate shared memory", std::io::Error::last_os_error());
        NonNull::new(memory.cast()).map(Self).ok_or_else(failed)
    }

    fn get(&self) -> &Counters {
        // SAFETY: it points to a mapped, zeroed page until this is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `new`, and nobody has a reference to it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE_BYTES) };
    }
}

/// New zeroed memory, or null.
fn map(bytes: usize, sharing: libc::c_int) -> *mut libc::c_void {
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        sharing | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return std::ptr::null_mut();
    }
    memory
}

/// What a fork works with: nothing that needs the allocator, a lock or a file.
#[derive(Debug, Clone, Copy)]
struct Job<'a> {
    entrance: libc::c_int,
    parent: libc::pid_t,
    bytes: usize,
    pause: libc::timespec,
    counters: &'a Counters,
}

/// The running processes. Dropping them ends them.
#[derive(Debug)]
pub(super) struct Pods {
    pids: Vec<libc::pid_t>,
    counters: Shared,
}

impl Pods {
    /// Starts a process in each cgroup.
    ///
    /// # Errors
    /// When a cgroup can't be entered or a process not be made; none is left then.
    pub(super) fn start(groups: &Groups, config: &MemoryConfig) -> Result<Self> {
        let mut pods = Self {
            pids: Vec::new(),
            counters: Shared::new()?,
        };
        let period_ns = u64::from(config.page_period_us) * 1_000;
        let entrances = groups.open_entrances()?;
        for (entrance, &cpu) in entrances.iter().zip(config.group_cpus.iter().cycle()) {
            let job = Job {
                entrance: entrance.as_raw_fd(),
                parent: std::process::id() as libc::pid_t,
                bytes: config.pages as usize * PAGE_BYTES,
                pause: libc::timespec {
                    tv_sec: (period_ns / 1_000_000_000) as libc::time_t,
                    tv_nsec: (period_ns % 1_000_000_000) as libc::c_long,
                },
                counters: pods.counters.get(),
            };
            let place = Place {
                cpu: Some(cpu),
                ..Place::default()
            };
            // A fork inherits the CPU of the thread that makes it.
            let pid = run_at(&place, || fork(job))?;
            pods.pids.push(pid);
        }
        pods.wait_entered()?;
        Ok(pods)
    }

    fn wait_entered(&self) -> Result<()> {
        let begin = Instant::now();
        let entered = || self.counters.get().entered.load(Ordering::Relaxed);
        while entered() < self.pids.len() as u64 {
            if begin.elapsed() > ENTER_LIMIT {
                let why = format!(
                    "{} of {} processes did not get into their cgroups within {} s",
                    self.pids.len() as u64 - entered(),
                    self.pids.len(),
                    ENTER_LIMIT.as_secs()
                );
                return Err(failed(Load::Memory, why));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Pages that were allocated and freed until now.
    pub(super) fn pages(&self) -> u64 {
        self.counters.get().pages.load(Ordering::Relaxed)
    }

    /// Ends the processes and waits for them.
    pub(super) fn end(&mut self) {
        for &pid in &self.pids {
            // SAFETY: a signal to a child that was not waited for yet, so the number is still its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        for pid in self.pids.drain(..) {
            let mut status = 0;
            // SAFETY: the call writes nothing but `status`; a killed child ends for certain.
            while unsafe { libc::waitpid(pid, &mut status, 0) } < 0
                && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
            {}
        }
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        self.end();
    }
}

fn fork(job: Job) -> Result<libc::pid_t> {
    // SAFETY: the child calls nothing but `pod`, which makes system calls only and never returns: it takes no lock and
    // allocates nothing, which is what a fork of a process with threads must keep to.
    match unsafe { libc::fork() } {
        -1 => Err(Error::sys(
            "start a process for a cgroup",
            std::io::Error::last_os_error(),
        )),
        0 => pod(job),
        pid => Ok(pid),
    }
}

/// The life of a fork.
fn pod(job: Job) -> ! {
    // SAFETY: system calls on this process alone. The mapping is this process's own and as large as `bytes`; `pause`
    // and the entrance's text live until their calls return.
    unsafe {
        if libc::write(job.entrance, c"0".as_ptr().cast(), 1) != 1 {
            libc::_exit(1);
        }
        libc::syscall(libc::SYS_close_range, 0u32, u32::MAX, 0u32);
        let memory = map(job.bytes, libc::MAP_PRIVATE).cast::<u8>();
        if memory.is_null() {
            libc::_exit(1);
        }
        job.counters.entered.fetch_add(1, Ordering::Relaxed);
        while libc::getppid() == job.parent {
            for offset in (0..job.bytes).step_by(PAGE_BYTES) {
                memory.add(offset).write_volatile(1);
            }
            libc::madvise(memory.cast(), job.bytes, libc::MADV_DONTNEED);
            job.counters
                .pages
                .fetch_add((job.bytes / PAGE_BYTES) as u64, Ordering::Relaxed);
            libc::nanosleep(&job.pause, std::ptr::null_mut());
        }
        libc::_exit(0)
    }
}
