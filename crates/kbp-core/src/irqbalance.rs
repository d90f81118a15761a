// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Telling irqbalance(1) to leave interrupts alone, and that it may have them again.
//!
//! It listens on a unix socket, for its own user interface. `setup` asks for the interrupts that it was told to leave
//! alone (its command line's too), `settings ban irqs N...` replaces that list; the answer ends with the connection.
//! So the present list is read, ours are added or taken out, and the new one is read back. It knows the list as long
//! as it runs: another irqbalance has to be told anew. The socket takes the word of root, whom the kernel vouches for.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{connect, socket, AddressFamily, SockFlag, SockType, UnixAddr};

use crate::error::Error;
use crate::host::{Host, HostError};
use crate::process::Process;
use crate::state::{IrqbalanceRecord, StateFile, User};

/// Its name as a process.
pub const NAME: &str = "irqbalance";
/// Where its sockets are, from the root of the host.
const DIRECTORY: &str = "run/irqbalance";
/// How long one answer may take. It answers between two rounds of balancing, which take milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest answer that is read, bytes: a line for each of the interrupts that it leaves alone.
const ANSWER_LEN_MAX: u64 = 1 << 16;
/// Longest list of interrupts that every version reads whole, bytes.
const LIST_LEN_MAX: usize = 255;

/// Whether it can be told something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It does not run.
    Absent,
    /// It answers.
    Listens(Listener),
    /// It runs, but can't be told.
    Deaf {
        /// Why.
        reason: String,
    },
}

/// An irqbalance that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The process.
    pub process: Process,
    /// Its socket, from the root of the host.
    pub socket: String,
    /// The interrupts that it leaves alone now.
    pub banned: Vec<u32>,
}

/// What came of telling it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It does not run.
    Absent,
    /// It leaves the interrupt alone, and did so before.
    Already,
    /// It leaves the interrupt alone from now on.
    Banned,
    /// It runs, but can't be told.
    Deaf {
        /// Why.
        reason: String,
    },
}

impl Listener {
    /// What is sent to it so that it leaves these interrupts alone, and no others. It takes a 0 for the end of the
    /// list, unless it is the first.
    pub fn command(irqs: &[u32]) -> String {
        let (first, others): (Vec<u32>, Vec<u32>) = irqs.iter().partition(|irq| **irq == 0);
        let list: Vec<String> = first.iter().chain(&others).map(u32::to_string).collect();
        match list.is_empty() {
            true => "settings ban irqs NONE".into(),
            false => format!("settings ban irqs {}", list.join(" ")),
        }
    }

    /// The list as it becomes when these are added.
    pub fn with(&self, irqs: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let mut list = self.banned.clone();
        for irq in irqs {
            if !list.contains(&irq) {
                list.push(irq);
            }
        }
        list
    }

    fn tell(&self, host: &Host, irqs: &[u32]) -> Result<(), String> {
        let command = Self::command(irqs);
        if !Self::fits(&command) {
            return Err(format!(
                "its list of interrupts may have {LIST_LEN_MAX} characters"
            ));
        }
        let path = host.path(&self.socket);
        let told = Self::tell_list(&path, &command, irqs);
        if told.is_err() {
            // It may have understood a part, or all of it too late; then the list is to be the old one.
            let old = Self::command(&self.banned);
            if Self::fits(&old) {
                let _ = ask(&path, &old);
            }
        }
        told
    }

    /// Whether every version reads the whole command.
    fn fits(command: &str) -> bool {
        command.len() <= "settings ban irqs ".len() + LIST_LEN_MAX
    }

    fn tell_list(path: &Path, command: &str, irqs: &[u32]) -> Result<(), String> {
        ask(path, command).map_err(|error| error.to_string())?;
        let mut heard = banned_irqs(path)?;
        let mut wanted = irqs.to_vec();
        heard.sort_unstable();
        wanted.sort_unstable();
        match heard == wanted {
            true => Ok(()),
            false => Err(format!(
                "it was told to leave {wanted:?} alone, and says {heard:?}"
            )),
        }
    }
}

/// The line for its configuration that has it leave these interrupts alone for good.
pub fn configuration(irqs: &[u32]) -> String {
    let options: Vec<String> = irqs.iter().map(|irq| format!("--banirq={irq}")).collect();
    format!("IRQBALANCE_ARGS=\"{}\"", options.join(" "))
}

