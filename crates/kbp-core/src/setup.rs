// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The setup of a host: the pollers that somebody has asked for and what is attached to them, as a file has it that
//! outlives a restart (`/etc/kbp/kbp.toml`). How it is written is here; docs/reference/config.md has every key.
//!
//! Reading a file is in [`crate::setup_read`], finding out what was asked for in [`crate::requested`], making it so in
//! [`crate::restore`].

use std::fmt::Write as _;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{fchown, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::card::Card;
use crate::error::Class;
use crate::host::explain;
use crate::model::{PollerSpec, Schedule};
use crate::service::{Service, CLASS};

/// Where the setup is, where nobody says otherwise.
pub const PATH: &str = "/etc/kbp/kbp.toml";
/// The version of the file that is written, and the only one that is read.
pub const VERSION: u64 = 1;

/// A file with a setup could not be used.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// It is not there.
    #[error("there is no file {}; `kbp save` writes it", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// It could not be read or written.
    #[error("cannot {what} {}: {}", path.display(), explain(source))]
    Io {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// It says something that can't be.
    #[error("{file}:{line}: {what}")]
    Wrong {
        /// The file, as a person calls it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
}

impl SetupError {
    /// What kind of failure this is.
    pub fn class(&self) -> Class {
        match self {
            Self::Missing { .. } => Class::NotFound,
            Self::Io { source, .. } => match Class::of_io(source) {
                Class::NoPrivilege => Class::NoPrivilege,
                _ => Class::Failure,
            },
            Self::Wrong { .. } => Class::Usage,
        }
    }
}

/// Receive queues that are attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attachment {
    /// Name of the network namespace of the interface; `None` for the one that `kbp` runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// The interface.
    pub device: String,
    /// By what its card is known again.
    #[serde(flatten)]
    pub card: Card,
    /// The receive queues; empty for all of them.
    pub queues: Vec<u32>,
    /// CPUs of the pollers, to which the queues are dealt out in turn.
    pub cpus: Vec<u32>,
    /// How they are served; `None` for what has no NAPI instance, and for the mode that `kbp attach` takes.
    #[serde(flatten)]
    pub service: Option<Service>,
    /// Whether their interrupts move to those CPUs.
    pub irq: bool,
    /// Whether those CPUs send through the transmit queues of the same numbers.
    pub xps: bool,
}

impl Attachment {
    /// How a person calls the interface.
    pub fn label(&self) -> String {
        match &self.netns {
            Some(netns) => format!("{} in network namespace {netns}", self.device),
            None => self.device.clone(),
        }
    }
}

/// Everything that somebody has asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Setup {
    /// The pollers. A backlog that is `None` is what the module takes for a poller of that kind.
    #[serde(rename = "poller")]
    pub pollers: Vec<PollerSpec>,
    /// What is attached to them, in the order in which it is to be attached.
    #[serde(rename = "attach")]
    pub attachments: Vec<Attachment>,
}

/// Numbers as a list like `0-3,8`, in their order.
fn list(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let texts = runs.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    texts.collect::<Vec<_>>().join(",")
}

/// A text as TOML has it: names of interfaces and namespaces may hold quotes.
fn quoted(text: &str) -> String {
    toml::Value::String(text.into()).to_string()
}

fn schedule(schedule: Schedule) -> String {
    match schedule {
        Schedule::Fifo { priority } => format!("f:{priority}"),
        Schedule::Other { nice } => format!("o:{nice}"),
    }
}

/// Lines of `key = value`.
#[derive(Default)]
struct Table(String);

impl Table {
    fn new(head: &str) -> Self {
        Self(format!("\n[[{head}]]\n"))
    }

    fn value(&mut self, key: &str, value: Option<impl std::fmt::Display>) {
        if let Some(value) = value {
            // Writing to a String does not fail.
            let _ = writeln!(self.0, "{key} = {value}");
        }
    }

    fn text(&mut self, key: &str, text: Option<impl AsRef<str>>) {
        self.value(key, text.map(|text| quoted(text.as_ref())));
    }
}

