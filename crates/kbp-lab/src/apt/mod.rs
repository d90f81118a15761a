// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A private apt: its own sources, lists and (empty) set of installed packages, in the lab's cache.
//!
//! There is one state a Debian release, so that a choice made for bookworm never takes a library from trixie. apt
//! itself does the downloading: it knows proxies and passwords, and checks signatures and sums. Nothing is ever installed.
//!
//! Not here: unpacking ([`crate::packages`]) and what a kernel consists of ([`crate::kernel`]).

mod errors;
mod sources;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::cache::{remove, Cache};
use crate::error::{Error, IoContext, Result};
use sources::Mirrors;

/// Package lists younger than this are taken as they are.
const LISTS_FRESH: Duration = Duration::from_secs(3600);

/// One version of one package, as the archive's index describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Package {
    pub name: String,
    pub version: String,
    pub architecture: String,
    pub sha256: String,
    pub size: u64,
    /// The fields `Depends` and `Pre-Depends`, in one.
    #[serde(default)]
    pub depends: String,
}

impl Package {
    /// The name that apt gives the downloaded file.
    pub(crate) fn file_name(&self) -> String {
        format!(
            "{}_{}_{}.deb",
            self.name,
            self.version.replace(':', "%3a"),
            self.architecture
        )
    }
}

/// The private apt of one release.
#[derive(Debug)]
pub(crate) struct Apt {
    release: String,
    config: PathBuf,
    stamp: PathBuf,
    cache: Cache,
}

