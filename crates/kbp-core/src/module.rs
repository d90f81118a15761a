// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loading and unloading the kernel module, with the live patch's transitions waited for.
//!
//! A transition moves every task from the old functions to the new ones (or back) when it is seen
//! outside of them. A task that never leaves them blocks it. So both ways have a time limit; when
//! it passes, the blocking tasks are named and the host is left in a state that is described in
//! the error. Transitions are never forced.
//!
//! Whether the module can work here is asked in [`crate::check`]; pollers and attachments are put
//! back by [`crate::plan`] before the module goes.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::kmod::{delete_module, finit_module, DeleteModuleFlags, ModuleInitFlags};
use serde::Serialize;

use crate::error::Class;
use crate::governor::{self, OURS};
use crate::host::{Host, HostError};
use crate::kmsg::Mark;
use crate::livepatch::{BlockingTask, Livepatch, DIRECTORY};
use crate::modfile;
use crate::state::State;
use crate::CpuList;

/// Name of the module and of its live patch.
pub const NAME: &str = "kbp";
/// The module that holds its tracepoints: the kernel makes no trace events for a live patch.
const TRACE: &str = "kbp_trace";
/// How often a transition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often the blocking tasks are looked for, which reads much of /proc.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How long the reversal of a failed load may take.
const REVERSE_TIMEOUT: Duration = Duration::from_secs(15);
/// How many blocking tasks an error names.
const TASKS_NAMED: usize = 5;
/// `MODULE_INIT_COMPRESSED_FILE` of finit_module(2).
const COMPRESSED: i32 = 4;
/// Where a module outside of the kernel's tree is installed, below /lib/modules/RELEASE.
const INSTALL_DIRECTORIES: &[&str] = &["updates/dkms", "updates", "extra"];
/// Endings of a module file; compressed ones come last.
const ENDINGS: &[&str] = &["ko", "ko.xz", "ko.zst", "ko.gz"];

/// Loading or unloading failed.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// It is not there, so it can't be unloaded.
    #[error("the kbp module is not loaded")]
    NotLoaded,
    /// There is no file to load.
    #[error("there is no kbp module for kernel {release} below /lib/modules/{release}; build it against this kernel's headers (`make -C kmod`) and name it with --module")]
    NoFile {
        /// The running kernel.
        release: String,
    },
    /// The kernel command line forbids it.
    #[error("kbp.enable=0 on the kernel command line keeps the kbp module out; remove it there and restart the machine")]
    SwitchedOff,
    /// The kernel has no live patching.
    #[error("this kernel has no live patching (CONFIG_LIVEPATCH), so kbp can't work on it; `kbp check` has the details")]
    NoLivepatch,
    /// The kernel did not take the module.
    #[error("cannot load {}: {reason}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// Why, with what the kernel logged.
        reason: String,
        /// The kind of failure.
        class: Class,
    },
    /// A half-finished unload is in the way.
    #[error("the kbp module is loaded but its live patch is switched off; finish with `kbp unload` first")]
    HalfUnloaded,
    /// The transition to the new functions did not end; it was reversed.
    #[error("the live patch did not take hold within {limit_s} s, so it was {outcome}; {tasks}. Stop or restart what blocks, then load again, or allow more time with --timeout")]
    LoadTimeout {
        /// The time limit, seconds.
        limit_s: u64,
        /// What became of the module.
        outcome: &'static str,
        /// Who blocks.
        tasks: String,
    },
    /// The transition back to the stock functions did not end; it goes on.
    #[error("the live patch could not be taken out within {limit_s} s; {tasks}. No poller runs and packets take the stock path; the module stays loaded until the transition ends. Stop or restart what blocks, then run `kbp unload` again")]
    UnloadTimeout {
        /// The time limit, seconds.
        limit_s: u64,
        /// Who blocks.
        tasks: String,
    },
    /// The kernel does one transition at a time, and another live patch's did not end.
    #[error("the live patch {patch} is in transition and the kernel does one at a time; after {limit_s} s it has not ended. No poller runs and packets take the stock path; run `kbp unload` again when /{DIRECTORY}/{patch}/transition is 0")]
    OtherTransition {
        /// The other live patch.
        patch: String,
        /// The time limit, seconds.
        limit_s: u64,
    },
    /// The module is switched off but something still holds it.
    #[error("the live patch is out, but the kernel still holds the module after {limit_s} s: {source}; run `kbp unload` again, or look at /sys/module/kbp*/holders")]
    StillHeld {
        /// The time limit, seconds.
        limit_s: u64,
        /// What the kernel says.
        source: io::Error,
    },
    /// Somebody else has chosen the module's cpufreq governor, which holds it.
    #[error("CPU {cpus} has the module's governor '{OURS}', which `kbp poller add` has not chosen and which holds the module. Write another to /sys/devices/system/cpu/cpu{first}/cpufreq/scaling_governor (scaling_available_governors there lists them), then run `kbp unload` again")]
    Governs {
        /// The CPUs.
        cpus: CpuList,
        /// The first of them.
        first: u32,
    },
    /// A file of the host could not be read or written.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl ModuleError {
    /// What kind of failure this is.
    pub fn class(&self) -> Class {
        match self {
            Self::NotLoaded => Class::NotLoaded,
            Self::NoFile { .. } => Class::NotFound,
            Self::NoLivepatch | Self::SwitchedOff => Class::Unsupported,
            Self::Refused { class, .. } => *class,
            Self::HalfUnloaded | Self::Governs { .. } => Class::Conflict,
            Self::LoadTimeout { .. }
            | Self::UnloadTimeout { .. }
            | Self::OtherTransition { .. } => Class::TimedOut,
            Self::StillHeld { source, .. } => match Class::of_io(source) {
                Class::NoPrivilege => Class::NoPrivilege,
                _ => Class::TimedOut,
            },
            Self::Host(error) => error.class(),
        }
    }
}

