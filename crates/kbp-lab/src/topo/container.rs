// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A container in a network namespace that exists: its root file system, its configuration (OCI runtime specification
//! 1.0), starting it with crun or runc, running programs in it, removing it.
//!
//! The root file system is made of the machine's own: its system folders, read-only, with a /proc, /dev, /tmp and /run of
//! its own. The running program is in it as `/opt/kbp`. The first process sleeps until it is killed. No seccomp filter.
//!
//! Not here: the network around it ([`super::plan`]).

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

use crate::error::tail;

use super::error::{Error, Result};
use super::helper::helper;
use super::host::ContainerFacts;
use super::step::Step;
use super::{netns, state, End};

/// Where the running program is in the container.
const PROGRAM: &str = "opt/kbp";
/// Where the runtime writes what goes wrong.
const LOG: &str = "runtime.log";
/// docker's capabilities, and those that a measuring program needs: real-time priorities, locked memory.
const CAPABILITIES: [&str; 16] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_IPC_LOCK",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
    "CAP_SYS_NICE",
];

/// The files of a container: what is made, and nothing else is ever removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bundle {
    pub dir: PathBuf,
    /// Below `dir`, each after the one that it is in.
    pub folders: Vec<String>,
    /// Path below `dir`, target.
    pub links: Vec<(String, String)>,
    /// Path below `dir`, contents.
    pub files: Vec<(String, String)>,
}

/// The files of a container `id`, whose network is the namespace `netns`; `name` is that of their folder.
pub(super) fn bundle(name: &str, id: &str, netns: &str, facts: &ContainerFacts) -> Bundle {
    let own = ["dev", "opt", "proc", "run", "sys", "tmp"];
    let folders = own
        .into_iter()
        .chain(facts.folders.iter().map(String::as_str));
    let config = configuration(id, netns, facts);
    Bundle {
        dir: state::bundle_directory(name),
        folders: std::iter::once("rootfs".to_owned())
            .chain(folders.map(|folder| format!("rootfs/{folder}")))
            .collect(),
        links: facts
            .links
            .iter()
            .map(|(link, target)| (format!("rootfs/{link}"), target.clone()))
            .collect(),
        files: vec![
            (LOG.into(), String::new()),
            (format!("rootfs/{PROGRAM}"), String::new()),
            ("config.json".into(), format!("{config:#}\n")),
        ],
    }
}

fn configuration(id: &str, netns: &str, facts: &ContainerFacts) -> Value {
    let capabilities: Value = ["bounding", "effective", "permitted"]
        .iter()
        .map(|set| ((*set).to_owned(), json!(CAPABILITIES)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let mut namespaces: Vec<Value> = ["pid", "ipc", "uts", "mount"]
        .iter()
        .map(|kind| json!({ "type": kind }))
        .collect();
    namespaces.push(json!({ "type": "network", "path": netns::path(netns) }));
    json!({
        "ociVersion": "1.0.2",
        "hostname": "kbp",
        "root": { "path": "rootfs", "readonly": true },
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "cwd": "/",
            "args": ["sh", "-c", "while :; do sleep 86400; done"],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt"],
            "capabilities": capabilities,
            "noNewPrivileges": true,
        },
        "mounts": mounts(facts),
        "linux": { "namespaces": namespaces, "cgroupsPath": format!("/{id}") },
    })
}

fn mounts(facts: &ContainerFacts) -> Vec<Value> {
    let special = |kind: &str, at: &str, options: &[&str]| json!({ "destination": at, "type": kind, "source": kind, "options": options });
    let mut mounts = vec![
        special("proc", "/proc", &["nosuid", "noexec", "nodev"]),
        special("tmpfs", "/dev", &["nosuid", "mode=755", "size=64k"]),
        special(
            "devpts",
            "/dev/pts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666"],
        ),
        special("tmpfs", "/dev/shm", &["nosuid", "nodev", "mode=1777"]),
        special("sysfs", "/sys", &["nosuid", "noexec", "nodev", "ro"]),
        special("tmpfs", "/tmp", &["nosuid", "nodev", "mode=1777"]),
        special("tmpfs", "/run", &["nosuid", "nodev", "mode=755"]),
    ];
    let bind = |at: &str, source: &Path| json!({ "destination": at, "type": "bind", "source": source, "options": ["bind", "ro", "nosuid", "nodev"] });
    for folder in &facts.folders {
        let path = format!("/{folder}");
        mounts.push(bind(&path, Path::new(&path)));
    }
    mounts.push(bind(&format!("/{PROGRAM}"), &facts.program));
    mounts
}

