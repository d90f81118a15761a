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
use crate::boots::Stage;
use crate::cache::{write_whole, Cache, Clean};
use crate::clock::{check_ms, pit_count, Clock, LONG_TURNS};
use crate::config::{find_lab_dir, Config};
use crate::error::{Error, IoContext, Result};
use crate::initramfs::{GuestFiles, Parts};
use crate::kernel::Kernel;
use crate::packages::PackageSet;
use crate::payload::{quote, Payload};
use crate::qemu::{cmdline, Accelerator, Cards, Hardware, Nics, Qemu};
use crate::root;
use crate::run::{guest_script, kvm_works, unix_time, Job, MachineSpec, Outcome, Record, BOOT};
use crate::snapshot::Snapshot;
use crate::wire::Wire;
use crate::{kbuild, nested, parallel, source};

/// Longest wait for a whole system to boot from a disk: emulated, on a busy host, it takes some minutes.
const BOOT_OF_DISK: Duration = Duration::from_secs(600);

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
            root: None,
            then: Vec::new(),
            nested: None,
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

    /// The cache.
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// All kernels and their state.
    #[must_use]
    pub fn kernels(&self) -> Vec<KernelState> {
        let state = |(id, name): (&String, &String)| {
            let kernel = Kernel::cached(&self.cache, id);
            let made = |compiler| {
                root::root_path(&self.cache, compiler)
                    .join(".made")
                    .exists()
            };
            let toolchain = match self.config.compiler.get(name) {
                _ if root::host_has(name) => "host",
                Some(compiler) if made(compiler) => "root",
                _ => "root, not made yet",
            };
            KernelState {
                id: id.clone(),
                abi: kernel.as_ref().map(|kernel| kernel.abi.clone()),
                version: kernel.as_ref().map(|kernel| kernel.version.clone()),
                image: kernel.as_ref().map(|kernel| kernel.image.clone()),
                compiler: name.clone(),
                toolchain: toolchain.into(),
                cached: kernel.is_some(),
            }
        };
        let stock = self.config.kernel.iter().map(|(id, k)| (id, &k.compiler));
        let built = self.config.source.iter().map(|(id, k)| (id, &k.compiler));
        stock.chain(built).map(state).collect()
    }

    /// Makes sure that a kernel is in the cache; with `refresh`, that it is the newest one.
    ///
    /// # Errors
    /// Those of apt and of the disk.
    pub fn fetch(&self, id: &str, refresh: bool) -> Result<Kernel> {
        if let Some(of) = self.config.source.get(id) {
            return source::fetch(&self.cache, &self.config, &self.dir, id, of, refresh);
        }
        let config = self.config.kernel(id)?;
        let _lock = self.cache.lock_prepare()?;
        Kernel::fetch(&self.cache, id, config, refresh)
    }

    /// A kernel for a machine. The caller holds the lock, so one that is built from source has to be there.
    fn kernel(&self, id: &str) -> Result<Kernel> {
        if self.config.source.contains_key(id) {
            return Kernel::cached(&self.cache, id).ok_or_else(|| {
                Error::Argument(format!(
                    "the kernel {id} is built from source, which takes long; run `kbp lab fetch {id}` first"
                ))
            });
        }
        Kernel::fetch(&self.cache, id, self.config.kernel(id)?, false)
    }

    /// Makes sure that QEMU, the guest's packages and a kernel's compiler are in the cache.
    ///
    /// # Errors
    /// Those of apt and of the disk.
    pub fn fetch_tools(&self, id: &str, refresh: bool) -> Result<()> {
        let (compiler, _) = self.config.compiler_and_nic(id)?;
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
        root::Toolchain::get(&self.cache, &self.config, compiler).map(|_| ())
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
        mut sink: impl FnMut() -> Box<dyn Write + Send>,
    ) -> Result<Outcome> {
        check(spec)?;
        let _use = self.cache.lock_use()?;
        match &spec.root {
            Some(name) => self.run_boots(spec, name, &mut sink),
            None => self.boot(spec, None, &mut sink),
        }
    }

    /// Starts one machine and runs the job in it; with a stage, it boots from that disk.
    pub(crate) fn boot(
        &self,
        spec: &MachineSpec,
        stage: Option<&Stage>,
        sink: &mut dyn FnMut() -> Box<dyn Write + Send>,
    ) -> Result<Outcome> {
        let script = match &spec.script {
            Some(script) => guest_script(&self.dir, script)?,
            None => String::new(),
        };
        let (_, nic) = self.config.compiler_and_nic(&spec.kernel)?;
        let cards = spec.nics.resolve(nic)?;
        check_cards(spec.clock, &cards)?;
        let prepare = self.cache.lock_prepare()?;
        let kernel = self.kernel(&spec.kernel)?;
        let stock = Qemu::fetch(&self.cache, false)?;
        let qemu = match spec.clock {
            Clock::Parallel => parallel::program(&self.cache, &stock)?,
            Clock::Virtual | Clock::Real => stock,
        };
        let payload = self.payload(spec, &kernel, &qemu, &script, stage)?;
        let driver = (cards.count > 0 || spec.wire.is_some()).then_some(cards.module);
        let guest = &self.config.guest;
        let image = self.image(&Parts::fetch(&self.cache, guest, &kernel, driver)?)?;
        let disk_image = stage
            .map(|stage| self.image(&Parts::for_disk(&self.cache, stage.root, &kernel)?))
            .transpose()?;
        let words = cmdline(spec.clock, &spec.append);
        let mut hardware = Hardware {
            clock: spec.clock,
            accelerator: Accelerator::Kvm,
            cpus: spec.cpus,
            memory_mib: spec.memory_mib,
            nics: &cards,
            wire: false,
            disk: None,
            kernel_image: &kernel.image,
            initramfs: &image,
            cmdline: &words,
        };
        let kvm = self.accelerate(&mut hardware, &qemu)?;
        // A trial boot has neither.
        hardware.wire = spec.wire.is_some();
        hardware.disk = stage.map(|stage| stage.disk);
        hardware.initramfs = disk_image.as_ref().unwrap_or(&image);
        let mut arguments = hardware.arguments();
        let snapshot = self.snapshot(spec, &hardware, kvm, &arguments, &qemu)?;
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
            boot_limit: stage.map_or(BOOT, |_| BOOT_OF_DISK),
            goes_down: stage.is_some_and(Stage::is_followed),
        }
        .run(sink)
    }

    /// The snapshot that a machine goes on from, or none.
    fn snapshot(
        &self,
        spec: &MachineSpec,
        hardware: &Hardware,
        kvm: bool,
        arguments: &[String],
        qemu: &Qemu,
    ) -> Result<Option<Snapshot>> {
        // With KVM a boot is quick, and a snapshot would carry the host's processor in it. A disk would have to go back
        // with the rest of the machine.
        if spec.cold || kvm || hardware.disk.is_some() {
            return Ok(None);
        }
        let files = [hardware.kernel_image, hardware.initramfs];
        Snapshot::of(&self.cache, arguments, &qemu.version, &files).map(Some)
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

    /// A first root, in the cache under a name that changes with what it is made of.
    fn image(&self, parts: &Parts) -> Result<PathBuf> {
        let name = format!("{}-{}.cpio", parts.abi(), parts.identity());
        let path = self.cache.dir("images")?.join(name);
        if !path.exists() {
            let bytes = parts.build()?;
            self.cache.check_space(bytes.len() as u64)?;
            write_whole(&path, &bytes)?;
        }
        Ok(path)
    }

    /// The files of a machine inside the guest.
    fn nested(&self, spec: &MachineSpec, id: &str, qemu: &Qemu) -> Result<GuestFiles> {
        let kernel = self.kernel(id)?;
        let parts = Parts::for_nested(&self.cache, &self.config.guest, &kernel)?;
        let mut modules = Vec::new();
        for source in &spec.modules {
            let (cache, config) = (&self.cache, &self.config);
            modules.extend(kbuild::build(cache, config, &kernel, source, &[])?);
        }
        nested::files(
            qemu,
            &nested::Inner {
                kernel_image: &kernel.image,
                initramfs: &self.image(&parts)?,
                modules: &modules,
            },
        )
    }

    fn payload(
        &self,
        spec: &MachineSpec,
        kernel: &Kernel,
        qemu: &Qemu,
        script: &str,
        stage: Option<&Stage>,
    ) -> Result<Vec<u8>> {
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
        if let Some(id) = &spec.nested {
            payload.add_nested(self.nested(spec, id, qemu)?);
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
        match stage {
            Some(_) => payload.add_files_alone(&spec.files)?,
            None => payload.add_files(&spec.files)?,
        }
        let args: Vec<String> = spec.args.iter().map(|word| quote(word)).collect();
        let timer = pit_count(spec.clock, spec.cpus);
        let mut settings = BTreeMap::from([
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
            ("JOB_TURNS_MS", check_ms(spec.clock, spec.cpus).to_string()),
            (
                "JOB_PIT_COUNT",
                timer.map_or(String::new(), |count| count.to_string()),
            ),
            ("LAB_TURNS_SHORT", turns(timer)),
            ("LAB_TURNS_CHOSEN", turns(timer)),
            ("LAB_TURNS_LONG", turns(timer.map(|_| LONG_TURNS))),
            ("JOB_EPOCH", unix_time().to_string()),
            ("JOB_SEED", seed()?),
        ]);
        settings.extend(stage.map(Stage::settings).unwrap_or_default());
        payload.add_settings(&settings);
        payload.into_tar()
    }
}

/// The guest's command for turns of such a count; empty where there are none.
fn turns(count: Option<u16>) -> String {
    count.map_or(String::new(), |count| format!("kbp-lab-guest pit {count}"))
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
    if spec.wire.is_some() && spec.clock.counts_instructions() {
        return wrong(
            "--wire: the tester on the host has the host's time, so the guest needs --clock real"
                .into(),
        );
    }
    check_root(spec)?;
    for file in &spec.files {
        fs::metadata(&file.host).at("find the file", &file.host)?;
    }
    Ok(())
}

/// A virtio card sends from QEMU's main thread, behind whose back the time of a machine with no CPU at work goes on.
fn check_cards(clock: Clock, cards: &Cards) -> Result<()> {
    if clock == Clock::Parallel && cards.count > 0 && cards.module == "virtio_net" {
        return Err(Error::Argument(
            "the parallel clock has no cards of virtio, whose packets would leave at no certain time; \
             ask for others, --nics 2:e1000e, or for another clock"
                .into(),
        ));
    }
    Ok(())
}

/// Whether what is asked for goes with a system of its own on a disk.
fn check_root(spec: &MachineSpec) -> Result<()> {
    let wrong = |text: &str| Err(Error::Argument(text.into()));
    if spec.root.is_none() {
        if !spec.then.is_empty() {
            return wrong(
                "--then: only a machine with a disk boots again; name its system with --root",
            );
        }
        return Ok(());
    }
    if spec.clock.counts_instructions() {
        return wrong(
            "--root: a whole system takes too long on a clock that counts instructions; give --clock real",
        );
    }
    if spec.nested.is_some() {
        return wrong(
            "--nested: the machine inside comes with a guest that lives in memory, not with --root",
        );
    }
    if !spec.modules.is_empty() || !spec.packages.is_empty() {
        return wrong(
            "--root: the system has its own compiler and packages, so --module and --package say nothing; its packages \
             stand in lab/kernels.toml, and --file brings others for the script to install",
        );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_go_with_a_disk_is_refused() {
        let script = Some(PathBuf::from("a.sh"));
        let good = MachineSpec {
            script,
            root: Some("debian".into()),
            then: vec!["6.1".into()],
            clock: Clock::Real,
            ..MachineSpec::default()
        };
        check(&good).unwrap();
        let refused = |spec: MachineSpec, word: &str| {
            let error = check(&spec).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        let changed = |change: fn(&mut MachineSpec)| {
            let mut spec = good.clone();
            change(&mut spec);
            spec
        };
        refused(changed(|spec| spec.root = None), "--then");
        refused(changed(|spec| spec.clock = Clock::Virtual), "--clock real");
        refused(
            changed(|spec| spec.packages = vec!["x".into()]),
            "--package",
        );
        refused(changed(|spec| spec.nested = Some("6.1".into())), "--nested");
        refused(changed(|spec| spec.modules = vec!["x".into()]), "--module");
    }
}
