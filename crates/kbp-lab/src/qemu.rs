// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU: unpacked beside the system, with its own libraries, and its command line.
//!
//! Not here: running it ([`crate::machine`]).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::Apt;
use crate::cache::{write_whole, Cache};
use crate::clock::{Clock, QUANTUM_NS};
use crate::command;
use crate::error::{Error, IoContext, Result};
use crate::hostcpu;
use crate::libs::Loader;
use crate::packages::unpack_into;

/// The oldest QEMU whose instruction counter works in this set-up.
const VERSION_MIN: u32 = 10;
const RELEASE: &str = "bookworm";
const SUITE: &str = "bookworm-backports";
const PACKAGE: &str = "qemu-system-x86";

/// An unpacked QEMU.
#[derive(Debug, Clone)]
pub struct Qemu {
    tree: PathBuf,
    /// A program that was built here and is run instead of the tree's.
    built: Option<PathBuf>,
    /// Its version as it says it, for instance `10.0.2`.
    pub version: String,
}

impl Qemu {
    /// Takes QEMU from the cache, or downloads it. The caller holds the lock.
    ///
    /// # Errors
    /// Those of apt, and [`Error::QemuTooOld`].
    pub(crate) fn fetch(cache: &Cache, refresh: bool) -> Result<Qemu> {
        let dir = cache.dir("qemu")?;
        let (tree, version_file) = (dir.join("tree"), dir.join("version"));
        if refresh || !tree.exists() || !version_file.exists() {
            let apt = Apt::open(cache, RELEASE)?;
            apt.update(refresh)?;
            let packages = apt.closure(&[PACKAGE.to_string()], Some(SUITE))?;
            apt.download(&packages)?;
            eprintln!("lab: unpacking QEMU ({} packages)", packages.len());
            unpack_into(cache, &packages, &tree)?;
            let version = Qemu::of(tree.clone(), String::new()).ask_version()?;
            write_whole(&version_file, version.as_bytes())?;
        }
        let version = std::fs::read_to_string(&version_file).at("read", &version_file)?;
        check_version(&version)?;
        Ok(Qemu::of(tree, version))
    }

    fn of(tree: PathBuf, version: String) -> Qemu {
        Qemu {
            tree,
            built: None,
            version,
        }
    }

    /// The same files with a program that was built here, for this machine's libraries. `key` tells builds apart.
    ///
    /// # Errors
    /// [`Error::Qemu`] when it does not start.
    pub(crate) fn with_program(&self, program: PathBuf, key: &str) -> Result<Qemu> {
        let mut qemu = Qemu {
            built: Some(program),
            ..self.clone()
        };
        qemu.version = format!("{}+{key}", qemu.ask_version()?);
        Ok(qemu)
    }

    /// The folder that it is unpacked in.
    pub(crate) fn tree(&self) -> &Path {
        &self.tree
    }

    /// What is wrong when a part of it is not there.
    pub(crate) fn damaged(&self) -> Error {
        Error::Qemu {
            detail: format!(
                "{} is damaged; run `kbp lab clean --all`",
                self.tree.display()
            ),
        }
    }

    fn ask_version(&self) -> Result<String> {
        let mut command = self.command(false)?;
        let text = command::output(
            command.arg("--version"),
            "asking QEMU for its version",
            "libc6",
        )?;
        let version = text
            .split_whitespace()
            .skip_while(|word| *word != "version")
            .nth(1);
        version.map(str::to_string).ok_or_else(|| Error::Qemu {
            detail: format!("its version is not clear: {text}"),
        })
    }