/// What is there of the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModuleStatus {
    /// Whether the module is in the kernel.
    pub loaded: bool,
    /// Its version, as it says itself.
    pub version: Option<String>,
    /// Its live patch.
    pub livepatch: Option<Livepatch>,
}

/// A transition that is waited for.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Time since the wait began.
    pub elapsed: Duration,
    /// Time limit.
    pub limit: Duration,
    /// The tasks that have not been moved yet.
    pub blocking: Vec<BlockingTask>,
}

/// Called about once a second while a transition is waited for.
pub type OnProgress<'a> = &'a mut dyn FnMut(&Progress);

/// What [`load`] did.
#[derive(Clone, Debug, Serialize)]
pub struct Loaded {
    /// The file that was loaded; `None` when the module was there already.
    pub path: Option<PathBuf>,
    /// How long it took until every task used the new functions, milliseconds.
    pub transition_ms: u64,
}

/// What is there of the module now.
pub fn status(host: &Host) -> Result<ModuleStatus, HostError> {
    Ok(ModuleStatus {
        loaded: host.exists(&format!("sys/module/{NAME}/refcnt")),
        version: host.read_optional(&format!("sys/module/{NAME}/version"))?,
        livepatch: host.livepatch(NAME)?,
    })
}

/// Whether `kbp.enable=0` stands on the kernel command line: the way out for who reaches a machine only through its
/// boot loader. As with all parameters, the last one counts.
pub fn is_switched_off(host: &Host) -> Result<bool, HostError> {
    let cmdline = host.read_optional("proc/cmdline")?.unwrap_or_default();
    let mut values = cmdline
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("kbp.enable="));
    // What the kernel takes for "no" in a boolean parameter.
    Ok(values
        .next_back()
        .is_some_and(|value| matches!(value, "0" | "n" | "N" | "f" | "F" | "off" | "OFF" | "Off")))
}

/// Load the module and wait until every task uses the new functions.
///
/// Without a path the file is looked for below /lib/modules. When the time limit passes, the
/// transition is reversed and the module removed again. A module that is there already is no
/// error.
pub fn load(
    host: &Host,
    path: Option<&Path>,
    limit: Duration,
    on_progress: OnProgress,
) -> Result<Loaded, ModuleError> {
    if !host.has_livepatch() {
        return Err(ModuleError::NoLivepatch);
    }
    let before = status(host)?;
    let file = match (before.loaded, before.livepatch) {
        (true, Some(livepatch)) if livepatch.enabled => None,
        (true, _) => return Err(ModuleError::HalfUnloaded),
        (false, _) if is_switched_off(host)? => return Err(ModuleError::SwitchedOff),
        (false, _) => {
            let file = path.map_or_else(|| find(host), |path| Ok(ModuleFile::named(path)))?;
            let has_brought_trace = insert_trace(host, &file)?;
            if let Err(error) = insert(host, &file) {
                if has_brought_trace {
                    // What was refused leaves nothing behind; its own error is the one to tell.
                    let _ = remove_one(TRACE, Instant::now(), 0);
                }
                return Err(error);
            }
            Some(file.path)
        }
    };
    let start = Instant::now();
    match wait(host, true, limit, on_progress)? {
        None => Ok(Loaded {
            path: file,
            transition_ms: start.elapsed().as_millis() as u64,
        }),
        Some(blocking) => Err(reverse(host, limit, &blocking)?),
    }
}

