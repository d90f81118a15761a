// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a module file (`kbp.ko`) says about itself.
//!
//! Judging it against the running kernel is [`crate::check`]; loading it is [`crate::module`].

use std::fs;
use std::path::Path;

use object::{Object, ObjectSection, ObjectSymbol};
use serde::Serialize;

use crate::host::HostError;

/// Key of `.modinfo` under which the module names the functions that it replaces, one an entry.
const REPLACES_KEY: &str = "kbp_replaces";
/// What a signed module file ends with.
const SIGNATURE_END: &[u8] = b"~Module signature appended~\n";

/// A symbol of the kernel that the module needs although it is not exported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NeededSymbol {
    /// Where it is: `vmlinux` or the name of a module.
    pub object: String,
    /// Its name.
    pub name: String,
    /// Which one of several of that name, from 1; 0 says that there has to be only one.
    pub position: u32,
}

/// A module file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModuleFile {
    /// The kernel release that it was built for.
    pub release: Option<String>,
    /// The functions that it replaces, when the file names them.
    pub replaces: Vec<String>,
    /// The symbols that live patching resolves for it.
    pub needs: Vec<NeededSymbol>,
    /// Whether a signature is appended.
    pub signed: bool,
}

fn malformed(path: &Path, what: String) -> HostError {
    HostError::Parse {
        path: path.into(),
        what,
    }
}

/// Read a module file. Compressed ones are refused: they have to be unpacked first.
pub fn read(path: &Path) -> Result<ModuleFile, HostError> {
    let data = fs::read(path).map_err(|source| HostError::Read {
        path: path.into(),
        source,
    })?;
    if !data.starts_with(b"\x7fELF") {
        return Err(malformed(
            path,
            "it is not an uncompressed module (ELF) file".into(),
        ));
    }
    parse(&data).map_err(|error| malformed(path, error.to_string()))
}

fn parse(data: &[u8]) -> Result<ModuleFile, object::Error> {
    let elf = object::File::parse(data)?;
    let modinfo = match elf.section_by_name(".modinfo") {
        Some(section) => section.data()?,
        None => &[],
    };
    let entries = modinfo_entries(modinfo);
    let values = |key: &str| {
        entries
            .iter()
            .filter(|(k, _)| k == key)
            .map(|(_, v)| v.clone())
            .collect::<Vec<_>>()
    };
    let vermagic = values("vermagic")
        .first()
        .and_then(|text| text.split(' ').next().map(str::to_owned));
    let needs = elf
        .symbols()
        .filter_map(|symbol| needed_symbol(symbol.name().ok()?))
        .collect();
    Ok(ModuleFile {
        release: vermagic,
        replaces: values(REPLACES_KEY),
        needs,
        signed: data.ends_with(SIGNATURE_END),
    })
}

/// `key=value` entries with a zero byte after each.
fn modinfo_entries(data: &[u8]) -> Vec<(String, String)> {
    let entry = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.split_once('=')
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
    };
    data.split(|&b| b == 0).filter_map(entry).collect()
}

/// `.klp.sym.OBJECT.NAME,POSITION`, as Documentation/livepatch/module-elf-format.rst has it.
fn needed_symbol(symbol: &str) -> Option<NeededSymbol> {
    let (object, rest) = symbol.strip_prefix(".klp.sym.")?.split_once('.')?;
    let (name, position) = rest.rsplit_once(',')?;
    Some(NeededSymbol {
        object: object.into(),
        name: name.into(),
        position: position.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn livepatch_symbols() {
        let symbol = needed_symbol(".klp.sym.vmlinux.rcu_softirq_qs,0").unwrap();
        assert_eq!(
            (
                symbol.object.as_str(),
                symbol.name.as_str(),
                symbol.position
            ),
            ("vmlinux", "rcu_softirq_qs", 0)
        );
        let suffixed = needed_symbol(".klp.sym.vmlinux.__napi_poll.constprop.0,2").unwrap();
        assert_eq!(
            (suffixed.name.as_str(), suffixed.position),
            ("__napi_poll.constprop.0", 2)
        );
        assert_eq!(needed_symbol("printk"), None);
    }

    #[test]
    fn modinfo() {
        let entries =
            modinfo_entries(b"license=GPL\0\0kbp_replaces=__napi_schedule\0vermagic=6.1.0 SMP\0");
        assert_eq!(entries.len(), 3);
        assert_eq!(
            entries[1],
            ("kbp_replaces".to_owned(), "__napi_schedule".to_owned())
        );
    }
}