fn poller(spec: &PollerSpec) -> String {
    let mut table = Table::new("poller");
    table.value("cpu", Some(spec.cpu));
    table.text("owns", spec.owns.map(|owns| owns.name()));
    table.text("priority", spec.schedule.map(schedule));
    table.value("budget", spec.budget);
    table.value("watchdog_ms", spec.watchdog_ms);
    table.text("backlog", spec.backlog.map(|backlog| backlog.name()));
    table.text("freq", spec.freq.map(|freq| freq.name()));
    table.value("freq_shared", spec.freq_shared);
    table.value("max_cstate_latency_us", spec.max_cstate_latency_us);
    table.0
}

fn attachment(one: &Attachment) -> String {
    let mut table = Table::new("attach");
    table.text("netns", one.netns.as_ref());
    table.text("device", Some(&one.device));
    table.text("mac", one.card.mac.as_ref());
    table.text("bus", one.card.bus.as_ref());
    let queues = match one.queues.is_empty() {
        true => "all".into(),
        false => list(&one.queues),
    };
    table.text("queues", Some(queues));
    table.text("cpus", Some(list(&one.cpus)));
    if let Some(service) = &one.service {
        table.text("mode", Some(service.mode.name()));
        let class = Some(service.class).filter(|class| *class != CLASS);
        table.text("class", class.map(|class| class.name()));
        table.text(
            "cpu_budget",
            service.cpu_budget.map(|share| share.to_string()),
        );
        table.value("max_wake_latency_us", service.max_wake_latency_us);
    }
    // What `kbp attach` does anyway is not said.
    table.value("irq", (!one.irq).then_some(false));
    table.value("xps", (!one.xps).then_some(false));
    table.0
}

impl Setup {
    /// The setup as a file; `origin` says who wrote it.
    pub fn text(&self, origin: &str) -> String {
        let mut text = format!(
            "# The pollers of this machine and what is attached to them. `kbp restore` makes it so again, and\n\
             # kbp-restore.service does that at boot. It may be changed by hand: docs/reference/config.md has the keys.\n\
             # Written by {origin}.\nversion = {VERSION}\n"
        );
        if !self.pollers.is_empty() {
            text.push_str("\n# Pollers: the options of `kbp poller add`.\n");
        }
        let pollers: String = self.pollers.iter().map(poller).collect();
        text.push_str(pollers.trim_start_matches('\n'));
        if !self.attachments.is_empty() {
            text.push_str(
                "\n# What is attached: the options of `kbp attach`. A card that has another name by then is known by mac,\n\
                 # or without one by bus.\n",
            );
        }
        let attachments: String = self.attachments.iter().map(attachment).collect();
        text.push_str(attachments.trim_start_matches('\n'));
        text
    }
}

/// What a new file may be read and written by.
const NEW_FILE: u32 = 0o644;

/// Write a file so that a reader, and a machine that loses its power, has the old or the new one and never a part. Its
/// directory is made if there is none. What is no regular file, as a pipe or /dev/null, stays what it is and is written
/// to.
pub fn write(path: &Path, text: &str) -> Result<(), SetupError> {
    let failed = |source| failed("write", path)(source);
    match fs::metadata(path) {
        // What a link leads to is replaced, and the link stays.
        Ok(old) if old.is_file() => {
            let path = fs::canonicalize(path).map_err(failed)?;
            replace(&path, Some(&old), text)
        }
        Ok(_) => write_into(path, text).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.is_symlink() {
            // It leads to what is not there, and writing makes that.
            true => write_into(path, text).map_err(failed),
            false => replace(path, None, text),
        },
        Err(source) => Err(failed(source)),
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SetupError {
    let path = path.to_owned();
    move |source| SetupError::Io { what, path, source }
}

fn write_into(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let mut file = options.mode(NEW_FILE).open(path)?;
    file.write_all(text.as_bytes())?;
    match file.metadata()?.is_file() {
        true => file.sync_all(),
        // A pipe can't be synced.
        false => Ok(()),
    }
}

/// Puts a new file in the place of `old`, whose mode and owner it takes over.
fn replace(path: &Path, old: Option<&Metadata>, text: &str) -> Result<(), SetupError> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    fs::create_dir_all(&directory).map_err(failed("create", &directory))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (temporary, file) =
        create_beside(&directory, &name).map_err(failed("create a file in", &directory))?;
    let written = fill(file, old, text).and_then(|()| fs::rename(&temporary, path));
    if let Err(source) = written {
        // Its own error is the one to tell.
        let _ = fs::remove_file(&temporary);
        return Err(failed("write", path)(source));
    }
    let directory_file = File::open(&directory).map_err(failed("open", &directory))?;
    directory_file
        .sync_all()
        .map_err(failed("write", &directory))
}

/// A file of our own: what somebody else has put there under its name, a link above all, is not opened.
fn create_beside(directory: &Path, name: &str) -> io::Result<(PathBuf, File)> {
    let mut options = OpenOptions::new();
    // Its owner and mode are still to come.
    options.write(true).create_new(true).mode(0o600);
    let mut turn = 0;
    loop {
        let path = directory.join(format!(".{name}.{}.{turn}", std::process::id()));
        match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && turn < 100 => turn += 1,
            opened => return opened.map(|file| (path, file)),
        }
    }
}