/// Writes the files.
pub(super) fn write_bundle(bundle: &Bundle) -> Result<()> {
    let at = |path: &str| bundle.dir.join(path);
    let failed = |path: &Path| Error::sys(format!("create {}", path.display()));
    fs::create_dir(&bundle.dir).map_err(failed(&bundle.dir))?;
    for folder in &bundle.folders {
        fs::create_dir(at(folder)).map_err(failed(&at(folder)))?;
    }
    for (link, target) in &bundle.links {
        std::os::unix::fs::symlink(target, at(link)).map_err(failed(&at(link)))?;
    }
    for (file, contents) in &bundle.files {
        fs::write(at(file), contents).map_err(failed(&at(file)))?;
    }
    Ok(())
}

/// Removes the files, one by one: never what is in a folder, so that a mount that should not be there is not emptied.
pub(super) fn remove_bundle(bundle: &Bundle) -> Result<()> {
    let at = |path: &String| bundle.dir.join(path);
    let check = |path: &Path, result: std::io::Result<()>| match result {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::sys(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    };
    let links = bundle.links.iter().map(|(link, _)| link);
    let files = bundle.files.iter().map(|(file, _)| file);
    for path in links.chain(files).map(at) {
        check(&path, fs::remove_file(&path))?;
    }
    for path in bundle.folders.iter().rev().map(at) {
        check(&path, fs::remove_dir(&path))?;
    }
    check(&bundle.dir, fs::remove_dir(&bundle.dir))
}

/// The runtime, with its files where it keeps them for root, whoever's session this is.
fn runtime_command(runtime: &Path) -> Command {
    for_root(helper(runtime))
}

fn for_root(mut command: Command) -> Command {
    command.env_remove("XDG_RUNTIME_DIR");
    command
}

/// Starts the container and returns when its first process runs.
pub(super) fn start(runtime: &Path, id: &str, bundle: &Path, pivot: bool) -> Result<()> {
    // The first process keeps what it gets here: a pipe would never end.
    let log = bundle.join(LOG);
    let out = File::create(&log).map_err(Error::sys(format!("create {}", log.display())))?;
    let mut command = runtime_command(runtime);
    command.args(["run", "--detach", "--bundle"]).arg(bundle);
    if !pivot {
        command.arg("--no-pivot");
    }
    let status = command
        .arg(id)
        .stdout(Stdio::null())
        .stderr(out)
        .status()
        .map_err(Error::sys(format!("run {}", runtime.display())))?;
    if status.success() {
        return Ok(());
    }
    let text = fs::read_to_string(&log).unwrap_or_default();
    Err(Error::Program {
        program: runtime.display().to_string(),
        detail: format!("{} ({status})", tail(&text, 4)),
    })
}

/// Whether the runtime knows a container of this name.
pub(super) fn exists(runtime: &Path, id: &str) -> Result<bool> {
    let output = runtime_command(runtime)
        .args(["state", id])
        .output()
        .map_err(Error::sys(format!("run {}", runtime.display())))?;
    Ok(output.status.success())
}

/// Kills and removes the container; one that is gone is no error.
pub(super) fn remove(runtime: &Path, id: &str) -> Result<()> {
    // The runtime keeps a folder for each, also for one in whose making it was killed.
    let name = runtime.file_name().unwrap_or_default();
    let folder = Path::new("/run").join(name).join(id);
    if !exists(runtime, id)? && !folder.exists() {
        return Ok(());
    }
    let output = runtime_command(runtime)
        .args(["delete", "--force", id])
        .output()
        .map_err(Error::sys(format!("run {}", runtime.display())))?;
    if !exists(runtime, id)? && !folder.exists() {
        return Ok(());
    }
    Err(Error::Program {
        program: format!("{} delete", runtime.display()),
        detail: format!(
            "{} ({}); its folder is {}",
            tail(&String::from_utf8_lossy(&output.stderr), 4),
            output.status,
            folder.display()
        ),
    })
}

/// A command whose further arguments are a program and its arguments, which run in the container of this end. `None`
/// when no topology that is there has such an end with a container.
///
/// The program that made the topology is `/opt/kbp` there.
///
/// # Errors
/// When a file of `/run/kbp-topo` can't be read.
pub fn command_in_container(end: &End) -> Result<Option<Command>> {
    let Some(wanted) = &end.container else {
        return Ok(None);
    };
    let states = state::all()?;
    let steps = states.iter().flat_map(|state| &state.plan.steps);
    let mut runtimes = steps.filter_map(|step| match step {
        Step::Container { id, runtime, .. } if id == wanted => Some(runtime),
        _ => None,
    });
    Ok(runtimes.next().map(|runtime| {
        let mut command = for_root(Command::new(runtime));
        command.args(["exec", wanted]);
        command
    }))
}
