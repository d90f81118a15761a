// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kernel modules as files: their names, what they depend on, and an order in which they load.
//!
//! A module says in its `.modinfo` section what it needs (`depends=a,b`) and what asks for it (`alias=...`). The packages
//! carry no `modules.dep` (depmod makes it at installation), so this is read from the modules themselves.
//!
//! Not here: putting them into an image ([`crate::initramfs`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{Error, IoContext, Result};

/// A stock module, uncompressed.
#[derive(Debug, Clone)]
pub(crate) struct Module {
    pub name: String,
    /// Its path below the modules' folder, without a suffix of compression.
    pub path: PathBuf,
    pub bytes: Vec<u8>,
    pub depends: Vec<String>,
    pub aliases: Vec<String>,
}

/// The modules of a kernel, by name.
#[derive(Debug)]
pub(crate) struct ModuleTree {
    root: PathBuf,
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
}

impl ModuleTree {
    /// Lists the modules below `lib/modules/ABI`.
    pub(crate) fn read(root: &Path) -> Result<ModuleTree> {
        let mut files = BTreeMap::new();
        collect(&root.join("kernel"), &mut files)?;
        let list = root.join("modules.builtin");
        let text = fs::read_to_string(&list).at("read", &list)?;
        let builtin = text
            .lines()
            .filter_map(|line| module_name(Path::new(line)))
            .collect();
        Ok(ModuleTree {
            root: root.to_path_buf(),
            files,
            builtin,
        })
    }

    /// Whether the kernel knows a module of this name at all, as a file or built in.
    pub(crate) fn knows(&self, name: &str) -> bool {
        let name = name.replace('-', "_");
        self.files.contains_key(&name) || self.builtin.contains(&name)
    }

    /// The modules and all that they need, each after those that it needs; built-in ones are left out.
    ///
    /// # Errors
    /// [`Error::Config`] when a module is not there.
    pub(crate) fn closure(&self, names: &[&str]) -> Result<Vec<Module>> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for name in names {
            self.visit(&name.replace('-', "_"), &mut seen, &mut order)?;
        }
        Ok(order)
    }

    fn visit(
        &self,
        name: &str,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<Module>,
    ) -> Result<()> {
        if self.builtin.contains(name) || !seen.insert(name.to_string()) {
            return Ok(());
        }
        let file = self.files.get(name).ok_or_else(|| Error::Config {
            path: self.root.clone(),
            detail: format!("this kernel has no module '{name}'"),
        })?;
        let module = self.load(name, file)?;
        for dependency in &module.depends {
            self.visit(dependency, seen, order)?;
        }
        order.push(module);
        Ok(())
    }

    fn load(&self, name: &str, file: &Path) -> Result<Module> {
        let raw = fs::read(file).at("read", file)?;
        let compressed = file.extension().is_some_and(|ext| ext == "xz");
        let bytes = if compressed {
            unxz(&raw).at("uncompress", file)?
        } else {
            raw
        };
        let relative = file.strip_prefix(&self.root).unwrap_or(file);
        let path = if compressed {
            relative.with_extension("")
        } else {
            relative.to_path_buf()
        };
        let info = modinfo(&bytes).unwrap_or_default();
        let of = |key: &str| {
            info.iter()
                .filter(|(name, _)| name == key)
                .map(|(_, value)| value.clone())
                .collect::<Vec<_>>()
        };
        let depends = of("depends")
            .iter()
            .flat_map(|list| list.split(','))
            .filter(|name| !name.is_empty())
            .map(|name| name.replace('-', "_"))
            .collect();
        Ok(Module {
            name: name.into(),
            path,
            bytes,
            depends,
            aliases: of("alias"),
        })
    }
}

/// All that a module needs, not only directly, in the order of depmod(8): each before those that it needs itself, so
/// that modprobe(8) loads them from the last to the first.
pub(crate) fn needed_by<'a>(
    module: &Module,
    all: &BTreeMap<&'a str, &'a Module>,
) -> Vec<&'a Module> {
    let mut order: Vec<&'a Module> = Vec::new();
    let mut waiting: Vec<&str> = module.depends.iter().map(String::as_str).collect();
    while let Some(name) = waiting.pop() {
        // Built into the kernel, if it is not here.
        let Some(needed) = all.get(name) else {
            continue;
        };
        // One that is needed in two places has to be loaded before both: it goes to the end.
        order.retain(|other| other.name != needed.name);
        order.push(needed);
        waiting.extend(needed.depends.iter().map(String::as_str));
    }
    order
}

fn collect(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).at("read", dir)? {
        let path = entry.at("read", dir)?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// The kernel's name for a module file: `virtio-net.ko.xz` is `virtio_net`.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let stem = file
        .strip_suffix(".ko")
        .or_else(|| file.strip_suffix(".ko.xz"))?;
    Some(stem.replace('-', "_"))
}