    /// A command that starts it: its own loader and libraries, whatever this machine has, but for a program that was built
    /// here. It ends with its parent.
    ///
    /// With `one_cpu` all its threads are on one of the host's CPUs, the idlest now; [`hostcpu::Follower`] moves them. On the virtual clock they only
    /// ever take turns, and handing over on one CPU is twice as fast as across two.
    ///
    /// # Errors
    /// [`Error::Qemu`] when the tree is damaged.
    pub(crate) fn command(&self, one_cpu: bool) -> Result<Command> {
        let loader =
            Loader::of_trees(std::slice::from_ref(&self.tree)).ok_or_else(|| self.damaged())?;
        let mut path = loader.search_path();
        for sub in ["pulseaudio", "blas", "lapack", "ceph"] {
            let dir = self.tree.join("usr/lib/x86_64-linux-gnu").join(sub);
            if dir.is_dir() {
                path.push_str(&format!(":{}", dir.display()));
            }
        }
        let mut command = match one_cpu.then(hostcpu::idlest).flatten() {
            Some(cpu) => {
                let mut command = Command::new("taskset");
                command.args(["-c", &cpu.to_string(), "setpriv"]);
                command
            }
            None => Command::new("setpriv"),
        };
        command.args(["--pdeathsig", "KILL", "--"]);
        match &self.built {
            Some(program) => command.arg(program),
            None => command
                .arg(loader.program())
                .args(["--inhibit-cache", "--library-path", &path])
                .arg(self.tree.join("usr/bin/qemu-system-x86_64")),
        };
        for data in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            command.arg("-L").arg(self.tree.join(data));
        }
        command.env(
            "QEMU_MODULE_DIR",
            self.tree.join("usr/lib/x86_64-linux-gnu/qemu"),
        );
        Ok(command)
    }
}

fn check_version(version: &str) -> Result<()> {
    let major: u32 = version
        .split('.')
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0);
    if major < VERSION_MIN {
        return Err(Error::QemuTooOld {
            found: version.into(),
            needed: VERSION_MIN,
        });
    }
    Ok(())
}

/// How the CPUs are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// Emulated.
    Tcg,
    /// By the host's processor.
    Kvm,
}

/// Network cards as they are asked for; all are on one hub.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nics {
    /// How many.
    pub count: u32,
    /// QEMU's name of the model; by default the one that `kernels.toml` names for the kernel, else e1000e.
    pub model: Option<String>,
}

/// Network cards of a model that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cards {
    pub count: u32,
    pub model: String,
    /// The stock module that drives them.
    pub module: &'static str,
}

/// The models and their drivers.
const MODELS: [(&str, &str); 5] = [
    ("e1000e", "e1000e"),
    ("e1000", "e1000"),
    ("igb", "igb"),
    ("vmxnet3", "vmxnet3"),
    ("virtio-net-pci", "virtio_net"),
];

/// First place on the bus that is free for a card.
const PLACE_MIN: u32 = 4;

/// Most cards that a machine may have: they share the bus with what the lab needs.
pub const NICS_MAX: u32 = 16;

impl Nics {
    /// The cards for a kernel whose default model is given.
    ///
    /// # Errors
    /// [`Error::Argument`] for a model that the lab does not know.
    pub(crate) fn resolve(&self, default: &str) -> Result<Cards> {
        let model = self.model.as_deref().unwrap_or(default);
        let known = MODELS.iter().find(|(name, _)| *name == model);
        let (model, module) = known.ok_or_else(|| {
            let names = MODELS.map(|(name, _)| name).join(", ");
            Error::Argument(format!(
                "the lab knows no network card '{model}'; it has {names}"
            ))
        })?;
        Ok(Cards {
            count: self.count,
            model: (*model).into(),
            module,
        })
    }
}

impl std::str::FromStr for Nics {
    type Err = String;

    /// Reads `N[:MODEL]`.
    fn from_str(text: &str) -> std::result::Result<Nics, String> {
        let (count, model) = match text.split_once(':') {
            Some((count, model)) => (count, Some(model.to_string())),
            None => (text, None),
        };
        match count.parse() {
            Ok(count) if count <= NICS_MAX => Ok(Nics { count, model }),
            _ => Err(format!(
                "'{count}' is not a number of network cards from 0 to {NICS_MAX}"
            )),
        }
    }
}

/// The part of a machine that its snapshots depend on.
#[derive(Debug, Clone)]
pub(crate) struct Hardware<'a> {
    pub clock: Clock,
    pub accelerator: Accelerator,
    pub cpus: u32,
    pub memory_mib: u32,
    pub nics: &'a Cards,
    /// Has a further card, which belongs to a tester outside.
    pub wire: bool,
    /// The disk that it boots from, which it changes.
    pub disk: Option<&'a Path>,
    pub kernel_image: &'a Path,
    pub initramfs: &'a Path,
    pub cmdline: &'a str,
}