fn ask(path: &Path, question: &str) -> io::Result<String> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // Without blocking: a process that is stopped has a queue that fills.
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    let mut stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(question.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_LEN_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

fn banned_irqs(path: &Path) -> Result<Vec<u32>, String> {
    let answer = ask(path, "setup").map_err(|error| error.to_string())?;
    parse_setup(&answer).ok_or_else(|| format!("its answer '{}' is not understood", answer.trim()))
}

/// `SLEEP n`, then `IRQ n LOAD n DIFF n CLASS n` for each interrupt that is left alone, then `BANNED` and CPUs.
fn parse_setup(answer: &str) -> Option<Vec<u32>> {
    let mut words = answer.split_whitespace();
    if words.next()? != "SLEEP" {
        return None;
    }
    words.next()?;
    let mut irqs = Vec::new();
    loop {
        match words.next()? {
            "BANNED" => return Some(irqs),
            "IRQ" => irqs.push(words.next()?.parse().ok()?),
            _ => return None,
        }
        for key in ["LOAD", "DIFF", "CLASS"] {
            if words.next()? != key {
                return None;
            }
            words.next()?;
        }
    }
}

/// Whether irqbalance runs and answers. Nothing is changed.
pub fn reach(host: &Host) -> Result<Reach, HostError> {
    let Some(task) = host.processes_named(NAME)?.into_iter().next() else {
        return Ok(Reach::Absent);
    };
    let Some(process) = Process::with_pid(host, task.pid)? else {
        return Ok(Reach::Absent);
    };
    let socket = format!("{DIRECTORY}/{NAME}{}.sock", process.pid);
    Ok(match banned_irqs(&host.path(&socket)) {
        Ok(banned) => Reach::Listens(Listener {
            process,
            socket,
            banned,
        }),
        Err(reason) => Reach::Deaf {
            reason: format!("{}: {reason}", host.path(&socket).display()),
        },
    })
}

/// Have irqbalance leave an interrupt alone for the sake of a user. That it can't be told is no error: the caller says
/// so.
pub fn ban(host: &Host, memory: &mut StateFile, irq: u32, user: &User) -> Result<Told, Error> {
    let listener = match reach(host)? {
        Reach::Absent => return Ok(Told::Absent),
        Reach::Deaf { reason } => return Ok(Told::Deaf { reason }),
        Reach::Listens(listener) => listener,
    };
    let mut record = memory.state.irqbalance.clone().unwrap_or(IrqbalanceRecord {
        process: listener.process,
        bans: BTreeMap::new(),
    });
    if record.process != listener.process {
        // It was started again and has forgotten what it was told; what it knows it knows from somebody else.
        record.process = listener.process;
        record.bans.retain(|irq, _| !listener.banned.contains(irq));
    }
    if listener.banned.contains(&irq) && !record.bans.contains_key(&irq) {
        return Ok(Told::Already);
    }
    let users = record.bans.entry(irq).or_default();
    users.insert(user.clone());
    let list = listener.with(record.bans.keys().copied());
    let before = memory.state.clone();
    memory.state.irqbalance = Some(record);
    memory.save()?;
    if list == listener.banned {
        return Ok(Told::Banned);
    }
    match listener.tell(host, &list) {
        Ok(()) => Ok(Told::Banned),
        Err(reason) => {
            memory.state = before;
            memory.save()?;
            Ok(Told::Deaf { reason })
        }
    }
}

/// Users leave: the interrupts that nobody wants left alone any more are irqbalance's again. Returns those.
pub fn release(
    host: &Host,
    memory: &mut StateFile,
    leaves: impl Fn(&User) -> bool,
) -> Result<Vec<u32>, Error> {
    let Some(mut record) = memory.state.irqbalance.clone() else {
        return Ok(Vec::new());
    };
    for users in record.bans.values_mut() {
        users.retain(|user| !leaves(user));
    }
    let bans = record.bans.iter();
    let freed: Vec<u32> = bans
        .filter(|(_, users)| users.is_empty())
        .map(|(irq, _)| *irq)
        .collect();
    record.bans.retain(|_, users| !users.is_empty());
    // Another irqbalance has never heard of them.
    let freed = match record.process.is_alive(host)? {
        true => {
            tell_freed(host, &freed)?;
            freed
        }
        false => Vec::new(),
    };
    memory.state.irqbalance = Some(record).filter(|record| !record.bans.is_empty());
    memory.save()?;
    Ok(freed)
}

fn tell_freed(host: &Host, freed: &[u32]) -> Result<(), Error> {
    if freed.is_empty() {
        return Ok(());
    }
    let told = match reach(host)? {
        Reach::Absent => Ok(()),
        Reach::Deaf { reason } => Err(reason),
        Reach::Listens(listener) => {
            let mut list = listener.banned.clone();
            list.retain(|irq| !freed.contains(irq));
            listener.tell(host, &list)
        }
    };
    told.map_err(|reason| {
        Error::UndoIncomplete(format!(
            "irqbalance was told to leave the interrupts {freed:?} alone and can't be told otherwise: {reason}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_answer_is_read_whole_or_not_at_all() {
        let none = "SLEEP 10 BANNED 00000000,00000000";
        assert_eq!(parse_setup(none), Some(vec![]));
        let two = "SLEEP 10 IRQ 24 LOAD 0 DIFF 7 CLASS 4 IRQ 9 LOAD 0 DIFF 0 CLASS -1 BANNED 0";
        assert_eq!(parse_setup(two), Some(vec![24, 9]));
        for text in [
            "",
            "SLEEP 10",
            "SLEEP 10 IRQ 24 LOAD 0 BANNED 0",
            "TYPE 3 NUMBER 0",
        ] {
            assert_eq!(parse_setup(text), None, "{text}");
        }
    }

    #[test]
    fn its_commands_and_its_configuration() {
        assert_eq!(Listener::command(&[24, 9]), "settings ban irqs 24 9");
        assert_eq!(Listener::command(&[9, 0, 24]), "settings ban irqs 0 9 24");
        assert_eq!(Listener::command(&[]), "settings ban irqs NONE");
        assert_eq!(
            configuration(&[24, 25]),
            "IRQBALANCE_ARGS=\"--banirq=24 --banirq=25\""
        );
    }
}
