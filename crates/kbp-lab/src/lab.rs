// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab as a whole: kernels, modules and machines behind one door.
//!
//! Not here: arguments and printing ([`crate::cli`]).

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::apt::hex;
use crate::cache::{write_whole, Cache, Clean};
use crate::clock::{pit_count, Clock, TURNS_MS};
use crate::config::{find_lab_dir, Config};
use crate::error::{Error, IoContext, Result};
use crate::kernel::Kernel;
use crate::packages::PackageSet;
use crate::payload::{quote, Payload};
use crate::qemu::{cmdline, Accelerator, Hardware, Nics, Qemu};
use crate::root;
use crate::run::{guest_script, kvm_works, unix_time, Job, MachineSpec, Outcome, Record};
use crate::snapshot::Snapshot;
use crate::wire::Wire;
use crate::{initramfs, kbuild};

/// The lab: its folder of scripts and its cache.
#[derive(Debug)]
pub struct Lab {
    dir: PathBuf,
    cache: Cache,
    config: Config,
}

/// A kernel of the lab as `kbp lab list` shows it.
#[derive(Debug, Clone, Serialize)]
pub struct KernelState {
    /// Its id.
    pub id: String,
    /// Its release as `uname -r` says it, once it is in the cache.
    pub abi: Option<String>,
    /// The version of its package, once it is in the cache.
    pub version: Option<String>,
    /// The compiler for its modules.
    pub compiler: String,
    /// Where that compiler runs: `host`, `root` or `root, not made yet`.
    pub toolchain: String,
    /// Its boot image, once it is in the cache.
    pub image: Option<PathBuf>,
    /// Whether a machine can be started without a download.
    pub cached: bool,
}

impl Default for MachineSpec {
    fn default() -> MachineSpec {
        MachineSpec {
            kernel: "6.1".into(),
            cpus: 4,
            memory_mib: 256,
            clock: Clock::Virtual,
            nics: Nics::default(),
            wire: None,
            modules: Vec::new(),
            files: Vec::new(),
            packages: Vec::new(),
            append: String::new(),
            script: None,
            args: Vec::new(),
            out_dir: None,
            timeout: Duration::from_secs(120),
            shell: false,
            verbose: false,
            cold: false,
        }
    }
}

impl Lab {
    /// Opens the lab whose folder is given, or is found from the current folder upwards, with the default cache.
    ///
    /// # Errors
    /// [`Error::NoLabDir`], [`Error::Config`], or what keeps the cache from being opened.
    pub fn open(dir: Option<&Path>) -> Result<Lab> {
        let dir = match dir {
            Some(dir) => dir.to_path_buf(),
            None => find_lab_dir(&std::env::current_dir().at("find", ".")?)?,
        };
        let config = Config::read(&dir)?;
        Ok(Lab {
            dir,
            cache: Cache::open_default()?,
            config,
        })
    }

    /// What `kernels.toml` says.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All kernels and their state.
    #[must_use]
    pub fn kernels(&self) -> Vec<KernelState> {
        let state = |(id, config): (&String, &crate::config::KernelConfig)| {
            let kernel = Kernel::cached(&self.cache, id);
            let made = |compiler| {
                root::root_path(&self.cache, compiler)
                    .join(".made")
                    .exists()
            };
            let toolchain = match self.config.compiler.get(&config.compiler) {
                _ if root::host_has(&config.compiler) => "host",
                Some(compiler) if made(compiler) => "root",
                _ => "root, not made yet",
            };
            KernelState {
                id: id.clone(),
                abi: kernel.as_ref().map(|kernel| kernel.abi.clone()),
                version: kernel.as_ref().map(|kernel| kernel.version.clone()),
                image: kernel.as_ref().map(|kernel| kernel.image.clone()),
                compiler: config.compiler.clone(),
                toolchain: toolchain.into(),
                cached: kernel.is_some(),
            }
        };
        self.config.kernel.iter().map(state).collect()
    }

    /// Makes sure that a kernel is in the cache; with `refresh`, that it is the newest one.
    ///
    /// # Errors
    /// Those of apt and of the disk.
    pub fn fetch(&self, id: &str, refresh: bool) -> Result<Kernel> {
        let config = self.config.kernel(id)?;
        let _lock = self.cache.lock_prepare()?;
        Kernel::fetch(&self.cache, id, config, refresh)
    }

