// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mainline's threaded busy-poll: a kernel thread for each NAPI instance that polls all the time. Set,
//! the threads bound, and put back.
//!
//! Like [`crate::threaded`] this is a rival to our pollers. The threads stay `SCHED_OTHER`: two of them
//! as `SCHED_FIFO` on one CPU never let each other run. The messages are in [`crate::napi_netlink`].

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::host::Host;
use crate::napi_netlink::{NapiInfo, Netdev, Threading};
use crate::procfs::Task;
use crate::state::{NapiRecord, StateFile};
use crate::{netns, placed, CpuList};

/// How long the kernel may take to show a thread after the request.
const THREAD_TIMEOUT: Duration = Duration::from_secs(5);

/// A wish for threaded busy-poll.
#[derive(Clone, Debug)]
pub struct BusyPollRequest {
    /// The interface.
    pub ifname: String,
    /// Name of the calling thread's network namespace, by which another process finds it again; `None`
    /// for the one that a login has.
    pub netns: Option<String>,
    /// CPUs that the threads are bound to.
    pub cpus: CpuList,
}

fn family() -> Result<Netdev, Error> {
    Netdev::open()?.ok_or_else(|| {
        Error::Unsupported("this kernel has no netlink family for NAPI instances".into())
    })
}

/// The NAPI instances of an interface, and who polls each of them; none where the kernel can't say.
pub fn instances(host: &Host, ifname: &str) -> Result<Vec<NapiInfo>, Error> {
    let ifindex = host.interface(ifname)?.ifindex;
    match Netdev::open()? {
        Some(mut family) => Ok(family.napis_of(ifindex)?),
        None => Ok(Vec::new()),
    }
}

/// Sets every NAPI instance of an interface to threaded busy-poll and returns their threads. When a
/// step fails, the earlier ones are undone.
pub fn enable(
    host: &Host,
    file: &mut StateFile,
    request: &BusyPollRequest,
) -> Result<Vec<Task>, Error> {
    let ifname = &request.ifname;
    let napis = instances(host, ifname)?;
    if napis.is_empty() {
        return Err(Error::Unsupported(format!(
            "{ifname} has no NAPI instance, or is down"
        )));
    }
    let mut threads = Vec::new();
    for napi in &napis {
        match enable_one(host, file, request, napi) {
            Ok(task) => threads.push(task),
            Err(cause) => return Err(roll_back(file, host, request, cause)),
        }
    }
    Ok(threads)
}

fn roll_back(file: &mut StateFile, host: &Host, request: &BusyPollRequest, cause: Error) -> Error {
    let (step, cause) = (
        format!("threaded busy-poll of {}", request.ifname),
        Box::new(cause),
    );
    match restore(host, file, request.netns.as_deref()) {
        Ok(()) => Error::RolledBack { step, cause },
        Err(left) => Error::LeftChanged {
            step,
            cause,
            left: left.to_string(),
        },
    }
}

fn enable_one(
    host: &Host,
    file: &mut StateFile,
    request: &BusyPollRequest,
    napi: &NapiInfo,
) -> Result<Task, Error> {
    if file.state.napis.contains_key(&napi.id) {
        return Err(Error::Conflict(format!(
            "NAPI instance {} was already set to busy-poll and not undone",
            napi.id
        )));
    }
    let original = napi.threading.ok_or_else(|| {
        Error::Unsupported("this kernel does not say who polls a NAPI instance".into())
    })?;
    let record = NapiRecord {
        netns: request.netns.clone(),
        netns_cookie: netns::cookie()?,
        ifname: request.ifname.clone(),
        original: original as u32,
        thread: None,
    };
    file.state.napis.insert(napi.id, record);
    file.save()?;
    family()?.set_threading(napi.id, Threading::BusyPoll as u32)?;
    let task = wait_for_thread(host, napi)?;
    let thread = placed::record(&task)?;
    if let Some(record) = file.state.napis.get_mut(&napi.id) {
        record.thread = Some(thread);
    }
    file.save()?;
    placed::place(task.tid, Some(&request.cpus), None)?;
    Ok(task)
}

fn wait_for_thread(host: &Host, napi: &NapiInfo) -> Result<Task, Error> {
    let deadline = Instant::now() + THREAD_TIMEOUT;
    loop {
        let now = family()?.napis_of(napi.ifindex)?;
        let pid = now.iter().find(|other| other.id == napi.id);
        if let Some(pid) = pid.and_then(|napi| napi.pid) {
            let comm = host.read_trimmed(&format!("proc/{pid}/comm"))?;
            return Ok(Task {
                pid,
                tid: pid,
                comm,
            });
        }
        if Instant::now() >= deadline {
            return Err(Error::TimedOut(format!(
                "NAPI instance {} got no thread",
                napi.id
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Puts back every NAPI instance that [`enable`] set in the network namespace of this name; the calling
/// thread has to be in it. An instance that is gone needs nothing. One that can't be put back stays
/// remembered.
pub fn restore(host: &Host, file: &mut StateFile, netns: Option<&str>) -> Result<(), Error> {
    let cookie = netns::cookie()?;
    let mut failed = Vec::new();
    for (id, record) in file.state.napis.clone() {
        if record.netns.as_deref() != netns {
            continue;
        }
        let other_namespace = record.netns_cookie != cookie;
        let done = match (other_namespace, netns) {
            (true, Some(_)) => Ok(()),
            (true, None) => Err(Error::Conflict(format!(
                "NAPI instance {id} of {} was set in another network namespace that has no name; run this there",
                record.ifname
            ))),
            (false, _) => restore_one(host, id, &record),
        };
        match done {
            Ok(()) => {
                file.state.napis.remove(&id);
                file.save()?;
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Error::UndoIncomplete(failed.join("; "))),
    }
}

fn restore_one(host: &Host, id: u32, record: &NapiRecord) -> Result<(), Error> {
    match family()?.set_threading(id, record.original) {
        Err(error) if error.is_missing() => return Ok(()),
        other => other?,
    }
    // Where there was a thread before, it goes on and has to be as it was.
    match &record.thread {
        Some(thread) if record.original != Threading::Off as u32 => placed::put_back(host, thread),
        _ => Ok(()),
    }
}