fn fill(mut file: File, old: Option<&Metadata>, text: &str) -> io::Result<()> {
    let new = file.metadata()?;
    if let Some(old) = old.filter(|old| (old.uid(), old.gid()) != (new.uid(), new.gid())) {
        fchown(&file, Some(old.uid()), Some(old.gid()))?;
    }
    let mode = old.map_or(NEW_FILE, |old| old.mode() & 0o7777);
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order() {
        for (numbers, text) in [
            (&[0, 1, 2, 5][..], "0-2,5"),
            (&[3, 2], "3,2"),
            (&[7], "7"),
            (&[0, 2, 3], "0,2-3"),
        ] {
            assert_eq!(list(numbers), text);
        }
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_its_directory_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("etc/kbp/kbp.toml");
        write(&path, "one").unwrap();
        write(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        let names = fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(names.count(), 1, "nothing else is left there");

        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        write(&link, "three").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "three");

        let error = write(&path.join("below"), "x").unwrap_err();
        assert!(error.to_string().contains("kbp.toml"), "{error}");

        let dangling = directory.path().join("dangling");
        std::os::unix::fs::symlink(directory.path().join("new"), &dangling).unwrap();
        write(&dangling, "four").unwrap();
        assert!(dangling.is_symlink());
        let new = fs::read_to_string(directory.path().join("new")).unwrap();
        assert_eq!(new, "four");
    }

    #[test]
    fn a_file_keeps_its_mode_and_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kbp.toml");
        write(&path, "one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, NEW_FILE);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        // Only root may give a file away.
        let owners = match nix::unistd::geteuid().is_root() {
            true => (Some(12), Some(34)),
            false => (None, None),
        };
        std::os::unix::fs::chown(&path, owners.0, owners.1).unwrap();
        let before = fs::metadata(&path).unwrap();
        write(&path, "two").unwrap();
        let after = fs::metadata(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        let of = |file: &Metadata| (file.mode(), file.uid(), file.gid());
        assert_eq!(of(&after), of(&before));
        assert_ne!(after.ino(), before.ino(), "it was replaced as a whole");
    }

    #[test]
    fn a_pipe_is_written_to_and_stays_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let there = path.clone();
        let reader = std::thread::spawn(move || fs::read_to_string(there).unwrap());
        write(&path, "one").unwrap();
        assert_eq!(reader.join().unwrap(), "one");
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        assert!(std::os::unix::fs::FileTypeExt::is_fifo(&kind));
    }

    #[test]
    fn what_lies_under_the_name_of_the_new_file_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (
            directory.path().join("kbp.toml"),
            directory.path().join("other"),
        );
        fs::write(&other, "untouched").unwrap();
        let trap = format!(".kbp.toml.{}.0", std::process::id());
        std::os::unix::fs::symlink(&other, directory.path().join(trap)).unwrap();
        write(&path, "one").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        assert_eq!(fs::read_to_string(&other).unwrap(), "untouched");
    }
}