    /// Makes sure that QEMU, the guest's packages and a kernel's compiler are in the cache.
    ///
    /// # Errors
    /// Those of apt and of the disk.
    pub fn fetch_tools(&self, id: &str, refresh: bool) -> Result<()> {
        let config = self.config.kernel(id)?;
        let _lock = self.cache.lock_prepare()?;
        Qemu::fetch(&self.cache, refresh)?;
        let guest = &self.config.guest;
        PackageSet::fetch(&self.cache, &guest.release, &guest.packages, refresh)?;
        PackageSet::fetch(
            &self.cache,
            &guest.release,
            &["busybox-static".to_string()],
            refresh,
        )?;
        root::Toolchain::get(&self.cache, &self.config, &config.compiler).map(|_| ())
    }

    /// Builds a folder of modules for a kernel and returns the `.ko` files, which are in the cache. `words` are more
    /// arguments for make; with any, make's output is shown.
    ///
    /// # Errors
    /// [`Error::Build`] with the end of make's output.
    pub fn build_module(
        &self,
        kernel: &Kernel,
        source: &Path,
        words: &[String],
    ) -> Result<Vec<PathBuf>> {
        let _lock = self.cache.lock_prepare()?;
        kbuild::build(&self.cache, &self.config, kernel, source, words)
    }

    /// Empties the cache and returns the bytes freed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn clean(&self, what: Clean) -> Result<u64> {
        self.cache.clean(what)
    }

    /// The reason why a script may skip on a kernel, if `kernels.toml` lists it.
    #[must_use]
    pub fn listed_skip(&self, spec: &MachineSpec) -> Option<&str> {
        let script = guest_script(&self.dir, spec.script.as_deref()?).ok()?;
        let reasons = &self.config.kernel.get(&spec.kernel)?.skip;
        reasons.get(script.rsplit('/').next()?).map(String::as_str)
    }

    /// Runs a job; what its script prints goes to the writer that `sink` makes, as it comes.
    ///
    /// # Errors
    /// Everything that keeps the machine from being set up. What happens to the machine is in the outcome.
    pub fn run(
        &self,
        spec: &MachineSpec,
        sink: impl FnMut() -> Box<dyn Write + Send>,
    ) -> Result<Outcome> {
        check(spec)?;
        let script = match &spec.script {
            Some(script) => guest_script(&self.dir, script)?,
            None => String::new(),
        };
        let cards = spec.nics.resolve(&self.config.kernel(&spec.kernel)?.nic)?;
        let _use = self.cache.lock_use()?;
        let prepare = self.cache.lock_prepare()?;
        let kernel = Kernel::fetch(
            &self.cache,
            &spec.kernel,
            self.config.kernel(&spec.kernel)?,
            false,
        )?;
        let qemu = Qemu::fetch(&self.cache, false)?;
        let payload = self.payload(spec, &kernel, &script)?;
        let has_cards = cards.count > 0 || spec.wire.is_some();
        let image = self.image(&kernel, has_cards.then_some(cards.module))?;
        let words = cmdline(spec.clock, &spec.append);
        let mut hardware = Hardware {
            clock: spec.clock,
            accelerator: Accelerator::Kvm,
            cpus: spec.cpus,
            memory_mib: spec.memory_mib,
            nics: &cards,
            wire: false,
            kernel_image: &kernel.image,
            initramfs: &image,
            cmdline: &words,
        };
        let kvm = self.accelerate(&mut hardware, &qemu)?;
        hardware.wire = spec.wire.is_some();
        let mut arguments = hardware.arguments();
        // With KVM a boot is quick, and a snapshot would carry the host's processor in it.
        let snapshot = if spec.cold || kvm {
            None
        } else {
            Some(Snapshot::of(
                &self.cache,
                &arguments,
                &qemu.version,
                &[&kernel.image, &image],
            )?)
        };
        drop(prepare);
        let wire = spec.wire.as_deref().map(Wire::claim).transpose()?;
        if let Some(wire) = &wire {
            // Behind the snapshot's name: the card belongs to the machine, the path to this run.
            arguments.extend(wire.arguments(cards.count));
        }
        let accelerator = hardware.accelerator;
        let record = record(spec, &kernel, &qemu, &arguments, accelerator, &words);
        Job {
            cache: &self.cache,
            qemu: &qemu,
            arguments,
            snapshot,
            payload,
            record,
            spec,
        }
        .run(sink)
    }

    /// Chooses the host's processor where a trial boot with it succeeds, and the real clock is asked for.
    fn accelerate(&self, hardware: &mut Hardware, qemu: &Qemu) -> Result<bool> {
        hardware.accelerator = Accelerator::Kvm;
        let kvm =
            hardware.clock == Clock::Real && kvm_works(&self.cache, qemu, &hardware.arguments())?;
        if !kvm {
            hardware.accelerator = Accelerator::Tcg;
        }
        Ok(kvm)
    }

    /// The first root for a kernel, in the cache under a name that changes with what it is made of.
    fn image(&self, kernel: &Kernel, nic_module: Option<&str>) -> Result<PathBuf> {
        let parts = initramfs::Parts::fetch(&self.cache, &self.config.guest, kernel, nic_module)?;
        let path =
            self.cache
                .dir("images")?
                .join(format!("{}-{}.cpio", kernel.abi, parts.identity()));
        if !path.exists() {
            let bytes = parts.build()?;
            self.cache.check_space(bytes.len() as u64)?;
            write_whole(&path, &bytes)?;
        }
        Ok(path)
    }

    fn payload(&self, spec: &MachineSpec, kernel: &Kernel, script: &str) -> Result<Vec<u8>> {
        let mut payload = Payload::default();
        payload.add_lab(&self.dir)?;
        for source in &spec.modules {
            payload.add_modules(&kbuild::build(
                &self.cache,
                &self.config,
                kernel,
                source,
                &[],
            )?)?;
        }
        if !spec.packages.is_empty() {
            let release = &self.config.guest.release;
            payload.add_packages(&PackageSet::fetch(
                &self.cache,
                release,
                &spec.packages,
                false,
            )?)?;
        }
        payload.add_files(&spec.files)?;
        let args: Vec<String> = spec.args.iter().map(|word| quote(word)).collect();
        let timer = if spec.clock == Clock::Virtual {
            pit_count(spec.cpus)
        } else {
            None
        };
        payload.add_settings(&BTreeMap::from([
            ("OUT", "/out".to_string()),
            ("MODULES", "/modules".to_string()),
            ("LAB_KERNEL", kernel.id.clone()),
            ("LAB_CLOCK", spec.clock.to_string()),
            ("LAB_CPUS", spec.cpus.to_string()),
            ("LAB_NICS", spec.nics.count.to_string()),
            (
                "LAB_WIRE",
                spec.wire
                    .as_ref()
                    .map_or(String::new(), |_| format!("eth{}", spec.nics.count)),
            ),
            ("JOB_SCRIPT", script.to_string()),
            ("JOB_ARGS", args.join(" ")),
            ("JOB_SHELL", if spec.shell { "1" } else { "" }.to_string()),
            ("JOB_TURNS_MS", timer.map_or(0, |_| TURNS_MS).to_string()),
            (
                "JOB_PIT_COUNT",
                timer.map_or(String::new(), |count| count.to_string()),
            ),
            ("JOB_EPOCH", unix_time().to_string()),
            ("JOB_SEED", seed()?),
        ]));
        payload.into_tar()
    }
}