/// A module file to load.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ModuleFile {
    path: PathBuf,
    /// Whether modprobe(8) would find it too.
    installed: bool,
}

impl ModuleFile {
    /// One that the caller has named, wherever it lies.
    fn named(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            installed: false,
        }
    }

    /// The module of the tracepoints, which lies beside that of the live patch under the same ending.
    fn trace(&self) -> Option<Self> {
        let name = self.path.file_name()?.to_str()?;
        let ending = name.strip_prefix(NAME)?.strip_prefix('.')?;
        let path = self.path.with_file_name(format!("{TRACE}.{ending}"));
        Some(Self { path, ..*self })
    }

    fn is_compressed(&self) -> bool {
        self.path.extension().is_none_or(|ending| ending != "ko")
    }

    /// What to ask modprobe(8) for after the kernel refused the file. A kernel may lack a decompressor, or have one that
    /// takes less than what xz(1) writes: no checksums but CRC32. modprobe unpacks by itself.
    fn for_modprobe(&self, errno: Errno) -> Option<&str> {
        let cannot_unpack = matches!(errno, Errno::EOPNOTSUPP | Errno::EINVAL);
        if !(self.installed && self.is_compressed() && cannot_unpack) {
            return None;
        }
        self.path.file_name()?.to_str()?.split('.').next()
    }
}

/// The module file of this kernel, where one is installed.
fn find(host: &Host) -> Result<ModuleFile, ModuleError> {
    let release = host.kernel_release()?;
    let base = format!("lib/modules/{release}");
    let dep = host
        .read_optional(&format!("{base}/modules.dep"))?
        .unwrap_or_default();
    let listed = dep
        .lines()
        .filter_map(|line| line.split(':').next())
        .find(|file| {
            let name = file.rsplit('/').next().unwrap_or_default();
            ENDINGS
                .iter()
                .any(|ending| name == format!("{NAME}.{ending}"))
        });
    let listed = listed.map(|file| host.path(&format!("{base}/{file}")));
    let installed = ENDINGS.iter().flat_map(|ending| {
        INSTALL_DIRECTORIES
            .iter()
            .map(move |directory| format!("{directory}/{NAME}.{ending}"))
    });
    let installed = installed.map(|file| host.path(&format!("{base}/{file}")));
    listed
        .into_iter()
        .chain(installed)
        .find(|path| path.is_file())
        .map(|path| ModuleFile {
            path,
            installed: true,
        })
        .ok_or(ModuleError::NoFile { release })
}

/// The module needs that of its tracepoints. When it is not there, the kernel says so when it refuses the module itself.
/// Returns whether it was loaded now.
fn insert_trace(host: &Host, module: &ModuleFile) -> Result<bool, ModuleError> {
    let Some(file) = module.trace() else {
        return Ok(false);
    };
    let loaded = host.exists(&format!("sys/module/{TRACE}"));
    if loaded || !file.path.is_file() {
        return Ok(false);
    }
    insert(host, &file).map(|()| true)
}

/// Hand a module file to the kernel.
fn insert(host: &Host, module: &ModuleFile) -> Result<(), ModuleError> {
    let path = &module.path;
    let file = File::open(path).map_err(|source| HostError::Read {
        path: path.into(),
        source,
    })?;
    let flags = COMPRESSED * i32::from(module.is_compressed());
    let mut log = Mark::now(host);
    let errno = match finit_module(&file, c"", ModuleInitFlags::from_bits_retain(flags as _)) {
        Ok(()) => return Ok(()),
        // Another process was faster; the wait that follows is for both.
        Err(Errno::EEXIST) => return Ok(()),
        Err(errno) => errno,
    };
    match module.for_modprobe(errno) {
        Some(name) => modprobe(name, path),
        None => {
            let logged = log.lines_with(&[NAME, "livepatch"]);
            Err(refused(host, path, errno, logged))
        }
    }
}

