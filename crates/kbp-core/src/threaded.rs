// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mainline's threaded NAPI: switch it on for an interface, place and schedule its threads, and
//! put everything back.
//!
//! This is a rival to KBP's pollers and is set up here so that both can be compared. Where the kernel
//! tells the threads of an interface (the netdev family), it is believed. Older ones are asked by
//! name (`napi/eth0-8193`): there, threads of an interface of the same name in another network
//! namespace are told apart only while those are remembered here.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::Error;
use crate::host::Host;
use crate::napi_netlink::Netdev;
use crate::procfs::Task;
use crate::sched::Scheduling;
use crate::state::{StateFile, ThreadedRecord};
use crate::{netns, placed, CpuList};

/// How long the kernel may take to show the threads after the switch.
const THREADS_TIMEOUT: Duration = Duration::from_secs(5);

/// A wish for threaded NAPI.
#[derive(Clone, Debug)]
pub struct ThreadedRequest {
    /// The interface.
    pub ifname: String,
    /// Name of the calling thread's network namespace, by which another process finds it again; `None`
    /// for the one that a login has.
    pub netns: Option<String>,
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

/// Under which name an interface of the calling thread's network namespace is remembered.
fn key(ifname: &str) -> Result<String, Error> {
    Ok(format!("{ifname}@{}", netns::cookie()?))
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
    let key = key(ifname)?;
    if file.state.threaded.contains_key(&key) {
        return Err(Error::Conflict(format!(
            "threaded NAPI of {ifname} was already set up and not undone"
        )));
    }
    let original = host.read_trimmed(&switch(ifname))?;
    file.state.threaded.insert(
        key.clone(),
        ThreadedRecord {
            netns: request.netns.clone(),
            original,
            threads: Vec::new(),
        },
    );
    file.save()?;
    match set_up(host, file, request, &key) {
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
    key: &str,
) -> Result<Vec<Task>, Error> {
    host.write(&switch(&request.ifname), "1")?;
    let threads = wait_for_threads(host, file, &request.ifname, key)?;
    for task in &threads {
        let record = placed::record(task)?;
        if let Some(interface) = file.state.threaded.get_mut(key) {
            interface.threads.push(record);
        }
        file.save()?;
        placed::place(task.tid, request.cpus.as_ref(), request.scheduling)?;
    }
    Ok(threads)
}

/// The threads of this interface, and of no other that has its name.
fn own_threads(host: &Host, file: &StateFile, ifname: &str, key: &str) -> Result<Vec<Task>, Error> {
    let mut threads = host.napi_threads(ifname)?;
    let told = match Netdev::open()? {
        Some(mut family) if host.is_system() => {
            let ifindex = host.interface(ifname)?.ifindex;
            family.napis_of(ifindex)?
        }
        _ => Vec::new(),
    };
    if told.iter().any(|napi| napi.pid.is_some()) {
        threads.retain(|task| told.iter().any(|napi| napi.pid == Some(task.tid)));
        return Ok(threads);
    }
    let others = file
        .state
        .threaded
        .iter()
        .filter(|(other, _)| *other != key);
    let others: Vec<u32> = others
        .flat_map(|(_, record)| record.threads.iter().map(|thread| thread.tid))
        .collect();
    threads.retain(|task| !others.contains(&task.tid));
    Ok(threads)
}

fn wait_for_threads(
    host: &Host,
    file: &StateFile,
    ifname: &str,
    key: &str,
) -> Result<Vec<Task>, Error> {
    let deadline = Instant::now() + THREADS_TIMEOUT;
    loop {
        let threads = own_threads(host, file, ifname, key)?;
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
    let key = key(ifname)?;
    let Some(record) = file.state.threaded.get(&key).cloned() else {
        return Ok(());
    };
    let mut failed = Vec::new();
    for thread in &record.threads {
        failed.extend(
            placed::put_back(host, thread)
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
    file.state.threaded.remove(&key);
    Ok(file.save()?)
}

/// Put back every interface that [`enable`] switched in the network namespace of this name; the
/// calling thread has to be in it. A namespace that was deleted took its interfaces with it.
pub fn restore(host: &Host, file: &mut StateFile, netns: Option<&str>) -> Result<(), Error> {
    let cookie = netns::cookie()?.to_string();
    let mut failed = Vec::new();
    for (key, record) in file.state.threaded.clone() {
        if record.netns.as_deref() != netns {
            continue;
        }
        match key.rsplit_once('@') {
            Some((ifname, its)) if its == cookie => {
                failed.extend(disable(host, file, ifname).err().map(|e| e.to_string()));
            }
            _ if netns.is_some() => {
                file.state.threaded.remove(&key);
                file.save()?;
            }
            _ => failed.push(format!(
                "threaded NAPI of {key} was switched in another network namespace that has no name; run this there"
            )),
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Error::UndoIncomplete(failed.join("; "))),
    }
}