/// Randomness for the guest: every job of a snapshot starts from the same state.
fn seed() -> Result<String> {
    use std::io::Read;
    let path = Path::new("/dev/urandom");
    let mut bytes = [0u8; 32];
    fs::File::open(path)
        .at("open", path)?
        .read_exact(&mut bytes)
        .at("read", path)?;
    Ok(hex(&bytes))
}

fn check(spec: &MachineSpec) -> Result<()> {
    let wrong = |text: String| Err(Error::Argument(text));
    if !(1..=64).contains(&spec.cpus) {
        return wrong(format!(
            "{} CPUs: the lab has machines with 1 to 64",
            spec.cpus
        ));
    }
    if !(128..=65_536).contains(&spec.memory_mib) {
        return wrong(format!(
            "{} MiB of memory: the lab has machines with 128 to 65536",
            spec.memory_mib
        ));
    }
    if spec.script.is_none() && !spec.shell {
        return wrong("there is no script to run; name one, or ask for --shell".into());
    }
    if spec.wire.is_some() && spec.clock == Clock::Virtual {
        return wrong(
            "--wire: the tester on the host has the host's time, so the guest needs --clock real"
                .into(),
        );
    }
    for file in &spec.files {
        fs::metadata(&file.host).at("find the file", &file.host)?;
    }
    Ok(())
}

fn record(
    spec: &MachineSpec,
    kernel: &Kernel,
    qemu: &Qemu,
    arguments: &[String],
    accelerator: Accelerator,
    words: &str,
) -> Record {
    Record {
        schema: "kbp.machine/1",
        clock: spec.clock,
        accelerator,
        kernel: kernel.abi.clone(),
        kernel_package: kernel.version.clone(),
        cpus: spec.cpus,
        memory_mib: spec.memory_mib,
        qemu: qemu.version.clone(),
        qemu_command: std::iter::once("qemu-system-x86_64".to_string())
            .chain(arguments.iter().cloned())
            .collect(),
        cmdline: words.into(),
        clocksource: String::new(),
        turns: None,
        unix_time: unix_time(),
        verdict: None,
    }
}