impl Apt {
    /// Makes the state of a release, from the sources of this machine, if it is not there yet.
    ///
    /// # Errors
    /// [`Error::NoMirror`], or [`Error::Io`] when the cache cannot be written.
    pub(crate) fn open(cache: &Cache, release: &str) -> Result<Apt> {
        let dir = cache.dir(&format!("apt/{release}"))?;
        for sub in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(dir.join(sub)).at("make the folder", dir.join(sub))?;
        }
        let mirrors = Mirrors::discover(Path::new("/etc/apt"))?;
        let write =
            |name: &str, text: &str| fs::write(dir.join(name), text).at("write", dir.join(name));
        write("lab.sources", &mirrors.stanzas(release))?;
        write("status", "")?;
        write("apt.conf", &config_text(&dir, &acquire_settings()))?;
        Ok(Apt {
            release: release.into(),
            config: dir.join("apt.conf"),
            stamp: dir.join("updated"),
            cache: cache.clone(),
        })
    }

    /// The deb822 file with this release's sources, for mmdebstrap.
    pub(crate) fn sources_file(&self) -> PathBuf {
        self.config.with_file_name("lab.sources")
    }

    /// The settings of apt's downloads that this machine has (proxies, time limits).
    pub(crate) fn acquire_settings(&self) -> String {
        acquire_settings()
    }

    /// Fetches the package lists, unless they are fresh.
    ///
    /// # Errors
    /// [`Error::AptUnreachable`] without network, [`Error::Apt`] otherwise.
    pub(crate) fn update(&self, force: bool) -> Result<()> {
        let age = fs::metadata(&self.stamp)
            .and_then(|meta| meta.modified())
            .ok();
        let fresh = age
            .and_then(|time| SystemTime::now().duration_since(time).ok())
            .is_some_and(|age| age < LISTS_FRESH);
        if fresh && !force {
            return Ok(());
        }
        eprintln!("lab: reading the package lists of {}", self.release);
        self.check_lists_space()?;
        let doing = format!("reading the package lists of {}", self.release);
        self.run("apt-get", &["-q", "update"], &doing)?;
        fs::write(&self.stamp, "").at("write", &self.stamp)
    }

    fn check_lists_space(&self) -> Result<()> {
        self.cache.check_space(200 << 20)
    }

    /// The newest version of a package in the given suites.
    ///
    /// # Errors
    /// [`Error::PackageNotFound`] when there is none.
    pub(crate) fn newest(&self, name: &str, suites: &[String]) -> Result<Package> {
        let missing = || Error::PackageNotFound {
            package: name.into(),
            suites: suites.join(", "),
        };
        let listing = self.run(
            "apt-cache",
            &["madison", name],
            &format!("looking for {name}"),
        )?;
        let version = newest_in(&listing, name, suites).ok_or_else(missing)?;
        self.show(&[format!("{name}={version}")])?
            .into_iter()
            .next()
            .ok_or_else(missing)
    }

    /// Those of the package names with this beginning that the given suites have.
    ///
    /// # Errors
    /// [`Error::Apt`].
    pub(crate) fn names(&self, beginning: &str, suites: &[String]) -> Result<BTreeSet<String>> {
        let doing = format!("looking for {beginning}*");
        let known = self.run("apt-cache", &["pkgnames", beginning], &doing)?;
        let mut arguments = vec!["madison"];
        arguments.extend(known.lines());
        if arguments.len() == 1 {
            return Ok(BTreeSet::new());
        }
        let listing = self.run("apt-cache", &arguments, &doing)?;
        Ok(all_in(&listing, suites))
    }

    /// The records of packages given as `name=version`.
    ///
    /// # Errors
    /// [`Error::PackageNotFound`] when one of them has no record.
    pub(crate) fn show(&self, wanted: &[String]) -> Result<Vec<Package>> {
        let mut arguments = vec!["show"];
        arguments.extend(wanted.iter().map(String::as_str));
        let text = self.run("apt-cache", &arguments, "reading package records")?;
        let mut found: HashMap<String, Package> = parse_records(&text)
            .into_iter()
            .map(|package| (format!("{}={}", package.name, package.version), package))
            .collect();
        wanted
            .iter()
            .map(|key| {
                found.remove(key).ok_or_else(|| Error::PackageNotFound {
                    package: key.clone(),
                    suites: self.release.clone(),
                })
            })
            .collect()
    }

    /// The packages and all that they depend on, for an empty machine.
    ///
    /// # Errors
    /// [`Error::PackageNotFound`] or [`Error::Apt`] when apt finds no solution.
    pub(crate) fn closure(&self, names: &[String], target: Option<&str>) -> Result<Vec<Package>> {
        let mut arguments = vec!["-q", "-s", "--no-install-recommends"];
        arguments.extend(target.iter().flat_map(|suite| ["-t", suite]));
        arguments.push("install");
        arguments.extend(names.iter().map(String::as_str));
        let text = self.run(
            "apt-get",
            &arguments,
            &format!("resolving {}", names.join(", ")),
        )?;
        self.show(&parse_simulation(&text))
    }

    /// Downloads what is not in the cache yet and checks every file's sum.
    ///
    /// Files come in a folder of their own and move when they are whole, so after a break only those that were not
    /// are downloaded again.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::AptUnreachable`], [`Error::Checksum`].
    pub(crate) fn download(&self, packages: &[Package]) -> Result<()> {
        let dir = self.cache.dir("downloads")?;
        let partial = self.cache.dir("downloads/partial")?;
        let is_missing = |package: &&Package| !dir.join(package.file_name()).exists();
        let keep = |package: &Package| {
            let (from, to) = (
                partial.join(package.file_name()),
                dir.join(package.file_name()),
            );
            fs::rename(&from, &to).at("rename to", &to)
        };
        for package in packages.iter().filter(is_missing) {
            let path = partial.join(package.file_name());
            if path.exists() && check_sum(&path, package).is_ok() {
                keep(package)?;
            }
        }
        let mut missing: Vec<&Package> = packages.iter().filter(is_missing).collect();
        // Image and headers of newer kernels share a package.
        missing.sort_by_key(|package| package.file_name());
        missing.dedup();
        let bytes: u64 = missing.iter().map(|package| package.size).sum();
        if !missing.is_empty() {
            self.cache.check_space(bytes + (64 << 20))?;
            self.fetch(&partial, &missing, bytes)?;
        }
        for package in missing {
            let (from, to) = (
                partial.join(package.file_name()),
                dir.join(package.file_name()),
            );
            check_sum(&from, package)?;
            fs::rename(&from, &to).at("rename to", &to)?;
        }
        packages
            .iter()
            .try_for_each(|package| check_sum(&dir.join(package.file_name()), package))
    }

    fn fetch(&self, dir: &Path, missing: &[&Package], bytes: u64) -> Result<()> {
        let doing = format!(
            "downloading {} packages, {} MiB",
            missing.len(),
            bytes.div_ceil(1 << 20)
        );
        let bar = progress_bar(bytes, &doing);
        let mut child = self
            .command("apt-get")
            .args([
                "-q",
                "-o",
                "APT::Status-Fd=1",
                "-o",
                "Dpkg::Use-Pty=0",
                "download",
            ])
            .args(
                missing
                    .iter()
                    .map(|package| format!("{}={}", package.name, package.version)),
            )
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| errors::spawn_failed("apt-get", &source))?;
        let mut stderr = child.stderr.take();
        let collector = std::thread::spawn(move || {
            let mut text = String::new();
            if let Some(pipe) = stderr.as_mut() {
                // What cannot be read as text is of no use in a message.
                let _ = pipe.read_to_string(&mut text);
            }
            text
        });
        if let Some(stdout) = child.stdout.take() {
            for line in BufReader::new(stdout)
                .lines()
                .map_while(std::result::Result::ok)
            {
                if let Some(percent) = status_percent(&line) {
                    bar.set_position((bytes as f64 * percent / 100.0) as u64);
                }
            }
        }
        let status = child.wait().at("wait for", Path::new("apt-get"))?;
        let text = collector.join().unwrap_or_default();
        bar.finish_and_clear();
        if status.success() {
            return Ok(());
        }
        Err(errors::of(&text, &doing, &self.release))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("APT_CONFIG", &self.config)
            .env("LC_ALL", "C.UTF-8");
        command
    }

    fn run(&self, program: &str, arguments: &[&str], doing: &str) -> Result<String> {
        let output = self
            .command(program)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .map_err(|source| errors::spawn_failed(program, &source))?;
        let text = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(errors::of(&text, doing, &self.release));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// apt.conf of a private state: nothing of the machine's but the settings of downloads.
fn config_text(dir: &Path, acquire: &str) -> String {
    let dir = dir.display();
    format!(
        "Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/dev/null\";\n\
         Dir::Etc::sourcelist \"{dir}/lab.sources\";\nDir::Etc::sourceparts \"/dev/null\";\n\
         Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
         Dir::State \"{dir}\";\nDir::State::lists \"{dir}/lists\";\nDir::State::status \"{dir}/status\";\n\
         Dir::Cache \"{dir}\";\nDir::Cache::archives \"{dir}/archives\";\n\
         APT::Architecture \"amd64\";\nAPT::Architectures {{ \"amd64\"; }};\nAPT::Sandbox::User \"root\";\n\
         APT::Update::Error-Mode \"any\";\nAcquire::Retries \"2\";\n{acquire}Acquire::Languages \"none\";\n"
    )
}

/// The `Acquire::` settings of this machine; none when apt-config cannot be asked.
fn acquire_settings() -> String {
    let Ok(output) = Command::new("apt-config")
        .arg("dump")
        .stdin(Stdio::null())
        .output()
    else {
        return String::new();
    };
    keep_acquire(&String::from_utf8_lossy(&output.stdout))
}

fn keep_acquire(dump: &str) -> String {
    let wanted = |line: &&str| {
        line.starts_with("Acquire::")
            && !line.starts_with("Acquire::Languages")
            && !line.starts_with("Acquire::IndexTargets")
            && !line.ends_with("\"\";")
    };
    dump.lines()
        .filter(wanted)
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Name, version and suite of each line of `apt-cache madison`'s table.
fn madison(listing: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    listing.lines().filter_map(|line| {
        let mut columns = line.split('|').map(str::trim);
        let (package, version, origin) = (columns.next()?, columns.next()?, columns.next()?);
        let suite = origin.split_whitespace().nth(1)?.split('/').next()?;
        Some((package, version, suite))
    })
}

/// The newest version in `apt-cache madison`'s table, which is sorted newest first.
fn newest_in(listing: &str, name: &str, suites: &[String]) -> Option<String> {
    madison(listing)
        .find(|(package, _, suite)| *package == name && suites.iter().any(|wanted| wanted == suite))
        .map(|(_, version, _)| version.to_string())
}

/// The packages in `apt-cache madison`'s table that are in one of the suites.
fn all_in(listing: &str, suites: &[String]) -> BTreeSet<String> {
    madison(listing)
        .filter(|(_, _, suite)| suites.iter().any(|wanted| wanted == suite))
        .map(|(package, _, _)| package.to_string())
        .collect()
}

/// `name=version` for each line `Inst name (version ...`.
fn parse_simulation(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| {
            let rest = line.strip_prefix("Inst ")?;
            let (name, rest) = rest.split_once(" (")?;
            Some(format!(
                "{}={}",
                name.split(':').next()?,
                rest.split_whitespace().next()?
            ))
        })
        .collect()
}

/// The records of `apt-cache show`; incomplete ones are left out.
fn parse_records(text: &str) -> Vec<Package> {
    text.split("\n\n").filter_map(parse_record).collect()
}

fn parse_record(text: &str) -> Option<Package> {
    let field = |wanted: &str| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name == wanted).then(|| value.trim().to_string())
        })
    };
    let depends = [field("Pre-Depends"), field("Depends")]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ");
    Some(Package {
        name: field("Package")?,
        version: field("Version")?,
        architecture: field("Architecture")?,
        sha256: field("SHA256")?,
        size: field("Size")?.parse().ok()?,
        depends,
    })
}