/// For a compressed module that the kernel does not unpack by itself.
fn modprobe(name: &str, path: &Path) -> Result<(), ModuleError> {
    let refused = |reason: String| ModuleError::Refused {
        path: path.into(),
        reason,
        class: Class::Failure,
    };
    let output = Command::new("modprobe").arg(name).output();
    let output = output.map_err(|error| {
        refused(format!(
            "the kernel does not unpack it and modprobe can't be run: {error}"
        ))
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(refused(
        String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    ))
}

fn refused(host: &Host, path: &Path, errno: Errno, log: Vec<String>) -> ModuleError {
    let (mut reason, class) = match errno {
        Errno::EPERM | Errno::EACCES => why_forbidden(host),
        Errno::ENOKEY | Errno::EKEYREJECTED | Errno::EBADMSG => (
            "this kernel takes modules with a trusted signature only; sign it and enrol the key"
                .into(),
            Class::Unsupported,
        ),
        Errno::ENOEXEC => (why_no_exec(host, path), Class::Unsupported),
        Errno::EBUSY => (
            "another live patch is in transition or holds the same functions".into(),
            Class::Conflict,
        ),
        Errno::ENOENT => (
            "the kernel lacks a symbol that it needs".into(),
            Class::Unsupported,
        ),
        errno => (errno.desc().to_owned(), Class::of_errno(errno as i32)),
    };
    if !log.is_empty() {
        reason = format!("{reason}; the kernel logged: {}", log.join(" | "));
    }
    ModuleError::Refused {
        path: path.into(),
        reason,
        class,
    }
}

fn why_forbidden(host: &Host) -> (String, Class) {
    if host
        .sysctl("kernel/modules_disabled")
        .is_ok_and(|value| value == "1")
    {
        return (
            "loading of modules is switched off until the next boot (kernel.modules_disabled)"
                .into(),
            Class::Unsupported,
        );
    }
    match host.read_trimmed("sys/kernel/security/lockdown") {
        Ok(mode) if !mode.contains("[none]") => (
            format!("the kernel is locked down ({mode}) and takes signed modules only"),
            Class::Unsupported,
        ),
        _ => (
            "that needs root on the host (CAP_SYS_MODULE)".into(),
            Class::NoPrivilege,
        ),
    }
}

fn why_no_exec(host: &Host, path: &Path) -> String {
    let running = host.kernel_release().unwrap_or_default();
    match modfile::read(path).ok().and_then(|file| file.release) {
        Some(release) if release != running => {
            format!("it was built for kernel {release}, but {running} runs")
        }
        _ => "the kernel says that it is no module for it".into(),
    }
}

/// Wait until the transition ends: `None`, or the blocking tasks when the limit passed.
fn wait(
    host: &Host,
    to_patched: bool,
    limit: Duration,
    on_progress: OnProgress,
) -> Result<Option<Vec<BlockingTask>>, ModuleError> {
    let start = Instant::now();
    let mut reported = start;
    loop {
        let livepatch = host.livepatch(NAME)?;
        if is_over(livepatch.as_ref(), to_patched) {
            return Ok(None);
        }
        if start.elapsed() >= limit {
            return Ok(Some(host.blocking_tasks(to_patched)?));
        }
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            let blocking = host.blocking_tasks(to_patched)?;
            on_progress(&Progress {
                elapsed: start.elapsed(),
                limit,
                blocking,
            });
        }
        sleep(LOOK_EVERY);
    }
}

/// The kernel removes the directory of a live patch that is out.
fn is_over(livepatch: Option<&Livepatch>, to_patched: bool) -> bool {
    match livepatch {
        Some(livepatch) => !livepatch.transition && livepatch.enabled == to_patched,
        None => !to_patched,
    }
}

fn names(blocking: &[BlockingTask]) -> String {
    let named: Vec<String> = blocking
        .iter()
        .take(TASKS_NAMED)
        .map(ToString::to_string)
        .collect();
    match (blocking.len(), blocking.len().saturating_sub(TASKS_NAMED)) {
        (0, _) => {
            "no task in /proc blocks it, so an idle CPU does: a program bound to it helps".into()
        }
        (1, _) => format!("this task blocks it: {}", named.join(", ")),
        (_, 0) => format!("these tasks block it: {}", named.join(", ")),
        (_, more) => format!("these tasks block it: {} and {more} more", named.join(", ")),
    }
}

/// After a load that timed out: back to the stock functions, and the module out.
fn reverse(
    host: &Host,
    limit: Duration,
    blocking: &[BlockingTask],
) -> Result<ModuleError, ModuleError> {
    let (limit_s, tasks) = (limit.as_secs(), names(blocking));
    host.write(&format!("{DIRECTORY}/{NAME}/enabled"), "0")?;
    let reversed = wait(host, false, REVERSE_TIMEOUT, &mut |_| {})?.is_none();
    let outcome = match reversed && remove(Instant::now() + REVERSE_TIMEOUT, limit_s).is_ok() {
        true => "reversed and the module removed",
        false => "reversed, but that has not ended either: the stock functions serve every packet, and `kbp unload` ends it",
    };
    Ok(ModuleError::LoadTimeout {
        limit_s,
        outcome,
        tasks,
    })
}

/// Whether nothing holds the module that [`crate::plan::undo_everything`] knows nothing of; to be asked before it.
///
/// # Errors
/// That a CPU has its governor by somebody else's choice.
pub fn refuse_held(host: &Host, state: &State) -> Result<(), ModuleError> {
    let cpus = governor::chosen_by_others(host, state)?;
    let first = cpus.iter().next();
    match first {
        Some(first) => Err(ModuleError::Governs { cpus, first }),
        None => Ok(()),
    }
}

/// Take the live patch out, wait until no task uses it, remove the module. Pollers and attachments
/// have to be gone before ([`crate::plan::Session::undo_all`]).
pub fn unload(host: &Host, limit: Duration, on_progress: OnProgress) -> Result<(), ModuleError> {
    let before = status(host)?;
    if !before.loaded {
        return Err(ModuleError::NotLoaded);
    }
    let deadline = Instant::now() + limit;
    if before.livepatch.is_some_and(|livepatch| livepatch.enabled) {
        switch_off(host, deadline, limit.as_secs())?;
    }
    if let Some(blocking) = wait(host, false, limit, on_progress)? {
        return Err(ModuleError::UnloadTimeout {
            limit_s: limit.as_secs(),
            tasks: names(&blocking),
        });
    }
    remove(deadline, limit.as_secs())
}

/// Begins the transition back, as soon as another live patch's is over.
fn switch_off(host: &Host, deadline: Instant, limit_s: u64) -> Result<(), ModuleError> {
    loop {
        let error = match host.write(&format!("{DIRECTORY}/{NAME}/enabled"), "0") {
            Ok(()) => return Ok(()),
            // The patch went out by itself between the question and the order.
            Err(error) if error.is_missing() => return Ok(()),
            Err(error) => error,
        };
        let other = host.livepatches()?.into_iter();
        let other = other
            .filter(|patch| patch.name != NAME)
            .find(|patch| patch.transition);
        match (error.errno(), other) {
            (Some(libc::EBUSY), Some(patch)) if Instant::now() >= deadline => {
                return Err(ModuleError::OtherTransition {
                    patch: patch.name,
                    limit_s,
                })
            }
            // It may have ended since the kernel refused.
            (Some(libc::EBUSY), _) if Instant::now() < deadline => sleep(LOOK_EVERY),
            _ => return Err(error.into()),
        }
    }
}

/// The module, then that of its tracepoints, which it holds.
fn remove(deadline: Instant, limit_s: u64) -> Result<(), ModuleError> {
    remove_one(NAME, deadline, limit_s)?;
    remove_one(TRACE, deadline, limit_s)
}

/// The kernel lets go of the module a little after the end of the transition, and of tracepoints
/// when nobody traces them.
fn remove_one(name: &str, deadline: Instant, limit_s: u64) -> Result<(), ModuleError> {
    let name = CString::new(name).unwrap_or_default();
    loop {
        match delete_module(&name, DeleteModuleFlags::O_NONBLOCK) {
            Ok(()) | Err(Errno::ENOENT) => return Ok(()),
            Err(Errno::EAGAIN | Errno::EBUSY) if Instant::now() < deadline => sleep(LOOK_EVERY),
            Err(errno) => {
                return Err(ModuleError::StillHeld {
                    limit_s,
                    source: errno.into(),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_does_not_unpack_is_left_to_modprobe() {
        let file = |name: &str, installed| ModuleFile {
            path: Path::new("/lib/modules/6.12/updates/dkms").join(name),
            installed,
        };
        let module = file("kbp.ko.xz", true);
        let trace = module.trace().unwrap();
        assert_eq!(trace, file("kbp_trace.ko.xz", true));
        assert_eq!(module.for_modprobe(Errno::EINVAL), Some("kbp"));
        assert_eq!(trace.for_modprobe(Errno::EINVAL), Some("kbp_trace"));
        assert_eq!(trace.for_modprobe(Errno::EOPNOTSUPP), Some("kbp_trace"));
        // Anything else is the kernel's last word, and modprobe may know another file of that name.
        assert_eq!(trace.for_modprobe(Errno::ENOKEY), None);
        assert_eq!(file("kbp.ko", true).for_modprobe(Errno::EINVAL), None);
        let named = file("kbp.ko.xz", false).trace().unwrap();
        assert_eq!(named.for_modprobe(Errno::EINVAL), None);
        assert_eq!(file("other.ko", true).trace(), None);
    }
}