fn unxz(raw: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    liblzma::read::XzDecoder::new(raw).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The `key=value` strings of an ELF file's `.modinfo` section; `None` when this is no 64-bit little-endian ELF file.
fn modinfo(elf: &[u8]) -> Option<Vec<(String, String)>> {
    let u16_at =
        |at: usize| Some(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?) as usize);
    let u32_at =
        |at: usize| Some(u32::from_le_bytes(elf.get(at..at + 4)?.try_into().ok()?) as usize);
    let u64_at =
        |at: usize| usize::try_from(u64::from_le_bytes(elf.get(at..at + 8)?.try_into().ok()?)).ok();
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count, names) = (u64_at(0x28)?, u16_at(0x3a)?, u16_at(0x3c)?, u16_at(0x3e)?);
    let header = |index: usize| table.checked_add(index.checked_mul(size)?);
    let contents = |at: usize| {
        let (start, length) = (
            u64_at(at.checked_add(0x18)?)?,
            u64_at(at.checked_add(0x20)?)?,
        );
        elf.get(start..start.checked_add(length)?)
    };
    let name_table = contents(header(names)?)?;
    let section = (0..count).filter_map(header).find(|&at| {
        u32_at(at)
            .and_then(|name| name_table.get(name..))
            .is_some_and(|name| name.starts_with(b".modinfo\0"))
    })?;
    let strings = contents(section)?.split(|byte| *byte == 0);
    let pair = |text: &[u8]| {
        let text = std::str::from_utf8(text).ok()?;
        text.split_once('=')
            .map(|(key, value)| (key.to_string(), value.to_string()))
    };
    Some(strings.filter_map(pair).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A minimal ELF file with a `.modinfo` section.
    fn elf_with(info: &[u8]) -> Vec<u8> {
        let names = b"\0.modinfo\0.shstrtab\0";
        let mut elf = vec![0u8; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let info_at = elf.len();
        elf.extend(info);
        let names_at = elf.len();
        elf.extend(names);
        let table = elf.len();
        for (name, start, length) in [
            (0usize, 0, 0),
            (1, info_at, info.len()),
            (10, names_at, names.len()),
        ] {
            let mut header = [0u8; 64];
            header[..4].copy_from_slice(&(name as u32).to_le_bytes());
            header[0x18..0x20].copy_from_slice(&(start as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(length as u64).to_le_bytes());
            elf.extend(header);
        }
        elf[0x28..0x30].copy_from_slice(&(table as u64).to_le_bytes());
        elf[0x3a..0x3c].copy_from_slice(&64u16.to_le_bytes());
        elf[0x3c..0x3e].copy_from_slice(&3u16.to_le_bytes());
        elf[0x3e..0x40].copy_from_slice(&2u16.to_le_bytes());
        elf
    }

    fn tree_with(modules: &[(&str, &str)], builtin: &str) -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("kernel/drivers");
        fs::create_dir_all(&dir).unwrap();
        for (file, depends) in modules {
            fs::write(
                dir.join(file),
                elf_with(format!("depends={depends}\0alias=pci:x\0").as_bytes()),
            )
            .unwrap();
        }
        fs::write(temp.path().join("modules.builtin"), builtin).unwrap();
        temp
    }

    #[test]
    fn modules_load_after_what_they_need() {
        let temp = tree_with(
            &[
                ("virtio-net.ko", "failover,virtio"),
                ("failover.ko", ""),
                ("virtio_ring.ko", ""),
            ],
            "kernel/drivers/virtio.ko\n",
        );
        let tree = ModuleTree::read(temp.path()).unwrap();
        let order = tree.closure(&["virtio_net", "failover", "virtio"]).unwrap();
        let names: Vec<_> = order.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["failover", "virtio_net"]);
        assert_eq!(order[1].aliases, ["pci:x"]);
        assert!(tree.knows("virtio") && !tree.knows("e1000e"));
        assert!(tree
            .closure(&["e1000e"])
            .unwrap_err()
            .to_string()
            .contains("'e1000e'"));
    }

    #[test]
    fn a_circle_of_modules_ends() {
        let temp = tree_with(&[("a.ko", "b"), ("b.ko", "a")], "");
        let tree = ModuleTree::read(temp.path()).unwrap();
        assert_eq!(tree.closure(&["a"]).unwrap().len(), 2);
    }

    #[test]
    fn broken_files_have_no_modinfo() {
        let good = elf_with(b"depends=x\0");
        assert!(modinfo(&good).is_some());
        for length in 0..good.len() {
            // Cut anywhere, the reader must not run off the end.
            let _ = modinfo(&good[..length]);
        }
        assert!(modinfo(b"not an ELF file").is_none());
    }

    #[test]
    fn what_a_module_needs_is_loaded_from_the_last_to_the_first() {
        let module = |name: &str, depends: &[&str]| Module {
            name: name.into(),
            path: format!("{name}.ko").into(),
            bytes: Vec::new(),
            depends: depends.iter().map(ToString::to_string).collect(),
            aliases: Vec::new(),
        };
        let modules = [
            module("br_netfilter", &["bridge"]),
            module("bridge", &["llc", "stp", "built_in"]),
            module("stp", &["llc"]),
            module("llc", &[]),
        ];
        let all = modules
            .iter()
            .map(|module| (module.name.as_str(), module))
            .collect();
        let names = |of: &Module| -> Vec<String> {
            let needed = needed_by(of, &all);
            needed.iter().map(|module| module.name.clone()).collect()
        };
        assert_eq!(names(&modules[0]), ["bridge", "stp", "llc"]);
        assert_eq!(names(&modules[1]), ["stp", "llc"]);
        assert_eq!(names(&modules[3]), [""; 0]);
    }
}