/// The percentage of a line `dlstatus:N:PERCENT:TEXT`.
fn status_percent(line: &str) -> Option<f64> {
    line.strip_prefix("dlstatus:")?
        .split(':')
        .nth(1)?
        .parse()
        .ok()
}

fn progress_bar(bytes: u64, doing: &str) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    if bar.is_hidden() {
        eprintln!("lab: {doing}");
    }
    let template = "lab: {msg} [{bar:30}] {bytes}/{total_bytes} {eta}";
    // The template is fixed text; if it were wrong, the default style does as well.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(doing.to_string());
    bar
}

/// A file whose sum is wrong goes, so that the next attempt starts from nothing.
fn check_sum(path: &Path, package: &Package) -> Result<()> {
    if sha256_of(path)? == package.sha256 {
        return Ok(());
    }
    remove(path)?;
    Err(Error::Checksum { path: path.into() })
}

fn sha256_of(path: &Path) -> Result<String> {
    use sha2::{Digest, Sha256};
    let mut file = fs::File::open(path).at("open", path)?;
    let mut hasher = Sha256::new();
    std::io::copy(&mut file, &mut hasher).at("read", path)?;
    Ok(hex(&hasher.finalize()))
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_the_wanted_suites_wins() {
        let listing = " linux-image-amd64 | 7.3.4-1 | http://m trixie-backports/main amd64 Packages\n \
                       linux-image-amd64 | 6.1.192-2 | http://m bookworm-security/main amd64 Packages\n \
                       linux-image-amd64 | 6.1.176-1 | http://m bookworm/main amd64 Packages\n";
        let suites = ["bookworm".to_string(), "bookworm-security".to_string()];
        assert_eq!(
            newest_in(listing, "linux-image-amd64", &suites).as_deref(),
            Some("6.1.192-2")
        );
        assert_eq!(newest_in(listing, "linux-image-rt-amd64", &suites), None);
        let all = |suite: &str| all_in(listing, &[suite.to_string()]);
        assert_eq!(
            all("bookworm"),
            BTreeSet::from(["linux-image-amd64".to_string()])
        );
        assert!(all("trixie").is_empty());
    }

    #[test]
    fn simulation_and_records() {
        let text = "NOTE: x\nInst libc6:amd64 (2.36-9 Debian:12 [amd64]) []\nConf libc6 (2.36-9)\n\
                    Inst qemu (1:10.0.2+ds-2 Debian [amd64])\n";
        assert_eq!(
            parse_simulation(text),
            ["libc6=2.36-9", "qemu=1:10.0.2+ds-2"]
        );
        let record = "Package: a\nVersion: 1:2\nArchitecture: all\nPre-Depends: p\nDepends: q (= 1)\nSize: 7\n\
                      SHA256: ff\nDescription: x\n long text\n\nPackage: broken\n";
        let packages = parse_records(record);
        assert_eq!(packages.len(), 1);
        assert_eq!(packages[0].depends, "p, q (= 1)");
        assert_eq!(packages[0].file_name(), "a_1%3a2_all.deb");
    }

    #[test]
    fn download_settings_of_the_machine_are_kept_and_no_others() {
        let dump =
            "Acquire \"\";\nAcquire::http::Proxy \"http://p\";\nAcquire::Languages:: \"none\";\n\
                    DPkg::Post-Invoke:: \"x\";\n";
        assert_eq!(keep_acquire(dump), "Acquire::http::Proxy \"http://p\";\n");
    }

    #[test]
    fn a_file_with_a_wrong_sum_is_refused_and_removed() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("x.deb");
        let mut package =
            parse_record("Package: x\nVersion: 1\nArchitecture: all\nSize: 3\nSHA256: 0\n")
                .unwrap();
        fs::write(&path, "abc").unwrap();
        assert!(matches!(
            check_sum(&path, &package),
            Err(Error::Checksum { .. })
        ));
        assert!(!path.exists());
        package.sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".into();
        fs::write(&path, "abc").unwrap();
        check_sum(&path, &package).unwrap();
    }

    #[test]
    fn progress_of_apt() {
        assert_eq!(
            status_percent("dlstatus:1:20.5:Retrieving file 1 of 2"),
            Some(20.5)
        );
        assert_eq!(status_percent("Get:1 x"), None);
    }
}