impl Hardware<'_> {
    /// The arguments for QEMU without its connections to the host.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = [
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ]
        .map(String::from)
        .to_vec();
        let mut add = |name: &str, value: String| arguments.extend([name.to_string(), value]);
        match (self.clock, self.accelerator) {
            (Clock::Virtual | Clock::Parallel, _) => {
                let quantum = match self.clock {
                    Clock::Parallel => format!(",quantum={QUANTUM_NS}"),
                    _ => String::new(),
                };
                add("-machine", "pc,hpet=off".into());
                add("-accel", "tcg,thread=single".into());
                add("-icount", format!("shift=0,sleep=off{quantum}"));
                add("-cpu", "max".into());
            }
            (Clock::Real, Accelerator::Tcg) => {
                // The emulated HPET is slow and would be taken for the time.
                add("-machine", "pc,hpet=off".into());
                add("-accel", "tcg,thread=multi".into());
                add("-cpu", "max".into());
            }
            (Clock::Real, Accelerator::Kvm) => {
                add("-machine", "pc".into());
                add("-accel", "kvm".into());
                add("-cpu", "host".into());
            }
        }
        add("-smp", self.cpus.to_string());
        add("-m", self.memory_mib.to_string());
        add("-kernel", self.kernel_image.display().to_string());
        add("-initrd", self.initramfs.display().to_string());
        add("-append", self.cmdline.into());
        if let Some(disk) = self.disk {
            // What the guest flushes needs to be safe from the guest's end only, not from ours.
            let file = disk.display();
            add(
                "-drive",
                format!("file={file},format=raw,if=none,id=disk,cache=unsafe"),
            );
            add("-device", "virtio-blk-pci,drive=disk,addr=0x2".into());
        }
        for index in 0..self.nics.count + u32::from(self.wire) {
            // The further card's other end is a connection to the host, see `crate::wire`.
            if index < self.nics.count {
                add("-netdev", format!("hubport,id=net{index},hubid=0"));
            }
            // Places on the bus are given in order, so that the guest numbers its interfaces in order.
            let model = &self.nics.model;
            let options = format!(
                "netdev=net{index},mac=52:54:00:4b:50:{index:02x},addr={:#x},romfile=",
                place(model, index)
            );
            add("-device", format!("{model},{options}"));
        }
        arguments
    }
}

/// Place of a card on the bus. An igb keeps places for its virtual functions too, two for each card.
fn place(model: &str, index: u32) -> u32 {
    match model {
        "igb" => PLACE_MIN + 2 * index,
        _ => PLACE_MIN + index,
    }
}

