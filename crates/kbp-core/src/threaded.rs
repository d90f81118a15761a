// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mainline's threaded NAPI: switch it on for an interface, place and schedule its threads, and
//! put everything back.
//!
//! This is a rival to KBP's pollers and is set up here so that both can be compared. The threads
//! are found by their names (`napi/eth0-8193`), so an interface of the same name in another
//! network namespace would be taken for the same one.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::Error;
use crate::host::Host;
use crate::procfs::Task;
use crate::sched::{self, Scheduling};
use crate::state::{StateFile, ThreadRecord, ThreadedRecord};
use crate::CpuList;

/// How long the kernel may take to show the threads after the switch.
const THREADS_TIMEOUT: Duration = Duration::from_secs(5);

/// A wish for threaded NAPI.
#[derive(Clone, Debug)]
pub struct ThreadedRequest {
    /// The interface.
    pub ifname: String,
    /// CPUs that the threads are bound to; `None` leaves them where they are.
    pub cpus: Option<CpuList>,
    /// How the threads are scheduled; `None` leaves that.
    pub scheduling: Option<Scheduling>,
}

/// Threaded NAPI as it was set up.
#[derive(Clone, Debug, Serialize)]
pub struct Threaded {
    /// The interface.
    pub ifname: String,
    /// The threads that serve it.
    pub threads: Vec<Task>,
}

fn switch(ifname: &str) -> String {
    format!("sys/class/net/{ifname}/threaded")
}

impl Host {
    /// The kernel threads that serve an interface with threaded NAPI.
    pub fn napi_threads(&self, ifname: &str) -> Result<Vec<Task>, Error> {
        let prefix = format!("napi/{ifname}-");
        let is_id = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit());
        let mut tasks = self.processes()?;
        tasks.retain(|task| task.comm.strip_prefix(&prefix).is_some_and(is_id));
        Ok(tasks)
    }
}

/// Switch threaded NAPI on; when a step fails, the earlier ones are undone.
pub fn enable(
    host: &Host,
    file: &mut StateFile,
    request: &ThreadedRequest,
) -> Result<Threaded, Error> {
    let ifname = &request.ifname;
    if host.interface(ifname)?.threaded.is_none() {
        return Err(Error::Unsupported(format!(
            "this kernel has no threaded NAPI for {ifname}"
        )));
    }
    if file.state.threaded.contains_key(ifname) {
        return Err(Error::Conflict(format!(
            "threaded NAPI of {ifname} was already set up and not undone"
        )));
    }
    let original = host.read_trimmed(&switch(ifname))?;
    file.state.threaded.insert(
        ifname.clone(),
        ThreadedRecord {
            original,
            threads: Vec::new(),
        },
    );
    file.save()?;
    match set_up(host, file, request) {
        Ok(threads) => Ok(Threaded {
            ifname: ifname.clone(),
            threads,
        }),
        Err(cause) => {
            let (step, cause) = (format!("threaded NAPI of {ifname}"), Box::new(cause));
            Err(match disable(host, file, ifname) {
                Ok(()) => Error::RolledBack { step, cause },
                Err(left) => Error::LeftChanged {
                    step,
                    cause,
                    left: left.to_string(),
                },
            })
        }
    }
}

fn set_up(
    host: &Host,
    file: &mut StateFile,
    request: &ThreadedRequest,
) -> Result<Vec<Task>, Error> {
    host.write(&switch(&request.ifname), "1")?;
    let threads = wait_for_threads(host, &request.ifname)?;
    for task in &threads {
        let record = ThreadRecord {
            tid: task.tid,
            comm: task.comm.clone(),
            affinity: sched::affinity(task.tid)?,
            scheduling: sched::scheduling(task.tid)?,
        };
        file.state
            .threaded
            .entry(request.ifname.clone())
            .and_modify(|r| r.threads.push(record));
        file.save()?;
        if let Some(cpus) = &request.cpus {
            sched::set_affinity(task.tid, cpus)?;
        }
        if let Some(scheduling) = request.scheduling {
            sched::set_scheduling(task.tid, scheduling)?;
        }
    }
    Ok(threads)
}

fn wait_for_threads(host: &Host, ifname: &str) -> Result<Vec<Task>, Error> {
    let deadline = Instant::now() + THREADS_TIMEOUT;
    loop {
        let threads = host.napi_threads(ifname)?;
        if !threads.is_empty() {
            return Ok(threads);
        }
        if Instant::now() >= deadline {
            return Err(Error::TimedOut(format!(
                "no thread named napi/{ifname}-* appeared; has {ifname} a NAPI at all?"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Put threaded NAPI of an interface back as it was before [`enable`]; nothing to do is no error.
pub fn disable(host: &Host, file: &mut StateFile, ifname: &str) -> Result<(), Error> {
    let Some(record) = file.state.threaded.get(ifname).cloned() else {
        return Ok(());
    };
    let mut failed = Vec::new();
    for thread in &record.threads {
        failed.extend(
            restore_thread(host, thread)
                .err()
                .map(|error| error.to_string()),
        );
    }
    if host.exists(&switch(ifname)) {
        failed.extend(
            host.write(&switch(ifname), &record.original)
                .err()
                .map(|error| error.to_string()),
        );
    }
    if !failed.is_empty() {
        return Err(Error::UndoIncomplete(failed.join("; ")));
    }
    file.state.threaded.remove(ifname);
    Ok(file.save()?)
}

/// A thread that ended, or whose id another one has now, needs nothing.
fn restore_thread(host: &Host, record: &ThreadRecord) -> Result<(), Error> {
    let comm = host.read_optional(&format!("proc/{}/comm", record.tid))?;
    if comm.as_deref() != Some(record.comm.as_str()) {
        return Ok(());
    }
    sched::set_scheduling(record.tid, record.scheduling)?;
    Ok(sched::set_affinity(record.tid, &record.affinity)?)
}