/// The kernel's command line: what the lab needs, then what the caller adds.
pub(crate) fn cmdline(clock: Clock, append: &str) -> String {
    // A panic ends the machine at once, and an oops is a panic: a damaged guest must not go on to a result.
    let mut line = String::from("console=ttyS0 oops=panic panic=-1 quiet random.trust_cpu=on");
    // Overrides the level of `quiet`, which stays for a whole system's own messages: warnings come with where they are from.
    line.push_str(" loglevel=5 softlockup_all_cpu_backtrace=1");
    // All clocks' time stamp counters are the same on all CPUs; without this the kernel would distrust them.
    line.push_str(" tsc=reliable");
    if clock.counts_instructions() {
        // The counter of instructions is exact, so there is nothing to measure.
        line.push_str(" tsc_early_khz=1000000 no_timer_check");
        // The lab's helper masks the interrupt of the timer that ends turns, in a device that the kernel has claimed.
        line.push_str(" iomem=relaxed");
    } else {
        // A CPU that waits in vain for one that QEMU has lost ends the machine in half a minute (see `emulator`).
        line.push_str(" softlockup_panic=1");
    }
    // Otherwise each CPU's start waits 10 ms for hardware of the last century.
    line.push_str(" cpu_init_udelay=0");
    if !append.is_empty() {
        line.push(' ');
        line.push_str(append);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(clock: Clock, accelerator: Accelerator, nics: &str) -> String {
        let nics = nics.parse::<Nics>().unwrap().resolve("e1000e").unwrap();
        let hardware = Hardware {
            clock,
            accelerator,
            cpus: 4,
            memory_mib: 256,
            nics: &nics,
            wire: false,
            disk: None,
            kernel_image: Path::new("/k"),
            initramfs: Path::new("/i"),
            cmdline: "console=ttyS0",
        };
        hardware.arguments().join(" ")
    }

    #[test]
    fn the_virtual_clock_counts_instructions_in_one_thread() {
        let line = line(Clock::Virtual, Accelerator::Tcg, "2");
        for part in [
            "-machine pc,hpet=off",
            "tcg,thread=single",
            "-icount shift=0,sleep=off",
            "-smp 4",
            "-no-reboot",
        ] {
            assert!(line.contains(part), "{part} is not in {line}");
        }
        assert_eq!(line.matches("hubid=0").count(), 2);
        assert!(
            line.contains("e1000e,netdev=net1,mac=52:54:00:4b:50:01,addr=0x5"),
            "{line}"
        );
    }

    #[test]
    fn the_parallel_clock_counts_by_quanta() {
        let line = line(Clock::Parallel, Accelerator::Tcg, "2");
        assert!(
            line.contains("tcg,thread=single") && line.contains("sleep=off,quantum=250 "),
            "{line}"
        );
    }

    #[test]
    fn a_disk_takes_no_place_of_a_card() {
        let nics = "2".parse::<Nics>().unwrap().resolve("e1000e").unwrap();
        let hardware = Hardware {
            clock: Clock::Real,
            accelerator: Accelerator::Tcg,
            cpus: 4,
            memory_mib: 1024,
            nics: &nics,
            wire: false,
            disk: Some(Path::new("/d")),
            kernel_image: Path::new("/k"),
            initramfs: Path::new("/i"),
            cmdline: "console=ttyS0",
        };
        let line = hardware.arguments().join(" ");
        assert!(
            line.contains("-drive file=/d,format=raw,if=none,id=disk")
                && line.contains("-device virtio-blk-pci,drive=disk,addr=0x2")
                && line.contains("52:54:00:4b:50:00,addr=0x4"),
            "{line}"
        );
    }

    #[test]
    fn cards_with_virtual_functions_stand_apart() {
        let line = line(Clock::Real, Accelerator::Tcg, "2:igb");
        assert!(
            line.contains("igb,netdev=net0,mac=52:54:00:4b:50:00,addr=0x4")
                && line.contains("igb,netdev=net1,mac=52:54:00:4b:50:01,addr=0x6"),
            "{line}"
        );
    }

    #[test]
    fn the_real_clock_does_not() {
        assert!(!line(Clock::Real, Accelerator::Tcg, "0").contains("icount"));
        let kvm = line(Clock::Real, Accelerator::Kvm, "1:virtio-net-pci");
        assert!(
            kvm.contains("-accel kvm") && kvm.contains("virtio-net-pci,netdev=net0"),
            "{kvm}"
        );
    }

    #[test]
    fn cards_and_versions_are_checked() {
        assert!("x".parse::<Nics>().is_err());
        assert!("99".parse::<Nics>().unwrap_err().contains("16"));
        assert!("1:rocket"
            .parse::<Nics>()
            .unwrap()
            .resolve("e1000e")
            .is_err());
        assert_eq!(
            "2".parse::<Nics>()
                .unwrap()
                .resolve("virtio-net-pci")
                .unwrap()
                .module,
            "virtio_net"
        );
        assert!(check_version("10.0.2").is_ok());
        assert!(check_version("7.2.22")
            .unwrap_err()
            .to_string()
            .contains("7.2.22 is too old"));
    }

    #[test]
    fn the_callers_words_come_last() {
        assert!(cmdline(Clock::Real, "isolcpus=2").ends_with(" isolcpus=2"));
        assert!(cmdline(Clock::Virtual, "").contains("oops=panic panic=-1"));
        // The later one counts.
        let words = cmdline(Clock::Real, "");
        assert!(words.find(" quiet") < words.find(" loglevel=5"), "{words}");
        assert!(words.contains("softlockup_panic=1"));
        assert!(!cmdline(Clock::Virtual, "").contains("softlockup_panic"));
    }
}
